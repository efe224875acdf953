"""Whatever decisions a gateway reads, in whatever order and however often, it keeps its promises.

The oracle looks at nothing but what went in and what came out: events with their times, and decisions as they were
handed over.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import event as note
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jobs.ops.load.gateway import Gateway, GatewayRules
from jobs.ops.load.plan import PlannedRequest
from jobs.ops.load.tally import Fault, Outcome, Tally
from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason
from schemas.events import (
    Event,
    Heartbeat,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from tests.limiter_world import START_US, completed, prompt

NAME = "run-0"
TIMEOUT_US = 400
RULES = GatewayRules(max_attempts=2, max_wait_us=150, decision_timeout_us=TIMEOUT_US)
FOREVER_US = 100_000
_ANSWERS = frozenset((DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.REJECT))
_ENDS = (RequestCompleted, RequestFailed, StreamInterrupted)


@st.composite
def plans(draw: st.DrawFn) -> PlannedRequest:
    offsets = sorted(draw(st.lists(st.integers(0, 200), max_size=6)))
    cumulatives = sorted(draw(st.sets(st.integers(1, 100), min_size=len(offsets), max_size=len(offsets))))
    return PlannedRequest(
        due_us=draw(st.sampled_from([0, 0, 50, 200])),
        prompt=prompt("recorded", START_US, 10),
        offsets_us=tuple(offsets),
        cumulatives=tuple(cumulatives),
        ending=completed("recorded", START_US, (10, 10)),
        end_offset_us=(offsets[-1] if offsets else 0) + draw(st.integers(0, 20)),
    )


class Step(NamedTuple):
    """Some time passes, then a decision comes (or none), and the gateway is asked what is due (or not).

    `back`: the decision is on an attempt so many before the current one, -1: on one that was not made. `again`: an
    earlier decision comes again instead, as it was, or (`changed`) under its id alone.
    """

    wait_us: int
    kind: DecisionKind | None
    number: int
    back: int
    again: bool
    changed: bool
    fields: tuple[DecisionReason, DecisionMode, int, int]
    advances: bool


_kinds = st.sampled_from(
    [DecisionKind.ADMIT] * 4
    + [DecisionKind.THROTTLE] * 2
    + [DecisionKind.REVOKE] * 3
    + [DecisionKind.SETTLE, DecisionKind.SETTLE, DecisionKind.REJECT, DecisionKind.EXTEND, None, None]
)
_seldom = st.integers(0, 7).map(lambda number: number == 7)
steps = st.builds(
    Step,
    st.integers(0, 40),
    _kinds,
    st.integers(0, 20),
    st.sampled_from([0] * 8 + [1, 1, 2, -1]),
    _seldom,
    _seldom,
    st.tuples(
        st.sampled_from([DecisionReason.COMPLETED, DecisionReason.SILENT, DecisionReason.NO_PROMPT]),
        st.sampled_from([DecisionMode.ENFORCE] * 7 + [DecisionMode.SHADOW]),
        st.integers(0, 60),
        st.sampled_from([0, 10, 40, 151]),
    ),
    st.sampled_from([True, True, False]),
)


class Seen(NamedTuple):
    """What passed the gateway's door: either a decision going in, or an event coming out."""

    at_us: int
    decision: Decision | None
    event: Event | None


