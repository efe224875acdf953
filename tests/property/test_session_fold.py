"""A session's state depends on the set of its events alone; the oracle is that set, read by the definitions."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from schemas.events import (
    Event,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from tests.session_world import SESSION, T0_US, TENANT, chunk, completed, failed, interrupted, resumed, stamped
from udfs.domain.events.commands import Command, Complete, Fail, Generate, Interrupt, Refusal, Resume, Submit, decide
from udfs.domain.events.session import Odd, Phase, SessionState, apply, dump, fold, load

REQUESTS = ("r1", "r2")
_attempts = st.integers(0, 2)
_requests = st.sampled_from(REQUESTS)
_counts = st.integers(0, 30)


KINDS = ("prompt", "chunk", "count", "interrupted", "completed", "failed")


def made(kind: str, number: int, request_id: str, attempt: int, count: int, usage_source: UsageSource) -> Event:
    """One event. Its sequence is its own: one number for two chunks would be one id for two facts."""
    name, at_us, sequence = f"e{number}", T0_US + number, number + 2
    match kind:
        case "prompt":
            return resumed(name, count, attempt, request_id, event_time_us=at_us)
        case "chunk":
            return chunk(name, count + 1, 0, request_id, attempt, event_time_us=at_us, sequence=sequence)
        case "count":
            return chunk(name, 0, count, request_id, attempt, event_time_us=at_us, sequence=sequence)
        case "interrupted":
            return interrupted(name, count, request_id, attempt, event_time_us=at_us, sequence=sequence)
        case "completed":
            return completed(name, count, request_id, attempt, usage_source, event_time_us=at_us, sequence=sequence)
        case _:
            return failed(name, request_id, attempt, event_time_us=at_us, sequence=sequence)


@st.composite
def event_sets(draw: st.DrawFn) -> list[Event]:
    """Events of a few attempts, each id once; many that contradict each other."""
    found: list[Event] = []
    for number in range(draw(st.integers(0, 14))):
        kind, source = draw(st.sampled_from(KINDS)), draw(st.sampled_from(UsageSource))
        event = made(kind, number, draw(_requests), draw(_attempts), draw(_counts), source)
        if draw(st.booleans()):
            event = stamped(event, draw(st.sampled_from(["eu", "us"])), draw(st.integers(1, 5)), {"eu": 1})
        found.append(event)
    return found


def disordered(events: Sequence[Event], rng: random.Random) -> list[Event]:
    """All events in any order, some of them several times."""
    again = [event for event in events for _ in range(rng.choice((0, 0, 1, 2)))]
    told = [*events, *again]
    rng.shuffle(told)
    return told


def place(event: Event) -> tuple[int, str, bytes]:
    return (event.provenance.lamport if event.provenance else 0, event.region, event.event_id)


class Expected:
    """An attempt by definition, from all of its events at once."""

    def __init__(self, events: Sequence[Event]) -> None:
        prompts = [event for event in events if isinstance(event, PromptSubmitted)]
        chunks = [event for event in events if isinstance(event, TokensGenerated)]
        self.prompt = min(prompts, key=place, default=None)
        largest = max((event.cumulative for event in chunks), default=0)
        self.streamed = largest or sum(event.count for event in chunks)
        ends = [e for e in events if isinstance(e, (RequestCompleted, RequestFailed, StreamInterrupted))]
        for kind in (StreamInterrupted, RequestFailed, RequestCompleted):
            of_kind = [event for event in ends if isinstance(event, kind)]
            if of_kind:
                self.end = min(of_kind, key=lambda it: (self.said(it), place(it)))
        if not ends:
            self.end = None
        reported = {(self.tokens(event), type(event)) for event in ends if self.said(event) == 0}
        self.contested = (
            len({type(event) for event in ends}) > 1
            or len(reported) > 1
            or len({(event.prompt_tokens, event.resumed_at_token) for event in prompts}) > 1
        )
        if self.end is None or self.said(self.end) == 2:
            self.generated = self.streamed
        elif isinstance(self.end, StreamInterrupted):
            self.generated = max(self.streamed, self.end.token_offset)
        else:
            self.generated = self.end.completion_tokens

    end: RequestCompleted | RequestFailed | StreamInterrupted | None

    @staticmethod
    def tokens(event: RequestCompleted | RequestFailed | StreamInterrupted) -> tuple[int, int]:
        if isinstance(event, StreamInterrupted):
            return (0, event.token_offset)
        return (event.prompt_tokens, event.completion_tokens)

    def said(self, event: RequestCompleted | RequestFailed | StreamInterrupted) -> int:
        if event.usage_source is UsageSource.ESTIMATED:
            return 1
        return 0 if event.usage_source is UsageSource.REPORTED or any(self.tokens(event)) else 2

    @property
    def phase(self) -> Phase:
        if self.end is not None:
            ends = {
                RequestCompleted: Phase.COMPLETED,
                RequestFailed: Phase.FAILED,
                StreamInterrupted: Phase.INTERRUPTED,
            }
            return ends[type(self.end)]
        return Phase.EARLY if self.prompt is None else Phase.STREAMING


@given(event_sets(), st.randoms(use_true_random=False))
def test_the_fold_comes_to_what_the_set_of_events_says(events: list[Event], rng: random.Random) -> None:
    state = fold(SessionState(TENANT, SESSION), disordered(events, rng))
    by_attempt: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        by_attempt.setdefault((event.request_id, event.attempt), []).append(event)
    assert set(state.attempts) == set(by_attempt)
    for (request_id, number), told in by_attempt.items():
        found, expected = state.attempt(request_id, number), Expected(told)
        assert (None if found.prompt is None else found.prompt.event_id) == (
            None if expected.prompt is None else expected.prompt.event_id
        )
        assert (None if found.ending is None else found.ending.event_id) == (
            None if expected.end is None else expected.end.event_id
        )
        assert found.streamed_tokens == expected.streamed
        assert found.completion_tokens == expected.generated
        assert (Odd.CONTESTED in found.odd) == expected.contested
        if any(isinstance(event, TokensGenerated) for event in told) or expected.end is not None:
            assert found.phase is expected.phase
        assert state.latest_attempt(request_id) == max(at for name, at in by_attempt if name == request_id)


@given(event_sets(), st.randoms(use_true_random=False))
def test_duplicates_and_reordering_make_no_difference(events: list[Event], rng: random.Random) -> None:
    straight = fold(SessionState(TENANT, SESSION), events)
    assert dump(fold(SessionState(TENANT, SESSION), disordered(events, rng))) == dump(straight)


@given(event_sets(), st.randoms(use_true_random=False), st.sets(st.integers(0, 40)))
def test_restarts_anywhere_make_no_difference(events: list[Event], rng: random.Random, restarts: set[int]) -> None:
    told = disordered(events, rng)
    unbroken = fold(SessionState(TENANT, SESSION), told)
    state = SessionState(TENANT, SESSION)
    for number, event in enumerate(told):
        if number in restarts:
            # At least once: what was folded last before the restart comes again after it.
            state = fold(load(dump(state)), told[max(0, number - 3) : number])
        apply(state, event)
    assert dump(state) == dump(unbroken)


def commands() -> st.SearchStrategy[Command]:
    """Anything that a client may want, sensible or not."""
    who = {"request_id": _requests, "at_us": st.just(T0_US)}
    return st.one_of(
        st.builds(Submit, **who, prompt_tokens=_counts, max_tokens=_counts),
        st.builds(Generate, **who, cumulative=_counts),
        st.builds(Interrupt, **who, token_offset=st.none() | _counts),
        st.builds(Resume, **who),
        st.builds(Complete, **who, completion_tokens=_counts, usage_source=st.just(UsageSource.REPORTED)),
        st.builds(Fail, **who),
    )


@given(st.lists(commands(), max_size=40), st.randoms(use_true_random=False))
def test_what_commands_wrote_is_folded_the_same_in_any_order(wanted: list[Command], rng: random.Random) -> None:
    state = SessionState(TENANT, SESSION)
    written: list[Event] = []
    for command in wanted:
        answer = decide(state, command)
        if isinstance(answer, Refusal):
            continue
        written += answer
        fold(state, answer)
        assert decide(state, command) != answer
    assert len({event.event_id for event in written}) == len(written)
    assert dump(fold(SessionState(TENANT, SESSION), disordered(written, rng))) == dump(state)
    for (request_id, number), attempt in state.attempts.items():
        assert attempt.odd is Odd.NOTHING
        if attempt.resumed_at_token:
            assert state.goes_on_from(request_id, number) == (request_id, number - 1)
        before = state.attempt(request_id, number - 1).phase
        assert number == 0 or before in {Phase.INTERRUPTED, Phase.FAILED}
