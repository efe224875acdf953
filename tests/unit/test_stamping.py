"""What ingest adds to events: each once, each with a watermark, and heartbeats while producers are silent."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import encode_events
from schemas.dead_letters import Position
from schemas.events import Event, Heartbeat, Provenance, TokensGenerated
from schemas.identity import event_id
from udfs.domain.anomaly import Anomaly
from udfs.domain.events.duplicates import DuplicateBounds
from udfs.domain.ingest.stamping import Stamping, StampingFold, StampingPolicy
from udfs.domain.policy_log import PolicyLog, PolicyRecord
from udfs.domain.watermark import WatermarkPolicy
from udfs.operators.shard_fold import ShardFold
from udfs.operators.store import MemoryStore

START_US = 1_767_225_600_000_000
SECOND_US = 1_000_000
FOLD = StampingFold(StampingPolicy(watermark=WatermarkPolicy(confirmations=2, idle_after_us=5 * SECOND_US)))


def chunk(number: int, at_s: float, source: str = "gateway") -> TokensGenerated:
    at_us = START_US + round(at_s * SECOND_US)
    return TokensGenerated(
        event_id("s", number, source), "acme", "r", 0, at_us, 0, number, "", "", "", "", source, None, count=1
    )


def beat(at_s: float) -> Heartbeat:
    return Heartbeat(b"", "", "", 0, START_US + round(at_s * SECOND_US), 0, 0, "", "", "", "", "", None)


def told(state: Stamping, *events: Event) -> list[Event | Anomaly]:
    return [out for event in events for out in FOLD.apply(state, event, None, event.event_time_us)]


def watermarks(outputs: Sequence[Event | Anomaly]) -> list[int]:
    return [out.watermark_us for out in outputs if not isinstance(out, Anomaly)]


@pytest.fixture
def state() -> Stamping:
    return FOLD.new("shard")


def test_an_event_is_stamped_once_its_source_is_believed(state: Stamping) -> None:
    first, second, third = watermarks(told(state, chunk(1, 0), chunk(2, 1), chunk(3, 2)))
    assert first == 0, "one event tells nothing of a source"
    assert START_US < second < third <= START_US + 2 * SECOND_US


def test_an_event_that_comes_again_is_left_out(state: Stamping) -> None:
    told(state, chunk(1, 0), chunk(2, 1))
    assert told(state, chunk(1, 0)) == [Anomaly.DUPLICATE]


def test_a_late_event_is_passed_on_and_told_of(state: Stamping) -> None:
    told(state, *(chunk(number, number) for number in range(1, 60)))
    late, anomaly = told(state, chunk(100, 2))
    assert anomaly is Anomaly.LATE
    assert isinstance(late, TokensGenerated)
    assert late.watermark_us > late.event_time_us


def test_an_event_older_than_what_is_remembered_is_passed_on_and_told_of() -> None:
    fold = StampingFold(StampingPolicy(duplicates=DuplicateBounds(max_ids=2)))
    state = fold.new("shard")
    for event in (chunk(1, 10), chunk(2, 11), chunk(3, 12)):
        fold.apply(state, event, None, event.event_time_us)
    passed, *anomalies = fold.apply(state, chunk(1, 10), None, START_US)
    assert isinstance(passed, TokensGenerated)
    assert Anomaly.UNCHECKED in anomalies


def test_the_slowest_source_holds_the_watermark(state: Stamping) -> None:
    told(state, *(chunk(number, number, "slow") for number in (1, 2)))
    ahead = watermarks(told(state, *(chunk(number, 100 + number, "fast") for number in (1, 2, 3))))
    assert max(ahead) <= START_US + 2 * SECOND_US


def test_without_events_a_heartbeat_says_nothing(state: Stamping) -> None:
    assert told(state, beat(1)) == []


def test_heartbeats_carry_the_watermark_on_when_all_sources_are_silent(state: Stamping) -> None:
    told(state, beat(0), chunk(1, 0), chunk(2, 1))
    silent = [out for at_s in range(2, 30) for out in told(state, beat(at_s))]
    assert all(isinstance(out, Heartbeat) for out in silent)
    times = watermarks(silent)
    assert times == sorted(times)
    assert times[-1] > START_US + 20 * SECOND_US
    assert [out.event_time_us for out in silent if isinstance(out, Heartbeat)] == times


def test_after_a_crash_the_shard_knows_what_it_had_seen_and_whose_trace_an_event_is_of() -> None:
    traced = msgspec.structs.replace(chunk(2, 1), provenance=Provenance(trace_id=b"\1" * 16, vector_clock={"eu": 4}))
    events: list[Event] = [beat(0), chunk(1, 0), traced, chunk(3, 2)]
    store = MemoryStore()

    def shard() -> ShardFold[Stamping, PolicyRecord, Event]:
        return ShardFold(StampingFold(), PolicyLog[PolicyRecord](), store, with_provenance=True)

    first = shard()
    outputs = first.process(encode_events(3, events), Position("t", 0, 0)).outputs
    assert [out.event_id for out in outputs] == [event.event_id for event in events[1:]]
    assert outputs[1].provenance == traced.provenance
    again = shard()
    assert again.process(encode_events(3, [*events[1:], chunk(4, 3)]), Position("t", 0, 1)).outputs[0].event_id == (
        chunk(4, 3).event_id
    )
    assert again.counts["duplicate"] == 3


_steps = st.lists(
    st.one_of(
        st.builds(
            chunk,
            st.integers(1, 12),
            st.floats(0, 90, allow_nan=False).map(lambda it: round(it, 3)),
            st.sampled_from("ab"),
        ),
        st.builds(beat, st.integers(0, 90)),
    ),
    max_size=40,
)


@given(_steps, st.integers(0, 40))
def test_a_restart_makes_no_difference(events: list[Event], cut: int) -> None:
    whole = FOLD.new("shard")
    expected = told(whole, *events)
    state = FOLD.new("shard")
    found = told(state, *events[:cut])
    state = FOLD.load(FOLD.dump(state))
    found += told(state, *events[cut:])
    assert found == expected
    assert FOLD.dump(state) == FOLD.dump(whole)


@given(_steps)
def test_every_event_goes_on_unless_its_id_came_before_and_the_watermark_never_goes_back(events: list[Event]) -> None:
    outputs = told(FOLD.new("shard"), *events)
    passed = [out for out in outputs if isinstance(out, TokensGenerated)]
    seen: dict[bytes, TokensGenerated] = {}
    for event in events:
        if isinstance(event, TokensGenerated):
            seen.setdefault(event.event_id, event)
    assert [msgspec.structs.replace(out, watermark_us=0) for out in passed] == list(seen.values())
    times = watermarks(outputs)
    assert times == sorted(times)
