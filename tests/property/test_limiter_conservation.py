"""Tokens are neither made nor lost, whatever comes in: reserved + overdrawn = used + refunded + outstanding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.decisions import Decision, DecisionKind, DecisionMode, LimitUnit
from schemas.events import PromptSubmitted, RequestEvent, TokensGenerated
from tests.limiter_world import (
    ORDERLY,
    SECOND,
    START_US,
    Direct,
    Move,
    Step,
    chunk,
    completed,
    enforced,
    hostile_streams,
    limit,
    moves,
    play,
    policies,
    policy,
    prompt,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import LimiterPolicy, TenantState
from udfs.domain.limiter.state import Request

FOREVER_US = 2**62
ANSWERS = {DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.REJECT}


def requests_in(state: TenantState) -> Iterator[Request]:
    yield from state.requests.values()
    yield from (request for request in state.ended.values() if request is not None)


def assert_conserved(state: TenantState) -> None:
    summed: Counter[str] = Counter()
    for request in requests_in(state):
        sides = {
            "reserved": request.granted_tokens,
            "overdrawn": request.overdrawn_tokens,
            "used": request.used_tokens,
            "refunded": request.refunded_tokens,
            "outstanding": request.outstanding_tokens,
        }
        assert min(sides.values()) >= 0, sides
        assert sides["reserved"] + sides["overdrawn"] == sides["used"] + sides["refunded"] + sides["outstanding"]
        summed.update(sides)
    for request in requests_in(state):
        is_live = any(request is live for live in state.requests.values())
        assert is_live or not request.outstanding_tokens
    assert summed["reserved"] + summed["overdrawn"] == summed["used"] + summed["refunded"] + summed["outstanding"]


def assert_meters_agree(state: TenantState) -> None:
    """What the meters hold is what live requests hold, to the token; and no level is ever negative."""
    for key, meter in state.meters.items():
        assert min(meter.used, meter.outstanding, meter.debt, *meter.amounts, 0) == 0, (key, meter)
        assert meter.used == sum(meter.amounts)
        assert len(meter.starts) == len(meter.lasts) == len(meter.amounts) <= 122
        held = sum(
            (request.prompt_left if key in request.prompt_meters else 0)
            + (request.completion_left + request.unbooked if key in request.completion_meters else 0)
            + (request.holds_slots and key in request.slot_meters)
            for request in state.requests.values()
        )
        assert meter.outstanding == held, key


def assert_settlements_balance(steps: Iterable[Step]) -> None:
    for step in steps:
        for decision in step.decisions:
            numbers = (
                decision.reserved_tokens,
                decision.used_tokens,
                decision.refunded_tokens,
                decision.overdrawn_tokens,
            )
            assert min(numbers) >= 0, decision
            if decision.bound is not None:
                assert 0 <= decision.bound.remaining <= decision.bound.limit
            if decision.kind is DecisionKind.SETTLE:
                charged = decision.reserved_tokens + decision.overdrawn_tokens
                assert charged == decision.used_tokens + decision.refunded_tokens, decision


def feed_all(driver: Direct, events: Iterable[RequestEvent]) -> Iterator[Step]:
    for event in events:
        yield from driver.feed(event)
    yield from driver.wake_until(FOREVER_US)


hostile = hostile_streams()


@given(policies(traffic_is_recorded=False) | policies(traffic_is_recorded=True), hostile)
def test_tokens_are_conserved_at_every_step_of_hostile_traffic(
    rules: LimiterPolicy, events: list[RequestEvent]
) -> None:
    driver = Direct(rules)
    for step in feed_all(driver, events):
        assert_conserved(driver.state)
        assert_meters_agree(driver.state)
        assert_settlements_balance([step])
    assert not driver.state.requests
    assert all(meter.outstanding == 0 for meter in driver.state.meters.values())


@pytest.mark.slow
@settings(max_examples=1_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(policies(traffic_is_recorded=False) | policies(traffic_is_recorded=True), hostile_streams(max_size=120))
def test_tokens_are_conserved_in_long_runs(rules: LimiterPolicy, events: list[RequestEvent]) -> None:
    driver = Direct(rules)
    for step in feed_all(driver, events):
        assert_conserved(driver.state)
        assert_meters_agree(driver.state)
        assert_settlements_balance([step])


@given(policies(max_subjects=2), moves(ORDERLY), st.booleans())
def test_tokens_are_conserved_where_subjects_share_a_meter(
    rules: LimiterPolicy, script: list[Move], stops: bool
) -> None:
    driver = Direct(rules)
    for step in play(driver, script, stops_when_revoked=stops):
        assert_conserved(driver.state)
        assert_meters_agree(driver.state)
        assert_settlements_balance([step])


@given(policies(), policies(), moves(ORDERLY), st.integers(0, 40))
def test_tokens_are_conserved_through_a_change_of_policy(
    before: LimiterPolicy, after: LimiterPolicy, script: list[Move], change_at: int
) -> None:
    driver = Direct(before)
    for index, step in enumerate(play(driver, script)):
        if index == change_at:
            driver.policies = Direct(after).policies
        assert_conserved(driver.state)
        assert_settlements_balance([step])


@given(policies(), hostile)
def test_a_request_is_settled_once_and_again_only_when_it_spoke_again(
    rules: LimiterPolicy, events: list[RequestEvent]
) -> None:
    settled: Counter[tuple[str, int]] = Counter()
    resumed: Counter[tuple[str, int]] = Counter()
    admitted: set[tuple[str, int]] = set()
    for step in feed_all(Direct(rules), events):
        if step.event is not None:
            resumed[step.event.request_id, step.event.attempt] += step.anomalies.count(Anomaly.RESUMED)
        for decision in step.decisions:
            key = (decision.request_id, decision.attempt)
            settled[key] += decision.kind is DecisionKind.SETTLE
            if decision.kind is DecisionKind.ADMIT:
                admitted.add(key)
            assert settled[key] <= 1 + resumed[key]
    for key in admitted:
        assert settled[key] == 1 + resumed[key]


@given(policies(traffic_is_recorded=False) | policies(traffic_is_recorded=True), hostile)
def test_every_prompt_is_answered_once(rules: LimiterPolicy, events: list[RequestEvent]) -> None:
    answers: Counter[tuple[str, int]] = Counter()
    for step in feed_all(Direct(rules), events):
        answers.update((d.request_id, d.attempt) for d in enforced(step.decisions) if d.kind in ANSWERS)
    assert answers == Counter(asked_and_not_overtaken(events))


def asked_and_not_overtaken(events: list[RequestEvent]) -> set[tuple[str, int]]:
    """The requests whose prompt came before their end: where the end came first, nobody waits for an answer."""
    first: dict[tuple[str, int], RequestEvent] = {}
    for event in events:
        if not isinstance(event, TokensGenerated):
            first.setdefault((event.request_id, event.attempt), event)
    return {key for key, event in first.items() if isinstance(event, PromptSubmitted)}


@given(policies(), hostile)
def test_a_decision_id_is_never_used_again(rules: LimiterPolicy, events: list[RequestEvent]) -> None:
    decisions = [decision for step in feed_all(Direct(rules), events) for decision in step.decisions]
    ids = Counter(decision.decision_id for decision in decisions)
    assert ids == Counter(set(ids))


def test_a_decision_id_is_not_used_again_by_a_request_that_was_forgotten() -> None:
    driver = Direct(policy(limit(1_000), remember_requests=1, silence_timeout_us=10 * SECOND))
    decisions = driver.tell(prompt("slow", START_US, max_tokens=10))
    for second in range(20, 23):
        decisions += driver.tell(
            prompt(f"r{second}", START_US + second * SECOND, max_tokens=1),
            completed(f"r{second}", START_US + second * SECOND),
        )
    decisions += driver.tell(
        chunk("slow", START_US + 30 * SECOND, cumulative=3), completed("slow", START_US + 31 * SECOND)
    )
    of_slow = [decision.decision_id for decision in decisions if decision.request_id == "slow"]
    assert len(of_slow) == len(set(of_slow)) == 3


@given(policies(), hostile)
def test_every_event_is_decided_or_counted(rules: LimiterPolicy, events: list[RequestEvent]) -> None:
    """Silence is only for what says nothing new of a request: a chunk within its grant, the end of a refused one."""
    driver = Direct(rules)
    refused: set[tuple[str, int]] = set()
    for step in feed_all(driver, events):
        event = step.event
        if event is None:
            continue
        key = (event.request_id, event.attempt)
        if not step.found:
            assert key in driver.state.requests or key in refused
        refused |= {key for decision in step.decisions if is_refusal(decision)}


def is_refusal(decision: Decision) -> bool:
    return decision.kind in {DecisionKind.THROTTLE, DecisionKind.REJECT} and decision.mode is DecisionMode.ENFORCE


@given(policies(), hostile)
def test_every_refusal_names_the_limit_that_bound(rules: LimiterPolicy, events: list[RequestEvent]) -> None:
    by_name = {rule.name: rule for rule in rules.limits}
    for step in feed_all(Direct(rules), events):
        for decision in step.decisions:
            if decision.kind is DecisionKind.THROTTLE:
                assert decision.bound is not None
            if decision.bound is not None:
                rule = by_name[decision.bound.name]
                assert decision.mode is rule.mode
                assert (decision.bound.level, decision.bound.unit) == (rule.level, rule.unit)
                assert decision.bound.limit == rule.limit
                assert decision.bound.reset_at_us >= decision.decided_at_us or rule.unit is LimitUnit.STREAMS
