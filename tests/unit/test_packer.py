"""Foreign records into packed records: nothing lost or twice, each shard in its order, letters with their place."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_dead_letter, decode_events
from schemas.dead_letters import DeadLetterReason, Position
from schemas.events import Event, HealthSample, Heartbeat
from schemas.topics import shard_of
from udfs.domain.ingest.record import MAX_RECORD_BYTES, Foreign, Origin, Reading, Refused, UnreadableRecordError
from udfs.operators.packer import (
    MAX_BATCH_EVENTS,
    MAX_LETTER_BYTES,
    NO_SHARD,
    OFFSET_DIGITS,
    PARTITION_DIGITS,
    PREFIX_BYTES,
    SHARD_DIGITS,
    SOURCE_DIGITS,
    ForeignRow,
    Packer,
    packed_heartbeats,
)

SHARDS = 32
NOWHERE = Position("", 0, 0)


def sample(tenant: str, number: int) -> HealthSample:
    return HealthSample(b"%d" % number, tenant, "", 0, 1 + number, 0, number, "", "", "b", "", "s", None)


def adapter(record: Foreign, origin: Origin) -> Reading:
    """A line of `tenant number`s; "!" is refused in part, "?" as a whole."""
    del origin
    if record.value.startswith(b"?"):
        raise UnreadableRecordError(DeadLetterReason.MISSING_FIELD, "a question")
    reading = Reading()
    for index, word in enumerate(record.value.decode().split()):
        if word == "!":
            reading.refused.append(Refused(DeadLetterReason.MALFORMED, "no word", index, b"!"))
        else:
            tenant, number = word.split(":")
            reading.events.append(sample(tenant, int(number)))
    return reading


def row(value: bytes | None, offset: int = 0, partition: int = 0) -> ForeignRow:
    return ForeignRow(value, 1, partition, offset, {})


def packer() -> Packer:
    return Packer("logs", adapter, Origin(source="s"), SHARDS, number=5)


def taken_apart(entry: bytes) -> tuple[int, int, int, int, bytes]:
    """Shard, source, partition, offset and the record, cut as SQL cuts them."""
    places = list(accumulate((0, SHARD_DIGITS, SOURCE_DIGITS, PARTITION_DIGITS, OFFSET_DIGITS)))
    assert places[-1] == PREFIX_BYTES
    shard, source, partition, offset = (int(entry[begin:end]) for begin, end in pairwise(places))
    return shard, source, partition, offset, entry[PREFIX_BYTES:]


def events_of(entries: list[bytes]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for entry in entries:
        shard, *_, record = taken_apart(entry)
        if shard != NO_SHARD:
            batch = decode_events(record, NOWHERE)
            assert batch.shard == shard
            assert not batch.dead
            found.setdefault(shard, []).extend(batch.events)
    return found


_words = st.one_of(
    st.just("!"), st.builds("{}:{}".format, st.sampled_from(["acme", "globex", "täglich", "x"]), st.integers(0, 10**6))
)


@given(st.lists(st.lists(_words, max_size=8).map(" ".join), max_size=30))
def test_every_part_of_every_record_comes_out_once_in_its_shard_and_in_order(values: list[str]) -> None:
    entries = packer().pack([row(value.encode(), offset) for offset, value in enumerate(values)])
    expected: dict[int, list[Event]] = {}
    refused: list[tuple[int, int]] = []
    for offset, value in enumerate(values):
        for index, word in enumerate(value.split()):
            if word == "!":
                refused.append((offset, index))
            else:
                tenant, number = word.split(":")
                expected.setdefault(shard_of(tenant, SHARDS), []).append(sample(tenant, int(number)))
    assert events_of(entries) == expected
    letters = [decode_dead_letter(entry[PREFIX_BYTES:]) for entry in entries if entry.startswith(b"%d" % NO_SHARD)]
    assert [(letter.offset, letter.index) for letter in letters] == refused


def test_a_letter_tells_the_place_of_its_record_and_has_its_bytes() -> None:
    (entry,) = packer().pack([row(b"? why", offset=41, partition=7)])
    assert taken_apart(entry)[:4] == (NO_SHARD, 5, 7, 41)
    letter = decode_dead_letter(entry[PREFIX_BYTES:])
    assert (letter.source, letter.partition, letter.offset, letter.index) == ("logs", 7, 41, -1)
    assert (letter.reason, letter.detail, letter.payload) == (DeadLetterReason.MISSING_FIELD, "a question", b"? why")


def test_of_a_large_record_the_beginning_is_put_aside() -> None:
    (entry,) = packer().pack([row(b"?" * (MAX_RECORD_BYTES + 1))])
    letter = decode_dead_letter(entry[PREFIX_BYTES:])
    assert letter.reason is DeadLetterReason.TOO_LARGE
    assert letter.payload == b"?" * MAX_LETTER_BYTES
    assert letter.detail.endswith(f"(the first {MAX_LETTER_BYTES:,} of {MAX_RECORD_BYTES + 1:,} bytes are kept here)")


def test_a_tombstone_is_an_empty_record() -> None:
    assert packer().pack([row(None)]) == []


def test_a_batch_is_closed_when_it_is_full_and_the_order_stays() -> None:
    value = " ".join(f"acme:{number}" for number in range(MAX_BATCH_EVENTS * 2 + 1)).encode()
    entries = packer().pack([row(value)])
    sizes = [len(decode_events(taken_apart(entry)[-1], NOWHERE).events) for entry in entries]
    assert sizes == [MAX_BATCH_EVENTS, MAX_BATCH_EVENTS, 1]
    (events,) = events_of(entries).values()
    assert [event.sequence for event in events] == list(range(MAX_BATCH_EVENTS * 2 + 1))


def test_a_heartbeat_goes_into_every_shard() -> None:
    found = events_of(packed_heartbeats(1_767_225_600_000_000, SHARDS))
    assert sorted(found) == list(range(SHARDS))
    for (event,) in found.values():
        assert isinstance(event, Heartbeat)
        assert (event.event_time_us, event.watermark_us) == (1_767_225_600_000_000, 0)
