"""The keyed fold on Flink: one call a batch in thread mode, a row of decisions out, dead letters on the side.

Input rows are (routing key, shard, record, source, partition, offset), keyed by the routing key (see shard_keys).
Output rows are (shard, record): one DecisionBatch for each EventBatch that led to a decision.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

import msgspec
from pyflink.common import Row, Types
from pyflink.common.time import Time
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor

from schemas.codec import encode_dead_letter
from schemas.dead_letters import Position
from udfs.domain.policy_log import PolicyLog
from udfs.operators.fold import AnyFold
from udfs.operators.fold_metrics import FoldMetrics
from udfs.operators.garbage import spare_what_lives
from udfs.operators.metric_names import FOLD_GROUP
from udfs.operators.shard_fold import META_KEY, FoldSettings, ShardFold
from udfs.operators.state_form import current_form, mark_of

BYTES: Final = Types.PRIMITIVE_ARRAY(Types.BYTE())
RECORD_ROW: Final = Types.ROW_NAMED(
    ["routing_key", "shard", "record", "source", "partition", "offset"],
    [Types.INT(), Types.INT(), BYTES, Types.STRING(), Types.INT(), Types.LONG()],
)
DECISION_ROW: Final = Types.ROW_NAMED(["shard", "record"], [Types.INT(), BYTES])
DEAD_LETTERS: Final = OutputTag("dead-letters", BYTES)
COUNTS: Final = OutputTag("counts", BYTES)
"""What each record added to the counters, as a JSON object: the metrics, exactly once, for who must account for all."""

STATE_BYTES: Final = Types.PICKLED_BYTE_ARRAY()
"""PRIMITIVE_ARRAY(BYTE) as the type of a state makes a job produce nothing in Flink 2.2."""


class FlinkStore:
    """The state of the current key (a shard) in Flink's state backend."""

    def __init__(self, context: RuntimeContext, name: str, ttl_days: int) -> None:
        """Use the states `name` (a map of keys), `name`-meta and `name`-log."""
        # Expired keys are found by the fold, in event time; this only lets the backend drop what nobody asks for.
        ttl = (
            StateTtlConfig.new_builder(Time.days(ttl_days))
            .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
            .disable_cleanup_in_background()
            .cleanup_in_rocksdb_compact_filter(1000, Time.days(30))
            .cleanup_incrementally(10, run_cleanup_for_every_record=False)
            .build()
        )
        entries = MapStateDescriptor(name, Types.STRING(), STATE_BYTES)
        entries.enable_time_to_live(ttl)
        self._entries = context.get_map_state(entries)
        # Without a time to live: keys that outlive it would be taken for newer than their shard.
        self._meta = context.get_state(ValueStateDescriptor(f"{name}-meta", STATE_BYTES))
        self._log = context.get_list_state(ListStateDescriptor(f"{name}-log", STATE_BYTES))

    def get(self, key: str) -> bytes | None:
        """See ShardStore."""
        stored: bytes | None = self._meta.value() if key == META_KEY else self._entries.get(key)
        return stored

    def put_all(self, entries: Mapping[str, bytes]) -> None:
        """See ShardStore."""
        keys = dict(entries)
        meta = keys.pop(META_KEY, None)
        if keys:
            self._entries.put_all(keys)
        if meta is not None:
            self._meta.update(meta)

    def append(self, record: bytes) -> None:
        """See ShardStore."""
        self._log.add(record)

    def log(self) -> Iterable[bytes]:
        """See ShardStore."""
        return self._log.get() or ()

    def clear_log(self) -> None:
        """See ShardStore."""
        self._log.clear()


class KeyedFold(KeyedProcessFunction):
    """Runs a fold over the shards that this subtask owns."""

    def __init__(
        self,
        fold: Callable[[], AnyFold],
        policies: PolicyLog[Any],
        encode: Callable[[int, Iterable[Any], tuple[int, int]], bytes],
        shard_of: Callable[[str], int] | None,
        settings: FoldSettings,
        *,
        shard_count: int,
        with_counts: bool = False,
    ) -> None:
        """`fold` makes the fold where it runs; all arguments travel to the workers. `with_counts`: fill COUNTS.

        `shard_of` None: the fold passes a shard's events on. Its outputs are events, whole, a record without any leads
        to none, and its keys are not spread over shards: each shard has its own.
        """
        self._shard_count = shard_count
        self._make_fold = fold
        self._policies = policies
        self._encode = encode
        self._shard_of = shard_of
        self._settings = settings
        self._with_counts = with_counts
        self._passes_on = shard_of is None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Bind to Flink's state and metrics."""
        self._fold = self._make_fold()
        ttl_days = self._settings.ttl_us // 86_400_000_000 + 1
        self._store = FlinkStore(runtime_context, self._fold.name, ttl_days)
        # Never written: its name tells in each snapshot how to read the others.
        mark = mark_of(self._fold.name, current_form(self._fold.version, self._shard_count))
        runtime_context.get_state(ValueStateDescriptor(mark, STATE_BYTES))
        self._shards: dict[int, ShardFold[Any, Any, Any]] = {}
        self._metrics = FoldMetrics(runtime_context.get_metrics_group().add_group(FOLD_GROUP, self._fold.name))
        spare_what_lives()

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:  # noqa: ARG002
        """Fold one record."""
        began = perf_counter()
        _, shard, record, source, partition, offset = value
        shard_fold = self._shards.get(shard)
        is_first = shard_fold is None
        if shard_fold is None:
            shard_fold = self._shards[shard] = self._open_shard(shard)
        result = shard_fold.process(record, Position(source, partition, offset))
        for letter in result.dead:
            yield DEAD_LETTERS, encode_dead_letter(letter)
        if self._with_counts:
            yield COUNTS, msgspec.json.encode(shard_fold.counts)
        # The first record of a shard is told of in any case: from there on, this run's decisions hold.
        if result.outputs or (is_first and not self._passes_on):
            yield Row(shard, self._encode(shard, result.outputs, (partition, offset)))
        self._metrics.record(
            shard,
            shard_fold.counts,
            () if self._passes_on else result.outputs,
            watermark_us=shard_fold.watermark_us,
            newest_us=shard_fold.newest_us,
            took_s=perf_counter() - began,
            has_dead=bool(result.dead),
        )

    def _open_shard(self, shard: int) -> ShardFold[Any, Any, Any]:
        shard_of = self._shard_of
        owns = None if shard_of is None else lambda key: shard_of(key) == shard
        return ShardFold(
            self._fold,
            self._policies,
            self._store,
            self._settings,
            owns=owns,
            with_provenance=self._passes_on,
        )
