"""The limiter by example: each kind of decision, and the transitions that are not obvious."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.dead_letters import DeadLetterReason
from schemas.decisions import DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.events import (
    Event,
    PromptSubmitted,
    Provenance,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from tests.limiter_world import (
    INT64_MAX,
    SECOND,
    TENANT,
    Direct,
    Shard,
    at,
    chunk,
    completed,
    enforced,
    failed,
    heartbeat,
    interrupted,
    kinds,
    limit,
    policy,
    prompt,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import TRANSITIONS, InvalidPolicyError, LimiterFold, Phase
from udfs.domain.policy_log import PolicyLog

ADMIT, THROTTLE, REJECT = DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.REJECT
EXTEND, REVOKE, SETTLE = DecisionKind.EXTEND, DecisionKind.REVOKE, DecisionKind.SETTLE


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_has_an_answer_for_every_event_in_every_phase() -> None:
    events = {PromptSubmitted, TokensGenerated, StreamInterrupted, RequestCompleted, RequestFailed}
    assert set(TRANSITIONS) == set(Phase)
    for row in TRANSITIONS.values():
        assert set(row) == events


def in_phase(phase: Phase, *, recorded: bool = False) -> Direct:
    """A driver in which request r is in `phase`."""
    rules = policy(limit(100), silence_timeout_us=10 * SECOND, extension_tokens=5, traffic_is_recorded=recorded)
    driver = Direct(rules)
    lead: dict[Phase, tuple[RequestEvent, ...]] = {
        Phase.UNKNOWN: (),
        Phase.EARLY: (chunk("r", at(0), cumulative=1),),
        Phase.RUNNING: (prompt("r", at(0), 10, max_tokens=20),),
        Phase.REVOKED: (prompt("r", at(0), 10, max_tokens=90), chunk("r", at(0), cumulative=91)),
        Phase.REFUSED: (prompt("r", at(0), 200),),
        Phase.EXPIRED: (prompt("r", at(0), 10, max_tokens=20),),
        Phase.ENDED: (prompt("r", at(0), 10, max_tokens=20), completed("r", at(0), (10, 5))),
        Phase.VOID: (prompt("r", at(0), 200),),
    }
    driver.tell(*lead[phase])
    if phase is Phase.EXPIRED:
        assert kinds(decision for step in driver.wake_until(at(10)) for decision in step.decisions) == [SETTLE]
    return driver


def known_phase(driver: Direct) -> Phase:
    key = ("r", 0)
    request = driver.state.requests.get(key)
    if request is None and key in driver.state.ended:
        request = driver.state.ended[key]
        return Phase.ENDED if request is None else request.phase
    return Phase.UNKNOWN if request is None else request.phase


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_is_reached(phase: Phase) -> None:
    assert known_phase(in_phase(phase, recorded=phase is Phase.VOID)) is phase


EVENTS: dict[str, Callable[[int], RequestEvent]] = {
    "prompt": lambda at_us: prompt("r", at_us, 10, max_tokens=20),
    "tokens": lambda at_us: chunk("r", at_us, cumulative=95),
    "end": lambda at_us: completed("r", at_us, (10, 95)),
}


@pytest.mark.parametrize(
    ("phase", "event", "then", "decided", "noticed"),
    [
        (Phase.UNKNOWN, "prompt", Phase.RUNNING, [ADMIT], []),
        (Phase.UNKNOWN, "tokens", Phase.EARLY, [], [Anomaly.OVERDRAWN, Anomaly.EARLY_TOKENS]),
        (Phase.UNKNOWN, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN, Anomaly.UNKNOWN_REQUEST]),
        (Phase.EARLY, "prompt", Phase.RUNNING, [ADMIT], []),
        (Phase.EARLY, "tokens", Phase.EARLY, [], [Anomaly.OVERDRAWN, Anomaly.EARLY_TOKENS]),
        (Phase.EARLY, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN]),
        (Phase.RUNNING, "prompt", Phase.RUNNING, [], [Anomaly.DUPLICATE]),
        (Phase.RUNNING, "tokens", Phase.REVOKED, [REVOKE], [Anomaly.OVERDRAWN]),
        (Phase.RUNNING, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN]),
        (Phase.REVOKED, "prompt", Phase.REVOKED, [], [Anomaly.DUPLICATE]),
        (Phase.REVOKED, "tokens", Phase.REVOKED, [], [Anomaly.OVERDRAWN]),
        (Phase.REVOKED, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN]),
        (Phase.REFUSED, "prompt", Phase.REFUSED, [], [Anomaly.DUPLICATE]),
        (Phase.REFUSED, "tokens", Phase.REVOKED, [REVOKE], [Anomaly.OVERDRAWN]),
        (Phase.REFUSED, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN]),
        (Phase.EXPIRED, "prompt", Phase.EXPIRED, [], [Anomaly.DUPLICATE]),
        (Phase.EXPIRED, "tokens", Phase.RUNNING, [EXTEND], [Anomaly.RESUMED]),
        (Phase.EXPIRED, "end", Phase.ENDED, [SETTLE], [Anomaly.OVERDRAWN, Anomaly.RESUMED]),
        (Phase.ENDED, "prompt", Phase.ENDED, [], [Anomaly.DUPLICATE]),
        (Phase.ENDED, "tokens", Phase.ENDED, [], [Anomaly.AFTER_END]),
        (Phase.ENDED, "end", Phase.ENDED, [], [Anomaly.AFTER_END]),
        (Phase.VOID, "prompt", Phase.VOID, [], [Anomaly.DUPLICATE]),
        (Phase.VOID, "tokens", Phase.VOID, [], [Anomaly.VOID]),
        (Phase.VOID, "end", Phase.VOID, [], [Anomaly.VOID]),
    ],
)
def test_what_happens_to_a_request_in_each_phase(
    phase: Phase, event: str, then: Phase, decided: list[DecisionKind], noticed: list[Anomaly]
) -> None:
    driver = in_phase(phase, recorded=phase is Phase.VOID)
    (step,) = driver.feed(EVENTS[event](max(driver.clock_us, at(1))))
    assert kinds(step.decisions) == decided
    assert set(step.anomalies) - {Anomaly.WRITTEN_OFF} == set(noticed)
    assert known_phase(driver) is then


# --- a decision of each kind ------------------------------------------------------------------------------------------


def test_admit_says_what_is_set_aside_and_what_is_left_of_the_tightest_limit() -> None:
    driver = Direct(policy(limit(1_000, name="minute"), limit(5, name="streams", unit=LimitUnit.STREAMS)))
    decision = driver.one(prompt("r", at(0), 100, max_tokens=400, attempt=2))
    assert (decision.kind, decision.reason, decision.mode) == (
        ADMIT,
        DecisionReason.WITHIN_LIMITS,
        DecisionMode.ENFORCE,
    )
    assert (decision.tenant, decision.request_id, decision.attempt) == (TENANT, "r", 2)
    assert decision.reserved_tokens == 500
    assert decision.decided_at_us == at(0)
    assert decision.caused_by == b"r/2/prompt/%d" % at(0)
    assert decision.policy_id == "p1"
    assert decision.bound is not None
    assert (decision.bound.name, decision.bound.limit, decision.bound.remaining) == ("minute", 1_000, 500)


def test_throttle_says_when_to_come_back() -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("a", at(0), 60, without_completion=True), completed("a", at(5), (60, 0)))
    refused = driver.one(prompt("b", at(10), 50, without_completion=True))
    assert (refused.kind, refused.reason) == (THROTTLE, DecisionReason.OVER_LIMIT)
    assert refused.retry_at_us == at(65)
    assert refused.bound is not None
    assert refused.bound.remaining == 40
    assert refused.bound.reset_at_us == at(65)


def test_throttle_counts_on_what_silence_will_give_back() -> None:
    driver = Direct(policy(limit(100), silence_timeout_us=20 * SECOND))
    driver.tell(prompt("a", at(0), 0, max_tokens=80))
    refused = driver.one(prompt("b", at(10), 0, max_tokens=50))
    assert refused.retry_at_us == at(20)


def test_throttle_names_the_limit_that_takes_longest() -> None:
    minute = limit(100, name="minute")
    day = limit(200, name="day", window_us=86_400 * SECOND)
    driver = Direct(policy(minute, day))
    driver.tell(*(prompt(name, at(t), 100, without_completion=True) for name, t in (("a", 0), ("b", 60))))
    driver.tell(*(completed(name, at(60), (100, 0)) for name in ("a", "b")))
    refused = driver.one(prompt("c", at(61), 10, without_completion=True))
    assert refused.bound is not None
    assert refused.bound.name == "day"
    assert refused.retry_at_us == at(60 + 86_400)


def test_reject_is_for_what_can_never_fit() -> None:
    decision = Direct(policy(limit(100))).one(prompt("r", at(0), 50, max_tokens=51))
    assert (decision.kind, decision.reason) == (REJECT, DecisionReason.NEVER_FITS)
    assert decision.retry_at_us == 0


def test_reject_is_for_a_request_larger_than_the_burst() -> None:
    decision = Direct(policy(limit(100, burst=10))).one(prompt("r", at(0), 11, without_completion=True))
    assert decision.kind is REJECT


@pytest.mark.parametrize("count", [-1, 2**24, INT64_MAX, 2**63])
def test_reject_is_for_a_prompt_that_no_one_can_have_sent(count: int) -> None:
    (step,) = Direct(policy(limit(100))).feed(prompt("r", at(0), count))
    assert kinds(step.decisions) == [REJECT]
    assert step.decisions[0].reason is DecisionReason.IMPLAUSIBLE_COUNT
    assert step.anomalies == [Anomaly.IMPLAUSIBLE_COUNT]


def test_extend_grows_a_stream_that_outlives_its_estimate() -> None:
    driver = Direct(policy(limit(100), default_completion_tokens=10, extension_tokens=8))
    driver.tell(prompt("r", at(0)), chunk("r", at(1), cumulative=10))
    extended = driver.one(chunk("r", at(2), cumulative=12))
    assert (extended.kind, extended.reserved_tokens, extended.used_tokens) == (EXTEND, 18, 12)
    assert extended.bound is not None
    assert extended.bound.remaining == 82


def test_revoke_stops_a_stream_when_there_is_no_room() -> None:
    driver = Direct(policy(limit(20), default_completion_tokens=10))
    driver.tell(prompt("a", at(0), 10, without_completion=True), prompt("b", at(0)), chunk("b", at(1), cumulative=10))
    revoked = driver.one(chunk("b", at(2), cumulative=13))
    assert (revoked.kind, revoked.reason) == (REVOKE, DecisionReason.OVER_LIMIT)
    assert (revoked.reserved_tokens, revoked.used_tokens, revoked.overdrawn_tokens) == (10, 13, 3)
    assert revoked.bound is not None
    assert revoked.bound.name == "tokens"


def test_settle_gives_back_what_was_not_used() -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 100, max_tokens=400), chunk("r", at(1), cumulative=40))
    settled = driver.one(completed("r", at(2), (100, 50)))
    assert (settled.kind, settled.reason) == (SETTLE, DecisionReason.COMPLETED)
    assert (settled.reserved_tokens, settled.used_tokens, settled.refunded_tokens) == (500, 150, 350)


@pytest.mark.parametrize(
    ("end", "reason", "used"),
    [
        (completed("r", at(2)), DecisionReason.COMPLETED, 140),
        (completed("r", at(2), (90, 30)), DecisionReason.COMPLETED, 120),
        (failed("r", at(2)), DecisionReason.FAILED, 140),
        (failed("r", at(2), (100, 45)), DecisionReason.FAILED, 145),
        (interrupted("r", at(2), 44), DecisionReason.INTERRUPTED, 144),
        (interrupted("r", at(2), 3), DecisionReason.INTERRUPTED, 140),
        (completed("r", at(2), (-5, 2**63)), DecisionReason.COMPLETED, 140),
        (interrupted("r", at(2), -1), DecisionReason.INTERRUPTED, 140),
    ],
)
def test_settle_charges_what_the_end_says_or_else_what_was_seen(
    end: RequestEvent, reason: DecisionReason, used: int
) -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 100, max_tokens=400), chunk("r", at(1), cumulative=40))
    settled = driver.one(end)
    assert (settled.kind, settled.reason, settled.used_tokens) == (SETTLE, reason, used)
    assert settled.refunded_tokens == 500 - used


def test_a_request_that_failed_before_its_first_token_costs_nothing() -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 100, max_tokens=400))
    assert driver.one(failed("r", at(1))).used_tokens == 0


def test_a_request_that_was_cut_before_its_first_token_costs_its_prompt() -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 100, max_tokens=400))
    assert driver.one(interrupted("r", at(1))).used_tokens == 100


def test_a_decision_is_of_the_trace_of_the_event_that_led_to_it_and_of_none_where_time_did() -> None:
    driver = Direct(policy(limit(100), silence_timeout_us=30 * SECOND))
    mine, yours = Provenance(trace_id=b"\1" * 16), Provenance(trace_id=b"\2" * 16)
    events: list[RequestEvent] = [
        prompt("r", at(0), max_tokens=50),
        prompt("refused", at(1), max_tokens=90),
        chunk("r", at(2), cumulative=60),
        completed("r", at(3)),
    ]
    traced = [replace(event, provenance=mine) for event in events]
    decisions = [decision for event in traced for decision in driver.tell(event)]
    assert {decision.kind for decision in decisions} == {ADMIT, THROTTLE, EXTEND, SETTLE}
    assert {decision.trace_id for decision in decisions} == {mine.trace_id}
    driver.tell(replace(prompt("s", at(200), max_tokens=40), provenance=mine))
    settled, admitted = driver.tell(replace(prompt("t", at(500), max_tokens=40), provenance=yours))
    assert (settled.reason, settled.trace_id) == (DecisionReason.SILENT, b"")
    assert (admitted.kind, admitted.trace_id) == (ADMIT, yours.trace_id)


def test_silence_is_settled_at_the_time_it_became_too_long() -> None:
    driver = Direct(policy(limit(100), silence_timeout_us=30 * SECOND))
    driver.tell(prompt("r", at(0), max_tokens=80), chunk("r", at(10), cumulative=20))
    settled, admitted = driver.tell(prompt("s", at(500), max_tokens=80))
    assert (settled.kind, settled.reason, settled.decided_at_us) == (SETTLE, DecisionReason.SILENT, at(40))
    assert (settled.used_tokens, settled.refunded_tokens) == (20, 60)
    assert settled.caused_by == b""
    assert admitted.kind is ADMIT


# --- whose traffic counts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "other"),
    [
        (LimitLevel.API_KEY, {"api_key": "k2"}),
        (LimitLevel.USER, {"user": "u2"}),
        (LimitLevel.MODEL, {"model": "m2"}),
    ],
)
def test_a_level_counts_each_subject_by_itself(level: LimitLevel, other: dict[str, str]) -> None:
    driver = Direct(policy(limit(10, level=level)))
    who: dict[str, Any] = {"api_key": "k1", "user": "u1", "model": "m1", "without_completion": True}
    first = driver.one(prompt("a", at(0), 10, **who))
    same = driver.one(prompt("b", at(0), 1, **who))
    another = driver.one(prompt("c", at(0), 10, **{**who, **other}))
    assert kinds([first, same, another]) == [ADMIT, THROTTLE, ADMIT]
    assert same.bound is not None
    assert same.bound.subject in {"k1", "u1", "m1"}
    assert same.bound.level is level


def test_a_limit_for_some_subjects_leaves_others_alone() -> None:
    driver = Direct(policy(limit(10, level=LimitLevel.MODEL, only=frozenset(["large"]))))
    assert driver.one(prompt("a", at(0), 11, model="large", without_completion=True)).kind is REJECT
    assert driver.one(prompt("b", at(0), 11, model="small", without_completion=True)).kind is ADMIT


def test_all_limits_that_match_must_hold_and_a_refusal_takes_nothing_from_the_others() -> None:
    driver = Direct(policy(limit(20, name="t"), limit(10, name="k", level=LimitLevel.API_KEY)))
    told = [driver.one(prompt(str(number), at(0), 10, api_key="k1", without_completion=True)) for number in range(5)]
    assert kinds(told) == [ADMIT] + [THROTTLE] * 4
    assert {refused.bound.name for refused in told[1:] if refused.bound is not None} == {"k"}
    other = driver.one(prompt("other", at(0), 10, api_key="k2", without_completion=True))
    third = driver.one(prompt("third", at(0), 10, api_key="k3", without_completion=True))
    assert kinds([other, third]) == [ADMIT, THROTTLE]
    assert third.bound is not None
    assert third.bound.name == "t"


def test_a_shadow_limit_decides_and_does_not_bind() -> None:
    driver = Direct(policy(limit(100), limit(10, name="tried", mode=DecisionMode.SHADOW)))
    found = driver.tell(prompt("r", at(0), 50, without_completion=True))
    assert [(decision.kind, decision.mode) for decision in found] == [
        (REJECT, DecisionMode.SHADOW),
        (ADMIT, DecisionMode.ENFORCE),
    ]
    assert found[1].bound is not None
    assert found[1].bound.name == "tokens"


def test_a_shadow_limit_would_have_stopped_a_stream_once() -> None:
    tried = limit(10, name="tried", mode=DecisionMode.SHADOW)
    driver = Direct(policy(limit(100), tried, extension_tokens=5))
    driver.tell(prompt("r", at(0), max_tokens=8))
    found = driver.tell(chunk("r", at(1), cumulative=12), chunk("r", at(2), cumulative=18))
    assert [(decision.kind, decision.mode) for decision in found] == [
        (REVOKE, DecisionMode.SHADOW),
        (EXTEND, DecisionMode.ENFORCE),
        (EXTEND, DecisionMode.ENFORCE),
    ]
    assert found[0].bound is not None
    assert (found[0].bound.name, found[0].bound.remaining) == ("tried", 2)


def test_requests_count_when_they_are_admitted_whatever_becomes_of_them() -> None:
    driver = Direct(policy(limit(2, unit=LimitUnit.REQUESTS)))
    for number in range(2):
        driver.tell(prompt(str(number), at(number), 5), failed(str(number), at(number)))
    refused = driver.one(prompt("third", at(2), 5))
    assert (refused.kind, refused.retry_at_us) == (THROTTLE, at(60))


def test_without_a_policy_requests_are_followed_and_nothing_is_limited() -> None:
    driver = Direct(PolicyLog([policy(limit(1), match="someone else")]))
    admitted, settled = driver.tell(prompt("r", at(0), 10**6), completed("r", at(1), (10**6, 5)))
    assert (admitted.kind, admitted.reason, admitted.bound) == (ADMIT, DecisionReason.NO_POLICY, None)
    assert settled.used_tokens == 10**6 + 5


# --- what is learned, and what changes --------------------------------------------------------------------------------


def test_completions_teach_what_to_set_aside() -> None:
    driver = Direct(policy(limit(10**6), default_completion_tokens=1_000, estimate_after=5))
    for number in range(5):
        driver.tell(prompt(str(number), at(number), model="m"), completed(str(number), at(number), (0, 100), model="m"))
    learned = driver.one(prompt("next", at(9), model="m")).reserved_tokens
    assert 100 <= learned <= 125
    assert driver.one(prompt("other", at(9), model="another")).reserved_tokens == 1_000


def test_a_new_policy_holds_from_its_time_on_and_levels_stay() -> None:
    before = policy(limit(100))
    after = policy(limit(50), id="p2", effective_from_us=at(10))
    driver = Direct(PolicyLog([before, after]))
    first = driver.one(prompt("a", at(9.9), 40, without_completion=True))
    second = driver.one(prompt("b", at(10), 11, without_completion=True))
    assert (first.kind, first.policy_id) == (ADMIT, "p1")
    assert (second.kind, second.policy_id) == (THROTTLE, "p2")


def test_a_limit_that_changed_what_it_counts_starts_from_nothing() -> None:
    before = policy(limit(100))
    after = policy(limit(100, counts_prompt=False), id="p2", effective_from_us=at(10))
    driver = Direct(PolicyLog([before, after]))
    driver.tell(prompt("a", at(0), 90, max_tokens=10))
    assert driver.one(prompt("b", at(10), 90, max_tokens=100)).kind is ADMIT


# --- odd input ------------------------------------------------------------------------------------------------------


def test_a_chunk_that_was_seen_before_is_counted_once() -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("r", at(0), max_tokens=50), chunk("r", at(1), 10, cumulative=10))
    assert driver.notice(chunk("r", at(1), 10, cumulative=10)) == [Anomaly.DUPLICATE]
    assert driver.notice(chunk("r", at(1), 4, cumulative=4)) == [Anomaly.DUPLICATE]
    assert driver.one(completed("r", at(2))).used_tokens == 10


def test_a_lost_chunk_is_made_good_by_the_next() -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("r", at(0), max_tokens=50), chunk("r", at(1), 1, cumulative=30))
    assert driver.one(completed("r", at(2))).used_tokens == 30


@pytest.mark.parametrize("count", [-1, 2**24, INT64_MAX, 2**63])
def test_a_chunk_with_a_count_that_no_one_can_have_generated_is_not_charged(count: int) -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("r", at(0), max_tokens=50))
    assert driver.notice(chunk("r", at(1), count)) == [Anomaly.IMPLAUSIBLE_COUNT]
    assert driver.notice(chunk("r", at(1), 1, cumulative=count)) == [Anomaly.IMPLAUSIBLE_COUNT]
    assert driver.one(completed("r", at(2))).used_tokens == 0


def test_tokens_before_their_prompt_are_charged_again_only_where_they_were_not() -> None:
    driver = Direct(policy(limit(80, name="t"), limit(50, name="k", level=LimitLevel.API_KEY)))
    driver.tell(chunk("r", at(0), cumulative=20))
    admitted = driver.one(prompt("r", at(1), 0, max_tokens=10, api_key="k1"))
    assert admitted.kind is ADMIT
    refused = driver.one(prompt("s", at(1), 21, api_key="k1", without_completion=True))
    assert refused.bound is not None
    assert (refused.kind, refused.bound.name, refused.bound.remaining) == (THROTTLE, "k", 20)
    rest = driver.one(prompt("t", at(1), 50, api_key="k2", without_completion=True))
    assert rest.bound is not None
    assert (rest.kind, rest.bound.name, rest.bound.remaining) == (ADMIT, "t", 0)


def test_a_clock_that_jumps_back_changes_no_order() -> None:
    driver = Direct(policy(limit(10)))
    driver.tell(prompt("a", at(100), 10, without_completion=True), completed("a", at(100), (10, 0)))
    late = driver.one(prompt("b", at(1), 10, without_completion=True))
    assert (late.kind, late.decided_at_us, late.retry_at_us) == (THROTTLE, at(100), at(160))


def test_a_clock_at_the_end_of_time_does_not_stop_the_shard() -> None:
    shard = Shard(PolicyLog([policy(limit(100))]))
    told = shard.tell([prompt("a", INT64_MAX, max_tokens=100), prompt("b", INT64_MAX, max_tokens=100)])
    told += shard.tell([prompt("c", at(0), 100)])
    assert [decision.request_id for decision in told] == ["c"]
    assert [letter.reason for letter in shard.dead] == [DeadLetterReason.OUT_OF_RANGE] * 2


def test_a_refused_request_that_runs_all_the_same_is_charged_and_told_to_stop() -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("a", at(0), 100, without_completion=True), prompt("b", at(0), max_tokens=10))
    stopped = driver.one(chunk("b", at(1), cumulative=5))
    assert (stopped.kind, stopped.overdrawn_tokens) == (REVOKE, 5)
    settled = driver.one(completed("b", at(2), (0, 7)))
    assert (settled.used_tokens, settled.overdrawn_tokens, settled.refunded_tokens) == (7, 7, 0)


def test_the_end_of_a_refused_request_says_nothing_new() -> None:
    driver = Direct(policy(limit(100)))
    driver.tell(prompt("r", at(0), 200))
    assert driver.tell(failed("r", at(0))) == []


def test_in_a_recording_what_a_refused_request_did_did_not_happen() -> None:
    driver = Direct(policy(limit(100), traffic_is_recorded=True))
    driver.tell(prompt("r", at(0), 200))
    assert driver.notice(chunk("r", at(1), cumulative=50)) == [Anomaly.VOID]
    assert driver.one(prompt("s", at(2), 100, without_completion=True)).kind is ADMIT


def test_in_a_recording_a_stream_ends_where_it_would_have_been_stopped() -> None:
    driver = Direct(policy(limit(10), traffic_is_recorded=True, default_completion_tokens=10))
    driver.tell(prompt("r", at(0)))
    revoked, settled = driver.tell(chunk("r", at(1), cumulative=15))
    assert kinds([revoked, settled]) == [REVOKE, SETTLE]
    assert (settled.used_tokens, settled.overdrawn_tokens) == (10, 0)
    assert driver.tell(completed("r", at(2), (0, 40))) == []


def test_a_stream_that_was_only_slow_runs_on() -> None:
    driver = Direct(policy(limit(100), silence_timeout_us=10 * SECOND, extension_tokens=5))
    driver.tell(prompt("r", at(0), 10, max_tokens=50), chunk("r", at(1), cumulative=20))
    silent, extended = driver.tell(chunk("r", at(30), cumulative=22))
    assert kinds([silent, extended]) == [SETTLE, EXTEND]
    settled = driver.one(completed("r", at(31), (10, 24)))
    # It supersedes the first settlement: totals are those of the whole request.
    assert (settled.used_tokens, settled.reserved_tokens) == (34, 65)
    assert settled.reserved_tokens + settled.overdrawn_tokens == settled.used_tokens + settled.refunded_tokens


def test_a_slow_stream_whose_place_was_taken_is_stopped_by_the_limit_that_is_full() -> None:
    streams = limit(1, name="streams", unit=LimitUnit.STREAMS)
    driver = Direct(policy(streams, silence_timeout_us=10 * SECOND))
    driver.tell(prompt("r", at(0)), prompt("s", at(20)))
    stopped = enforced(driver.tell(chunk("r", at(21), cumulative=1)))
    assert kinds(stopped) == [REVOKE]
    assert stopped[0].bound is not None
    assert stopped[0].bound.name == "streams"


def test_more_subjects_than_allowed_share_one_meter() -> None:
    driver = Direct(policy(limit(10, level=LimitLevel.USER), max_subjects=2))
    told = [
        driver.one(prompt(user, at(0), 10, user=user, without_completion=True)) for user in ("u1", "u2", "u3", "u4")
    ]
    assert kinds(told)[:2] == [ADMIT, ADMIT]
    assert kinds(told)[3] is THROTTLE


def test_a_new_subject_never_takes_the_meter_of_the_request_that_brings_it() -> None:
    driver = Direct(policy(limit(100, name="t"), limit(100, name="u", level=LimitLevel.USER), max_subjects=1))
    driver.tell(prompt("r", at(0), max_tokens=20, user="u1"))
    driver.tell(chunk("r", at(1), cumulative=1))
    assert driver.one(completed("r", at(2))).used_tokens == 1


def test_events_of_no_request_are_not_for_the_limiter() -> None:
    fold = LimiterFold()
    others: list[Event] = [heartbeat(at(0))]
    assert [fold.key(event) for event in others] == [None]
    assert fold.key(prompt("r", at(0), tenant="t")) == "t"


# --- policies that can't be built -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: limit(0), "limit is 0"),
        (lambda: limit(-1), "limit is -1"),
        (lambda: limit(10, burst=11), "burst is 11"),
        (lambda: limit(10, window_us=0), "window"),
        (lambda: limit(10, name=""), "name is empty"),
        (lambda: limit(1, unit=LimitUnit.STREAMS, window_us=SECOND), "remove window"),
        (lambda: limit(10, counts_prompt=False, counts_completion=False), "neither prompt nor completion"),
        (lambda: policy(limit(1), limit(2)), "two limits are named 'tokens'"),
        (lambda: policy(cached_weight_permille=1001), "cached_weight_permille is 1001"),
        (lambda: policy(silence_timeout_us=0), "silence_timeout"),
        (lambda: replace(policy(), id=""), "id is empty"),
    ],
)
def test_a_policy_that_can_not_hold_is_refused_with_the_field(build: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidPolicyError, match=says):
        build()


def test_chunks_out_of_order_without_a_running_count_are_each_counted_once() -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 0, max_tokens=100, sequence=1))
    for sequence in (2, 4, 3, 3, 4, 5):
        driver.tell(chunk("r", at(sequence), count=10, sequence=sequence))
    settled = driver.one(completed("r", at(9)))
    assert settled.used_tokens == 40


def test_a_stream_that_was_told_to_stop_is_not_granted_more_after_a_silence() -> None:
    driver = Direct(policy(limit(100), silence_timeout_us=10 * SECOND))
    driver.tell(prompt("a", at(0), 100, without_completion=True), completed("a", at(0), (100, 0)))
    driver.tell(prompt("r", at(1), 10, max_tokens=10), chunk("r", at(2), cumulative=5))
    told = driver.tell(chunk("r", at(200), cumulative=9))
    assert DecisionKind.EXTEND not in kinds(told)
    assert DecisionKind.REVOKE in kinds(told)


def test_in_a_recording_a_refused_request_whose_chunks_came_first_is_settled_with_nothing() -> None:
    driver = Direct(policy(limit(100), traffic_is_recorded=True))
    driver.tell(chunk("r", at(0), cumulative=50))
    told = driver.tell(prompt("r", at(1), 500, max_tokens=10))
    assert kinds(told) == [DecisionKind.REJECT, DecisionKind.SETTLE]
    assert told[1].used_tokens == 0
    assert driver.tell(completed("r", at(2), (500, 50))) == []


def test_counts_of_a_request_count_even_if_their_source_is_left_out() -> None:
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), 120, max_tokens=100))
    event = replace(completed("r", at(1), (120, 64)), usage_source=UsageSource.ABSENT)
    assert driver.one(event).used_tokens == 184
