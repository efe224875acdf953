"""Names of metrics: dashboards and alert rules outlive a deploy and find them by name, so they have one home.

Flink's Prometheus reporter makes a name of the metric's scope and leaves the values of user groups out of it: a counter
`events` of the fold `limiter` is `flink_taskmanager_job_task_operator_fold_events{fold="limiter"}`. In the values of
labels it replaces what is no letter, digit or colon: the job `headrace-admission` is `job_name="headrace_admission"`.
All of them are gauges to Prometheus, counters too; `rate` and `increase` work on them all the same.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final

from schemas.dead_letters import DeadLetterReason
from schemas.decisions import DecisionKind
from udfs.domain.anomaly import Anomaly

FOLD_GROUP: Final = "fold"
"""The user group of a fold's metrics; its value, the label `fold`, is the fold's name."""

_FOLD_SCOPE: Final = f"flink_taskmanager_job_task_operator_{FOLD_GROUP}_"


class FoldCounter(str, Enum):
    """What a shard counts, besides anomalies, dead letters and decisions."""

    EVENTS = "events"
    """Events that were decided."""
    BATCHES = "batches"
    """Records of the log that were folded, empty and unreadable ones included."""
    WAKES = "wakes"
    """Wake-ups of silent keys."""
    COMPACTIONS = "compactions"
    """Times that a shard's changed keys were written out and its log emptied."""
    KEYS_NEW = "keys_new"
    """Keys never seen before."""
    KEYS_LOADED = "keys_loaded"
    """Keys read from state because they were not in memory."""
    KEYS_EXPIRED = "keys_expired"
    """Keys forgotten because they were silent for longer than state is kept."""
    BEHIND_CLOCK = "behind_clock"
    """Events older than their key's clock."""
    CLOCK_AHEAD = "clock_ahead"
    """Events whose time was too far ahead to be believed."""
    WATERMARK_AHEAD = "watermark_ahead"
    """Watermarks that were too far ahead to be believed."""


class FoldGauge(str, Enum):
    """What a subtask of a fold shows of now, in milliseconds."""

    WATERMARK_LAG_MS = "watermark_lag_ms"
    """Processing time minus the newest watermark of the shard that is furthest behind."""
    LOG_LAG_MS = "log_lag_ms"
    """Processing time minus the newest event time."""


class FoldDistribution(str, Enum):
    """Distributions: PyFlink exports each as a gauge of its last value."""

    FOLD_LATENCY_US = "fold_latency_us"
    """Time that the last batch took in the fold, state included, in microseconds."""


class LatencyHistogram(str, Enum):
    """How long batches take in the fold, state included, as a Prometheus histogram made of counters."""

    BOUND = "le"
    """The user group, and label, that holds a bucket's upper bound in microseconds."""
    BUCKET = "fold_latency_us_bucket"
    SUM = "fold_latency_us_sum"


LATENCY_BOUNDS_US: Final = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000)


def dead_letter_counter(reason: DeadLetterReason) -> str:
    """The counter of dead letters of one reason.

    >>> dead_letter_counter(DeadLetterReason.TOO_LARGE)
    'dead_letters_too_large'
    """
    return f"dead_letters_{reason.name.lower()}"


def decision_counter(kind: DecisionKind) -> str:
    """The counter of decisions of one kind.

    >>> decision_counter(DecisionKind.ADMIT)
    'decisions_admit'
    """
    return f"decisions_{kind.name.lower()}"


def fold_counters() -> Iterator[str]:
    """Every counter in the metric group of a fold."""
    yield from (counter.value for counter in FoldCounter)
    yield from (anomaly.value for anomaly in Anomaly)
    yield from (dead_letter_counter(reason) for reason in DeadLetterReason)
    yield from (decision_counter(kind) for kind in DecisionKind)
    yield LatencyHistogram.SUM.value


def fold_metrics() -> Iterator[str]:
    """Every metric in the metric group of a fold."""
    yield from fold_counters()
    yield from (gauge.value for gauge in FoldGauge)
    yield from (distribution.value for distribution in FoldDistribution)
    # The group of the bounds is part of the name.
    yield f"{LatencyHistogram.BOUND.value}_{LatencyHistogram.BUCKET.value}"


def prometheus_name(metric: str) -> str:
    """What a metric of a fold is called in Prometheus.

    >>> prometheus_name(FoldCounter.EVENTS.value)
    'flink_taskmanager_job_task_operator_fold_events'
    """
    return _FOLD_SCOPE + metric


