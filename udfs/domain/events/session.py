"""The aggregate of a session: what its events come to, in whatever order and however often they come.

Each thing that is kept only grows, towards a largest or smallest value of what was told: the first prompt in the total
order, the largest `cumulative`, the best end (see `endings`), flags. Such folds give the same for any order and any
duplicates, as long as an event id names one content. Allowed is therefore every reordering; two bounds have their own
rule. Chunks without `cumulative` may leave so many gaps at a time (`chunk_runs`). Of more than MAX_ATTEMPTS attempts
the first in order of request id and attempt are kept, whichever came first, and `is_truncated` says so.

`cumulative` and the offset of an interruption count within their attempt, as limits do; `resumed_at_token` counts the
completion of the request over all its attempts.
"""

from collections.abc import Iterable
from enum import Enum, IntFlag
from typing import Final, TypeAlias

import msgspec

from schemas.events import (
    Event,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from udfs.domain.events.chunk_runs import ChunkRuns
from udfs.domain.events.endings import EndEvent, Ending, EndKind, Said, contradict, ending_of
from udfs.domain.events.order import place_of
from udfs.domain.events.stored import pack, unpack

MAX_ATTEMPTS: Final = 4_096
"""Attempts that one session remembers."""

MAX_TOKENS: Final = 10**12
"""More tokens than any request has."""

STORED_FORM: Final = 1

AttemptKey: TypeAlias = tuple[str, int]
"""Request id and attempt."""


class WrongSessionError(ValueError):
    """An event, or a command, of another tenant or session."""


class Phase(Enum):
    """Where an attempt is in its life, as far as its events tell."""

    UNKNOWN = "unknown"
    EARLY = "early"
    """Tokens of it were told and its prompt was not."""
    SUBMITTED = "submitted"
    STREAMING = "streaming"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"


class Odd(IntFlag):
    """What was odd in the events of an attempt."""

    NOTHING = 0
    CONTESTED = 1
    """Ends, or prompts, that contradict each other were told."""
    UNPLACED = 2
    """A chunk says neither `cumulative` nor its sequence: it can't be told from its duplicate and is not counted."""
    IMPLAUSIBLE = 4
    """A count below 0 or above MAX_TOKENS, which is not counted."""


class Prompt(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The prompt of an attempt; of several, the first in the total order stands."""

    lamport: int
    region: str
    event_id: bytes
    submitted_at_us: int
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    resumed_at_token: int
    model: str
    provider: str
    backend: str
    source: str
    api_key: str
    user: str
    stream: bool


class AttemptState(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one attempt."""

    prompt: Prompt | None = None
    cumulative: int = 0
    uncounted: ChunkRuns = ChunkRuns()
    """Chunks without `cumulative`."""
    ending: Ending | None = None
    last_sequence: int = 0
    last_event_us: int = 0
    odd: Odd = Odd.NOTHING

    @property
    def phase(self) -> Phase:
        """Where it is in its life."""
        if self.ending is not None:
            return _PHASE_OF_END[self.ending.kind]
        if self.cumulative or self.uncounted.runs:
            return Phase.STREAMING if self.prompt is not None else Phase.EARLY
        if self.prompt is not None:
            return Phase.SUBMITTED
        return Phase.EARLY if self.last_sequence or self.last_event_us else Phase.UNKNOWN

    @property
    def streamed_tokens(self) -> int:
        """Tokens of its chunks: the largest `cumulative` where there is one, and chunks without it then add nothing."""
        return self.cumulative or self.uncounted.tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens it generated: reported where its completion or failure reports them, else streamed.

        The offset of an interruption is what reached the client; a stream that was ahead of it was generated all the
        same.
        """
        ending = self.ending
        if ending is None or ending.said is Said.NOTHING:
            return self.streamed_tokens
        if ending.kind is EndKind.INTERRUPTED:
            return max(ending.completion_tokens, self.streamed_tokens)
        return ending.completion_tokens

    @property
    def resumed_at_token(self) -> int:
        """Where in the request's completion it begins; 0: at its start, or its prompt is not known."""
        return 0 if self.prompt is None else self.prompt.resumed_at_token

    @property
    def interrupted_at_token(self) -> int | None:
        """Where in the request's completion it was interrupted: where the next attempt may go on. None: it was not."""
        if self.ending is None or self.ending.kind is not EndKind.INTERRUPTED:
            return None
        reached = self.streamed_tokens if self.ending.said is Said.NOTHING else self.ending.completion_tokens
        return self.resumed_at_token + reached


_PHASE_OF_END: Final = {
    EndKind.COMPLETED: Phase.COMPLETED,
    EndKind.FAILED: Phase.FAILED,
    EndKind.INTERRUPTED: Phase.INTERRUPTED,
}
_UNKNOWN: Final = AttemptState()


class _Stored(msgspec.Struct, array_like=True):
    """The serialised form."""

    tenant: str
    session: str
    attempts: list[tuple[AttemptKey, AttemptState]]
    is_truncated: bool


class SessionState:
    """A session in use. Equal sessions have equal bytes (`dump`)."""

    __slots__ = ("_largest", "_latest", "attempts", "is_truncated", "session", "tenant")

    def __init__(self, tenant: str, session: str) -> None:
        self.tenant = tenant
        self.session = session
        self.attempts: dict[AttemptKey, AttemptState] = {}
        self.is_truncated = False
        # Derived: the largest key while the session is full, and the latest attempt of each request.
        self._largest: AttemptKey | None = None
        self._latest: dict[str, int] = {}

    def attempt(self, request_id: str, attempt: int) -> AttemptState:
        """What is known of an attempt; of one never heard of, nothing."""
        return self.attempts.get((request_id, attempt), _UNKNOWN)

    def latest_attempt(self, request_id: str) -> int | None:
        """The highest attempt known of a request; None: the request is not known."""
        return self._latest.get(request_id)

    def goes_on_from(self, request_id: str, attempt: int) -> AttemptKey | None:
        """The attempt that it resumes; None: it resumes none, or not where the one before it was interrupted."""
        resumed_at = self.attempt(request_id, attempt).resumed_at_token
        before = (request_id, attempt - 1)
        if resumed_at and self.attempt(*before).interrupted_at_token == resumed_at:
            return before
        return None

    @property
    def is_full(self) -> bool:
        """Whether it can't remember another attempt."""
        return len(self.attempts) >= MAX_ATTEMPTS

    @property
    def completion_tokens(self) -> int:
        """Tokens generated in the session, over all attempts."""
        return sum(attempt.completion_tokens for attempt in self.attempts.values())

    def put(self, key: AttemptKey, state: AttemptState) -> None:
        """Remember an attempt; where there are too many, all but the first in order of their keys."""
        if key not in self.attempts:
            if self.is_full:
                self.is_truncated = True
                if self._largest is None:
                    self._largest = max(self.attempts)
                if key > self._largest:
                    return
                self._drop(self._largest)
            self._latest[key[0]] = max(key[1], self._latest.get(key[0], 0))
        self.attempts[key] = state

    def _drop(self, key: AttemptKey) -> None:
        del self.attempts[key]
        self._largest = None
        request_id, attempt = key
        if self._latest[request_id] == attempt:
            others = [other for name, other in self.attempts if name == request_id]
            if others:
                self._latest[request_id] = max(others)
            else:
                del self._latest[request_id]


def apply(state: SessionState, event: Event) -> bool:
    """Fold one event in; False: it told nothing new, as a duplicate does, or an event that is not of a request.

    Raises WrongSessionError for an event of another session.
    """
    if (event.tenant, event.session) != (state.tenant, state.session):
        raise WrongSessionError("the event is of another tenant or session: fold each session by itself")
    key = (event.request_id, event.attempt)
    before = state.attempts.get(key, _UNKNOWN)
    if isinstance(event, PromptSubmitted):
        after = _with_prompt(before, event)
    elif isinstance(event, TokensGenerated):
        after = _with_chunk(before, event)
    elif isinstance(event, (RequestCompleted, RequestFailed, StreamInterrupted)):
        after = _with_end(before, event)
    else:
        return False
    sequence = max(after.last_sequence, event.sequence)
    last_event_us = max(after.last_event_us, event.event_time_us)
    if sequence != after.last_sequence or last_event_us != after.last_event_us:
        after = msgspec.structs.replace(after, last_sequence=sequence, last_event_us=last_event_us)
    if after == before:
        return False
    state.put(key, after)
    return True


def fold(state: SessionState, events: Iterable[Event]) -> SessionState:
    """Fold events in, one after the other; returns `state`."""
    for event in events:
        apply(state, event)
    return state


def _with_prompt(before: AttemptState, event: PromptSubmitted) -> AttemptState:
    counts = (event.prompt_tokens, event.cached_tokens, event.max_tokens, event.resumed_at_token)
    odd = before.odd
    if not all(0 <= count <= MAX_TOKENS for count in counts):
        odd |= Odd.IMPLAUSIBLE
    prompt_tokens, cached_tokens, max_tokens, resumed_at_token = (
        count if 0 <= count <= MAX_TOKENS else 0 for count in counts
    )
    told = Prompt(
        *place_of(event),
        submitted_at_us=event.event_time_us,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        max_tokens=max_tokens,
        resumed_at_token=resumed_at_token,
        model=event.model,
        provider=event.provider,
        backend=event.backend,
        source=event.source,
        api_key=event.api_key,
        user=event.user,
        stream=event.stream,
    )
    known = before.prompt
    if known is None:
        return msgspec.structs.replace(before, prompt=told, odd=odd)
    if (known.prompt_tokens, known.resumed_at_token) != (told.prompt_tokens, told.resumed_at_token):
        odd |= Odd.CONTESTED
    return msgspec.structs.replace(before, prompt=min(known, told), odd=odd)


def _with_chunk(before: AttemptState, event: TokensGenerated) -> AttemptState:
    cumulative, count = event.cumulative, event.count
    if not (0 <= cumulative <= MAX_TOKENS and 0 <= count <= MAX_TOKENS):
        return msgspec.structs.replace(before, odd=before.odd | Odd.IMPLAUSIBLE)
    if cumulative:
        return msgspec.structs.replace(before, cumulative=max(before.cumulative, cumulative))
    if event.sequence:
        return msgspec.structs.replace(before, uncounted=before.uncounted.with_chunk(event.sequence, count))
    return msgspec.structs.replace(before, odd=before.odd | Odd.UNPLACED)


def _with_end(before: AttemptState, event: EndEvent) -> AttemptState:
    told = ending_of(event)
    odd = before.odd
    if not (0 <= told.prompt_tokens <= MAX_TOKENS and 0 <= told.completion_tokens <= MAX_TOKENS):
        odd |= Odd.IMPLAUSIBLE
        told = msgspec.structs.replace(told, said=Said.NOTHING, prompt_tokens=0, completion_tokens=0)
    known = before.ending
    if known is None:
        return msgspec.structs.replace(before, ending=told, odd=odd)
    if contradict(known, told):
        odd |= Odd.CONTESTED
    return msgspec.structs.replace(before, ending=min(known, told), odd=odd)


def dump(state: SessionState) -> bytes:
    """The session as bytes; equal sessions give equal bytes."""
    attempts = sorted(state.attempts.items(), key=lambda item: item[0])
    return pack(STORED_FORM, _Stored(state.tenant, state.session, attempts, state.is_truncated))


def load(stored: bytes) -> SessionState:
    """The session that `dump` wrote. Raises UnreadableStoredError for other bytes."""
    read = unpack(STORED_FORM, stored, _Stored, "session")
    state = SessionState(read.tenant, read.session)
    for key, attempt in read.attempts:
        state.put(key, attempt)
    state.is_truncated = read.is_truncated
    return state
