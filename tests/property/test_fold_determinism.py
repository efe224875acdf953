"""The same decisions, whatever the cut of batches, the restarts, the caches, the other keys and the heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.dead_letters import DeadLetterReason
from schemas.decisions import Decision, DecisionKind
from schemas.events import Event, RequestEvent
from tests.limiter_world import (
    ORDERLY,
    SECOND,
    START_US,
    WINDOW_US,
    Direct,
    Move,
    Shard,
    by_tenant,
    chunk,
    completed,
    heartbeat,
    hostile_streams,
    kinds,
    limit,
    moves,
    play,
    policies,
    policy,
    prompt,
    stamped,
)
from udfs.domain.limiter import LimiterFold, LimiterPolicy, TenantState
from udfs.domain.policy_log import PolicyLog
from udfs.operators.shard_fold import CONFIRMATIONS, FoldSettings
from udfs.operators.store import MemoryStore
from udfs.operators.stored_key import UnreadableStateError

TENANTS = ("a", "b", "c")
END_US = START_US + 100_000 * SECOND
ANY_AHEAD_US = 2**62
"""A bound on clocks that are ahead of the watermark would make decisions depend on the stamps."""

fold_settings = st.builds(
    FoldSettings,
    cache_entries=st.sampled_from([1, 2, 100]),
    compact_events=st.sampled_from([1, 2, 7, 1_000]),
    compact_keys=st.sampled_from([1, 2, 1_000]),
    max_ahead_us=st.just(ANY_AHEAD_US),
    ttl_us=st.just(ANY_AHEAD_US),
)


class World(NamedTuple):
    """Events of several tenants in log order, with stamps that keep their promise, and the policies."""

    policies: PolicyLog[LimiterPolicy]
    events: list[Event]


@st.composite
def policy_logs(draw: st.DrawFn) -> PolicyLog[LimiterPolicy]:
    """One policy for all, and perhaps another that takes over in the middle, and one of a tenant's own."""
    records = [draw(policies())]
    if draw(st.booleans()):
        from_us = START_US + draw(st.integers(0, WINDOW_US * 4))
        records.append(draw(policies(id="p2", effective_from_us=from_us)))
    if draw(st.booleans()):
        records.append(draw(policies(id="p3", match="b")))
    return PolicyLog(records)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    log = draw(policy_logs())
    streams: dict[str, list[RequestEvent]] = {}
    for tenant in TENANTS:
        if draw(st.booleans()):
            streams[tenant] = draw(hostile_streams(tenant, max_size=20))
        else:
            driver = Direct(log, tenant)
            steps = play(driver, draw(moves(ORDERLY, max_size=20)))
            streams[tenant] = [replace(step.event, tenant=tenant) for step in steps if step.event is not None]
    return World(log, draw(interleavings(streams)))


@st.composite
def interleavings(draw: st.DrawFn, streams: Mapping[str, Sequence[RequestEvent]]) -> list[Event]:
    """Any order that keeps each tenant's own, with heartbeats in between."""
    picks = [tenant for tenant in streams for _ in streams[tenant]]
    # Tenants move together in time, more or less: in a wild order no watermark could ever rise.
    times_us = {tenant: [event.event_time_us for event in streams[tenant]] for tenant in streams}
    reached = dict.fromkeys(streams, 0)
    order: list[tuple[int, str]] = []
    for tenant in picks:
        at_us = times_us[tenant][reached[tenant]]
        reached[tenant] += 1
        order.append((at_us + draw(st.sampled_from([0, 0, WINDOW_US])), tenant))
    order.sort()
    pending = {tenant: iter(events) for tenant, events in streams.items()}
    events: list[Event] = []
    for at_us, tenant in order:
        if draw(st.integers(0, 3)) == 0:
            events.append(heartbeat(at_us))
        events.append(next(pending[tenant]))
    return stamp(draw, events)