def prometheus_names() -> Iterator[str]:
    """Every name under which Prometheus knows a metric of a fold."""
    return map(prometheus_name, fold_metrics())


def prometheus_label(value: str) -> str:
    """A label's value as Flink's reporter writes it, with its filter on, as it is unless configured otherwise.

    >>> prometheus_label("headrace-admission")
    'headrace_admission'
    """
    return re.sub("[^a-zA-Z0-9:_]", "_", value)


FLINK_METRICS: Final = (
    # Of a job. Durations in milliseconds, sizes in bytes; -1 where there was no checkpoint yet.
    "flink_jobmanager_job_lastCheckpointDuration",
    "flink_jobmanager_job_lastCheckpointFullSize",
    "flink_jobmanager_job_lastCheckpointSize",
    "flink_jobmanager_job_numRestarts",
    "flink_jobmanager_job_numberOfCompletedCheckpoints",
    "flink_jobmanager_job_numberOfFailedCheckpoints",
    "flink_jobmanager_job_restartingTime",
    "flink_jobmanager_job_runningTime",
    # Of the cluster.
    "flink_jobmanager_numRegisteredTaskManagers",
    "flink_jobmanager_taskSlotsAvailable",
    "flink_jobmanager_Status_JVM_GarbageCollector_All_TimeMsPerSecond",
    "flink_jobmanager_Status_JVM_Memory_Heap_Max",
    "flink_jobmanager_Status_JVM_Memory_Heap_Used",
    # Of a TaskManager.
    "flink_taskmanager_Status_Flink_Memory_Managed_Total",
    "flink_taskmanager_Status_Flink_Memory_Managed_Used",
    "flink_taskmanager_Status_JVM_CPU_Load",
    "flink_taskmanager_Status_JVM_GarbageCollector_All_TimeMsPerSecond",
    "flink_taskmanager_Status_JVM_Memory_Heap_Max",
    "flink_taskmanager_Status_JVM_Memory_Heap_Used",
    "flink_taskmanager_Status_JVM_Memory_Metaspace_Used",
    "flink_taskmanager_Status_Shuffle_Netty_RequestedMemoryUsage",
    # Of a task. Milliseconds a second: 1000 is all of the time.
    "flink_taskmanager_job_task_backPressuredTimeMsPerSecond",
    "flink_taskmanager_job_task_busyTimeMsPerSecond",
    "flink_taskmanager_job_task_checkpointAlignmentTime",
    "flink_taskmanager_job_task_checkpointStartDelayNanos",
    "flink_taskmanager_job_task_idleTimeMsPerSecond",
    "flink_taskmanager_job_task_isBackPressured",
    # Of an operator.
    "flink_taskmanager_job_task_operator_numRecordsInPerSecond",
    "flink_taskmanager_job_task_operator_numRecordsOutPerSecond",
    "flink_taskmanager_job_task_operator_numRecordsSendErrors",
)
"""Flink's own metrics that dashboards and rules use."""

KAFKA_METRICS: Final = (
    "flink_taskmanager_job_task_operator_pendingRecords",
    "flink_taskmanager_job_task_operator_KafkaProducer_record_error_rate",
    "flink_taskmanager_job_task_operator_KafkaProducer_record_queue_time_avg",
    "flink_taskmanager_job_task_operator_KafkaProducer_request_latency_avg",
    "flink_taskmanager_job_task_operator_KafkaSourceReader_KafkaConsumer_bytes_consumed_rate",
    "flink_taskmanager_job_task_operator_KafkaSourceReader_KafkaConsumer_records_lag_max",
    "flink_taskmanager_job_task_operator_KafkaSourceReader_commitsFailed",
)
"""Those of the Kafka connector, and of Kafka's consumer and producer in it, that dashboards and rules use."""

PLATFORM_METRICS: Final = (
    "container_memory_working_set_bytes",
    "container_spec_memory_limit_bytes",
    "up",
)
"""What the kubelet and Prometheus say of our containers: the interpreter's memory is in none of Flink's metrics."""


def known_names() -> frozenset[str]:
    """Every name that a dashboard or a rule may use."""
    return frozenset((*prometheus_names(), *FLINK_METRICS, *KAFKA_METRICS, *PLATFORM_METRICS))
