from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InterruptReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INTERRUPT_REASON_UNSPECIFIED: _ClassVar[InterruptReason]
    INTERRUPT_REASON_CLIENT_DISCONNECTED: _ClassVar[InterruptReason]
    INTERRUPT_REASON_CONNECTION_LOST: _ClassVar[InterruptReason]
    INTERRUPT_REASON_REVOKED: _ClassVar[InterruptReason]

class UsageSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_SOURCE_ABSENT: _ClassVar[UsageSource]
    USAGE_SOURCE_REPORTED: _ClassVar[UsageSource]
    USAGE_SOURCE_ESTIMATED: _ClassVar[UsageSource]
INTERRUPT_REASON_UNSPECIFIED: InterruptReason
INTERRUPT_REASON_CLIENT_DISCONNECTED: InterruptReason
INTERRUPT_REASON_CONNECTION_LOST: InterruptReason
INTERRUPT_REASON_REVOKED: InterruptReason
USAGE_SOURCE_ABSENT: UsageSource
USAGE_SOURCE_REPORTED: UsageSource
USAGE_SOURCE_ESTIMATED: UsageSource

class EventBatch(_message.Message):
    __slots__ = ("shard", "events")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, shard: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class EventFrames(_message.Message):
    __slots__ = ("shard", "events")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    events: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shard: _Optional[int] = ..., events: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("event_id", "tenant", "request_id", "attempt", "event_time_us", "watermark_us", "sequence", "tokens_generated", "prompt_submitted", "request_completed", "request_failed", "stream_interrupted", "heartbeat", "health_sample", "experts_routed", "session", "model", "backend", "region", "trace_id", "span_id", "lamport", "vector_clock", "schema_version", "content_hash", "critical_fields", "source", "event_time_ms")
    class VectorClockEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FAILED_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEALTH_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_ROUTED_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_CLOCK_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    CRITICAL_FIELDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    event_id: bytes
    tenant: str
    request_id: str
    attempt: int
    event_time_us: int
    watermark_us: int
    sequence: int
    tokens_generated: TokensGenerated
    prompt_submitted: PromptSubmitted
    request_completed: RequestCompleted
    request_failed: RequestFailed
    stream_interrupted: StreamInterrupted
    heartbeat: Heartbeat
    health_sample: HealthSample
    experts_routed: ExpertsRouted
    session: str
    model: str
    backend: str
    region: str
    trace_id: bytes
    span_id: bytes
    lamport: int
    vector_clock: _containers.ScalarMap[str, int]
    schema_version: str
    content_hash: bytes
    critical_fields: _containers.RepeatedScalarFieldContainer[int]
    source: str
    event_time_ms: int
    def __init__(self, event_id: _Optional[bytes] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., event_time_us: _Optional[int] = ..., watermark_us: _Optional[int] = ..., sequence: _Optional[int] = ..., tokens_generated: _Optional[_Union[TokensGenerated, _Mapping]] = ..., prompt_submitted: _Optional[_Union[PromptSubmitted, _Mapping]] = ..., request_completed: _Optional[_Union[RequestCompleted, _Mapping]] = ..., request_failed: _Optional[_Union[RequestFailed, _Mapping]] = ..., stream_interrupted: _Optional[_Union[StreamInterrupted, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., health_sample: _Optional[_Union[HealthSample, _Mapping]] = ..., experts_routed: _Optional[_Union[ExpertsRouted, _Mapping]] = ..., session: _Optional[str] = ..., model: _Optional[str] = ..., backend: _Optional[str] = ..., region: _Optional[str] = ..., trace_id: _Optional[bytes] = ..., span_id: _Optional[bytes] = ..., lamport: _Optional[int] = ..., vector_clock: _Optional[_Mapping[str, int]] = ..., schema_version: _Optional[str] = ..., content_hash: _Optional[bytes] = ..., critical_fields: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., event_time_ms: _Optional[int] = ...) -> None: ...

class PromptSubmitted(_message.Message):
    __slots__ = ("prompt_tokens", "max_tokens", "cached_tokens", "api_key", "user", "stream", "choices", "prompt_fact_id", "without_completion", "provider", "resumed_at_token")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FACT_ID_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_COMPLETION_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    RESUMED_AT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int
    api_key: str
    user: str
    stream: bool
    choices: int
    prompt_fact_id: bytes
    without_completion: bool
    provider: str
    resumed_at_token: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., api_key: _Optional[str] = ..., user: _Optional[str] = ..., stream: bool = ..., choices: _Optional[int] = ..., prompt_fact_id: _Optional[bytes] = ..., without_completion: bool = ..., provider: _Optional[str] = ..., resumed_at_token: _Optional[int] = ...) -> None: ...

class TokensGenerated(_message.Message):
    __slots__ = ("count", "cumulative", "text")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    count: int
    cumulative: int
    text: str
    def __init__(self, count: _Optional[int] = ..., cumulative: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class StreamInterrupted(_message.Message):
    __slots__ = ("token_offset", "reason", "usage_source")
    TOKEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    token_offset: int
    reason: InterruptReason
    usage_source: UsageSource
    def __init__(self, token_offset: _Optional[int] = ..., reason: _Optional[_Union[InterruptReason, str]] = ..., usage_source: _Optional[_Union[UsageSource, str]] = ...) -> None: ...

class RequestCompleted(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "usage_source", "finish_reason", "cache_write_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usage_source: UsageSource
    finish_reason: str
    cache_write_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., usage_source: _Optional[_Union[UsageSource, str]] = ..., finish_reason: _Optional[str] = ..., cache_write_tokens: _Optional[int] = ...) -> None: ...

class RequestFailed(_message.Message):
    __slots__ = ("error_class", "status", "retryable", "prompt_tokens", "completion_tokens", "usage_source")
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    error_class: str
    status: int
    retryable: bool
    prompt_tokens: int
    completion_tokens: int
    usage_source: UsageSource
    def __init__(self, error_class: _Optional[str] = ..., status: _Optional[int] = ..., retryable: bool = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., usage_source: _Optional[_Union[UsageSource, str]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthSample(_message.Message):
    __slots__ = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "queue_length", "kv_cache_use", "temperature_celsius")
    GPU_MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    gpu_memory_used_bytes: int
    gpu_memory_total_bytes: int
    queue_length: int
    kv_cache_use: float
    temperature_celsius: float
    def __init__(self, gpu_memory_used_bytes: _Optional[int] = ..., gpu_memory_total_bytes: _Optional[int] = ..., queue_length: _Optional[int] = ..., kv_cache_use: _Optional[float] = ..., temperature_celsius: _Optional[float] = ...) -> None: ...

class ExpertsRouted(_message.Message):
    __slots__ = ("layer", "experts", "weights")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    layer: int
    experts: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, layer: _Optional[int] = ..., experts: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...
