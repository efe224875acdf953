"""Decisions as folds make them. The wire format is `schemas/proto/headrace/v1/decisions.proto`."""

from enum import IntEnum

import msgspec


class DecisionKind(IntEnum):
    """What is decided. The values are those on the wire."""

    ADMIT = 1
    THROTTLE = 2
    REJECT = 3
    EXTEND = 4
    REVOKE = 5
    SETTLE = 6
    GRANT = 7


class DecisionMode(IntEnum):
    """Whether a decision binds."""

    ENFORCE = 0
    SHADOW = 1


class DecisionReason(IntEnum):
    """Why it was decided so."""

    WITHIN_LIMITS = 1
    OVER_LIMIT = 2
    NEVER_FITS = 3
    IMPLAUSIBLE_COUNT = 4
    COMPLETED = 5
    FAILED = 6
    INTERRUPTED = 7
    SILENT = 8
    NO_POLICY = 9
    NO_PROMPT = 10


class LimitLevel(IntEnum):
    """Whose traffic a limit counts together."""

    TENANT = 1
    API_KEY = 2
    USER = 3
    MODEL = 4


class LimitUnit(IntEnum):
    """What a limit counts."""

    TOKENS = 1
    REQUESTS = 2
    STREAMS = 3


class BoundLimit(msgspec.Struct, frozen=True, gc=False):
    """The limit that bound a decision, or the tightest where none did: what rate-limit headers are made of.

    `reset_at_us`: when nothing used so far counts against the limit any more (what running requests hold is not used
    yet).
    """

    name: str
    level: LimitLevel
    subject: str
    unit: LimitUnit
    limit: int
    remaining: int
    reset_at_us: int


class Decision(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One decision. `decision_id` (request/attempt/ordinal) is unique within the tenant, whenever the log is read.

    Token counts are totals for the request so far. On SETTLE
    `reserved_tokens + overdrawn_tokens == used_tokens + refunded_tokens`.
    """

    decision_id: str
    kind: DecisionKind
    mode: DecisionMode = DecisionMode.ENFORCE
    reason: DecisionReason
    tenant: str
    request_id: str
    attempt: int
    decided_at_us: int
    bound: BoundLimit | None = None
    reserved_tokens: int = 0
    used_tokens: int = 0
    refunded_tokens: int = 0
    overdrawn_tokens: int = 0
    retry_at_us: int = 0
    policy_id: str = ""
    caused_by: bytes = b""
    trace_id: bytes = b""
