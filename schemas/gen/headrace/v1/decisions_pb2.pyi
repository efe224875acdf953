from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_KIND_UNSPECIFIED: _ClassVar[DecisionKind]
    DECISION_KIND_ADMIT: _ClassVar[DecisionKind]
    DECISION_KIND_THROTTLE: _ClassVar[DecisionKind]
    DECISION_KIND_REJECT: _ClassVar[DecisionKind]
    DECISION_KIND_EXTEND: _ClassVar[DecisionKind]
    DECISION_KIND_REVOKE: _ClassVar[DecisionKind]
    DECISION_KIND_SETTLE: _ClassVar[DecisionKind]
    DECISION_KIND_GRANT: _ClassVar[DecisionKind]

class DecisionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_MODE_ENFORCE: _ClassVar[DecisionMode]
    DECISION_MODE_SHADOW: _ClassVar[DecisionMode]

class DecisionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_REASON_UNSPECIFIED: _ClassVar[DecisionReason]
    DECISION_REASON_WITHIN_LIMITS: _ClassVar[DecisionReason]
    DECISION_REASON_OVER_LIMIT: _ClassVar[DecisionReason]
    DECISION_REASON_NEVER_FITS: _ClassVar[DecisionReason]
    DECISION_REASON_IMPLAUSIBLE_COUNT: _ClassVar[DecisionReason]
    DECISION_REASON_COMPLETED: _ClassVar[DecisionReason]
    DECISION_REASON_FAILED: _ClassVar[DecisionReason]
    DECISION_REASON_INTERRUPTED: _ClassVar[DecisionReason]
    DECISION_REASON_SILENT: _ClassVar[DecisionReason]
    DECISION_REASON_NO_POLICY: _ClassVar[DecisionReason]
    DECISION_REASON_NO_PROMPT: _ClassVar[DecisionReason]

class LimitLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_LEVEL_UNSPECIFIED: _ClassVar[LimitLevel]
    LIMIT_LEVEL_TENANT: _ClassVar[LimitLevel]
    LIMIT_LEVEL_API_KEY: _ClassVar[LimitLevel]
    LIMIT_LEVEL_USER: _ClassVar[LimitLevel]
    LIMIT_LEVEL_MODEL: _ClassVar[LimitLevel]

class LimitUnit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_UNIT_UNSPECIFIED: _ClassVar[LimitUnit]
    LIMIT_UNIT_TOKENS: _ClassVar[LimitUnit]
    LIMIT_UNIT_REQUESTS: _ClassVar[LimitUnit]
    LIMIT_UNIT_STREAMS: _ClassVar[LimitUnit]
DECISION_KIND_UNSPECIFIED: DecisionKind
DECISION_KIND_ADMIT: DecisionKind
DECISION_KIND_THROTTLE: DecisionKind
DECISION_KIND_REJECT: DecisionKind
DECISION_KIND_EXTEND: DecisionKind
DECISION_KIND_REVOKE: DecisionKind
DECISION_KIND_SETTLE: DecisionKind
DECISION_KIND_GRANT: DecisionKind
DECISION_MODE_ENFORCE: DecisionMode
DECISION_MODE_SHADOW: DecisionMode
DECISION_REASON_UNSPECIFIED: DecisionReason
DECISION_REASON_WITHIN_LIMITS: DecisionReason
DECISION_REASON_OVER_LIMIT: DecisionReason
DECISION_REASON_NEVER_FITS: DecisionReason
DECISION_REASON_IMPLAUSIBLE_COUNT: DecisionReason
DECISION_REASON_COMPLETED: DecisionReason
DECISION_REASON_FAILED: DecisionReason
DECISION_REASON_INTERRUPTED: DecisionReason
DECISION_REASON_SILENT: DecisionReason
DECISION_REASON_NO_POLICY: DecisionReason
DECISION_REASON_NO_PROMPT: DecisionReason
LIMIT_LEVEL_UNSPECIFIED: LimitLevel
LIMIT_LEVEL_TENANT: LimitLevel
LIMIT_LEVEL_API_KEY: LimitLevel
LIMIT_LEVEL_USER: LimitLevel
LIMIT_LEVEL_MODEL: LimitLevel
LIMIT_UNIT_UNSPECIFIED: LimitUnit
LIMIT_UNIT_TOKENS: LimitUnit
LIMIT_UNIT_REQUESTS: LimitUnit
LIMIT_UNIT_STREAMS: LimitUnit

class DecisionBatch(_message.Message):
    __slots__ = ("shard", "decisions", "decided")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    shard: int
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    decided: LogPosition
    def __init__(self, shard: _Optional[int] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., decided: _Optional[_Union[LogPosition, _Mapping]] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class BoundLimit(_message.Message):
    __slots__ = ("name", "level", "subject", "unit", "limit", "remaining", "reset_at_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: LimitLevel
    subject: str
    unit: LimitUnit
    limit: int
    remaining: int
    reset_at_us: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[_Union[LimitLevel, str]] = ..., subject: _Optional[str] = ..., unit: _Optional[_Union[LimitUnit, str]] = ..., limit: _Optional[int] = ..., remaining: _Optional[int] = ..., reset_at_us: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("decision_id", "kind", "mode", "reason", "tenant", "request_id", "attempt", "decided_at_us", "bound", "reserved_tokens", "used_tokens", "refunded_tokens", "overdrawn_tokens", "retry_at_us", "policy_id", "caused_by", "trace_id")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_AT_US_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    RESERVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REFUNDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERDRAWN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AT_US_FIELD_NUMBER: _ClassVar[int]
    POLICY_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    kind: DecisionKind
    mode: DecisionMode
    reason: DecisionReason
    tenant: str
    request_id: str
    attempt: int
    decided_at_us: int
    bound: BoundLimit
    reserved_tokens: int
    used_tokens: int
    refunded_tokens: int
    overdrawn_tokens: int
    retry_at_us: int
    policy_id: str
    caused_by: bytes
    trace_id: bytes
    def __init__(self, decision_id: _Optional[str] = ..., kind: _Optional[_Union[DecisionKind, str]] = ..., mode: _Optional[_Union[DecisionMode, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., decided_at_us: _Optional[int] = ..., bound: _Optional[_Union[BoundLimit, _Mapping]] = ..., reserved_tokens: _Optional[int] = ..., used_tokens: _Optional[int] = ..., refunded_tokens: _Optional[int] = ..., overdrawn_tokens: _Optional[int] = ..., retry_at_us: _Optional[int] = ..., policy_id: _Optional[str] = ..., caused_by: _Optional[bytes] = ..., trace_id: _Optional[bytes] = ...) -> None: ...
