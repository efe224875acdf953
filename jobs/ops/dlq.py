"""Dead letters: what is there, and putting letters back into the log once what failed is repaired.

A letter that is replayed leaves a mark in the dead-letter topic, in the same transaction as the record that goes back:
a record without a value under the key `replayed:PARTITION/OFFSET`. Both are there or neither, so a letter goes back
once whatever breaks, and retention deletes a letter before its mark. The record carries where it comes from in the
header `headrace-replayed-from`. Whoever reads the topic passes over records without a value.

What goes back is decided when it is read again: late, at its tenant's clock.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from kafka import KafkaProducer
from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError
from typing_extensions import Self

from jobs.wiring.kafka_log import CONNECT_MS, BeyondLogError, LogRecord, TopicReader, kafka_error
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.record_keys import partition_of, record_keys
from schemas.codec import decode_dead_letter, decode_events, shard_in
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position
from schemas.gen.headrace.v1 import events_pb2
from schemas.topics import shard_of

REPLAYED_FROM: Final = "headrace-replayed-from"
REPLAYED_TO: Final = "headrace-replayed-to"
_MARK: Final = b"replayed:"
_BATCH_LETTERS: Final = 100
"""Letters of a transaction."""
_LARGEST_RECORD: Final = 64 << 20
_SETTLE_SECONDS: Final = 60.0


class DlqError(RuntimeError):
    """Dead letters that can't be read or replayed; the message says why and what to do."""


class Place(NamedTuple):
    """Where a letter lies in the dead-letter topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read PARTITION:OFFSET. Raises DlqError.

        >>> Place.parse("0:17")
        Place(partition=0, offset=17)
        """
        partition, colon, offset = text.partition(":")
        if not (colon and all(part.isascii() and part.isdigit() and len(part) < 19 for part in (partition, offset))):
            raise DlqError(f"{text!r} is no place of a letter: write PARTITION:OFFSET, such as 0:17")
        return cls(int(partition), int(offset))


class Letter(NamedTuple):
    """A letter in the topic; `sent_us` is when it was put aside."""

    place: Place
    sent_us: int
    letter: DeadLetter


class Selection(NamedTuple):
    """Which letters: all that match; `places` empty: wherever they lie."""

    places: frozenset[Place] = frozenset()
    reasons: frozenset[DeadLetterReason] = frozenset()
    source: str | None = None
    since_us: int | None = None

    def holds(self, letter: Letter) -> bool:
        """Whether the letter is selected."""
        return (
            (not self.places or letter.place in self.places)
            and (not self.reasons or letter.letter.reason in self.reasons)
            and (self.source is None or letter.letter.source == self.source)
            and (self.since_us is None or letter.sent_us >= self.since_us)
        )


class Contents:
    """The letters of a selection: iterate `letters`; then `replayed` and `unreadable` are complete."""

    def __init__(self, reader: TopicReader, selection: Selection) -> None:
        self._reader = reader
        self._selection = selection
        self.replayed: set[Place] = set()
        self.unreadable: list[Place] = []

    def letters(self) -> Iterator[Letter]:
        """In order within a partition of the topic."""
        # Marks stand after their letters, so a later start misses none that matters.
        try:
            slices = self._reader.slices(from_us=self._selection.since_us)
        except BeyondLogError:
            return
        for record in self._reader.records(slices):
            place = Place(record.partition, record.offset)
            if record.value is None:
                self._note_mark(record)
                continue
            try:
                found = Letter(place, record.timestamp_us, decode_dead_letter(record.value))
            except ValueError:
                self.unreadable.append(place)
                continue
            if self._selection.holds(found):
                yield found

    def _note_mark(self, record: LogRecord) -> None:
        if record.key and record.key.startswith(_MARK):
            partition, _, offset = record.key.removeprefix(_MARK).partition(b"/")
            if partition.isdigit() and offset.isdigit():
                self.replayed.add(Place(int(partition), int(offset)))