class Run:
    """A gateway that is fed, and the log of what went in and came out."""

    def __init__(self, requests: list[PlannedRequest], taken: list[Step]) -> None:
        self.requests = sorted(requests, key=lambda request: request.due_us)
        self.tally = Tally()
        self.gateway = Gateway(NAME, iter(self.requests), RULES, self.tally, START_US)
        self.seen: list[Seen] = []
        self.advanced_us: list[int] = []
        self.overshoots: list[tuple[int, int]] = []
        now_us = START_US
        for step in taken:
            now_us += step.wait_us
            if step.kind is not None:
                self._decide(step, step.kind, now_us)
            if step.advances:
                self._advance(now_us)
        while not self.gateway.is_over:
            assert now_us < START_US + FOREVER_US, "requests must end, whatever is decided"
            now_us = max(self.gateway.due_us, now_us)
            self._advance(now_us)

    def _advance(self, now_us: int) -> None:
        self.advanced_us.append(now_us)
        self.seen += [Seen(now_us, None, event) for event in self.gateway.advance(now_us)]

    def _decide(self, step: Step, kind: DecisionKind, now_us: int) -> None:
        decision = self._made(step, kind, now_us)
        self.seen.append(Seen(now_us, decision, None))
        before = len(self.tally.overshoot_tokens)
        out = self.gateway.decide(decision, now_us)
        if len(self.tally.overshoot_tokens) > before:
            flowed = sum(
                chunk.count
                for chunk in self.chunks(decision.request_id)
                if chunk.event_time_us > decision.decided_at_us
            )
            self.overshoots.append((flowed, self.tally.overshoot_tokens[-1]))
        else:
            assert not any(_is_cut(event) for event in out)
        self.seen += [Seen(now_us, None, event) for event in out]

    def _made(self, step: Step, kind: DecisionKind, now_us: int) -> Decision:
        reason, mode, ago_us, later_us = step.fields
        handed = [seen.decision for seen in self.seen if seen.decision is not None]
        if step.again and handed:
            earlier = handed[step.number % len(handed)]
            return replace(earlier, used_tokens=len(handed)) if step.changed else earlier
        request_id = f"{NAME}-{step.number % len(self.requests)}"
        made = sum(isinstance(event, PromptSubmitted) for event in self.events(request_id))
        attempt = max(made - 1 - step.back, 0)
        return Decision(
            decision_id=f"{request_id}/{attempt}/{len(handed)}",
            kind=kind,
            mode=mode,
            reason=reason,
            tenant="acme",
            request_id=request_id,
            attempt=attempt,
            decided_at_us=now_us - ago_us,
            retry_at_us=now_us + later_us,
        )

    def events(self, request_id: str) -> list[Event]:
        return [seen.event for seen in self.seen if seen.event is not None and seen.event.request_id == request_id]

    def chunks(self, request_id: str) -> list[TokensGenerated]:
        return [event for event in self.events(request_id) if isinstance(event, TokensGenerated)]

    @property
    def ids(self) -> list[str]:
        return [f"{NAME}-{number}" for number in range(len(self.requests))]

    def binding_before(self, event: RequestEvent, attempt: int | None = None) -> list[Decision]:
        """What bound its attempt when the event came out: enforced, on an attempt that was made, new under its id."""
        attempt = event.attempt if attempt is None else attempt
        asked: Counter[str] = Counter()
        first: set[str] = set()
        found = []
        for seen in self.seen:
            if seen.event is event:
                break
            if isinstance(seen.event, PromptSubmitted):
                asked[seen.event.request_id] += 1
            one = seen.decision
            if one is None or one.attempt >= asked[one.request_id] or one.decision_id in first:
                continue
            first.add(one.decision_id)
            is_its = (one.request_id, one.attempt) == (event.request_id, attempt)
            if is_its and one.mode is DecisionMode.ENFORCE:
                found.append(one)
        return found


def _is_cut(event: Event) -> bool:
    return isinstance(event, StreamInterrupted) and event.reason is InterruptReason.REVOKED


runs = st.builds(Run, st.lists(plans(), min_size=1, max_size=3), st.lists(steps, min_size=8, max_size=50))


@given(runs)
def test_every_request_ends_exactly_once(run: Run) -> None:
    assert run.tally.requests == len(run.requests)
    assert sum(run.tally.outcomes.values()) == len(run.requests)
    assert run.gateway.open_requests == 0
    for outcome, number in run.tally.outcomes.items():
        note(f"{outcome.value}: {min(number, 1)}")


@given(runs)
def test_no_token_flows_that_was_not_admitted_or_after_a_revocation_was_read(run: Run) -> None:
    for request_id in run.ids:
        for chunk in run.chunks(request_id):
            kinds = [one.kind for one in run.binding_before(chunk)]
            answers = [kind for kind in kinds if kind in _ANSWERS]
            assert answers
            assert answers[0] is DecisionKind.ADMIT
            assert DecisionKind.REVOKE not in kinds


