"""What the limiter remembers of one tenant, and the bytes it is stored as."""

from collections import Counter
from enum import IntEnum
from typing import TypeAlias

import msgspec

from udfs.domain.limiter.estimate import Lengths
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import Limit, LimiterPolicy

RequestKey: TypeAlias = tuple[str, int]
"""Request id and attempt."""

MeterKey: TypeAlias = tuple[str, str]
"""Name of the limit, and the tenant, key, user or model it counts."""

STATE_VERSION = 1


class Phase(IntEnum):
    """Where a request is in its life. The transitions stand in `limiter.TRANSITIONS`."""

    UNKNOWN = 0
    """Never heard of, or forgotten."""
    EARLY = 1
    """Its tokens came before its prompt."""
    RUNNING = 2
    """Admitted; what it may use is set aside."""
    REVOKED = 3
    """Told to stop; its end has not been seen yet."""
    REFUSED = 4
    """Throttled or rejected."""
    EXPIRED = 5
    """Silent for too long: settled, and counted again if it speaks again."""
    ENDED = 6
    """Settled for good."""
    VOID = 7
    """Refused or revoked in a recording: what the recording says of it afterwards did not happen."""


class Request(msgspec.Struct, array_like=True):
    """One attempt of one request. `granted + overdrawn = used + left + refunded`, at all times.

    Prompt and completion each have what is set aside (`_left`) and what is used; which meters hold them is in
    `prompt_meters` and `completion_meters`, and `slot_meters` are the concurrency limits it takes a place in.
    """

    phase: Phase
    model: str = ""
    last_us: int = 0
    # The largest sequence number seen, and which of the 63 up to it, as bits: for chunks that do not say `cumulative`.
    sequence: int = 0
    seen: int = 0
    is_revoked: bool = False
    # Its decisions are numbered within the generation: see next_id.
    generation: int = 0
    ordinal: int = 0
    streamed_tokens: int = 0
    granted_tokens: int = 0
    overdrawn_tokens: int = 0
    refunded_tokens: int = 0
    prompt_left: int = 0
    prompt_used: int = 0
    # The last use that the meters were told of: when, and how much of it can be taken back there.
    prompt_used_at_us: int = 0
    prompt_refundable: int = 0
    completion_left: int = 0
    completion_used: int = 0
    completion_used_at_us: int = 0
    completion_refundable: int = 0
    # What of the completion is used and the meters still count as set aside; when it is booked next, and how often.
    unbooked: int = 0
    book_at_us: int = 0
    book_every_us: int = 0
    prompt_meters: list[MeterKey] = []
    completion_meters: list[MeterKey] = []
    slot_meters: list[MeterKey] = []
    holds_slots: bool = False
    # The prompt as it was asked for, weighted, and its cached part: what counts where the end does not say.
    prompt_asked: int = 0
    cached_asked: int = 0
    # Whether its prompt has been seen and answered.
    is_decided: bool = False
    policy_id: str = ""
    choices: int = 0

    @property
    def used_tokens(self) -> int:
        """Charged so far."""
        return self.prompt_used + self.completion_used + self.unbooked

    @property
    def completion_spent(self) -> int:
        """Charged for the completion so far, booked or not."""
        return self.completion_used + self.unbooked

    @property
    def outstanding_tokens(self) -> int:
        """Set aside and neither used nor given back."""
        return self.prompt_left + self.completion_left


class BoundAs(msgspec.Struct, array_like=True, frozen=True):
    """A limit as its meters were last used. A change of the first four makes it another limit under the same name."""

    unit: int
    level: int
    counts_prompt: bool
    counts_completion: bool
    limit: int
    window_us: int

    def is_same_limit(self, other: "BoundAs | None") -> bool:
        """Whether meters can go on under `other`."""
        return other is not None and (self.unit, self.level, self.counts_prompt, self.counts_completion) == (
            other.unit,
            other.level,
            other.counts_prompt,
            other.counts_completion,
        )


class Stored(msgspec.Struct, array_like=True):
    """The serialised form. A change of it is a new STATE_VERSION and a step in `UPGRADES`."""

    tenant: str
    requests: list[tuple[RequestKey, Request]]
    ended: list[tuple[RequestKey, Request | None]]
    meters: list[tuple[MeterKey, Meter]]
    lengths: dict[str, Lengths]
    bound_as: dict[str, BoundAs]
    silence_timeout_us: int
    due_us: int | None
    forgotten: int
    swept_us: dict[str, int]


class TenantState:
    """The state in use: the stored fields as dictionaries, and the policy they are bound to.

    `due_us` is never later than the first moment at which a live request has been silent for too long.
    """

    __slots__ = (
        "bound_as",
        "due_us",
        "ended",
        "forgotten",
        "lengths",
        "limits",
        "meters",
        "policy",
        "requests",
        "silence",
        "silence_timeout_us",
        "subjects",
        "swept_us",
        "tenant",
    )

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.requests: dict[RequestKey, Request] = {}
        self.ended: dict[RequestKey, Request | None] = {}
        self.meters: dict[MeterKey, Meter] = {}
        self.lengths: dict[str, Lengths] = {}
        self.bound_as: dict[str, BoundAs] = {}
        self.silence_timeout_us = 0
        self.due_us: int | None = None
        # How many ended requests are no longer remembered: their decision ids must not be given again.
        self.forgotten = 0
        # When the idle subjects of a limit were last looked for.
        self.swept_us: dict[str, int] = {}
        # Derived, and made anew after a start: live requests in a heap by their last event, some of it out of date;
        # and how many subjects each limit counts.
        self.silence: list[tuple[int, RequestKey]] | None = None
        self.subjects: Counter[str] = Counter()
        # Bound by the first event after a start; not stored.
        self.policy: LimiterPolicy | None = None
        self.limits: dict[str, Limit] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


def dump(state: TenantState) -> bytes:
    """The bytes of a state, in the form of STATE_VERSION."""
    return _encode(
        Stored(
            tenant=state.tenant,
            requests=list(state.requests.items()),
            ended=list(state.ended.items()),
            meters=list(state.meters.items()),
            lengths=state.lengths,
            bound_as=state.bound_as,
            silence_timeout_us=state.silence_timeout_us,
            due_us=state.due_us,
            forgotten=state.forgotten,
            swept_us=state.swept_us,
        )
    )


def load(stored: bytes) -> TenantState:
    """The state that `dump` wrote. Raises msgspec.DecodeError where the bytes are not such a state."""
    read = _decode(stored)
    state = TenantState(read.tenant)
    state.requests = dict(read.requests)
    state.ended = dict(read.ended)
    state.meters = dict(read.meters)
    state.lengths = read.lengths
    state.bound_as = read.bound_as
    state.silence_timeout_us = read.silence_timeout_us
    state.due_us = read.due_us
    state.forgotten = read.forgotten
    state.swept_us = read.swept_us
    state.subjects = Counter(name for name, _ in state.meters)
    return state