def stamp(draw: st.DrawFn, events: Sequence[Event]) -> list[Event]:
    lags_us = [draw(st.sampled_from([0, 1, WINDOW_US // 10, WINDOW_US, END_US])) for _ in events]
    return stamped(events, lags_us)


def cut(events: Sequence[Event], sizes: Iterable[int]) -> Iterator[Sequence[Event]]:
    """Batches of these sizes, and what is left in one."""
    start = 0
    for size in sizes:
        if start < len(events):
            yield events[start : start + size]
            start += size
    if start < len(events):
        yield events[start:]


def one_by_one(log: PolicyLog[LimiterPolicy], events: Iterable[Event]) -> dict[str, list[Decision]]:
    """The reference: each tenant by itself, without an operator, stamps or heartbeats, until all are silent."""
    drivers: dict[str, Direct] = {}
    decisions: list[Decision] = []
    for event in events:
        if event.tenant:
            driver = drivers.setdefault(event.tenant, Direct(log, event.tenant))
            decisions += driver.tell(event)  # type: ignore[arg-type]
    for driver in drivers.values():
        decisions += [decision for step in driver.wake_until(END_US) for decision in step.decisions]
    return by_tenant(decisions)


def sharded(shard: Shard, batches: Iterable[Sequence[Event]], restarts: Iterable[bool]) -> list[Decision]:
    decisions: list[Decision] = []
    restart = iter(restarts)
    for batch in batches:
        if next(restart, False):
            shard.restart()
        decisions += shard.tell(batch)
    # As many as it takes to be believed: the end is far ahead.
    return decisions + shard.tell([heartbeat(END_US)] * CONFIRMATIONS)


sizes = st.lists(st.integers(1, 10), max_size=30)
flags = st.lists(st.booleans(), max_size=60)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), fold_settings, sizes, flags)
def test_neither_batches_nor_restarts_nor_caches_nor_other_keys_show(
    world: World, cost: FoldSettings, batch_sizes: list[int], restarts: list[bool]
) -> None:
    shard = Shard(world.policies, settings=cost)
    decisions = sharded(shard, cut(world.events, batch_sizes), restarts)
    assert shard.dead == []
    assert by_tenant(decisions) == one_by_one(world.policies, world.events)
    assert len(list(shard.shard.keys_in_memory())) <= cost.cache_entries


@pytest.mark.slow
@settings(max_examples=2_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(worlds(), fold_settings, sizes, flags)
def test_neither_batches_nor_restarts_nor_caches_nor_other_keys_show_in_many_worlds(
    world: World, cost: FoldSettings, batch_sizes: list[int], restarts: list[bool]
) -> None:
    shard = Shard(world.policies, settings=cost)
    decisions = sharded(shard, cut(world.events, batch_sizes), restarts)
    assert by_tenant(decisions) == one_by_one(world.policies, world.events)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(policy_logs(), hostile_streams("b"), flags)
def test_dumped_and_loaded_before_any_event_decides_the_same(
    log: PolicyLog[LimiterPolicy], events: list[RequestEvent], restarts: list[bool]
) -> None:
    unbroken, restarted = Direct(log, "b"), Direct(log, "b")
    for index, event in enumerate(events):
        if index < len(restarts) and restarts[index]:
            restarted.restart()
        assert list(restarted.feed(event)) == list(unbroken.feed(event))
    assert list(restarted.wake_until(END_US)) == list(unbroken.wake_until(END_US))
    assert restarted.fold.dump(restarted.state) == unbroken.fold.dump(unbroken.state)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(1, WINDOW_US * 4))
def test_time_to_live_runs_from_the_keys_own_clock(world: World, ttl_us: int) -> None:
    cost = FoldSettings(ttl_us=ttl_us, max_ahead_us=ANY_AHEAD_US, max_gap_us=ANY_AHEAD_US)
    together = sharded(Shard(world.policies, settings=cost), [[event] for event in world.events], [])
    apart: list[Decision] = []
    for tenant in TENANTS:
        own = [replace(event, watermark_us=0) for event in world.events if event.tenant == tenant]
        apart += sharded(Shard(world.policies, settings=cost), [[event] for event in own], [])
    assert by_tenant(together) == by_tenant(apart)


# --- a crash in the middle of a compaction --------------------------------------------------------------------------


class CrashError(Exception):
    """The process is gone."""


class CrashingStore(MemoryStore):
    """Raises before its `crash_at`-th write; each key's write by itself is all or nothing."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self.crash_at = crash_at
        self.writes = 0

    def _write(self) -> None:
        if self.writes == self.crash_at:
            raise CrashError
        self.writes += 1

    def put_all(self, entries: Mapping[str, bytes]) -> None:
        for key, value in entries.items():
            self._write()
            self.entries[key] = value

    def append(self, record: bytes) -> None:
        self._write()
        super().append(record)

    def clear_log(self) -> None:
        self._write()
        super().clear_log()
        self._write()


def with_crashes(
    log: PolicyLog[LimiterPolicy], cost: FoldSettings, batches: Sequence[Sequence[Event]], crashes_at: Sequence[int]
) -> tuple[list[list[Decision]], int]:
    """Decisions of each batch, and the number of writes.

    A record that was appended before the crash is not sent a second time, so the decisions of its batch are lost here;
    Flink would go back to before it.
    """
    store = CrashingStore(crashes_at[0] if crashes_at else -1)
    later = list(crashes_at[1:])
    decisions: list[list[Decision]] = []
    shard = Shard(log, store, cost)
    index = 0
    while index < len(batches):
        appended = shard.shard._number
        try:
            decisions.append(shard.tell(batches[index]))
        except CrashError:
            store.crash_at = store.writes + later.pop(0) if later else -1
            shard.restart()
            if shard.shard._number == appended:
                continue
            decisions.append([])
        index += 1
    return decisions, store.writes


def assert_same_later(found: list[list[Decision]], unbroken: list[list[Decision]]) -> None:
    for mine, expected in zip(found, unbroken, strict=True):
        assert mine in ([], expected)
    swallowed = sum(mine != expected for mine, expected in zip(found, unbroken, strict=True))
    assert swallowed <= 2


def busy_batches() -> tuple[PolicyLog[LimiterPolicy], list[list[Event]]]:
    """Three tenants whose requests run, expire, are throttled and come back, a batch for every moment."""
    rules = policy(limit(30, window_us=WINDOW_US), silence_timeout_us=WINDOW_US // 2, extension_tokens=4)
    events: list[Event] = []
    for moment in range(10):
        at_us = START_US + moment * WINDOW_US // 5
        for number, tenant in enumerate(TENANTS):
            if (moment + number) % 4 == 3:
                continue
            if moment % 3 == 0:
                events.append(prompt(f"r{moment}", at_us, 10, tenant=tenant, max_tokens=8))
            else:
                name = f"r{moment - moment % 3}"
                events.append(chunk(name, at_us, cumulative=5 * (moment % 3), tenant=tenant))
        events.append(heartbeat(at_us))
    stamps = stamped(events, [0] * len(events))
    batches = list(cut(stamps, [2, 3, 1, 4, 2, 3, 1, 4, 2, 3, 1, 4]))
    return PolicyLog([rules]), [list(batch) for batch in batches] + [[heartbeat(END_US)]]


compactions = [
    FoldSettings(cache_entries=cache, compact_events=events, compact_keys=keys)
    for cache, events, keys in ((100, 1, 100), (100, 5, 100), (100, 1_000, 2), (1, 1_000, 100), (2, 7, 3))
]


@pytest.mark.parametrize("cost", compactions)
def test_a_crash_at_every_point_of_every_compaction_changes_no_later_decision(cost: FoldSettings) -> None:
    log, batches = busy_batches()
    unbroken, writes = with_crashes(log, cost, batches, [])
    assert {DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.EXTEND, DecisionKind.SETTLE} <= {
        decision.kind for found in unbroken for decision in found
    }
    for crash_at in range(writes):
        found, _ = with_crashes(log, cost, batches, [crash_at])
        assert_same_later(found, unbroken)


@given(st.integers(0, 60), st.integers(0, 12), st.sampled_from(compactions))
def test_a_crash_while_recovered_from_a_crash_changes_no_later_decision(
    first: int, second: int, cost: FoldSettings
) -> None:
    log, batches = busy_batches()
    unbroken, _ = with_crashes(log, cost, batches, [])
    found, _ = with_crashes(log, cost, batches, [first, second])
    assert_same_later(found, unbroken)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), fold_settings, sizes, st.lists(st.integers(0, 30), max_size=4))
def test_crashes_anywhere_in_any_world_change_no_later_decision(
    world: World, cost: FoldSettings, batch_sizes: list[int], crashes_at: list[int]
) -> None:
    batches = [*cut(world.events, batch_sizes), [heartbeat(END_US)]]
    unbroken, _ = with_crashes(world.policies, cost, batches, [])
    found, _ = with_crashes(world.policies, cost, batches, crashes_at)
    for mine, expected in zip(found, unbroken, strict=True):
        assert mine in ([], expected)
    lost = sum(mine != expected for mine, expected in zip(found, unbroken, strict=True))
    assert lost <= len(crashes_at)


# --- a fold that raises ---------------------------------------------------------------------------------------------


class Brittle(LimiterFold):
    """Raises on some requests, after it has changed the state."""

    def apply(self, state: TenantState, event: Event, policy: LimiterPolicy | None, now_us: int) -> Any:
        found = super().apply(state, event, policy, now_us)
        if event.request_id == "bad":
            raise RuntimeError("bad request")
        return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), fold_settings, sizes, flags, flags)
def test_a_fold_that_raises_loses_that_event_alone(
    world: World, cost: FoldSettings, batch_sizes: list[int], restarts: list[bool], bad: list[bool]
) -> None:
    is_bad = [flag and event.tenant != "" for flag, event in zip(bad, world.events, strict=False)]
    is_bad += [False] * (len(world.events) - len(is_bad))
    events = [
        replace(event, request_id="bad") if spoilt else event
        for event, spoilt in zip(world.events, is_bad, strict=True)
    ]
    shard = Shard(world.policies, settings=cost, fold=Brittle())
    decisions = sharded(shard, cut(events, batch_sizes), restarts)
    good = [event for event, spoilt in zip(world.events, is_bad, strict=True) if not spoilt]
    assert by_tenant(decisions) == one_by_one(world.policies, good)
    assert [letter.reason for letter in shard.dead] == [DeadLetterReason.FOLD_FAILED] * sum(is_bad)
    assert all("bad request" in letter.detail for letter in shard.dead)


class Insomniac(LimiterFold):
    """Raises when one tenant is woken."""

    def wake(self, state: TenantState, policy: LimiterPolicy | None, now_us: int) -> Any:
        if state.tenant == "a":
            raise RuntimeError("can't wake")
        return super().wake(state, policy, now_us)


@pytest.mark.parametrize("restarts", [[], [True] * 10])
@pytest.mark.parametrize("compact_events", [1, 1_000])
def test_a_wake_up_that_raises_takes_nothing_else_along(restarts: list[bool], compact_events: int) -> None:
    cost = FoldSettings(compact_events=compact_events)
    shard = Shard(PolicyLog([policy(limit(100))]), settings=cost, fold=Insomniac())
    batches: list[list[Event]] = [
        [prompt("r", START_US, max_tokens=10, tenant="a"), prompt("r", START_US, max_tokens=10, tenant="b")],
        [heartbeat(START_US + 500 * SECOND)],
        [prompt("s", START_US + 600 * SECOND, max_tokens=10, tenant="a")],
        [prompt("s", START_US + 600 * SECOND, max_tokens=10, tenant="b")],
    ]
    decisions = by_tenant(sharded(shard, batches, restarts))
    assert kinds(decisions["a"]) == [DecisionKind.ADMIT, DecisionKind.ADMIT]
    assert kinds(decisions["b"]) == [DecisionKind.ADMIT, DecisionKind.SETTLE, DecisionKind.ADMIT, DecisionKind.SETTLE]
    assert {letter.reason for letter in shard.dead} == {DeadLetterReason.FOLD_FAILED}


# --- versions of the state ------------------------------------------------------------------------------------------


class Newer(LimiterFold):
    """Two versions on: the bytes got a word in front, then another."""

    version = LimiterFold.version + 2
    upgrades = {  # noqa: RUF012
        LimiterFold.version: lambda stored: b"next:" + stored,
        LimiterFold.version + 1: lambda stored: b"newest:" + stored,
    }

    def dump(self, state: TenantState) -> bytes:
        return b"newest:next:" + super().dump(state)

    def load(self, stored: bytes) -> TenantState:
        assert stored.startswith(b"newest:next:")
        return super().load(stored.removeprefix(b"newest:next:"))


class Gapped(Newer):
    """A step is missing."""

    upgrades = {LimiterFold.version + 1: lambda stored: b"newest:" + stored}  # noqa: RUF012


def half_done(fold: LimiterFold) -> tuple[Shard, list[Event]]:
    shard = Shard(PolicyLog([policy(limit(100))]), settings=FoldSettings(compact_events=1), fold=fold)
    shard.tell([prompt("r", START_US, 10, max_tokens=50)])
    shard.tell([chunk("r", START_US + SECOND, cumulative=20)])
    return shard, [completed("r", START_US + 2 * SECOND), prompt("s", START_US + 3 * SECOND, 71)]


def test_state_of_an_older_version_is_brought_up_step_by_step() -> None:
    shard, rest = half_done(LimiterFold())
    expected = [decision for event in rest for decision in shard.tell([event])]
    shard, rest = half_done(LimiterFold())
    shard.fold = Newer()
    shard.restart()
    assert [decision for event in rest for decision in shard.tell([event])] == expected
    shard.restart()
    assert shard.tell([prompt("s", START_US + 4 * SECOND)]) == []


def test_state_of_a_newer_version_stops_the_job() -> None:
    shard, rest = half_done(Newer())
    shard.fold = LimiterFold()
    shard.restart()
    with pytest.raises(UnreadableStateError, match="reads up to 1"):
        shard.tell(rest)


def test_state_that_no_upgrade_leads_on_from_stops_the_job() -> None:
    shard, rest = half_done(LimiterFold())
    shard.fold = Gapped()
    shard.restart()
    with pytest.raises(UnreadableStateError, match="no upgrade leads on from version 1"):
        shard.tell(rest)


def test_a_shard_that_is_restarted_without_an_event_stays_as_it_is() -> None:
    shard, rest = half_done(LimiterFold())
    for _ in range(3):
        shard.restart()
    assert kinds(shard.tell(rest)) == [DecisionKind.SETTLE, DecisionKind.THROTTLE]


def test_orderly_scripts_do_reach_every_kind_of_decision() -> None:
    """Else the properties above would hold of next to nothing."""
    seen: set[DecisionKind] = set()
    script = [Move(100, what, who % 3, 5 + who, who % 10) for who, what in enumerate(ORDERLY * 12)]
    for size in (5, 40, 1_000):
        rules = policy(limit(size, window_us=WINDOW_US), extension_tokens=2, default_completion_tokens=3)
        seen |= {decision.kind for step in play(Direct(rules), script) for decision in step.decisions}
    assert seen == set(DecisionKind) - {DecisionKind.GRANT}
