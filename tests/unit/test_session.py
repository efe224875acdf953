from collections.abc import Callable

import pytest

from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from schemas.events import (
    Event,
    Heartbeat,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from tests.session_world import (
    SESSION,
    T0_US,
    TENANT,
    chunk,
    completed,
    envelope,
    failed,
    interrupted,
    prompt,
    resumed,
    stamped,
)
from udfs.domain.events import session as sessions
from udfs.domain.events.chunk_runs import MAX_RUNS, ChunkRuns
from udfs.domain.events.commands import (
    TRANSITIONS,
    Command,
    Complete,
    Fail,
    Generate,
    Interrupt,
    Refusal,
    RefusalReason,
    Resume,
    Submit,
    decide,
)
from udfs.domain.events.endings import EndKind
from udfs.domain.events.session import (
    MAX_ATTEMPTS,
    Odd,
    Phase,
    SessionState,
    WrongSessionError,
    apply,
    dump,
    fold,
    load,
)
from udfs.domain.events.stored import UnreadableStoredError
from udfs.domain.ingest.attempt import Attempt, Chunk, End, Usage, events_of
from udfs.domain.ingest.record import Origin

GOLDEN_SESSION = (
    "0194a461636d65a27331919292a2723100979f00a0c40170cf00060a24181e40000a000000a0a0a0a0a0a0c2059190c002cf"
    "00060a24181e400000c2"
)
"""One streaming attempt, in the form of today."""

BY_PHASE: dict[Phase, list[Event]] = {
    Phase.UNKNOWN: [],
    Phase.EARLY: [chunk("c", 5, sequence=2)],
    Phase.SUBMITTED: [prompt("p")],
    Phase.STREAMING: [prompt("p"), chunk("c", 5, sequence=2)],
    Phase.INTERRUPTED: [prompt("p"), chunk("c", 5, sequence=2), interrupted("i", 5, sequence=3)],
    Phase.COMPLETED: [prompt("p"), completed("e", 5, sequence=2)],
    Phase.FAILED: [prompt("p"), failed("f", sequence=2)],
}
COMMANDS: dict[str, Command] = {
    "submit": Submit(request_id="r1", at_us=T0_US + 1, prompt_tokens=7, max_tokens=50),
    "generate": Generate(request_id="r1", at_us=T0_US + 1, cumulative=8),
    "interrupt": Interrupt(request_id="r1", at_us=T0_US + 1),
    "resume": Resume(request_id="r1", at_us=T0_US + 1),
    "complete": Complete(request_id="r1", at_us=T0_US + 1, completion_tokens=8, usage_source=UsageSource.REPORTED),
    "fail": Fail(request_id="r1", at_us=T0_US + 1, error_class="timeout"),
}

UNKNOWN = RefusalReason.NOT_SUBMITTED
RUNNING = RefusalReason.ALREADY_SUBMITTED
NOT_CUT = RefusalReason.NOT_INTERRUPTED
ENDED = RefusalReason.ENDED
NEXT = 1
"""The attempt that the event is of, where it is not 0."""

Cell = RefusalReason | tuple[type[Event], int]
P: Cell = (PromptSubmitted, 0)
AGAIN: Cell = (PromptSubmitted, NEXT)
T: Cell = (TokensGenerated, 0)
I: Cell = (StreamInterrupted, 0)  # noqa: E741 - a column of the table
C: Cell = (RequestCompleted, 0)
F: Cell = (RequestFailed, 0)

TABLE: dict[Phase, tuple[Cell, ...]] = {
    # phase: submit, generate, interrupt, resume, complete, fail
    Phase.UNKNOWN: (P, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    Phase.EARLY: (P, T, I, NOT_CUT, C, F),
    Phase.SUBMITTED: (RUNNING, T, I, NOT_CUT, C, F),
    Phase.STREAMING: (RUNNING, T, I, NOT_CUT, C, F),
    Phase.INTERRUPTED: (AGAIN, ENDED, ENDED, AGAIN, ENDED, ENDED),
    Phase.COMPLETED: (ENDED, ENDED, ENDED, ENDED, ENDED, ENDED),
    Phase.FAILED: (AGAIN, ENDED, ENDED, NOT_CUT, ENDED, ENDED),
}
CELLS = [
    pytest.param(phase, command, cell, id=f"{phase.value}-{command}")
    for phase, row in TABLE.items()
    for command, cell in zip(COMMANDS, row, strict=True)
]


def new(*events: Event) -> SessionState:
    return fold(SessionState(TENANT, SESSION), events)


def done(state: SessionState, command: Command) -> Event:
    """The one event of a command, folded in."""
    answer = decide(state, command)
    assert isinstance(answer, list), answer
    (event,) = answer
    assert apply(state, event)
    return event


def refused(state: SessionState, command: Command) -> RefusalReason:
    before = dump(state)
    answer = decide(state, command)
    assert isinstance(answer, Refusal)
    assert answer.detail
    assert dump(state) == before
    return answer.reason


def test_the_table_has_a_cell_for_each_phase_and_command() -> None:
    assert set(TRANSITIONS) == set(Phase) == set(TABLE)
    kinds = {type(command) for command in COMMANDS.values()}
    assert all(set(row) == kinds == set(Command.__subclasses__()) for row in TRANSITIONS.values())


@pytest.mark.parametrize("phase", list(Phase))
def test_the_events_of_a_phase_lead_to_it(phase: Phase) -> None:
    assert new(*BY_PHASE[phase]).attempt("r1", 0).phase is phase


@pytest.mark.parametrize(("phase", "command", "cell"), CELLS)
def test_a_command_gives_its_event_or_a_typed_refusal(phase: Phase, command: str, cell: Cell) -> None:
    state = new(*BY_PHASE[phase])
    if isinstance(cell, RefusalReason):
        assert refused(state, COMMANDS[command]) is cell
        return
    event = done(state, COMMANDS[command])
    assert (type(event), event.attempt) == cell
    assert (event.tenant, event.session, event.request_id) == (TENANT, SESSION, "r1")
    assert event.event_time_us == T0_US + 1
    decoded = decode_events(encode_events(0, [event]), Position("", 0, 0))
    assert (decoded.events, decoded.dead) == ([event], [])


@pytest.mark.parametrize(
    ("phase", "command"),
    [
        (phase, command)
        for phase, row in TABLE.items()
        for command, cell in zip(COMMANDS, row, strict=True)
        if not isinstance(cell, RefusalReason)
    ],
)
def test_a_command_told_twice_gives_its_event_once(phase: Phase, command: str) -> None:
    state = new(*BY_PHASE[phase])
    done(state, COMMANDS[command])
    assert isinstance(decide(state, COMMANDS[command]), Refusal)


def test_a_life_written_by_commands_is_the_one_that_an_adapter_reads() -> None:
    state = new()
    written = [
        done(state, command)
        for command in (
            Submit(request_id="r1", at_us=T0_US, prompt_tokens=7, model="m", backend="b", source="gateway"),
            Generate(request_id="r1", at_us=T0_US + 1, cumulative=3),
            Generate(request_id="r1", at_us=T0_US + 2, cumulative=8),
            Complete(
                request_id="r1",
                at_us=T0_US + 3,
                prompt_tokens=7,
                completion_tokens=8,
                usage_source=UsageSource.REPORTED,
                finish_reason="stop",
            ),
        )
    ]
    attempt = Attempt(
        request_id="r1",
        session=SESSION,
        model="m",
        backend="b",
        stream=True,
        started_at_us=T0_US,
        ended_at_us=T0_US + 3,
        usage=Usage(prompt_tokens=7, completion_tokens=8, source=UsageSource.REPORTED),
        chunks=[Chunk(T0_US + 1, 3), Chunk(T0_US + 2, 8)],
        end=End.COMPLETED,
        finish_reason="stop",
    )
    assert written == events_of(attempt, Origin(source="gateway", tenant=TENANT))


def test_a_stream_goes_on_where_it_was_interrupted_as_the_next_attempt() -> None:
    state = new()
    done(state, Submit(request_id="r1", at_us=T0_US, prompt_tokens=7, max_tokens=100, model="m", user="u"))
    done(state, Generate(request_id="r1", at_us=T0_US, cumulative=20))
    cut = done(state, Interrupt(request_id="r1", at_us=T0_US, token_offset=15, reason=InterruptReason.CONNECTION_LOST))
    assert isinstance(cut, StreamInterrupted)
    assert cut.token_offset == 15
    again = done(state, Resume(request_id="r1", at_us=T0_US, region="us"))
    assert isinstance(again, PromptSubmitted)
    assert (again.attempt, again.resumed_at_token, again.max_tokens) == (1, 15, 85)
    assert (again.prompt_tokens, again.model, again.user, again.region) == (7, "m", "u", "us")
    assert state.goes_on_from("r1", 1) == ("r1", 0)
    done(state, Generate(request_id="r1", at_us=T0_US, cumulative=10))
    done(state, Interrupt(request_id="r1", at_us=T0_US))
    third = done(state, Resume(request_id="r1", at_us=T0_US, prompt_tokens=32))
    assert isinstance(third, PromptSubmitted)
    assert (third.attempt, third.resumed_at_token, third.max_tokens, third.prompt_tokens) == (2, 25, 75, 32)
    assert state.goes_on_from("r1", 2) == ("r1", 1)
    # What did not reach the client was generated all the same.
    assert state.completion_tokens == 20 + 10


def test_a_retry_begins_anew() -> None:
    state = new(*BY_PHASE[Phase.INTERRUPTED])
    again = done(state, COMMANDS["submit"])
    assert isinstance(again, PromptSubmitted)
    assert (again.attempt, again.resumed_at_token) == (1, 0)
    assert state.goes_on_from("r1", 1) is None


def test_an_attempt_is_linked_only_to_one_that_was_interrupted_there() -> None:
    assert new(prompt("p"), interrupted("i", 5), resumed("q", 5)).goes_on_from("r1", 1) == ("r1", 0)
    assert new(prompt("p"), interrupted("i", 6), resumed("q", 5)).goes_on_from("r1", 1) is None
    assert new(prompt("p"), completed("e", 5), resumed("q", 5)).goes_on_from("r1", 1) is None
    assert new(resumed("q", 5)).goes_on_from("r1", 1) is None


@pytest.mark.parametrize(
    ("phase", "command", "reason"),
    [
        (Phase.STREAMING, Generate(request_id="r1", at_us=T0_US, cumulative=5), RefusalReason.NOTHING_NEW),
        (Phase.SUBMITTED, Generate(request_id="r1", at_us=T0_US, cumulative=0), RefusalReason.NOTHING_NEW),
        (Phase.STREAMING, Generate(request_id="r1", at_us=T0_US, cumulative=-1), RefusalReason.OUT_OF_RANGE),
        (Phase.STREAMING, Generate(request_id="r1", at_us=T0_US, cumulative=10**13), RefusalReason.OUT_OF_RANGE),
        (Phase.STREAMING, Interrupt(request_id="r1", at_us=T0_US, token_offset=6), RefusalReason.OUT_OF_RANGE),
        (Phase.UNKNOWN, Submit(request_id="r1", at_us=0), RefusalReason.OUT_OF_RANGE),
        (Phase.UNKNOWN, Submit(request_id="r1", at_us=2**63), RefusalReason.OUT_OF_RANGE),
        (Phase.UNKNOWN, Submit(request_id="", at_us=T0_US), RefusalReason.OUT_OF_RANGE),
        (Phase.UNKNOWN, Submit(request_id="x" * 513, at_us=T0_US), RefusalReason.OUT_OF_RANGE),
        (Phase.UNKNOWN, Submit(request_id="r1", at_us=T0_US, prompt_tokens=-1), RefusalReason.OUT_OF_RANGE),
        (Phase.STREAMING, Generate(request_id="r1", at_us=T0_US, cumulative=9, attempt=1), RefusalReason.OTHER_ATTEMPT),
        (Phase.UNKNOWN, Submit(request_id="r1", at_us=T0_US, attempt=3), RefusalReason.OTHER_ATTEMPT),
    ],
)
def test_what_a_command_can_not_mean_is_refused(phase: Phase, command: Command, reason: RefusalReason) -> None:
    assert refused(new(*BY_PHASE[phase]), command) is reason


def test_nothing_is_resumed_before_its_first_token() -> None:
    state = new(prompt("p"), interrupted("i", 0))
    assert refused(state, COMMANDS["resume"]) is RefusalReason.NO_TOKENS


@pytest.mark.parametrize("event", [prompt("p", attempt=2**32 - 1), prompt("p", sequence=2**63)])
def test_numbers_that_do_not_fit_the_wire_are_not_given(event: Event) -> None:
    assert refused(new(event), COMMANDS["fail"]) is RefusalReason.OUT_OF_RANGE


def test_a_full_session_takes_no_further_attempt() -> None:
    state = new(*(failed(f"f{number}", f"r{number}") for number in range(MAX_ATTEMPTS)))
    assert refused(state, Submit(request_id="another", at_us=T0_US)) is RefusalReason.SESSION_FULL
    assert refused(state, COMMANDS["submit"]) is RefusalReason.SESSION_FULL
    assert not state.is_truncated


def test_of_too_many_attempts_the_first_by_name_are_kept_whichever_came_first() -> None:
    events = [failed(f"f{number}", f"r{number:05}") for number in range(MAX_ATTEMPTS + 3)]
    forward, backward = new(*events), new(*reversed(events))
    assert dump(forward) == dump(backward)
    assert forward.is_truncated
    assert set(forward.attempts) == {(f"r{number:05}", 0) for number in range(MAX_ATTEMPTS)}
    assert backward.latest_attempt("r00000") == 0
    assert backward.latest_attempt(f"r{MAX_ATTEMPTS:05}") is None


@pytest.mark.parametrize(
    ("ends", "kind", "tokens", "odd"),
    [
        ([completed("a", 5), completed("b", 5)], EndKind.COMPLETED, 5, Odd.NOTHING),
        ([completed("a", 5), completed("b", 6)], EndKind.COMPLETED, 5, Odd.CONTESTED),
        ([failed("a"), completed("b", 6)], EndKind.COMPLETED, 6, Odd.CONTESTED),
        ([interrupted("a", 9), failed("b")], EndKind.FAILED, 8, Odd.CONTESTED),
        ([completed("a", 9, usage_source=UsageSource.ESTIMATED), completed("b", 6)], EndKind.COMPLETED, 6, Odd.NOTHING),
        ([interrupted("a", 5)], EndKind.INTERRUPTED, 8, Odd.NOTHING),
        ([completed("a", -1)], EndKind.COMPLETED, 8, Odd.IMPLAUSIBLE),
    ],
)
def test_of_several_ends_one_stands_by_the_rule(ends: list[Event], kind: EndKind, tokens: int, odd: Odd) -> None:
    for order in (ends, ends[::-1]):
        attempt = new(prompt("p"), chunk("c", 8), *order).attempt("r1", 0)
        assert attempt.ending is not None
        assert (attempt.ending.kind, attempt.completion_tokens, attempt.odd) == (kind, tokens, odd)


def test_of_two_prompts_the_first_in_the_total_order_stands() -> None:
    first = stamped(prompt("z", tokens=3), "eu", 1, {"eu": 1})
    second = stamped(prompt("a", tokens=4), "us", 2, {"us": 2})
    for events in ((first, second), (second, first)):
        attempt = new(*events).attempt("r1", 0)
        assert attempt.prompt is not None
        assert (attempt.prompt.prompt_tokens, attempt.odd) == (3, Odd.CONTESTED)


@pytest.mark.parametrize("event", [chunk("c", -1), chunk("c", 0, -1), chunk("c", 10**13), prompt("p", tokens=-1)])
def test_an_absurd_count_is_told_and_not_counted(event: Event) -> None:
    attempt = new(event).attempt("r1", 0)
    assert (attempt.odd, attempt.completion_tokens) == (Odd.IMPLAUSIBLE, 0)


def test_a_chunk_that_can_not_be_told_from_its_duplicate_is_told_and_not_counted() -> None:
    attempt = new(chunk("c", 0, 5, sequence=0)).attempt("r1", 0)
    assert (attempt.odd, attempt.completion_tokens) == (Odd.UNPLACED, 0)


def test_chunks_without_cumulative_are_counted_once_by_sequence() -> None:
    state = new(*(chunk(f"c{at}", 0, 2, sequence=at) for at in (5, 2, 3, 5, 9, 3)))
    assert state.completion_tokens == 2 * 4


def test_a_chunk_that_comes_late_for_a_gap_is_counted() -> None:
    assert new(*(chunk(f"c{at}", 0, 2, sequence=at) for at in (2, 6, 4, 5, 3))).completion_tokens == 2 * 5


def test_a_chunk_that_was_overtaken_adds_nothing() -> None:
    assert new(chunk("b", 9, 4), chunk("a", 5, 5)).completion_tokens == 9


def test_more_gaps_than_are_remembered_close_the_lowest() -> None:
    runs = ChunkRuns()
    for sequence in range(2, 2 * MAX_RUNS + 4, 2):
        runs = runs.with_chunk(sequence, 1)
    assert len(runs.runs) == MAX_RUNS
    assert runs.tokens == MAX_RUNS + 1
    assert runs.with_chunk(3, 1) == runs
    assert runs.with_chunk(5, 1).tokens == MAX_RUNS + 2


def test_an_event_that_tells_nothing_new_changes_nothing() -> None:
    state = new(*BY_PHASE[Phase.INTERRUPTED])
    before = dump(state)
    assert not any(apply(state, event) for event in BY_PHASE[Phase.INTERRUPTED])
    assert not apply(state, Heartbeat(**envelope("h")))
    assert dump(state) == before


@pytest.mark.parametrize("event", [prompt("p", tenant="umbrella"), prompt("p", session="s2")])
def test_an_event_of_another_session_is_refused(event: Event) -> None:
    with pytest.raises(WrongSessionError):
        apply(new(), event)


def test_a_session_survives_a_restart() -> None:
    for events in BY_PHASE.values():
        state = new(*events)
        assert dump(load(dump(state))) == dump(state)


@pytest.mark.parametrize("break_it", [lambda _: b"", lambda b: b"\x09" + b[1:], lambda b: b[:-1], lambda b: b + b"\0"])
def test_bytes_that_are_no_session_are_refused(break_it: Callable[[bytes], bytes]) -> None:
    stored = dump(new(*BY_PHASE[Phase.STREAMING]))
    with pytest.raises(UnreadableStoredError):
        load(break_it(stored))


def test_the_form_of_stored_sessions_is_a_contract() -> None:
    assert sessions.STORED_FORM == 1
    assert dump(new(*BY_PHASE[Phase.STREAMING])).hex() == GOLDEN_SESSION
