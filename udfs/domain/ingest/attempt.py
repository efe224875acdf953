"""What is known of one attempt, as the events of its life.

Whatever told it, a transcript, a log line, a span, the events and their ids are made here alone, so that the same
facts are the same events.
"""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from schemas.dead_letters import DeadLetterReason
from schemas.events import (
    Event,
    InterruptReason,
    PromptSubmitted,
    Provenance,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from schemas.identity import event_ids_in
from udfs.domain.events.naming import life_of
from udfs.domain.ingest.record import Origin, UnreadableRecordError


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one attempt. `prompt_tokens` include those read from the prompt cache and written into it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    source: UsageSource = UsageSource.ABSENT


class End(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    OPEN = "open"
    """Not yet: its end is told by another record."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of the stream: when, and tokens of the completion so far."""

    at_us: int
    cumulative: int


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one request, as far as it is known. Times are microseconds since 1970.

    `prompt_tokens` is what the prompt was taken for when it came, before any answer: as a rule the same as the usage's.
    """

    request_id: str
    started_at_us: int
    ended_at_us: int
    tenant: str = ""
    attempt: int = 0
    session: str = ""
    model: str = ""
    provider: str = ""
    backend: str = ""
    region: str = ""
    api_key: str = ""
    user: str = ""
    stream: bool = False
    choices: int = 0
    max_tokens: int = 0
    without_completion: bool = False
    resumed_at_token: int = 0
    prompt_fact_id: bytes = b""
    usage: Usage = Usage()
    chunks: Sequence[Chunk] = ()
    end: End = End.COMPLETED
    finish_reason: str = ""
    interrupt_reason: InterruptReason = InterruptReason.UNSPECIFIED
    error_class: str = ""
    status: int = 0
    retryable: bool = False
    provenance: Provenance | None = None


def events_of(attempt: Attempt, origin: Origin) -> list[Event]:
    """The events of an attempt, in order. Raises UnreadableRecordError where it has no tenant, id or order in time.

    Ids are functions of tenant, request, attempt, position and kind: the same attempt told twice is the same events.
    """
    tenant = attempt.tenant or origin.tenant
    absent = [name for name, value in (("tenant", tenant), ("request id", attempt.request_id)) if not value]
    if absent:
        remedy = "; what is set for their source can name it" if "tenant" in absent else ""
        raise UnreadableRecordError(DeadLetterReason.MISSING_FIELD, f"without {', '.join(absent)}{remedy}")
    if attempt.ended_at_us < attempt.started_at_us and attempt.end is not End.OPEN:
        detail = f"ends {attempt.started_at_us - attempt.ended_at_us} us before it starts"
        raise UnreadableRecordError(DeadLetterReason.OUT_OF_RANGE, detail)
    usage = attempt.usage
    made = _Maker(attempt, origin, tenant)
    # Fields in the order of their classes: by name they would cost half of all this.
    prompt = (
        usage.prompt_tokens,
        attempt.max_tokens,
        usage.cached_tokens,
        attempt.api_key,
        attempt.user,
        attempt.stream,
        attempt.choices,
        attempt.prompt_fact_id,
        attempt.without_completion,
        attempt.provider,
        attempt.resumed_at_token,
    )
    made.add(PromptSubmitted, "prompt_submitted", attempt.started_at_us, prompt)
    before = 0
    for chunk in attempt.chunks:
        cumulative = chunk.cumulative
        made.add(TokensGenerated, "tokens_generated", chunk.at_us, (cumulative - before, cumulative))
        before = cumulative
    ended_at_us = attempt.ended_at_us
    if attempt.end is End.COMPLETED:
        counts = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        ending = (*counts, usage.source, attempt.finish_reason, usage.cache_write_tokens)
        made.add(RequestCompleted, "request_completed", ended_at_us, ending)
    elif attempt.end is End.INTERRUPTED:
        interruption = (usage.completion_tokens, attempt.interrupt_reason, usage.source)
        made.add(StreamInterrupted, "stream_interrupted", ended_at_us, interruption)
    elif attempt.end is End.FAILED:
        failure = (attempt.error_class, attempt.status, attempt.retryable)
        made.add(
            RequestFailed,
            "request_failed",
            ended_at_us,
            (*failure, usage.prompt_tokens, usage.completion_tokens, usage.source),
        )
    return made.events


class _Maker:
    """Numbers the events of one attempt."""

    __slots__ = ("_after_sequence", "_before_time", "_event_id", "events")

    def __init__(self, attempt: Attempt, origin: Origin, tenant: str) -> None:
        self.events: list[Event] = []
        self._event_id = event_ids_in(life_of(tenant, attempt.request_id, attempt.attempt))
        self._before_time = (tenant, attempt.request_id, attempt.attempt)
        self._after_sequence = (
            attempt.session,
            attempt.model,
            attempt.backend or origin.backend or attempt.provider,
            attempt.region or origin.region,
            origin.source,
            attempt.provenance,
        )

    def add(self, kind: Callable[..., Event], name: str, at_us: int, body: tuple[object, ...]) -> None:
        sequence = len(self.events) + 1
        event_id = self._event_id(sequence, name)
        self.events.append(kind(event_id, *self._before_time, at_us, 0, sequence, *self._after_sequence, *body))
