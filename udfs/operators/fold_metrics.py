"""A fold's counts and lags as Flink's metrics, a few times a second rather than with every record.

Lags are distributions to PyFlink, which keeps their last value in Java: a gauge would be asked for on another thread.
The names have one home, `metric_names`.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from udfs.operators.metric_names import (
    LATENCY_BOUNDS_US,
    FoldDistribution,
    FoldGauge,
    LatencyHistogram,
    decision_counter,
    fold_counters,
)

PUBLISH_EVERY_S: Final = 0.2


class FoldMetrics:
    """What one subtask of a fold shows."""

    def __init__(self, group: Any) -> None:
        """`group` is PyFlink's metric group of the fold."""
        # All from the start: a counter that appears with its first count has no increase that an alert could see.
        self._counters: dict[str, Any] = {name: group.counter(name) for name in fold_counters()}
        self._pending: Counter[str] = Counter()
        self._watermarks_us: dict[int, int] = {}
        self._newest_us = 0
        self._latency_us = 0
        self._buckets = [0] * (len(LATENCY_BOUNDS_US) + 1)
        self._bucket_counters = [
            group.add_group(LatencyHistogram.BOUND.value, str(bound)).counter(LatencyHistogram.BUCKET.value)
            for bound in (*LATENCY_BOUNDS_US, "+Inf")
        ]
        self._watermark_lag = group.distribution(FoldGauge.WATERMARK_LAG_MS.value)
        self._log_lag = group.distribution(FoldGauge.LOG_LAG_MS.value)
        self._latency = group.distribution(FoldDistribution.FOLD_LATENCY_US.value)
        self._published_s = time.monotonic()

    def record(
        self,
        shard: int,
        counts: Counter[str],
        outputs: Sequence[Any],
        *,
        watermark_us: int,
        newest_us: int,
        took_s: float,
        has_dead: bool,
    ) -> None:
        """Take over what a record of `shard` counted (and empty `counts`), decided and took."""
        pending = self._pending
        pending.update(counts)
        counts.clear()
        for output in outputs:
            pending[decision_counter(output.kind)] += 1
        self._watermarks_us[shard] = watermark_us
        self._newest_us = max(self._newest_us, newest_us)
        self._latency_us = int(took_s * 1_000_000)
        pending[LatencyHistogram.SUM.value] += self._latency_us
        self._buckets[bisect_left(LATENCY_BOUNDS_US, self._latency_us)] += 1
        # What was put aside is told at once: the record after it may be long in coming.
        if has_dead or time.monotonic() - self._published_s >= PUBLISH_EVERY_S:
            self._publish()

    def _publish(self) -> None:
        self._published_s = time.monotonic()
        for name, count in self._pending.items():
            self._counters[name].inc(count)
        self._pending.clear()
        # Prometheus' buckets hold what is at or below their bound, so each counts in all above it too.
        total = 0
        for at, count in enumerate(self._buckets):
            total += count
            if total:
                self._bucket_counters[at].inc(total)
        self._buckets = [0] * len(self._buckets)
        now_us = time.time_ns() // 1_000
        # A shard without a watermark has not been told of time yet; it is not behind.
        behind_us = min((it for it in self._watermarks_us.values() if it), default=now_us)
        self._watermark_lag.update((now_us - behind_us) // 1_000)
        self._log_lag.update((now_us - (self._newest_us or now_us)) // 1_000)
        self._latency.update(self._latency_us)
