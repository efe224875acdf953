"""A gateway of the load: what it sends, when, and what it makes of decisions."""

import msgspec

from jobs.ops.load.gateway import WATERMARK_DELTA_US
from jobs.ops.load.tally import Fault, Outcome
from schemas.decisions import DecisionKind, DecisionMode, DecisionReason
from schemas.events import (
    Event,
    Heartbeat,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from tests.limiter_world import START_US, interrupted
from tests.load_world import World, at, planned

ADMIT, THROTTLE, REJECT = DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.REJECT
REVOKE, SETTLE = DecisionKind.REVOKE, DecisionKind.SETTLE


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def test_prompts_leave_when_they_are_due_whether_or_not_earlier_ones_were_answered() -> None:
    world = World(planned(0), planned(1), planned(2))

    assert [event.request_id for event in world.advance(1)] == ["run-0-0", "run-0-1"]
    assert [event.request_id for event in world.advance(2)] == ["run-0-2"]


def test_an_admitted_request_streams_at_its_pace_from_the_admission_on_and_completes() -> None:
    world = World(planned(0, (0.5, 16), (1.0, 20)))
    world.advance(0)
    assert world.decide(ADMIT, 2) == []

    assert world.advance(2.4) == []
    first = world.advance(2.5)
    assert kinds(first) == [TokensGenerated]
    last = world.advance(3)
    chunk, end = last

    assert isinstance(chunk, TokensGenerated)
    assert (chunk.count, chunk.cumulative, chunk.event_time_us) == (4, 20, at(3))
    assert isinstance(end, RequestCompleted)
    assert end.completion_tokens == 20
    assert [event.sequence for event in (*first, *last)] == [2, 3, 4]
    assert world.gateway.open_requests == 1
    world.decide(SETTLE, 3.1)
    assert world.gateway.is_over
    assert world.tally.outcomes == {Outcome.SETTLED: 1}


def test_a_chunk_that_went_out_late_does_not_delay_those_after_it() -> None:
    world = World(planned(0, (1, 1), (2, 2), (3, 3)))
    world.advance(0)
    world.decide(ADMIT, 0)

    assert [event.event_time_us for event in world.advance(2.5)] == [at(2.5), at(2.5)]
    assert kinds(world.advance(3)) == [TokensGenerated, RequestCompleted]


def test_events_carry_the_time_and_a_watermark_close_behind() -> None:
    (event,) = World(planned(0)).advance(0.25)

    assert (event.event_time_us, event.watermark_us) == (at(0.25), at(0.25) - WATERMARK_DELTA_US)


def test_latency_counts_from_when_a_prompt_was_due_and_from_when_it_was_sent() -> None:
    world = World(planned(1))
    world.advance(1.5)
    world.decide(REJECT, 1.7)

    assert list(world.tally.from_due_us) == [700_000]
    assert list(world.tally.from_sent_us) == [200_000]


def test_latencies_of_the_warm_up_do_not_count() -> None:
    world = World(planned(0), planned(1), warm_up_us=1_000_000)
    world.advance(1)
    world.decide(REJECT, 1.1, 0)
    world.decide(REJECT, 1.3, 1)

    assert list(world.tally.from_due_us) == [300_000]


def test_a_throttled_request_is_asked_again_when_it_may_be_as_its_next_attempt() -> None:
    world = World(planned(0))
    world.advance(0)
    world.decide(THROTTLE, 0.1, retry_at_us=at(5))

    assert world.advance(4.999) == []
    (again,) = world.advance(5)
    assert isinstance(again, PromptSubmitted)
    assert (again.request_id, again.attempt, again.sequence) == ("run-0-0", 1, 2)
    world.decide(ADMIT, 5.2, attempt=1)
    assert list(world.tally.from_due_us) == [100_000, 200_000]


def test_a_throttled_request_is_given_up_after_its_last_attempt() -> None:
    world = World(planned(0), max_attempts=2)
    world.advance(0)
    world.decide(THROTTLE, 0.1, retry_at_us=at(1))
    world.advance(1)
    world.decide(THROTTLE, 1.1, attempt=1, retry_at_us=at(2))

    assert world.gateway.is_over
    assert world.tally.outcomes == {Outcome.THROTTLED: 1}


def test_a_client_does_not_wait_longer_than_it_has_patience() -> None:
    world = World(planned(0), max_wait_us=10_000_000)
    world.advance(0)
    world.decide(THROTTLE, 0, retry_at_us=at(10) + 1)

    assert world.tally.outcomes == {Outcome.THROTTLED: 1}


def test_a_rejected_request_ends() -> None:
    world = World(planned(0))
    world.advance(0)

    assert world.decide(REJECT, 0.1) == []
    assert world.tally.outcomes == {Outcome.REJECTED: 1}


def test_a_revoked_stream_stops_at_once_and_its_overshoot_is_what_flowed_after_the_decision() -> None:
    world = World(planned(0, (1, 10), (2, 20), (3, 30), (4, 40)))
    world.advance(0)
    world.decide(ADMIT, 0)
    for second in (1, 2, 3):
        world.advance(second)

    (stopped,) = world.decide(REVOKE, 3.5, decided_at_us=at(1))

    assert isinstance(stopped, StreamInterrupted)
    assert (stopped.token_offset, stopped.reason) == (30, InterruptReason.REVOKED)
    assert list(world.tally.overshoot_tokens) == [20]
    assert list(world.tally.stop_us) == [2_500_000]
    assert world.advance(10) == []
    world.decide(SETTLE, 10, reason=DecisionReason.INTERRUPTED)
    assert world.tally.outcomes == {Outcome.REVOKED: 1}


def test_a_revocation_that_comes_after_the_end_counts_what_flowed_and_cuts_nothing() -> None:
    world = World(planned(0, (1, 10), (2, 20)))
    world.advance(0)
    world.decide(ADMIT, 0)
    world.advance(1)
    world.advance(2)

    assert world.decide(REVOKE, 2.1, decided_at_us=at(1)) == []
    assert list(world.tally.overshoot_tokens) == [10]
    assert world.tally.revoked_after_end == 1


def test_shadow_decisions_bind_nobody() -> None:
    world = World(planned(0, (1, 10)))
    world.advance(0)
    world.decide(REJECT, 0.1, mode=DecisionMode.SHADOW)
    world.decide(ADMIT, 0.1, ordinal=1)

    assert world.decide(REVOKE, 0.5, mode=DecisionMode.SHADOW) == []
    assert kinds(world.advance(1.1)) == [TokensGenerated, RequestCompleted]
    assert world.tally.shadow_decisions == {"reject": 1, "revoke": 1}


def test_a_prompt_without_an_answer_is_lost_and_the_log_is_told() -> None:
    world = World(planned(0), decision_timeout_us=2_000_000)
    world.advance(0)

    (gone,) = world.advance(2)

    assert isinstance(gone, RequestFailed)
    assert gone.status == 504
    assert (world.tally.missing, world.gateway.is_over) == (1, True)
    world.decide(ADMIT, 3)
    assert world.tally.late_decisions == 1
    assert world.advance(4) == []


def test_a_request_that_is_never_settled_is_missing_one_that_silence_settled_is_not() -> None:
    world = World(planned(0), planned(0), decision_timeout_us=2_000_000)
    world.advance(0)
    for number in (0, 1):
        world.decide(ADMIT, 0.1, number)
    world.decide(SETTLE, 1, 1, reason=DecisionReason.SILENT)
    world.advance(3)

    assert world.tally.outcomes == {Outcome.UNSETTLED: 1, Outcome.SETTLED: 1}


def test_a_settlement_for_silence_is_superseded_by_that_of_the_end() -> None:
    world = World(planned(0, (5, 1)))
    world.advance(0)
    world.decide(ADMIT, 0)
    world.decide(SETTLE, 4, ordinal=1, reason=DecisionReason.SILENT)
    world.advance(5)
    world.decide(SETTLE, 5.1, ordinal=2)

    assert world.tally.outcomes == {Outcome.SETTLED: 1}
    assert not world.tally.faults


def test_decisions_that_are_read_again_change_nothing_and_are_counted() -> None:
    world = World(planned(0))
    world.advance(0)
    for _ in range(3):
        world.decide(ADMIT, 0)
        world.decide(SETTLE, 1)

    assert world.tally.duplicates == 4
    assert not world.tally.faults
    assert world.tally.decisions == {"admit": 1, "settle": 1}


def test_two_settlements_of_one_attempt_are_a_fault() -> None:
    world = World(planned(0))
    world.advance(0)
    world.decide(ADMIT, 0)
    world.decide(SETTLE, 1, ordinal=1)
    world.decide(SETTLE, 2, ordinal=2)

    assert world.tally.faults == {Fault.SETTLED_TWICE: 1}
    assert world.tally.examples == [(Fault.SETTLED_TWICE, "acme: run-0-0/0/2")]


def test_two_answers_to_one_attempt_and_a_settlement_of_a_refused_one_are_faults() -> None:
    world = World(planned(0), planned(0))
    world.advance(0)
    world.decide(ADMIT, 0, 0)
    world.decide(THROTTLE, 0, 0, ordinal=1)
    world.decide(REJECT, 0, 1)
    world.decide(SETTLE, 0, 1)

    assert world.tally.faults == {Fault.CONTRADICTED: 2}


def test_an_id_that_comes_again_with_other_content_is_a_fault() -> None:
    world = World(planned(0))
    world.advance(0)
    world.decide(ADMIT, 0, reserved_tokens=1)
    world.decide(ADMIT, 0, reserved_tokens=2)

    assert world.tally.faults == {Fault.CHANGED: 1}


def test_decisions_on_what_was_never_asked_are_counted_apart() -> None:
    world = World(planned(0))
    world.advance(0)
    world.decide(ADMIT, 0, number=7)
    world.decide(ADMIT, 0, attempt=1)

    assert world.tally.unknown_decisions == 2


def test_a_stopped_gateway_ends_streams_gives_up_retries_and_sends_no_prompt() -> None:
    world = World(planned(0, (5, 1)), planned(0), planned(0), planned(1))
    world.advance(0)
    world.decide(ADMIT, 0.1, 0)
    world.decide(THROTTLE, 0.1, 1, retry_at_us=at(2))

    (stopped,) = world.gateway.stop(at(0.5))
    assert isinstance(stopped, StreamInterrupted)
    assert stopped.reason is InterruptReason.CLIENT_DISCONNECTED
    assert world.advance(3) == []
    # One that was still waiting is ended as soon as it is admitted.
    assert kinds(world.decide(ADMIT, 3, 2)) == [StreamInterrupted]
    assert world.gateway.open_requests == 2
    world.decide(SETTLE, 3, 0)
    world.decide(SETTLE, 3, 2)
    assert world.gateway.is_over


def test_a_heartbeat_goes_out_every_second_while_anything_is_open() -> None:
    gateway = World(planned(5)).gateway
    beats = [
        sum(isinstance(event, Heartbeat) for event in gateway.advance(at(second / 4))) for second in range(4 * 3 + 1)
    ]

    assert sum(beats) == 4
    assert gateway.due_us == at(4)


def test_an_interruption_that_was_recorded_tells_the_tokens_that_flowed_this_time() -> None:
    plan = planned(0, (1, 8))
    ending = interrupted("recorded", START_US, 999)
    world = World(msgspec.structs.replace(plan, ending=ending))
    world.advance(0)
    world.decide(ADMIT, 0)

    _, end = world.advance(1)
    assert isinstance(end, StreamInterrupted)
    assert (end.token_offset, end.reason) == (8, ending.reason)