@given(runs)
def test_streams_count_up_as_planned_and_end_once_with_nothing_after(run: Run) -> None:
    for request_id, plan in zip(run.ids, run.requests, strict=True):
        chunks = run.chunks(request_id)
        assert tuple(chunk.cumulative for chunk in chunks) == plan.cumulatives[: len(chunks)]
        total = 0
        for chunk in chunks:
            total += chunk.count
            assert chunk.cumulative == total
        ends = [index for index, event in enumerate(run.events(request_id)) if isinstance(event, _ENDS)]
        assert len(ends) <= 1
        assert not ends or ends[0] == len(run.events(request_id)) - 1
        if chunks:
            assert ends, "a stream that began must be ended"


@given(runs)
def test_attempts_count_up_and_each_waits_for_the_throttle_before_it(run: Run) -> None:
    for request_id in run.ids:
        prompts = [event for event in run.events(request_id) if isinstance(event, PromptSubmitted)]
        assert [asked.attempt for asked in prompts] == list(range(len(prompts)))
        assert 1 <= len(prompts) <= RULES.max_attempts
        for again in prompts[1:]:
            answers = [one for one in run.binding_before(again, again.attempt - 1) if one.kind in _ANSWERS]
            assert answers[0].kind is DecisionKind.THROTTLE
            assert again.event_time_us >= answers[0].retry_at_us


@given(runs)
def test_first_prompts_leave_on_time_whatever_was_decided(run: Run) -> None:
    for request_id, plan in zip(run.ids, run.requests, strict=True):
        first = run.events(request_id)[0]
        due_us = START_US + plan.due_us
        assert first.event_time_us == min(at_us for at_us in run.advanced_us if at_us >= due_us)


@given(runs)
def test_ids_are_never_given_twice_and_sequences_have_no_gap(run: Run) -> None:
    sent = [seen.event for seen in run.seen if seen.event is not None and not isinstance(seen.event, Heartbeat)]
    assert len({event.event_id for event in sent}) == len(sent)
    for request_id in run.ids:
        events = run.events(request_id)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert {event.session for event in events} == {request_id}


@given(runs)
def test_overshoot_is_what_flowed_after_the_time_of_the_decision(run: Run) -> None:
    for flowed, counted in run.overshoots:
        assert counted == flowed
    cuts = sum(_is_cut(seen.event) for seen in run.seen if seen.event is not None)
    assert len(run.tally.stop_us) == cuts
    assert len(run.tally.overshoot_tokens) == cuts + run.tally.revoked_after_end


@given(runs)
def test_repeats_changes_and_second_settlements_are_counted_by_their_definition(run: Run) -> None:
    first: dict[str, Decision] = {}
    settled: dict[tuple[str, int], DecisionReason] = {}
    asked: Counter[str] = Counter()
    repeats = changed = settled_twice = unknown = 0
    for seen in run.seen:
        if isinstance(seen.event, PromptSubmitted):
            asked[seen.event.request_id] += 1
        decision = seen.decision
        if decision is None:
            continue
        if decision.attempt >= asked[decision.request_id]:
            unknown += 1
        elif decision.decision_id in first:
            repeats += decision == first[decision.decision_id]
            changed += decision != first[decision.decision_id]
        else:
            first[decision.decision_id] = decision
            if decision.kind is DecisionKind.SETTLE and decision.mode is DecisionMode.ENFORCE:
                attempt = (decision.request_id, decision.attempt)
                settled_twice += settled.get(attempt) is DecisionReason.COMPLETED
                if settled.get(attempt) is not DecisionReason.COMPLETED:
                    settled[attempt] = decision.reason

    tally = run.tally
    assert (tally.duplicates, tally.unknown_decisions) == (repeats, unknown)
    assert tally.faults[Fault.CHANGED] == changed
    assert tally.faults[Fault.SETTLED_TWICE] == settled_twice
    assert tally.missing == tally.outcomes[Outcome.LOST] + tally.outcomes[Outcome.UNSETTLED]
