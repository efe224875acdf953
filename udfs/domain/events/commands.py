"""What is wanted of a session, as events or as a typed refusal. Nothing changes until the events are folded.

`TRANSITIONS` is the whole of it: what each command comes to in each phase of the request's latest attempt. A command
told twice, with its events folded in between, is refused the second time and counts nothing twice.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias, cast

import msgspec

from schemas.codec import MAX_NAME_BYTES, MAX_TIME_US, NAME_OF_KIND
from schemas.events import (
    Event,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from udfs.domain.events.naming import PROMPT_SEQUENCE, attempt_event_id
from udfs.domain.events.session import MAX_TOKENS, AttemptState, Phase, SessionState

_MAX_NUMBER: Final = 2**32 - 1
_MAX_SEQUENCE: Final = 2**63 - 1


class RefusalReason(Enum):
    """Why a command gives no events."""

    NOT_SUBMITTED = "not_submitted"
    ALREADY_SUBMITTED = "already_submitted"
    NOT_INTERRUPTED = "not_interrupted"
    NO_TOKENS = "no_tokens"
    ENDED = "ended"
    OTHER_ATTEMPT = "other_attempt"
    NOTHING_NEW = "nothing_new"
    OUT_OF_RANGE = "out_of_range"
    SESSION_FULL = "session_full"


class Refusal(msgspec.Struct, frozen=True):
    """A command that gives no events. `detail` names what is wrong and what to do."""

    reason: RefusalReason
    detail: str


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What all commands say. `attempt`: the one it is meant for, refused if it is not the latest; None: the latest."""

    request_id: str
    at_us: int
    attempt: int | None = None


class Submit(Command, frozen=True, kw_only=True):
    """Ask for a completion; after an interruption or a failure, ask again from its start, as the next attempt.

    `attempt` is the one before that is retried; None: whatever there was.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    max_tokens: int = 0
    model: str = ""
    provider: str = ""
    backend: str = ""
    region: str = ""
    source: str = ""
    api_key: str = ""
    user: str = ""
    stream: bool = True


class Generate(Command, frozen=True, kw_only=True):
    """The stream has come to `cumulative` tokens of this attempt."""

    cumulative: int


class Interrupt(Command, frozen=True, kw_only=True):
    """The stream broke. `token_offset`: so many tokens of the attempt reached the client; None: all that were told."""

    token_offset: int | None = None
    reason: InterruptReason = InterruptReason.UNSPECIFIED


class Resume(Command, frozen=True, kw_only=True):
    """Go on where the interrupted attempt ended, as the next attempt of the same request.

    `prompt_tokens` of the new prompt, which may hold the completion so far; None: as before.
    """

    prompt_tokens: int | None = None
    backend: str = ""
    region: str = ""
    source: str = ""


class Complete(Command, frozen=True, kw_only=True):
    """The request ended as it should."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    usage_source: UsageSource = UsageSource.ABSENT
    finish_reason: str = ""


class Fail(Command, frozen=True, kw_only=True):
    """The request ended in an error."""

    error_class: str = ""
    status: int = 0
    retryable: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_source: UsageSource = UsageSource.ABSENT


Answer: TypeAlias = list[Event] | Refusal
Handler: TypeAlias = Callable[[SessionState, int, AttemptState, Any], Answer]
"""(state, number of the latest attempt, the attempt, command); attempt 0 where there is none yet."""


def decide(state: SessionState, command: Command) -> Answer:
    """The events that the command gives in this session, unstamped, or why it gives none. Changes nothing."""
    problem = _out_of_range(command)
    if problem is not None:
        return problem
    latest = state.latest_attempt(command.request_id)
    number = 0 if latest is None else latest
    if command.attempt is not None and command.attempt != number:
        detail = f"attempt {command.attempt} is not the latest, which is {number}: read the session again"
        return Refusal(RefusalReason.OTHER_ATTEMPT, detail)
    attempt = state.attempt(command.request_id, number)
    if number >= _MAX_NUMBER or attempt.last_sequence >= _MAX_SEQUENCE:
        detail = "attempts or events are numbered so high that no number is left: use a new request id"
        return Refusal(RefusalReason.OUT_OF_RANGE, detail)
    what = TRANSITIONS[attempt.phase][type(command)]
    if isinstance(what, RefusalReason):
        return Refusal(what, _DETAILS[what])
    return what(state, number, attempt, command)


