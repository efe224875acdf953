"""What a load plays: recordings at another speed, and steady loads."""

import math
from itertools import islice, pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from jobs.ops import azure_trace
from jobs.ops.azure_trace import TraceRow
from jobs.ops.load.plan import PlanError, PlannedRequest, SteadyLoad, at_steady_rate, from_recording, until
from schemas.events import InterruptReason, RequestCompleted, StreamInterrupted
from tests.limiter_world import at, chunk, completed, heartbeat, interrupted, prompt
from tests.load_world import planned

ROWS = [TraceRow(0, 100, 40), TraceRow(0, 10, 0), TraceRow(0, 2_000, 16)]


def test_a_recording_keeps_its_gaps_divided_by_the_speed() -> None:
    events = [
        prompt("late", at(10), 7, tenant="b"),
        prompt("early", at(0), 5),
        chunk("early", at(2), 16, cumulative=16),
        heartbeat(at(3)),
        chunk("early", at(4), 4, cumulative=20),
        completed("early", at(6), (5, 20)),
        completed("late", at(11), (7, 0), tenant="b"),
    ]

    early, late = from_recording(events, speed=2)

    assert (early.due_us, late.due_us) == (0, 5_000_000)
    assert early.offsets_us == (1_000_000, 2_000_000)
    assert early.cumulatives == (16, 20)
    assert early.end_offset_us == 3_000_000
    assert isinstance(early.ending, RequestCompleted)
    assert (late.prompt.tenant, late.offsets_us, late.end_offset_us) == ("b", (), 500_000)


def test_chunks_out_of_order_repeated_or_without_a_total_make_a_stream_that_rises() -> None:
    events = [
        prompt("r", at(0)),
        chunk("r", at(3), 5, cumulative=30),
        chunk("r", at(1), 10),
        chunk("r", at(3), 5, cumulative=30),
        chunk("r", at(2), 15),
    ]

    (found,) = from_recording(events, speed=1)

    assert found.cumulatives == (10, 25, 30)
    assert found.offsets_us == (1_000_000, 2_000_000, 3_000_000)


def test_the_stream_of_a_request_is_that_of_the_attempt_that_streamed_most() -> None:
    events = [
        prompt("r", at(0)),
        prompt("r", at(5), attempt=1),
        chunk("r", at(7), 10, cumulative=10, attempt=1),
        completed("r", at(8), (1, 10), attempt=1),
    ]

    (found,) = from_recording(events, speed=1)

    assert (found.due_us, found.offsets_us, found.end_offset_us) == (0, (2_000_000,), 3_000_000)


def test_a_recording_that_breaks_off_loses_the_connection_and_its_revocations_are_decided_anew() -> None:
    events = [
        prompt("open", at(0)),
        chunk("open", at(1), 10, cumulative=10),
        prompt("cut", at(0)),
        interrupted("cut", at(2), 10),
        prompt("revoked", at(0)),
        replace(interrupted("revoked", at(3), 10), reason=InterruptReason.REVOKED),
    ]

    endings = {found.prompt.request_id: found.ending for found in from_recording(events, speed=1)}

    reasons = {name: ending.reason for name, ending in endings.items() if isinstance(ending, StreamInterrupted)}
    assert reasons == {
        "open": InterruptReason.CONNECTION_LOST,
        "cut": InterruptReason.CLIENT_DISCONNECTED,
        "revoked": InterruptReason.CLIENT_DISCONNECTED,
    }


def test_a_recording_without_prompts_can_not_be_played() -> None:
    with pytest.raises(PlanError, match="no prompt"):
        from_recording([completed("r", at(0))], speed=1)


def test_the_shipped_trace_is_played_whole_and_in_order() -> None:
    rows = list(islice(azure_trace.read_trace(azure_trace.TRACE), 500))
    found = from_recording(azure_trace.lives(rows, 12, 1), speed=10)

    assert len(found) == 500
    assert [request.prompt.prompt_tokens for request in found] == [row.prompt_tokens for row in rows]
    assert [request.due_us for request in found] == sorted(request.due_us for request in found)
    assert [request.cumulatives[-1] for request in found] == [row.completion_tokens for row in rows]


def test_a_steady_load_has_the_rate_that_was_asked_for_whatever_its_lengths() -> None:
    load = SteadyLoad(events_per_second=2_000, seconds=3)
    found = list(at_steady_rate(load, ROWS))

    events = sum(2 + len(request.cumulatives) for request in found)
    assert events == pytest.approx(6_000, rel=0.01)
    gaps = {later.due_us - earlier.due_us for earlier, later in pairwise(found)}
    assert max(gaps) - min(gaps) <= 1
    assert all(request.cumulatives[-1:] in {(40,), (), (16,)} for request in found)


def test_a_steady_load_streams_faster_with_its_speed_and_is_the_same_with_its_seed() -> None:
    slow = list(at_steady_rate(SteadyLoad(events_per_second=100, seconds=2), ROWS))
    fast = list(at_steady_rate(SteadyLoad(events_per_second=100, seconds=2, speed=10), ROWS))

    assert [request.due_us for request in slow] == [request.due_us for request in fast]
    assert [request.end_offset_us // 10 for request in slow] == [request.end_offset_us for request in fast]
    assert list(at_steady_rate(SteadyLoad(events_per_second=100, seconds=2), ROWS)) == slow


def test_busy_tenants_come_first() -> None:
    load = SteadyLoad(events_per_second=10_000, seconds=5, tenants=3)
    tenants = [request.prompt.tenant for request in at_steady_rate(load, ROWS)]

    assert tenants.count("tenant-01") > tenants.count("tenant-02") > tenants.count("tenant-03") > 0


@pytest.mark.parametrize("wrong", [{"events_per_second": 0.0}, {"seconds": -1.0}, {"tenants": 0}, {"speed": 0.0}])
def test_a_steady_load_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        SteadyLoad(**{"events_per_second": 1.0, "seconds": 1.0, **wrong})  # type: ignore[arg-type]


def test_what_is_due_too_late_is_left_out() -> None:
    assert [found.due_us for found in until([planned(0), planned(1), planned(2)], 2_000_000)] == [0, 1_000_000]


@pytest.mark.parametrize(
    "wrong",
    [
        {"offsets_us": (2, 1), "cumulatives": (1, 2)},
        {"offsets_us": (1, 2), "cumulatives": (2, 2)},
        {"offsets_us": (1,), "cumulatives": ()},
        {"offsets_us": (5,), "cumulatives": (1,), "end_offset_us": 4},
        {"due_us": -1},
    ],
)
def test_a_stream_that_can_not_be_is_refused(wrong: dict[str, object]) -> None:
    fine = planned(0)
    fields = {name: getattr(fine, name) for name in fine.__struct_fields__}
    with pytest.raises(PlanError):
        PlannedRequest(**{**fields, "end_offset_us": 10, **wrong})


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_what_is_no_finite_number_above_0_is_no_load(value: float) -> None:
    given: dict[str, Any] = {"events_per_second": 1.0, "seconds": 1.0}
    for name in (*given, "speed"):
        with pytest.raises(PlanError, match=f"{name} is"):
            SteadyLoad(**given | {name: value})
    with pytest.raises(PlanError, match="speed is"):
        from_recording([prompt("r", at(0))], speed=value)
