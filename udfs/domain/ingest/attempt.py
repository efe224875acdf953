"""What is known of one attempt, as the events of its life.

Whatever told it, a transcript, a log line, a span, the events and their ids are made here alone, so that the same
facts are the same events.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, cast

import msgspec

from schemas.codec import NAME_OF_KIND
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
from schemas.identity import event_id
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
        remedy = "; name a tenant for records without one with --tenant" if "tenant" in absent else ""
        raise UnreadableRecordError(DeadLetterReason.MISSING_FIELD, f"without {', '.join(absent)}{remedy}")
    if attempt.ended_at_us < attempt.started_at_us and attempt.end is not End.OPEN:
        detail = f"ends {attempt.started_at_us - attempt.ended_at_us} us before it starts"
        raise UnreadableRecordError(DeadLetterReason.OUT_OF_RANGE, detail)
    usage = attempt.usage
    made = _Maker(attempt, origin, tenant)
    made.add(
        PromptSubmitted,
        attempt.started_at_us,
        prompt_tokens=usage.prompt_tokens,
        max_tokens=attempt.max_tokens,
        cached_tokens=usage.cached_tokens,
        api_key=attempt.api_key,
        user=attempt.user,
        stream=attempt.stream,
        choices=attempt.choices,
        prompt_fact_id=attempt.prompt_fact_id,
        without_completion=attempt.without_completion,
        provider=attempt.provider,
        resumed_at_token=attempt.resumed_at_token,
    )
    before = 0
    for chunk in attempt.chunks:
        made.add(TokensGenerated, chunk.at_us, count=chunk.cumulative - before, cumulative=chunk.cumulative)
        before = chunk.cumulative
    if attempt.end is End.COMPLETED:
        made.add(
            RequestCompleted,
            attempt.ended_at_us,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            usage_source=usage.source,
            finish_reason=attempt.finish_reason,
            cache_write_tokens=usage.cache_write_tokens,
        )
    elif attempt.end is End.INTERRUPTED:
        made.add(
            StreamInterrupted,
            attempt.ended_at_us,
            token_offset=usage.completion_tokens,
            reason=attempt.interrupt_reason,
            usage_source=usage.source,
        )
    elif attempt.end is End.FAILED:
        made.add(
            RequestFailed,
            attempt.ended_at_us,
            error_class=attempt.error_class,
            status=attempt.status,
            retryable=attempt.retryable,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            usage_source=usage.source,
        )
    return made.events


_NAMES: Final = cast("Mapping[Callable[..., Event], str]", NAME_OF_KIND)


class _Maker:
    """Numbers the events of one attempt."""

    def __init__(self, attempt: Attempt, origin: Origin, tenant: str) -> None:
        self.events: list[Event] = []
        self._attempt = attempt
        self._origin = origin
        self._tenant = tenant
        self._life = f"{tenant}\x00{attempt.request_id}\x00{attempt.attempt}"

    def add(self, kind: Callable[..., Event], at_us: int, **body: object) -> None:
        attempt, origin = self._attempt, self._origin
        sequence = len(self.events) + 1
        self.events.append(
            kind(
                event_id=event_id(self._life, sequence, _NAMES[kind]),
                tenant=self._tenant,
                request_id=attempt.request_id,
                attempt=attempt.attempt,
                event_time_us=at_us,
                watermark_us=0,
                sequence=sequence,
                session=attempt.session,
                model=attempt.model,
                backend=attempt.backend or origin.backend or attempt.provider,
                region=attempt.region or origin.region,
                source=origin.source,
                provenance=attempt.provenance,
                **body,
            )
        )
