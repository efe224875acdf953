"""A slice of the log decided again, in this process: for post-mortems, and to ask what other policies would have done.

What a tenant may do at a time depends on what it did before, so a replay folds from the log's beginning, or from the
end of `warm_up_us`, whatever the slice that is asked for, and gives the decisions of that slice alone. Of a tenant the
whole shard is folded, because a silent tenant is woken by its shard's watermark; other shards are not read. A tenant's
clock never goes back, so a shard is done with when all tenants that are asked for have passed the end of the slice, and
exactly the job's decisions come out.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from jobs.ops.effective import Stretch
from jobs.ops.event_sources import EventSource, Reach
from schemas.dead_letters import DeadLetter, Position
from schemas.decisions import Decision, DecisionKind, DecisionMode
from schemas.topics import shard_of
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold
from udfs.operators.shard_fold import FoldSettings

Progress = Callable[[float], None]


class ReplayWindow(NamedTuple):
    """Which decisions a replay gives: of `tenants` (none: of all), decided from `from_us` on and before `to_us`.

    `warm_up_us`: the fold starts there, with nothing known of what was before; None: at the log's beginning.
    """

    tenants: frozenset[str] = frozenset()
    from_us: int | None = None
    to_us: int | None = None
    warm_up_us: int | None = None

    def holds(self, decision: Decision) -> bool:
        """Whether the decision is in it."""
        return (
            (not self.tenants or decision.tenant in self.tenants)
            and (self.from_us is None or decision.decided_at_us >= self.from_us)
            and (self.to_us is None or decision.decided_at_us < self.to_us)
        )


class TenantReplay(msgspec.Struct):
    """What was decided for one tenant: binding decisions by kind and reason, shadow ones, and tokens of settlements."""

    tenant: str
    decisions: Counter[str] = msgspec.field(default_factory=Counter)
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    shadow: Counter[str] = msgspec.field(default_factory=Counter)
    bound: Counter[str] = msgspec.field(default_factory=Counter)
    used_tokens: int = 0
    refunded_tokens: int = 0
    overdrawn_tokens: int = 0

    def count(self, decision: Decision) -> None:
        """Count one decision."""
        kind = decision.kind.name.lower()
        if decision.mode is DecisionMode.SHADOW:
            self.shadow[kind] += 1
            return
        self.decisions[kind] += 1
        self.reasons[decision.reason.name.lower()] += 1
        if decision.bound is not None and decision.kind in _REFUSALS:
            self.bound[decision.bound.name] += 1
        if decision.kind is DecisionKind.SETTLE:
            self.used_tokens += decision.used_tokens
            self.refunded_tokens += decision.refunded_tokens
            self.overdrawn_tokens += decision.overdrawn_tokens


_REFUSALS = frozenset((DecisionKind.THROTTLE, DecisionKind.REJECT, DecisionKind.REVOKE))


class ReplaySummary(msgspec.Struct, kw_only=True):
    """What a replay came to. `warnings` say what it could not know. Tenants by name."""

    from_us: int | None
    to_us: int | None
    records: int
    events: int
    decisions: int
    tenants: list[TenantReplay]
    dead_letters: dict[str, int]
    noticed: dict[str, int]
    warnings: list[str]


class Replay:
    """One replay: iterate `decisions`, then `summary` tells what it came to."""

    def __init__(
        self,
        source: EventSource,
        policies: PolicyLog[LimiterPolicy],
        window: ReplayWindow,
        *,
        shard_count: int,
        settings: FoldSettings | None = None,
        progress: Progress = lambda _: None,
        fold: LimiterFold | None = None,
        is_enough: Callable[[Position], bool] = lambda _: False,
    ) -> None:
        """`fold` may be one that looks on; `is_enough` says, after the record at a position, whether it has seen all.

        `starts`, where they are set before the reading, leave out what is decided of records before them, and of
        stretches that have none.
        `progress` is told how much of the log is read, 0 to 1.
        """
        self._source = source
        self._window = window
        self._shard_count = shard_count
        self.progress = progress
        self.starts: Mapping[Stretch, int] | None = None
        self._is_enough = is_enough
        self._fold = InProcessFold(fold or LimiterFold(), policies, settings, shard_count)
        self._records = self._events = self._count = 0
        self._left_out = 0
        self._first_us: int | None = None
        self._tenants: dict[str, TenantReplay] = {}
        self._dead: Counter[str] = Counter()
        self._reach = Reach(is_whole=True)

    def decisions(self) -> Iterator[Decision]:
        """The decisions of the window; a tenant's in the order in which they were made."""
        window = self._window
        self._reach = self._source.reach(window.tenants)
        waiting = _Waiting(window, self._shard_count)
        for shard, record, where, share in self._source.records(window.tenants, window.warm_up_us):
            self.progress(share)
            if waiting.is_done(shard):
                if waiting.all_done:
                    break
                continue
            result = self._fold.process(shard, record, where)
            self._records += 1
            self._events += result.events
            self._note(result.dead)
            is_in = self._is_from_start(shard, where)
            for decision in result.outputs:
                if self._first_us is None or decision.decided_at_us < self._first_us:
                    self._first_us = decision.decided_at_us
                waiting.see(decision)
                if not window.holds(decision):
                    continue
                if is_in:
                    self._tally(decision)
                    yield decision
                else:
                    self._left_out += 1
            if self._is_enough(where):
                break
        self.progress(1.0)

    def _is_from_start(self, shard: int, where: Position) -> bool:
        if self.starts is None:
            return True
        start = self.starts.get((shard, where.partition))
        return start is not None and where.offset >= start

    def _note(self, dead: Collection[DeadLetter]) -> None:
        for letter in dead:
            self._dead[letter.reason.name.lower()] += 1

    def _tally(self, decision: Decision) -> None:
        self._count += 1
        found = self._tenants.get(decision.tenant)
        if found is None:
            found = self._tenants[decision.tenant] = TenantReplay(decision.tenant)
        found.count(decision)

    def summary(self) -> ReplaySummary:
        """What it came to, once all decisions have been taken."""
        return ReplaySummary(
            from_us=self._window.from_us,
            to_us=self._window.to_us,
            records=self._records,
            events=self._events,
            decisions=self._count,
            tenants=sorted(self._tenants.values(), key=lambda tenant: tenant.tenant),
            dead_letters=dict(self._dead),
            noticed={name: count for name, count in self._fold.counts().items() if count and name not in _PLAIN_COUNTS},
            warnings=self._warnings(),
        )

    def _warnings(self) -> list[str]:
        window = self._window
        found = []
        if not self._reach.is_whole:
            found.append(
                f"the log no longer reaches back to its beginning: {self._reach.missing}; until the longest window of "
                "the limits has passed since, decisions may differ from those that were made"
            )
        if window.warm_up_us is not None:
            found.append(
                "what was before the warm-up is not known: requests that ran then, windows that were not empty and "
                "lengths that were learned are missing"
            )
        from_us = window.from_us
        if from_us is not None and self._first_us is not None and self._first_us >= from_us and found:
            found.append("the slice begins before what is left of the log does, so its beginning is missing")
        if self._left_out:
            found.append(
                f"{self._left_out:,} decisions are left out: what they are compared with begins later, in its shard; "
                "give the beginning of the slice to compare from a time instead"
            )
        found += self._source.doubts()
        missing = sorted(window.tenants - self._tenants.keys())
        if missing:
            found.append(f"nothing was decided for {', '.join(missing[:5])} in this slice")
        return found


_PLAIN_COUNTS = frozenset(("batches", "compactions", "events", "keys_loaded", "keys_new", "wakes"))


class _Waiting:
    """Which tenants have not passed the end of the window yet, by shard."""

    def __init__(self, window: ReplayWindow, shard_count: int) -> None:
        self._to_us = window.to_us
        self._tenants: dict[int, set[str]] = {}
        for tenant in window.tenants:
            self._tenants.setdefault(shard_of(tenant, shard_count), set()).add(tenant)
        # Without an end, or without names of tenants, only the end of the log tells.
        self._is_known = window.to_us is not None and bool(window.tenants)
        self._shard_count = shard_count

    def see(self, decision: Decision) -> None:
        if self._is_known and self._to_us is not None and decision.decided_at_us >= self._to_us:
            shard = shard_of(decision.tenant, self._shard_count)
            waiting = self._tenants.get(shard, set())
            waiting.discard(decision.tenant)

    def is_done(self, shard: int) -> bool:
        return self._is_known and not self._tenants.get(shard)

    @property
    def all_done(self) -> bool:
        return self._is_known and not any(self._tenants.values())
