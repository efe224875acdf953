"""The codec of the log: what is written is read, and nothing that is read raises."""

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from schemas import events as ev
from schemas.codec import (
    MAX_NAME_BYTES,
    DecodedBatch,
    canonical_body,
    decode_dead_letter,
    decode_decisions,
    decode_events,
    encode_dead_letter,
    encode_decisions,
    encode_events,
    shard_in,
    wire_event,
)
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position
from schemas.decisions import Decision
from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent
from schemas.gen.headrace.v1.events_pb2 import EventFrames
from tests.generated_events import damaged, decisions, events

WHERE = Position("headrace.events", 3, 17)


def _frames_in(record: bytes) -> int:
    """How many events a record holds; one that is no batch counts as one thing that can't be read."""
    try:
        return len(EventFrames.FromString(record).events)
    except DecodeError:
        return 1


def _require_all_accounted_for(record: bytes, decoded: DecodedBatch) -> None:
    assert len(decoded.events) == len(decoded.indexes)
    assert len(decoded.events) + len(decoded.dead) == _frames_in(record)
    seen = [*decoded.indexes, *(letter.index for letter in decoded.dead)]
    assert len(set(seen)) == len(seen)
    assert all((letter.source, letter.partition, letter.offset) == WHERE for letter in decoded.dead)


@given(st.lists(events(), max_size=5), st.integers(0, 2**32 - 1))
def test_events_read_as_they_were_written(batch: list[ev.Event], shard: int) -> None:
    record = encode_events(shard, batch)
    decoded = decode_events(record, WHERE)
    assert (decoded.shard, decoded.events, list(decoded.indexes), decoded.dead) == (
        shard,
        batch,
        list(range(len(batch))),
        [],
    )
    assert shard_in(record) == shard


@given(events(with_provenance=True))
def test_provenance_is_read_when_asked_for_and_a_trace_always(event: ev.Event) -> None:
    record = encode_events(0, [event])
    (read,) = decode_events(record, WHERE, with_provenance=True).events
    assert read.provenance == (event.provenance or ev.Provenance())
    known = event.provenance
    trace = ev.Provenance(trace_id=known.trace_id, span_id=known.span_id) if known and known.trace_id else None
    assert decode_events(record, WHERE).events[0].provenance == trace


@given(events())
def test_the_canonical_body_is_that_of_what_was_read(event: ev.Event) -> None:
    (read,) = decode_events(encode_events(0, [event]), WHERE).events
    assert canonical_body(read) == canonical_body(event)


@given(st.lists(decisions, max_size=4), st.integers(0, 2**32 - 1))
def test_decisions_read_as_they_were_written(batch: list[Decision], shard: int) -> None:
    assert decode_decisions(encode_decisions(shard, batch)) == batch


@given(
    st.builds(
        DeadLetter,
        source=st.text(st.characters(codec="utf-8")),
        partition=st.integers(0, 2**31 - 1),
        offset=st.integers(0, 2**63 - 1),
        index=st.integers(-1, 2**31 - 1),
        reason=st.sampled_from(DeadLetterReason),
        detail=st.text(st.characters(codec="utf-8")),
        payload=st.binary(),
    )
)
def test_dead_letters_read_as_they_were_written(letter: DeadLetter) -> None:
    assert decode_dead_letter(encode_dead_letter(letter)) == letter


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_accounted_for(record: bytes) -> None:
    _require_all_accounted_for(record, decode_events(record, WHERE))
    shard_in(record)


@given(st.lists(events(with_provenance=True), min_size=1, max_size=4), st.data())
def test_a_damaged_batch_is_accounted_for(batch: list[ev.Event], data: st.DataObject) -> None:
    record = data.draw(damaged(encode_events(3, batch)))
    _require_all_accounted_for(record, decode_events(record, WHERE, with_provenance=data.draw(st.booleans())))


@given(st.lists(events() | st.binary(max_size=40), max_size=6))
def test_one_bad_event_never_takes_its_neighbours_along(batch: list[ev.Event | bytes]) -> None:
    frames = [item if isinstance(item, bytes) else wire_event(item).SerializeToString() for item in batch]
    decoded = decode_events(EventFrames(shard=3, events=frames).SerializeToString(), WHERE)

    alone = [decode_events(EventFrames(shard=3, events=[frame]).SerializeToString(), WHERE) for frame in frames]
    assert decoded.shard == 3
    assert decoded.events == [event for one in alone for event in one.events]
    assert [letter.reason for letter in decoded.dead] == [letter.reason for one in alone for letter in one.dead]
    assert all(frames[letter.index] == letter.payload for letter in decoded.dead)
    good = {index: item for index, item in enumerate(batch) if not isinstance(item, bytes)}
    read = dict(zip(decoded.indexes, decoded.events, strict=True))
    assert {index: read.get(index) for index in good} == good


@given(
    st.builds(str.__mul__, st.characters(codec="utf-8"), st.integers(1, 600)),
    st.sampled_from(("tenant", "request_id", "session")),
)
def test_a_name_is_too_long_by_its_bytes(name: str, field: str) -> None:
    wire = WireEvent(tenant="acme", request_id="r-1", event_time_us=1, schema_version=ev.SCHEMA_VERSION)
    wire.tokens_generated.count = 1
    setattr(wire, field, name)
    decoded = decode_events(EventFrames(events=[wire.SerializeToString()]).SerializeToString(), WHERE)
    if len(name.encode()) <= MAX_NAME_BYTES:
        assert getattr(decoded.events[0], field) == name
    else:
        assert decoded.dead[0].reason is DeadLetterReason.TOO_LARGE
        assert field in decoded.dead[0].detail


@pytest.mark.slow
def test_a_hundred_thousand_fuzzed_strings_are_accounted_for() -> None:
    rng = random.Random(20_250_101)
    good = [
        encode_events(
            3, [ev.Heartbeat(b"\1" * 16, "", "", 0, 1 + at, 0, at, "", "", "", "", "", None) for at in range(at)]
        )
        for at in range(1, 5)
    ]
    chunk = ev.TokensGenerated(b"\2" * 16, "acme", "r-1", 1, 5, 4, 3, "s", "m", "b", "r", "src", None, 16, 32, "text")
    good.append(encode_events(7, [chunk] * 3))
    for _ in range(100_000):
        if rng.random() < 0.4:
            record = rng.randbytes(rng.randrange(80))
        else:
            mutable = bytearray(rng.choice(good))
            for _ in range(rng.randrange(1, 5)):
                mutable[rng.randrange(len(mutable))] = rng.randrange(256)
            record = bytes(mutable[: rng.randrange(1, len(mutable) + 1)] if rng.random() < 0.3 else mutable)
        _require_all_accounted_for(record, decode_events(record, WHERE))
