"""Slices of a topic, read from outside the job: for replays, comparisons and looks at what was put aside.

A read has an end that is known when it starts: where the partitions ended then, or a time. It belongs to no consumer
group and commits nothing, so it disturbs no job. Records come in the order of their partition; between partitions there
is none, but the one in which they were sent. A shard should lie in one partition (see record_keys), and a decision
depends on its tenant's events alone; but the job takes the shard from a record's key, wherever it lies. Records of
transactions that were aborted, or are not committed yet, are left out.

Times select by the records' timestamps, which are set when a record is sent and may differ from the times of the events
in it.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    UnsupportedCodecError,
)
from typing_extensions import Self

from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.record_keys import partition_of, record_keys
from jobs.wiring.send_order import SendOrder
from schemas.topics import shard_of

CONNECT_MS: Final = 8_000
"""A broker that has not answered by then is not there."""

SILENCE_SECONDS: Final = 10.0
"""A read that comes no further for so long is given up."""

_POLL_MS: Final = 500
_FETCH_BYTES: Final = 8 << 20
"""Most bytes of records that wait in memory, besides one record however large."""

# Without a handler of its own the client's warnings would go to standard error, next to our own message.
logging.getLogger("kafka").addHandler(logging.NullHandler())


class KafkaLogError(RuntimeError):
    """A topic that can't be read or written; the message is one line and names the place and the remedy."""


class BrokerUnreachableError(KafkaLogError):
    """No broker answers, or not any more."""


class TopicMissingError(KafkaLogError):
    """The topic, the partition or the offset is not there."""


class LogTruncatedError(KafkaLogError):
    """Retention has deleted what was to be read."""


class BeyondLogError(KafkaLogError):
    """The time lies after the last record."""


class LogRecord(NamedTuple):
    """One record. `timestamp_us` is when it was sent, in whole milliseconds; `value` None: a tombstone."""

    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Slice(NamedTuple):
    """Part of a partition: offsets from `start` to before `end`. `oldest`: the first that retention has left."""

    partition: int
    start: int
    end: int
    oldest: int

    @property
    def reaches_back(self) -> bool:
        """Whether the partition still holds its very first record."""
        return self.oldest == 0


def partition_of_tenant(tenant: str, shard_count: int, partition_count: int) -> int:
    """The partition in which records of `tenant` belong: where Kafka's default partitioner puts its shard's key.

    >>> partition_of_tenant("acme", 32, 4), partition_of_tenant("tenant-7", 32, 4)
    (1, 2)
    """
    return partition_of(record_keys(shard_count)[shard_of(tenant, shard_count)], partition_count)


