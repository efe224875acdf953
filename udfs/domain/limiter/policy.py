"""Limits as data: frozen, and impossible to build wrong."""

import msgspec
from msgspec.structs import force_setattr

from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS

SLOTS_PER_WINDOW = 120
"""A use is held at most 2/120 of the window longer than the exact rolling window would hold it. See meter."""

MAX_WINDOW_US = 31 * 86_400_000_000


class InvalidPolicyError(ValueError):
    """A policy that can't hold; the message names the field and the remedy."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidPolicyError(message)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `limit` units of one subject in any window of `window_us`.

    `window_us` is 0 for streams, which are counted while they run. `burst` further caps what can be taken at once: a
    bucket of that size, refilled at limit / window. `counts_prompt` and `counts_completion` choose which tokens count.
    `only` restricts the limit to some subjects; empty: all.
    """

    name: str
    level: LimitLevel
    unit: LimitUnit
    limit: int
    window_us: int = 0
    burst: int | None = None
    mode: DecisionMode = DecisionMode.ENFORCE
    counts_prompt: bool = True
    counts_completion: bool = True
    only: frozenset[str] = frozenset()
    slot_us: int = 0
    """Derived: uses nearer than this are kept as one."""
    capacity: int = 0
    """Derived: the most that can ever be taken at once."""

    def __post_init__(self) -> None:
        where = f"limit {self.name!r}"
        _require(self.name != "", "limit: name is empty, give it one that is unique in its policy")
        _require(0 < self.limit <= 2**53, f"{where}: limit is {self.limit}, it must be from 1 to 2^53")
        if self.unit is LimitUnit.STREAMS:
            _require(self.window_us == 0, f"{where}: streams are counted while they run, remove window")
            _require(self.burst is None, f"{where}: burst makes no sense for streams, remove it")
        else:
            _require(
                SLOTS_PER_WINDOW <= self.window_us <= MAX_WINDOW_US,
                f"{where}: window must be from {SLOTS_PER_WINDOW} microseconds to 31 days",
            )
        if self.burst is not None:
            _require(
                0 < self.burst <= self.limit,
                f"{where}: burst is {self.burst}, it must be from 1 to the limit",
            )
        _require(self.counts_prompt or self.counts_completion, f"{where}: counts neither prompt nor completion")
        force_setattr(self, "slot_us", self.window_us // SLOTS_PER_WINDOW)
        force_setattr(self, "capacity", self.limit if self.burst is None else self.burst)


class LimiterPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tenant and how its requests are treated.

    `match` is a tenant, or `*`. A request must fit all its limits. `cached_weight_permille` is what a cached prompt
    token counts, in thousandths of a token. Completions whose length the client does not bound are reserved with the
    `estimate_quantile` of what the tenant's requests to that model took, and `default_completion_tokens` until
    `estimate_after` of them have ended. A stream grows `extension_tokens` at a time. A request without an event for
    `silence_timeout_us` is settled and refunded.

    `traffic_is_recorded`: the log is a recording made without these limits. What a refused or revoked request did
    afterwards is then taken as not having happened; otherwise every token that flows is charged, allowed or not.
    """

    id: str
    match: str
    effective_from_us: int = 0
    limits: tuple[Limit, ...] = ()
    cached_weight_permille: int = 1000
    default_completion_tokens: int = 1024
    estimate_quantile: float = 0.95
    estimate_after: int = 20
    extension_tokens: int = 256
    silence_timeout_us: int = 120_000_000
    remember_requests: int = 512
    max_subjects: int = 10_000
    traffic_is_recorded: bool = False
    least_capacity: int = 0
    """Derived: a request that takes no more than this can fit every token limit."""

    def __post_init__(self) -> None:
        where = f"policy {self.id!r}"
        _require(self.id != "", "policy: id is empty")
        _require(self.match != "", f"{where}: match is empty, name a tenant or *")
        names = [limit.name for limit in self.limits]
        for name in names:
            _require(names.count(name) == 1, f"{where}: two limits are named {name!r}, names must be unique")
        _require(
            0 <= self.cached_weight_permille <= 1000,
            f"{where}: cached_weight_permille is {self.cached_weight_permille}, it must be from 0 to 1000",
        )
        _require(
            0 < self.default_completion_tokens < IMPLAUSIBLE_TOKENS,
            f"{where}: default_completion_tokens must be from 1 to {IMPLAUSIBLE_TOKENS - 1}",
        )
        _require(0.0 < self.estimate_quantile < 1.0, f"{where}: estimate_quantile must lie between 0 and 1")
        _require(self.estimate_after > 0, f"{where}: estimate_after must be at least 1")
        _require(
            0 < self.extension_tokens < IMPLAUSIBLE_TOKENS,
            f"{where}: extension_tokens must be from 1 to {IMPLAUSIBLE_TOKENS - 1}",
        )
        _require(self.silence_timeout_us > 0, f"{where}: silence_timeout must be positive")
        _require(0 < self.remember_requests <= 100_000, f"{where}: remember_requests must be from 1 to 100000")
        _require(0 < self.max_subjects <= 1_000_000, f"{where}: max_subjects must be from 1 to 1000000")

        capacities = [
            limit.capacity
            for limit in self.limits
            if limit.unit is LimitUnit.TOKENS and limit.mode is DecisionMode.ENFORCE
        ]
        force_setattr(self, "least_capacity", min(capacities, default=IMPLAUSIBLE_TOKENS))

    def completion_ceiling(self, prompt_tokens: int, subjects: tuple[str, ...]) -> int:
        """The longest completion that these limits could ever allow after such a prompt; negative: not even the prompt.

        `subjects` is indexed by LimitLevel.
        """
        ceiling = IMPLAUSIBLE_TOKENS
        for limit in self.limits:
            if limit.unit is LimitUnit.TOKENS and limit.mode is DecisionMode.ENFORCE and limit.counts_completion:
                if limit.only and subjects[limit.level] not in limit.only:
                    continue
                ceiling = min(ceiling, limit.capacity - (prompt_tokens if limit.counts_prompt else 0))
        return ceiling
