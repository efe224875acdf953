"""What folds see: one typed, slotted, immutable object an event.

The wire format is `schemas/proto/headrace/v1/events.proto`; `schemas.codec` turns one into the other. There is one
class for each body, so that a fold dispatches on the type and a body's fields can't be read from another's event.
Times are microseconds since the epoch, counts are tokens.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

SCHEMA_VERSION = "1.2.0"
"""The one version that folds see. schemas/upcast brings older events to it."""


class UsageSource(IntEnum):
    """Where the token counts of a finished request come from."""

    ABSENT = 0
    REPORTED = 1
    ESTIMATED = 2


class InterruptReason(IntEnum):
    """Why a stream ended before its completion."""

    UNSPECIFIED = 0
    CLIENT_DISCONNECTED = 1
    CONNECTION_LOST = 2
    REVOKED = 3


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the envelope that lineage and causality read. Unless asked for, only a trace's ids are decoded."""

    trace_id: bytes = b""
    span_id: bytes = b""
    lamport: int = 0
    vector_clock: dict[str, int] = {}
    content_hash: bytes = b""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What every event carries. `event_id` is 16 bytes (see schemas.identity); `watermark_us` 0 means not stamped."""

    event_id: bytes
    tenant: str
    request_id: str
    attempt: int
    event_time_us: int
    watermark_us: int
    sequence: int
    session: str
    model: str
    backend: str
    region: str
    source: str
    provenance: Provenance | None


class PromptSubmitted(Envelope, frozen=True, gc=False):
    """A request asks to be admitted. `max_tokens` 0: the client gave none. `prompt_tokens` include `cached_tokens`.

    `provider` is who serves the model, by OpenTelemetry's gen_ai.provider.name. `resumed_at_token`: the attempt goes on
    where an interrupted one of the same request ended, after so many tokens of completion; 0: it begins anew.
    """

    prompt_tokens: int = 0
    max_tokens: int = 0
    cached_tokens: int = 0
    api_key: str = ""
    user: str = ""
    stream: bool = False
    choices: int = 0
    prompt_fact_id: bytes = b""
    without_completion: bool = False
    provider: str = ""
    resumed_at_token: int = 0


class TokensGenerated(Envelope, frozen=True, gc=False):
    """A chunk of a running stream. `cumulative` counts the completion so far, this chunk included; 0: not known."""

    count: int = 0
    cumulative: int = 0
    text: str = ""


class StreamInterrupted(Envelope, frozen=True, gc=False):
    """The stream ended before its completion, after `token_offset` tokens, which `usage_source` counted."""

    token_offset: int = 0
    reason: InterruptReason = InterruptReason.UNSPECIFIED
    usage_source: UsageSource = UsageSource.ABSENT


class RequestCompleted(Envelope, frozen=True, gc=False):
    """The request ended as it should. `prompt_tokens` include those read from the prompt cache and written into it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    usage_source: UsageSource = UsageSource.ABSENT
    finish_reason: str = ""
    cache_write_tokens: int = 0


class RequestFailed(Envelope, frozen=True, gc=False):
    """The request ended in an error."""

    error_class: str = ""
    status: int = 0
    retryable: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_source: UsageSource = UsageSource.ABSENT


class Heartbeat(Envelope, frozen=True, gc=False):
    """Moves a shard's clock while its tenants are silent. Has no tenant and reaches no fold."""


class HealthSample(Envelope, frozen=True, gc=False):
    """The state of one backend."""

    gpu_memory_used_bytes: int = 0
    gpu_memory_total_bytes: int = 0
    queue_length: int = 0
    kv_cache_use: float = 0.0
    temperature_celsius: float = 0.0


class ExpertsRouted(Envelope, frozen=True, gc=False):
    """Which experts a mixture-of-experts layer chose, and with what weight."""

    layer: int = 0
    experts: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


def has_usage(event: RequestCompleted | RequestFailed) -> bool:
    """Whether the end of a request tells its tokens. Counts count even if their source is left out."""
    return event.usage_source is not UsageSource.ABSENT or event.prompt_tokens != 0 or event.completion_tokens != 0


RequestEvent: TypeAlias = PromptSubmitted | TokensGenerated | StreamInterrupted | RequestCompleted | RequestFailed
"""An event in the life of one request: tenant and request_id are set."""

Event: TypeAlias = RequestEvent | Heartbeat | HealthSample | ExpertsRouted
