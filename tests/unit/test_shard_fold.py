"""The shard against clocks and records that lie: one producer's fault stays its own."""

from dataclasses import dataclass, field
from typing import Any

from schemas.codec import encode_events
from schemas.dead_letters import DeadLetterReason, Position
from schemas.decisions import DecisionKind
from schemas.events import Event
from schemas.topics import shard_of
from tests.limiter_world import SECOND, Direct, Shard, at, chunk, completed, heartbeat, kinds, limit, policy, prompt
from udfs.domain.limiter import LimiterFold, LimiterPolicy, TenantState
from udfs.domain.policy_log import PolicyLog
from udfs.operators.shard_fold import CONFIRMATIONS, FoldSettings, ShardFold
from udfs.operators.store import MemoryStore

HERE = Position("log", 0, 0)
LIMITS: PolicyLog[LimiterPolicy] = PolicyLog([policy(limit(100), silence_timeout_us=60 * SECOND)])


def test_a_watermark_far_ahead_wakes_nobody_until_others_agree() -> None:
    shard = Shard(LIMITS)
    shard.tell([prompt("r", at(0), max_tokens=10), heartbeat(at(1))])
    far = heartbeat(at(10**6), at(10**6))
    assert shard.tell([far] * (CONFIRMATIONS - 1)) == []
    assert kinds(shard.tell([far])) == [DecisionKind.SETTLE]


def test_a_watermark_counts_no_further_ahead_than_an_hour_of_its_own_event() -> None:
    shard = Shard(LIMITS)
    shard.tell([prompt("r", at(0), max_tokens=10), heartbeat(at(1))])
    assert shard.tell([heartbeat(at(2 - 3600), at(10**6))] * 9) == []


def test_an_event_without_a_watermark_does_not_drag_its_tenants_clock_away() -> None:
    shard = Shard(PolicyLog([policy(limit(100, window_us=60 * SECOND))]))
    told = shard.tell(
        [
            prompt("now", at(0), 100, without_completion=True),
            completed("now", at(0), (100, 0)),
            prompt("far", at(10**8), 100, without_completion=True),
            prompt("later", at(61), 100, without_completion=True),
        ]
    )
    decided = [decision for decision in told if decision.kind is not DecisionKind.SETTLE]
    assert kinds(decided) == [DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.ADMIT]
    assert decided[1].decided_at_us == at(0)


def test_a_tenant_that_comes_back_after_days_is_believed_at_the_third_event() -> None:
    shard = Shard(LIMITS)
    shard.tell([prompt("before", at(0), max_tokens=1)])
    back = at(10 * 86_400)
    told = shard.tell([prompt(f"r{number}", back + number, max_tokens=1) for number in range(CONFIRMATIONS)])
    assert [decision.decided_at_us for decision in told if decision.kind is DecisionKind.ADMIT][-1] == back + 2


def test_records_without_a_readable_event_are_not_kept() -> None:
    store = MemoryStore()
    fold = ShardFold(LimiterFold(), LIMITS, store)
    for _ in range(100):
        assert fold.process(b"\xff" * 50, HERE).dead
    assert store.records == []


def test_the_log_is_bounded_in_bytes() -> None:
    store = MemoryStore()
    fold = ShardFold(LimiterFold(), LIMITS, store, FoldSettings(compact_bytes=10_000))
    record = encode_events(0, [chunk("r", at(0), cumulative=1, text="x" * 4_000)])
    for _ in range(10):
        fold.process(record, HERE)
        assert sum(map(len, store.records)) < 10_000


def test_a_dead_letter_holds_its_own_event_alone() -> None:
    store = MemoryStore()
    fold = ShardFold(LimiterFold(), LIMITS, store, owns=lambda tenant: shard_of(tenant) == shard_of("acme"))
    events: list[Event] = [prompt("a", at(0)), prompt("b", at(0), tenant="stranger"), prompt("c", at(0))]
    (letter,) = fold.process(encode_events(0, events), HERE).dead
    assert (letter.reason, letter.index) == (DeadLetterReason.WRONG_SHARD, 1)
    assert letter.payload in encode_events(0, events[1:2])
    assert b"acme" not in letter.payload


@dataclass
class Fragile(LimiterFold):
    """Raises on every request of one name, and counts how often it is asked."""

    asked: int = field(default=0)

    def apply(self, state: TenantState, event: Event, policy: LimiterPolicy | None, now_us: int) -> Any:
        self.asked += 1
        if event.request_id == "bad":
            raise RuntimeError("bad")
        return super().apply(state, event, policy, now_us)


def test_many_failures_do_not_fold_the_log_again_for_each() -> None:
    fragile = Fragile()
    store = MemoryStore()
    fold = ShardFold(fragile, LIMITS, store)
    fold.process(encode_events(0, [prompt(f"r{number}", at(0)) for number in range(1_000)]), HERE)
    fragile.asked = 0
    for _ in range(50):
        assert len(fold.process(encode_events(0, [prompt("bad", at(1)), prompt("good", at(1))]), HERE).dead) == 1
    assert fragile.asked < 1_000 + 50 * 10
    # Where it failed is in the log, so a restart does not have to find it out again.
    fragile.asked = 0
    ShardFold(fragile, LIMITS, store)
    assert fragile.asked <= 2 * 50


def test_a_shorter_window_never_lets_a_use_leave_early() -> None:
    long = limit(100, window_us=1_000 * SECOND)
    driver = Direct(
        PolicyLog(
            [
                policy(long, id="long"),
                policy(limit(100, window_us=100 * SECOND), id="short", effective_from_us=at(950)),
            ]
        )
    )
    driver.tell(prompt("a", at(0), 50, without_completion=True))
    driver.tell(prompt("b", at(900), 40, max_tokens=10), chunk("b", at(900), cumulative=40))
    (told,) = driver.tell(prompt("c", at(951), 100, without_completion=True))
    assert told.kind is DecisionKind.THROTTLE


def test_ids_are_not_given_again_when_requests_are_forgotten() -> None:
    driver = Direct(policy(limit(10_000), remember_requests=1))
    told = []
    for _ in range(3):
        for name in ("r1", "r2"):
            told += driver.tell(prompt(name, at(0), 1, max_tokens=1))
            told += driver.tell(chunk(name, at(0), cumulative=1))
    ids = [decision.decision_id for decision in told]
    assert len(set(ids)) == len(ids)
