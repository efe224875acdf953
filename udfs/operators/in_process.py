"""The keyed fold without Flink: the same shards, in one process, with state in memory.

For tests, and for asking what a policy would have decided on a recorded log. Decisions are the same as on Flink,
because both run `ShardFold` and a decision depends on its key's events alone; tests/pipeline holds them to it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic

from schemas.dead_letters import Position
from schemas.topics import SHARD_COUNT, shard_of
from udfs.domain.policy_log import PolicyLog
from udfs.operators.fold import Fold, Out, Policy, State
from udfs.operators.shard_fold import BatchResult, FoldSettings, ShardFold
from udfs.operators.store import MemoryStore, ShardStore


class InProcessFold(Generic[State, Policy, Out]):
    """Folds records of any shard, in the order in which they are given."""

    def __init__(
        self,
        fold: Fold[State, Policy, Out],
        policies: PolicyLog[Policy],
        settings: FoldSettings | None = None,
        shard_count: int = SHARD_COUNT,
        store: Callable[[int], ShardStore] = lambda _: MemoryStore(),
    ) -> None:
        """`store` makes the store of a shard; one that has held a shard before recovers it."""
        self._fold = fold
        self._policies = policies
        self._settings = settings
        self._shard_count = shard_count
        self._store = store
        self._shards: dict[int, ShardFold[State, Policy, Out]] = {}

    def process(self, shard: int, record: bytes, where: Position) -> BatchResult[Out]:
        """Decide one EventBatch of `shard`."""
        shard_fold = self._shards.get(shard)
        if shard_fold is None:
            shard_fold = self._shards[shard] = ShardFold(
                self._fold,
                self._policies,
                self._store(shard),
                self._settings,
                owns=partial(_owns, shard, self._shard_count),
            )
        return shard_fold.process(record, where)

    def run(self, records: Iterable[tuple[int, bytes, Position]]) -> Iterator[BatchResult[Out]]:
        """Decide records one after the other."""
        for shard, record, where in records:
            yield self.process(shard, record, where)

    def counts(self) -> dict[str, int]:
        """What was counted over all shards so far."""
        total: Counter[str] = Counter()
        for shard_fold in self._shards.values():
            total.update(shard_fold.counts)
        return dict(sorted(total.items()))


def _owns(shard: int, shard_count: int, key: str) -> bool:
    return shard_of(key, shard_count) == shard