def letter_at(reader: TopicReader, place: Place) -> Letter:
    """One letter. Raises DlqError where a record there is none, TopicMissingError where there is no record."""
    record = reader.record_at(*place)
    if record.value is None:
        raise DlqError(f"{reader.topic} {place}: a mark that a letter was replayed, not a letter")
    try:
        return Letter(place, record.timestamp_us, decode_dead_letter(record.value))
    except ValueError as error:
        raise DlqError(f"{reader.topic} {place}: {error}; is it a topic of dead letters?") from error


# --- what is there ------------------------------------------------------------------------------------------------


class Group(msgspec.Struct):
    """Letters of one reason and source. `first` and `last` are places, by the time they were put aside."""

    reason: str
    source: str
    letters: int
    replayed: int
    first_us: int
    last_us: int
    first: str
    last: str
    detail: str


def grouped(contents: Contents) -> list[Group]:
    """The letters by reason and source, the most first; `detail` is that of the last one."""
    found: dict[tuple[str, str], Group] = {}
    places: dict[tuple[str, str], set[Place]] = {}
    for place, sent_us, letter in contents.letters():
        key = (letter.reason.name.lower(), letter.source)
        group = found.get(key)
        if group is None:
            group = found[key] = Group(*key, 0, 0, sent_us, sent_us, str(place), str(place), letter.detail)
        group.letters += 1
        if sent_us < group.first_us:
            group.first_us, group.first = sent_us, str(place)
        if sent_us >= group.last_us:
            group.last_us, group.last, group.detail = sent_us, str(place), letter.detail
        places.setdefault(key, set()).add(place)
    for key, group in found.items():
        group.replayed = len(places[key] & contents.replayed)
    return sorted(found.values(), key=lambda group: (-group.letters, group.reason, group.source))


# --- putting back -------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A letter as the record that would go back. `shard` None: none can be told. `problem`: why it would fail again."""

    letter: Letter
    record: bytes
    shard: int | None
    problem: str


def prepare(letter: Letter, shard_count: int, payload: bytes | None = None) -> Prepared:
    """The record that puts a letter back: a whole record as it was, an event in a batch of its tenant's shard.

    `payload` takes the place of the letter's bytes.
    """
    found = letter.letter
    payload = found.payload if payload is None else payload
    record: bytes = payload
    if found.index < 0:
        shard = shard_in(payload)
        if shard is not None and shard >= shard_count:
            return Prepared(letter, payload, None, f"it is of shard {shard}, the log has {shard_count}")
    else:
        shard = _shard_of_event(payload, shard_count)
        record = events_pb2.EventFrames(shard=shard or 0, events=[payload]).SerializeToString()
    decoded = decode_events(record, Position(found.source, found.partition, found.offset))
    if decoded.dead:
        first = decoded.dead[0]
        return Prepared(letter, record, shard, f"{first.reason.name.lower()}: {first.detail}")
    if shard is None:
        return Prepared(letter, record, None, "its event has no tenant, so its shard can't be told")
    elsewhere = next(
        (it.tenant for it in decoded.events if it.tenant and shard_of(it.tenant, shard_count) != shard), None
    )
    if elsewhere is not None:
        return Prepared(letter, record, shard, f"wrong_shard: tenant {elsewhere!r} is not of shard {shard}")
    return Prepared(letter, record, shard, "" if decoded.events else "there is no event in it")


def _shard_of_event(payload: bytes, shard_count: int) -> int | None:
    try:
        tenant = events_pb2.Event.FromString(payload).tenant
    except (DecodeError, UnicodeDecodeError):
        return None
    return shard_of(tenant, shard_count) if tenant else None


