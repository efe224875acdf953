"""What came of a load, as numbers: for people by way of `load_view`, for scripts as JSON."""

from collections.abc import Sequence

import msgspec
import numpy as np

from jobs.ops.load.tally import Fault, Outcome, Tally


class Percentiles(msgspec.Struct, frozen=True):
    """Values that were seen, none made up between two of them. All 0 where `count` is 0."""

    count: int = 0
    p50: int = 0
    p90: int = 0
    p95: int = 0
    p99: int = 0
    p999: int = 0
    max: int = 0


def percentiles_of(values: Sequence[int]) -> Percentiles:
    """At least the named share of `values` is no larger.

    >>> percentiles_of(range(1, 1001))
    Percentiles(count=1000, p50=500, p90=900, p95=950, p99=990, p999=999, max=1000)
    """
    if not len(values):
        return Percentiles()
    ordered = np.sort(np.asarray(values, dtype=np.int64))
    # Ranks in whole numbers: 99.9 % of 1000 is a bit more than 999 in floats.
    ranks = [-(-len(ordered) * permille // 1000) for permille in (500, 900, 950, 990, 999, 1000)]
    return Percentiles(len(ordered), *(int(ordered[rank - 1]) for rank in ranks))


class TenantOutcome(msgspec.Struct, frozen=True):
    """What was decided for one tenant's attempts."""

    tenant: str
    admitted: int
    throttled: int
    rejected: int
    revoked: int


class Overshoot(msgspec.Struct, frozen=True):
    """Tokens that flowed between a revocation and the moment it was read, one value a revoked request."""

    revoked: int
    streams_cut: int
    tokens: int
    tokens_each: Percentiles
    stop_us: Percentiles
    """From the time of the decision to the stop."""
    overdrawn_tokens: int
    """What settlements say was used beyond what was reserved, in all."""


class LoadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is reported of a load. Times of latencies are microseconds."""

    run_id: str
    seconds: float
    was_stopped: bool
    requests: int
    events_sent: int
    records_sent: int
    events_per_second: float
    sent: dict[str, int]
    decisions_read: int
    decisions_per_second: float
    decisions: dict[str, int]
    shadow_decisions: dict[str, int]
    outcomes: dict[str, int]
    open_requests: int
    """Without a final decision because the load was broken off."""
    missing: int
    faults: dict[str, int]
    fault_examples: list[str]
    duplicates: int
    late_decisions: int
    unknown_decisions: int
    foreign_decisions: int
    """Of requests that are not this load's."""
    unreadable_records: int
    produce_errors: int
    """Records that the log has not acknowledged, whatever was tried."""
    read_errors: int
    latency_from_due_us: Percentiles
    latency_from_sent_us: Percentiles
    send_delay_us: Percentiles
    """How late prompts were handed over: the load generator's own lateness, which is part of latency_from_due_us."""
    overshoot: Overshoot
    tenants: list[TenantOutcome]

    @property
    def is_ok(self) -> bool:
        """Whether every request has exactly one final decision and every event got into the log."""
        return not (self.missing or self.faults or self.produce_errors)


class Transport(msgspec.Struct):
    """What the way to and from the log has counted."""

    records_sent: int = 0
    produce_errors: int = 0
    read_errors: int = 0
    decisions_read: int = 0
    foreign_decisions: int = 0
    unreadable_records: int = 0


def outcome_of(
    tally: Tally, transport: Transport, *, run_id: str, seconds: float, open_requests: int, was_stopped: bool
) -> LoadOutcome:
    """Sum up. `seconds`: from the start to the last event of a request."""
    # A heartbeat is no request's.
    events = sum(tally.sent.values()) - tally.sent["heartbeat"]
    seconds = max(seconds, 1e-6)
    due, sent = np.asarray(tally.from_due_us), np.asarray(tally.from_sent_us)
    return LoadOutcome(
        run_id=run_id,
        seconds=seconds,
        was_stopped=was_stopped,
        requests=tally.requests,
        events_sent=events,
        records_sent=transport.records_sent,
        events_per_second=events / seconds,
        sent=dict(sorted(tally.sent.items())),
        decisions_read=transport.decisions_read,
        decisions_per_second=transport.decisions_read / seconds,
        decisions=dict(sorted(tally.decisions.items())),
        shadow_decisions=dict(sorted(tally.shadow_decisions.items())),
        outcomes={outcome.value: tally.outcomes[outcome] for outcome in Outcome if tally.outcomes[outcome]},
        open_requests=open_requests,
        missing=tally.missing,
        faults={fault.value: tally.faults[fault] for fault in Fault if tally.faults[fault]},
        fault_examples=[f"{fault.value}: {what}" for fault, what in tally.examples],
        duplicates=tally.duplicates,
        late_decisions=tally.late_decisions,
        unknown_decisions=tally.unknown_decisions,
        foreign_decisions=transport.foreign_decisions,
        unreadable_records=transport.unreadable_records,
        produce_errors=transport.produce_errors,
        read_errors=transport.read_errors,
        latency_from_due_us=percentiles_of(tally.from_due_us),
        latency_from_sent_us=percentiles_of(tally.from_sent_us),
        send_delay_us=percentiles_of(due - sent),
        overshoot=Overshoot(
            revoked=len(tally.overshoot_tokens),
            streams_cut=len(tally.stop_us),
            tokens=sum(tally.overshoot_tokens),
            tokens_each=percentiles_of(tally.overshoot_tokens),
            stop_us=percentiles_of(tally.stop_us),
            overdrawn_tokens=tally.overdrawn_tokens,
        ),
        tenants=[
            TenantOutcome(name, of.admitted, of.throttled, of.rejected, of.revoked)
            for name, of in sorted(
                tally.tenants.items(), key=lambda item: (-item[1].admitted - item[1].throttled, item[0])
            )
        ],
    )