class TopicReader:
    """One topic, to be read in slices. Close it, or use it in a `with` statement.

    Raises BrokerUnreachableError within `CONNECT_MS`, TopicMissingError where there is no such topic, and
    KafkaLogError where the broker refuses us.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, *, committed: bool = True) -> None:
        """`committed` False: records of transactions that are open or were aborted count too."""
        self.topic = topic
        self.servers = kafka.servers
        with self._in_our_words():
            self._consumer = KafkaConsumer(
                **kafka.client_options(),
                bootstrap_timeout_ms=CONNECT_MS,
                isolation_level="read_committed" if committed else "read_uncommitted",
                # Retention may delete what is about to be read: then the read must fail, not jump over it.
                auto_offset_reset="none",
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                fetch_max_bytes=_FETCH_BYTES,
                metrics_enabled=False,
            )
            found = self._consumer.partitions_for_topic(topic)
        if not found:
            self.close()
            raise TopicMissingError(
                f"{topic}: there is no such topic at {self.servers}; check the name, or the servers (--servers)"
            )
        self.partitions: tuple[int, ...] = tuple(sorted(found))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._consumer.close()

    def partitions_of(self, tenants: Iterable[str], shard_count: int) -> tuple[int, ...]:
        """The partitions in which these tenants belong; all of them where none is named.

        That is where the job writes decisions. What others write may lie elsewhere.
        """
        named = {partition_of_tenant(tenant, shard_count, len(self.partitions)) for tenant in tenants}
        return tuple(sorted(named)) or self.partitions

    def slices(
        self, partitions: Iterable[int] | None = None, *, from_us: int | None = None, until_us: int | None = None
    ) -> list[Slice]:
        """What these partitions hold now, sent at `from_us` or later and before `until_us`.

        The first record at or after a time is found by the broker; one with an earlier timestamp that stands after it
        is in the slice. Raises BeyondLogError where `from_us` is after the last record of all of them.
        """
        topic_partitions = [TopicPartition(self.topic, number) for number in sorted(partitions or self.partitions)]
        with self._in_our_words():
            oldest = self._consumer.beginning_offsets(topic_partitions)
            ends = self._consumer.end_offsets(topic_partitions)
            starts = oldest if from_us is None else self._offsets_at(topic_partitions, from_us, ends)
            if until_us is not None:
                ends = self._offsets_at(topic_partitions, until_us, ends)
        found = [
            Slice(at.partition, min(max(starts[at], oldest[at]), ends[at]), ends[at], oldest[at])
            for at in topic_partitions
        ]
        # Where the end of a slice was cut too, its being empty says nothing about the log.
        if (
            from_us is not None
            and until_us is None
            and any(ends.values())
            and not any(one.start < one.end for one in found)
        ):
            raise BeyondLogError(f"{self.topic} at {self.servers}: no record was sent at or after that time")
        return found

    def _offsets_at(
        self, topic_partitions: list[TopicPartition], at_us: int, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        # Rounded up: a record's timestamp is in milliseconds.
        found = self._consumer.offsets_for_times(dict.fromkeys(topic_partitions, -(-at_us // 1000)))
        return {at: ends[at] if found.get(at) is None else min(found[at].offset, ends[at]) for at in topic_partitions}

    def records(self, slices: Iterable[Slice]) -> Iterator[LogRecord]:
        """The records of these slices: in order within a partition, partitions mixed as they arrive.

        At most a few megabytes are held. Raises LogTruncatedError where retention overtakes the read, and
        BrokerUnreachableError where it comes no further for `SILENCE_SECONDS`.
        """
        for records, _ in self._polls(slices, frozenset):
            yield from records

    def records_as_sent(self, slices: Iterable[Slice]) -> Iterator[LogRecord]:
        """The records of these slices in the order in which they were sent: see SendOrder. Raises as `records` does.

        A partition that is ahead waits for the others, so a few megabytes of each are held at most.
        """
        slices = tuple(slices)
        order: SendOrder[LogRecord] = SendOrder(one.partition for one in slices if one.start < one.end)
        for records, ended in self._polls(slices, lambda: order.ahead):
            order.take(records)
            for partition in ended:
                order.end(partition)
            yield from order.ready()

    def _polls(
        self, slices: Iterable[Slice], ahead: Callable[[], Collection[int]]
    ) -> Iterator[tuple[Iterator[LogRecord], list[int]]]:
        """What each poll brings, until all slices are read: records, and the partitions of which no more come.

        Partitions that are `ahead` are not asked. The records are to be taken before the next poll.
        """
        slices = tuple(slices)
        ends = {TopicPartition(self.topic, one.partition): one.end for one in slices if one.start < one.end}
        starts = {TopicPartition(self.topic, one.partition): one.start for one in slices}
        consumer = self._consumer
        with self._in_our_words():
            consumer.assign(list(ends))
            # Pauses outlive an assignment: an earlier read of this reader may have left some.
            consumer.resume(*ends)
            for at in ends:
                consumer.seek(at, starts[at])
        open_ends = dict(ends)
        moved_at = time.monotonic()
        while open_ends:
            waiting = ahead()
            with self._in_our_words():
                if paused := [at for at in open_ends if at.partition in waiting]:
                    consumer.pause(*paused)
                batches = consumer.poll(timeout_ms=_POLL_MS)
                if paused:
                    consumer.resume(*paused)
            yield (_record(it) for at, batch in batches.items() for it in batch if it.offset < ends[at]), []
            if batches:
                moved_at = time.monotonic()
            with self._in_our_words():
                # Aborted records and marks of transactions move the position without coming out.
                done = [at for at, end in open_ends.items() if consumer.position(at) >= end]
                if done:
                    consumer.pause(*done)
                    moved_at = time.monotonic()
            for at in done:
                del open_ends[at]
            if done:
                yield iter(()), [at.partition for at in done]
            if time.monotonic() - moved_at > SILENCE_SECONDS:
                raise BrokerUnreachableError(
                    f"{self.topic}: the brokers at {self.servers} have stopped answering; start again once they are up"
                )

    def record_at(self, partition: int, offset: int) -> LogRecord:
        """One record. Raises TopicMissingError where there is none, LogTruncatedError where there is none any more."""
        if partition not in self.partitions:
            raise TopicMissingError(f"{self.topic}: has no partition {partition}, only {len(self.partitions)} from 0")
        (whole,) = self.slices([partition])
        if offset < whole.oldest:
            raise self._truncated()
        if offset < whole.end:
            for record in self.records([whole._replace(start=offset, end=offset + 1)]):
                return record
        raise TopicMissingError(
            f"{self.topic}: partition {partition} has no record at {offset}, it ends at {whole.end}"
        )

    def _truncated(self) -> LogTruncatedError:
        return LogTruncatedError(
            f"{self.topic} at {self.servers}: retention has deleted what was to be read; start later, or keep the "
            "topic for longer (retention.ms)"
        )

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise self._truncated() from error
        except Exception as error:
            said = kafka_error(error, self.servers, self.topic)
            if said is None:
                raise
            raise said from error


def kafka_error(error: Exception, servers: str, topic: str) -> KafkaLogError | None:
    """What a client's error means for whoever asked; None: it is none of Kafka's."""
    if isinstance(error, UnsupportedCodecError):
        return KafkaLogError(f"{topic}: {error}; install the codec's package, or send with gzip or no compression")
    if isinstance(error, SaslAuthenticationFailedError):
        return KafkaLogError(f"{servers}: does not accept our name and password; check sasl_username and sasl_password")
    if isinstance(error, AuthorizationError):
        return KafkaLogError(f"{topic} at {servers}: we may not use it ({type(error).__name__}); ask for the right to")
    if isinstance(error, KafkaTimeoutError):
        return BrokerUnreachableError(
            f"{servers}: no broker answers; is it running, and are these its servers (--servers, or kafka in the "
            "settings)?"
        )
    if isinstance(error, KafkaError):
        return KafkaLogError(f"{topic} at {servers}: {' '.join(str(error).split()) or type(error).__name__}")
    return None


def _record(record: Any) -> LogRecord:
    headers = tuple((str(name), bytes(value or b"")) for name, value in record.headers or ())
    return LogRecord(record.partition, record.offset, record.timestamp * 1000, record.key, record.value, headers)