class LetterReplay:
    """Sends letters back. One at a time has a dead-letter topic: a later one puts an end to an earlier.

    Use it in a `with` statement. Raises BrokerUnreachableError, and DlqError where another replay has begun.
    """

    def __init__(self, kafka: KafkaSettings, letters_topic: str, events: TopicReader, shard_count: int) -> None:
        self._kafka = kafka
        self._topic = letters_topic
        self._events = events
        self._keys = record_keys(shard_count)
        try:
            self._producer = KafkaProducer(
                **kafka.client_options(),
                bootstrap_timeout_ms=CONNECT_MS,
                transactional_id=f"headrace-dlq-replay.{letters_topic}",
                max_request_size=_LARGEST_RECORD,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
            self._producer.init_transactions()
        except KafkaError as error:
            raise self._said(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def wait_for_marks(self, letters: TopicReader) -> None:
        """Wait until all marks can be read: a transaction of the job that is open hides what stands after it.

        Raises DlqError where one stays open for a minute.
        """
        with TopicReader(self._kafka, self._topic, committed=False) as everything:
            ends = {one.partition: one.end for one in everything.slices()}
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while any(one.end < ends[one.partition] for one in letters.slices()):
            if time.monotonic() > give_up_at:
                raise DlqError(
                    f"{self._topic}: a transaction has been open for a minute, so it can't be told what was replayed; "
                    "try again once the job's checkpoints complete"
                )
            time.sleep(0.2)

    def send(self, prepared: Iterable[Prepared]) -> int:
        """Put letters back, each with its mark; returns how many. What was sent before an error stays sent."""
        sent = 0
        batch: list[Prepared] = []
        for one in prepared:
            batch.append(one)
            if len(batch) >= _BATCH_LETTERS:
                sent += self._send(batch)
                batch = []
        return sent + (self._send(batch) if batch else 0)

    def _send(self, batch: list[Prepared]) -> int:
        producer, to = self._producer, self._events.topic
        try:
            producer.begin_transaction()
            pending = []
            for one in batch:
                place = one.letter.place
                origin = f"dlq/{place.partition}/{place.offset}".encode()
                key, partition = self._target(one)
                pending.append(
                    producer.send(to, value=one.record, key=key, partition=partition, headers=[(REPLAYED_FROM, origin)])
                )
                mark = _MARK + f"{place.partition}/{place.offset}".encode()
                pending.append(producer.send(self._topic, key=mark, headers=[(REPLAYED_TO, to.encode())]))
            producer.flush()
            for future in pending:
                future.get(timeout=60)
            producer.commit_transaction()
        except KafkaError as error:
            if not _is_fenced(error):
                # An open transaction would hold up whoever reads what is committed.
                with suppress(KafkaError):
                    producer.abort_transaction()
            raise self._said(error) from error
        return len(batch)

    def _target(self, one: Prepared) -> tuple[bytes | None, int]:
        partitions = len(self._events.partitions)
        if one.shard is None:
            # Only where it is forced: back to where it was.
            return None, min(one.letter.letter.partition, partitions - 1)
        key = self._keys[one.shard]
        return key, partition_of(key, partitions)

    def _said(self, error: KafkaError) -> Exception:
        if _is_fenced(error):
            return DlqError(
                f"{self._topic}: another replay has begun and goes on; what this one had under way was not sent"
            )
        return kafka_error(error, self._kafka.servers, self._topic) or error


def _is_fenced(error: KafkaError) -> bool:
    """Whether a later producer has taken over; the client may wrap what the broker said."""
    return any(isinstance(it, ProducerFencedError | InvalidProducerEpochError) for it in (error, *error.args))


def check_sources(letters: Iterable[Letter], events_topic: str) -> None:
    """Raises DlqError where a letter comes from elsewhere than the topic it would be put back on."""
    for letter in letters:
        if letter.letter.source != events_topic:
            raise DlqError(
                f"letter {letter.place} comes from {letter.letter.source}, not from {events_topic}: name its topic "
                "with --events-topic, or leave it out with --source"
            )


def to_replay(
    letters: Collection[Letter], replayed: Collection[Place], *, again: bool
) -> tuple[list[Letter], list[Letter]]:
    """Which letters are to be put back, and which have been."""
    done = [] if again else [letter for letter in letters if letter.place in replayed]
    return [letter for letter in letters if again or letter.place not in replayed], done


def as_fields(prepared: Prepared) -> dict[str, Any]:
    """A letter that would be put back, for `--json`."""
    letter = prepared.letter.letter
    return {
        "place": str(prepared.letter.place),
        "source": letter.source,
        "partition": letter.partition,
        "offset": letter.offset,
        "index": letter.index,
        "reason": letter.reason.name.lower(),
        "shard": prepared.shard,
        "bytes": len(prepared.record),
        "problem": prepared.problem,
    }
