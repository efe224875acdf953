"""What a run came to: one pass over events and decisions, then plain numbers that the views and `--json` show.

The tokens in a window are counted here from events alone (see token_use), so the summary does not take the limiter's
word for its own work.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from jobs.ops.token_use import PeakUse, RequestLife, RollingUse, Use, enforced_token_limits, peak_use, uses_of
from schemas.decisions import Decision, DecisionKind, DecisionMode
from schemas.events import Event, RequestEvent
from udfs.domain.limiter.policy import LimiterPolicy
from udfs.domain.policy_log import PolicyLog

MOST_BUCKETS = 360
MOST_SERIES = 100
"""So many tenants, those that used most, have their series in the summary."""
UNLIMITED_WINDOW_US = 60_000_000
"""Window of the token rate of a tenant without a limit of its own."""

_BUCKETS_US = tuple(
    seconds * 1_000_000 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400)
)


class SourceLateness(msgspec.Struct, frozen=True, kw_only=True):
    """Lateness of one source and the delta that its watermark ended with; fields as in LatenessStatistics."""

    source: str
    events: int
    late_events: int
    p50_us: int
    p95_us: int
    p99_us: int
    max_lateness_us: int
    delta_us: int
    ahead_count: int = 0
    behind_count: int = 0


class WatermarkPoint(msgspec.Struct, frozen=True):
    """Delta of the watermark at one event time, and the share of the events since the last point that were late."""

    event_time_us: int
    delta_us: int
    late_share: float


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What only the job knows: how it went, not what it decided."""

    events: int
    wall_seconds: float
    events_per_second: float
    dead_letters: dict[str, int] = {}
    anomalies: dict[str, int] = {}
    lateness: tuple[SourceLateness, ...] = ()
    watermark: tuple[WatermarkPoint, ...] = ()


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, binding decisions by kind, and tokens.

    `requests` are attempts with any event. Of a settled request the last SETTLE counts, so that
    `reserved_tokens + overdrawn_tokens == used_tokens + refunded_tokens + held_tokens`, where `held_tokens` is what
    the `in_flight` requests reserved. `unreconciled` are settled requests of which the events tell another number.
    """

    requests: int = 0
    admitted: int = 0
    throttled: int = 0
    rejected: int = 0
    extended: int = 0
    revoked: int = 0
    settled: int = 0
    shadow: int = 0
    in_flight: int = 0
    reserved_tokens: int = 0
    used_tokens: int = 0
    refunded_tokens: int = 0
    overdrawn_tokens: int = 0
    held_tokens: int = 0
    unreconciled: int = 0


class LimitStep(msgspec.Struct, frozen=True):
    """From `from_us` on the limit is `limit` tokens in `window_us`; None: there is none."""

    from_us: int
    limit: int | None
    window_us: int


class TenantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant.

    `peak` is over all its enforced tenant-level token limits, None where it has none; `steps` is the limit that the
    peak belongs to. The series have one value a bucket: the most tokens that stood in the window at any moment of it,
    how many requests were throttled or rejected, and how many were revoked.
    """

    tenant: str
    counts: Counts
    peak: PeakUse | None
    steps: tuple[LimitStep, ...]
    rolling_tokens: tuple[int, ...]
    refused: tuple[int, ...]
    revoked: tuple[int, ...]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The run. Bucket i of a series starts at `start_us + i * bucket_us`; the tenant that used most stands first."""

    start_us: int
    end_us: int
    bucket_us: int
    buckets: int
    total: Counts
    tenants: tuple[TenantSummary, ...]
    decisions: dict[str, tuple[int, ...]]
    job: JobFacts

    @property
    def tenants_over(self) -> tuple[TenantSummary, ...]:
        """Those that went beyond a limit."""
        return tuple(tenant for tenant in self.tenants if tenant.peak is not None and not tenant.peak.within)


def bucket_width_us(span_us: int) -> int:
    """The finest width in round seconds that cuts the span into at most MOST_BUCKETS."""
    for width_us in _BUCKETS_US:
        if span_us < width_us * MOST_BUCKETS:
            return width_us
    return (span_us // (MOST_BUCKETS * _BUCKETS_US[-1]) + 1) * _BUCKETS_US[-1]


_COUNTED = {
    DecisionKind.ADMIT: "admitted",
    DecisionKind.THROTTLE: "throttled",
    DecisionKind.REJECT: "rejected",
    DecisionKind.EXTEND: "extended",
    DecisionKind.REVOKE: "revoked",
    DecisionKind.SETTLE: "settled",
}
_REFUSALS = (DecisionKind.THROTTLE, DecisionKind.REJECT)


class _Tenant:
    """What is gathered of a tenant in the pass."""

    __slots__ = ("decided", "held", "kinds", "lives", "settled", "shadow")

    def __init__(self) -> None:
        self.lives: dict[tuple[str, int], RequestLife] = {}
        self.kinds: Counter[DecisionKind] = Counter()
        self.shadow = 0
        self.decided: list[tuple[int, DecisionKind]] = []
        self.held: dict[tuple[str, int], Decision] = {}
        self.settled: dict[tuple[str, int], Decision] = {}

    def life(self, event: RequestEvent | Decision) -> RequestLife:
        key = (event.request_id, event.attempt)
        life = self.lives.get(key)
        if life is None:
            life = self.lives[key] = RequestLife()
        return life

    def decide(self, decision: Decision, *, is_recorded: bool) -> None:
        if decision.mode is DecisionMode.SHADOW:
            self.shadow += 1
            return
        kind = decision.kind
        self.kinds[kind] += 1
        self.decided.append((decision.decided_at_us, kind))
        if kind in _REFUSALS or kind is DecisionKind.GRANT:
            return
        life = self.life(decision)
        life.ran = True
        key = (decision.request_id, decision.attempt)
        if kind is DecisionKind.SETTLE:
            self.held.pop(key, None)
            self.settled[key] = decision
            life.settled_tokens = decision.used_tokens
            if is_recorded and decision.used_tokens == 0:
                # Its chunks reached the log before its prompt, which was refused: they did not happen.
                life.cut_tokens = 0
            return
        self.held[key] = decision
        if kind is DecisionKind.REVOKE and is_recorded:
            life.cut_tokens = decision.used_tokens


def _tenant(tenants: dict[str, _Tenant], record: RequestEvent | Decision) -> _Tenant:
    tenant = tenants.get(record.tenant)
    if tenant is None:
        tenant = tenants[record.tenant] = _Tenant()
    return tenant


def _counts(tenant: _Tenant, unreconciled: int) -> Counts:
    settled, held = tenant.settled.values(), tenant.held.values()
    held_tokens = sum(decision.reserved_tokens for decision in held)
    held_overdrawn = sum(decision.overdrawn_tokens for decision in held)
    return Counts(
        requests=len(tenant.lives),
        shadow=tenant.shadow,
        in_flight=len(held),
        reserved_tokens=sum(decision.reserved_tokens for decision in settled) + held_tokens,
        used_tokens=sum(decision.used_tokens for decision in settled),
        refunded_tokens=sum(decision.refunded_tokens for decision in settled),
        overdrawn_tokens=sum(decision.overdrawn_tokens for decision in settled) + held_overdrawn,
        held_tokens=held_tokens + held_overdrawn,
        unreconciled=unreconciled,
        **{field: tenant.kinds[kind] for kind, field in _COUNTED.items()},
    )


def _sum(parts: Iterable[Counts]) -> Counts:
    parts = list(parts)
    return Counts(**{field: sum(getattr(part, field) for part in parts) for field in Counts.__struct_fields__})


class _Buckets:
    """The time axis of the series."""

    def __init__(self, start_us: int, end_us: int) -> None:
        self.width_us = bucket_width_us(end_us - start_us)
        self.start_us = start_us // self.width_us * self.width_us
        self.number = (end_us - self.start_us) // self.width_us + 1

    def counts(self, times_us: Iterable[int]) -> tuple[int, ...]:
        counts = [0] * self.number
        for at_us in times_us:
            counts[(at_us - self.start_us) // self.width_us] += 1
        return tuple(counts)

    def highest(self, rolling: RollingUse, window_us: Sequence[int]) -> tuple[int, ...]:
        """Of each bucket: what stands in the window at its start, or the most that any use in it brings it to."""
        times_us = rolling.times_us
        series: list[int] = []
        for index in range(self.number):
            from_us = self.start_us + index * self.width_us
            inside = times_us[bisect_left(times_us, from_us) : bisect_left(times_us, from_us + self.width_us)]
            window = window_us[index]
            series.append(max(rolling.between(at_us - window, at_us) for at_us in {from_us, *inside}))
        return tuple(series)


def _tenant_summary(
    name: str, tenant: _Tenant, policies: PolicyLog[LimiterPolicy], buckets: _Buckets, end_us: int
) -> TenantSummary:
    uses: list[Use] = []
    unreconciled = 0
    for life in tenant.lives.values():
        at_us = life.prompt.event_time_us if life.prompt is not None else end_us
        policy = policies.at(name, at_us).policy
        used = uses_of(life, policy.cached_weight_permille if policy is not None else 1000)
        uses += used
        if life.settled_tokens is not None and life.settled_tokens != sum(use.tokens for use in used):
            unreconciled += 1
    uses.sort()

    by_name = enforced_token_limits(policies, name, buckets.start_us, end_us)
    peaks = [peak for pieces in by_name.values() if (peak := peak_use(uses, pieces)) is not None]
    peak = max(peaks, key=lambda peak: peak.share, default=None)
    pieces = by_name[peak.limit_name] if peak is not None else []
    steps: list[LimitStep] = []
    for piece in pieces:
        if steps and steps[-1].limit is None and steps[-1].from_us == piece.from_us:
            steps.pop()
        steps.append(LimitStep(piece.from_us, piece.limit.limit, piece.limit.window_us))
        if piece.until_us <= end_us:
            steps.append(LimitStep(piece.until_us, None, piece.limit.window_us))
    windows: list[int] = []
    for index in range(buckets.number):
        from_us = buckets.start_us + index * buckets.width_us
        held = [step.window_us for step in steps if step.from_us <= from_us]
        windows.append(held[-1] if held else (steps[0].window_us if steps else UNLIMITED_WINDOW_US))
    rolling = RollingUse(uses, pieces[-1].limit if pieces else None)
    return TenantSummary(
        tenant=name,
        counts=_counts(tenant, unreconciled),
        peak=peak,
        steps=tuple(steps),
        rolling_tokens=buckets.highest(rolling, windows),
        refused=buckets.counts(at_us for at_us, kind in tenant.decided if kind in _REFUSALS),
        revoked=buckets.counts(at_us for at_us, kind in tenant.decided if kind is DecisionKind.REVOKE),
    )


def summarise(
    events: Iterable[Event], decisions: Iterable[Decision], policies: PolicyLog[LimiterPolicy], job: JobFacts
) -> RunSummary:
    """Bring a run together. Events stand in log order; a decision that was written twice counts once."""
    tenants: dict[str, _Tenant] = {}
    times_us: list[int] = []
    for event in events:
        if isinstance(event, RequestEvent):
            times_us.append(event.event_time_us)
            _tenant(tenants, event).life(event).add(event)
    seen: set[tuple[str, str]] = set()
    for decision in decisions:
        if (decision.tenant, decision.decision_id) in seen:
            continue
        seen.add((decision.tenant, decision.decision_id))
        times_us.append(decision.decided_at_us)
        policy = policies.at(decision.tenant, decision.decided_at_us).policy
        is_recorded = policy is not None and policy.traffic_is_recorded
        _tenant(tenants, decision).decide(decision, is_recorded=is_recorded)

    start_us, end_us = min(times_us, default=0), max(times_us, default=0)
    buckets = _Buckets(start_us, end_us)
    summaries = [_tenant_summary(name, tenant, policies, buckets, end_us) for name, tenant in tenants.items()]
    summaries.sort(key=lambda summary: (-summary.counts.used_tokens, summary.tenant))
    summaries[MOST_SERIES:] = [
        msgspec.structs.replace(summary, rolling_tokens=(), refused=(), revoked=())
        for summary in summaries[MOST_SERIES:]
    ]
    decided = [decided for tenant in tenants.values() for decided in tenant.decided]
    return RunSummary(
        start_us=buckets.start_us,
        end_us=end_us,
        bucket_us=buckets.width_us,
        buckets=buckets.number,
        total=_sum(summary.counts for summary in summaries),
        tenants=tuple(summaries),
        decisions={
            kind.name.lower(): buckets.counts(at_us for at_us, of in decided if of is kind) for kind in _COUNTED
        },
        job=job,
    )