# --- handlers -----------------------------------------------------------------------------------------------------


def _start(state: SessionState, number: int, attempt: AttemptState, command: Submit) -> Answer:
    if attempt.phase is Phase.UNKNOWN and state.is_full:
        return _full()
    return [_prompt(state, number, command)]


def _retry(state: SessionState, number: int, _: AttemptState, command: Submit) -> Answer:
    return _full() if state.is_full else [_prompt(state, number + 1, command)]


def _prompt(state: SessionState, number: int, command: Submit) -> Event:
    return _event(PromptSubmitted, state, command, number, PROMPT_SEQUENCE, **_body_of(command))


def _resume(state: SessionState, number: int, attempt: AttemptState, command: Resume) -> Answer:
    if state.is_full:
        return _full()
    resumed_at = attempt.interrupted_at_token
    prompt = attempt.prompt
    if not resumed_at:
        detail = "interrupted before its first token: submit it again"
        return Refusal(RefusalReason.NO_TOKENS, detail)
    asked = (prompt.prompt_tokens if prompt else 0) if command.prompt_tokens is None else command.prompt_tokens
    before: dict[str, Any] = {}
    if prompt is not None:
        names = ("cached_tokens", "api_key", "user", "stream", "provider", "model")
        before = {name: getattr(prompt, name) for name in names}
        if prompt.max_tokens:
            # What the client allows is left over from the attempts before; 0 would mean that it gave no bound.
            generated = resumed_at - attempt.resumed_at_token
            before["max_tokens"] = max(prompt.max_tokens - generated, 1)
    event = _event(
        PromptSubmitted,
        state,
        command,
        number + 1,
        PROMPT_SEQUENCE,
        **before,
        prompt_tokens=asked,
        resumed_at_token=resumed_at,
        backend=command.backend or (prompt.backend if prompt else ""),
        region=command.region,
        source=command.source or (prompt.source if prompt else ""),
    )
    return [event]


def _generate(state: SessionState, number: int, attempt: AttemptState, command: Generate) -> Answer:
    new = command.cumulative - attempt.streamed_tokens
    if new <= 0:
        detail = f"cumulative is {command.cumulative}, {attempt.streamed_tokens} tokens were told already"
        return Refusal(RefusalReason.NOTHING_NEW, detail)
    return [_next(TokensGenerated, state, number, attempt, command, count=new, cumulative=command.cumulative)]


def _interrupt(state: SessionState, number: int, attempt: AttemptState, command: Interrupt) -> Answer:
    streamed = attempt.streamed_tokens
    offset = streamed if command.token_offset is None else command.token_offset
    if offset > streamed:
        detail = f"token_offset is {offset}, only {streamed} tokens were told: tell the others first"
        return Refusal(RefusalReason.OUT_OF_RANGE, detail)
    body = {"token_offset": offset, "reason": command.reason, "usage_source": UsageSource.REPORTED}
    return [_next(StreamInterrupted, state, number, attempt, command, **body)]


def _complete(state: SessionState, number: int, attempt: AttemptState, command: Complete) -> Answer:
    return [_next(RequestCompleted, state, number, attempt, command, **_body_of(command))]


def _fail(state: SessionState, number: int, attempt: AttemptState, command: Fail) -> Answer:
    return [_next(RequestFailed, state, number, attempt, command, **_body_of(command))]


def _body_of(command: Command) -> dict[str, object]:
    names = command.__struct_fields__[len(Command.__struct_fields__) :]
    return {name: getattr(command, name) for name in names}


def _next(
    kind: Callable[..., Event],
    state: SessionState,
    number: int,
    attempt: AttemptState,
    command: Command,
    **body: object,
) -> Event:
    """The next event of an attempt: where and by whom it is served stands in its prompt."""
    sequence = max(attempt.last_sequence, PROMPT_SEQUENCE) + 1
    prompt = attempt.prompt
    if prompt is not None:
        served = {"model": prompt.model, "backend": prompt.backend, "region": prompt.region, "source": prompt.source}
        body = {**served, **body}
    return _event(kind, state, command, number, sequence, **body)


_NAMES: Final = cast("Mapping[Callable[..., Event], str]", NAME_OF_KIND)
_UNNAMED: Final = {"model": "", "backend": "", "region": "", "source": ""}


def _event(
    kind: Callable[..., Event], state: SessionState, command: Command, number: int, sequence: int, **body: object
) -> Event:
    return kind(
        event_id=attempt_event_id(state.tenant, command.request_id, number, sequence, _NAMES[kind]),
        tenant=state.tenant,
        request_id=command.request_id,
        attempt=number,
        event_time_us=command.at_us,
        watermark_us=0,
        sequence=sequence,
        session=state.session,
        provenance=None,
        **{**_UNNAMED, **body},
    )


# --- refusals -----------------------------------------------------------------------------------------------------


def _full() -> Refusal:
    detail = "the session remembers as many attempts as it can: begin a new session"
    return Refusal(RefusalReason.SESSION_FULL, detail)


def _out_of_range(command: Command) -> Refusal | None:
    if not 0 < command.at_us <= MAX_TIME_US:
        detail = f"at_us is {command.at_us}, it must be microseconds since 1970, up to {MAX_TIME_US}"
        return Refusal(RefusalReason.OUT_OF_RANGE, detail)
    if not 0 < len(command.request_id.encode("utf-8", "replace")) <= MAX_NAME_BYTES:
        detail = f"request_id must have from 1 to {MAX_NAME_BYTES} bytes"
        return Refusal(RefusalReason.OUT_OF_RANGE, detail)
    for name in command.__struct_fields__:
        count = getattr(command, name)
        if name in _COUNTS and count is not None and not 0 <= count <= MAX_TOKENS:
            detail = f"{name} is {count}, it must be from 0 to {MAX_TOKENS:,}"
            return Refusal(RefusalReason.OUT_OF_RANGE, detail)
    return None


_COUNTS: Final = frozenset(
    (
        "prompt_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "completion_tokens",
        "max_tokens",
        "cumulative",
        "token_offset",
    )
)

_DETAILS: Final = {
    RefusalReason.NOT_SUBMITTED: "the request is not known: submit it first",
    RefusalReason.ALREADY_SUBMITTED: "the request is running: end it before it is tried again",
    RefusalReason.NOT_INTERRUPTED: "only an interrupted attempt can be resumed: submit the request",
    RefusalReason.ENDED: "the attempt has ended",
}

_UNKNOWN_REQUEST: Final = RefusalReason.NOT_SUBMITTED
_RUNNING: Final = RefusalReason.ALREADY_SUBMITTED
_NOT_INTERRUPTED: Final = RefusalReason.NOT_INTERRUPTED
_ENDED: Final = RefusalReason.ENDED

_Row: TypeAlias = tuple[Handler | RefusalReason, ...]
_ROWS: Final[Mapping[Phase, _Row]] = {
    # phase, then what is done on: submit, generate, interrupt, resume, complete, fail
    Phase.UNKNOWN: (_start, *[_UNKNOWN_REQUEST] * 5),
    Phase.EARLY: (_start, _generate, _interrupt, _NOT_INTERRUPTED, _complete, _fail),
    Phase.SUBMITTED: (_RUNNING, _generate, _interrupt, _NOT_INTERRUPTED, _complete, _fail),
    Phase.STREAMING: (_RUNNING, _generate, _interrupt, _NOT_INTERRUPTED, _complete, _fail),
    Phase.INTERRUPTED: (_retry, _ENDED, _ENDED, _resume, _ENDED, _ENDED),
    Phase.COMPLETED: (_ENDED,) * 6,
    Phase.FAILED: (_retry, _ENDED, _ENDED, _NOT_INTERRUPTED, _ENDED, _ENDED),
}

TRANSITIONS: Final[Mapping[Phase, Mapping[type[Command], Handler | RefusalReason]]] = {
    phase: dict(zip((Submit, Generate, Interrupt, Resume, Complete, Fail), row, strict=True))
    for phase, row in _ROWS.items()
}
"""phase -> type of command -> what is done, or why it is refused."""
