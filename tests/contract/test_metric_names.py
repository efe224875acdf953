"""Metric names against the code that counts, and against the Flink that exports them."""

import ast
import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

from schemas.dead_letters import DeadLetterReason
from schemas.decisions import DecisionKind
from udfs.domain.anomaly import Anomaly
from udfs.operators import shard_fold
from udfs.operators.metric_names import (
    FLINK_METRICS,
    KAFKA_METRICS,
    FoldCounter,
    FoldDistribution,
    FoldGauge,
    fold_counters,
    fold_metrics,
    known_names,
    prometheus_label,
    prometheus_names,
)

PROMETHEUS_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
STATUSES = ("RUNNING", "RESTARTING")
COMMITTED = [
    "after_end",
    "batches",
    "behind_clock",
    "clock_ahead",
    "compactions",
    "dead_letters_fold_failed",
    "dead_letters_malformed",
    "dead_letters_missing_field",
    "dead_letters_out_of_range",
    "dead_letters_too_large",
    "dead_letters_unknown_kind",
    "dead_letters_unsupported_version",
    "dead_letters_wrong_shard",
    "decisions_admit",
    "decisions_extend",
    "decisions_grant",
    "decisions_reject",
    "decisions_revoke",
    "decisions_settle",
    "decisions_throttle",
    "duplicate",
    "early_tokens",
    "events",
    "fold_latency_us",
    "fold_latency_us_sum",
    "implausible_count",
    "keys_expired",
    "keys_loaded",
    "keys_new",
    "late",
    "le_fold_latency_us_bucket",
    "log_lag_ms",
    "overdrawn",
    "resumed",
    "subjects_full",
    "unchecked",
    "unknown_request",
    "void",
    "wakes",
    "watermark_ahead",
    "watermark_lag_ms",
    "written_off",
]


def test_names_of_a_fold_are_those_that_were_committed() -> None:
    """One that is gone or renamed leaves dashboards and alerts without it, in silence."""
    gone = set(COMMITTED) - set(fold_metrics())

    assert not gone
    assert sorted(fold_metrics()) == COMMITTED


def test_every_counter_that_a_shard_names_is_listed() -> None:
    source = Path(shard_fold.__file__).read_text(encoding="utf-8")
    named = {
        node.slice.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "counts"
        and isinstance(node.slice, ast.Constant)
    }

    assert named <= set(fold_counters())
    assert {counter.value for counter in FoldCounter} <= named


def test_every_anomaly_reason_and_kind_has_a_counter() -> None:
    counters = set(fold_counters())

    assert {anomaly.value for anomaly in Anomaly} <= counters
    assert {f"dead_letters_{reason.name.lower()}" for reason in DeadLetterReason} <= counters
    assert {f"decisions_{kind.name.lower()}" for kind in DecisionKind} <= counters


def test_no_name_is_given_twice_and_prometheus_takes_each() -> None:
    names = [*prometheus_names(), *FLINK_METRICS, *KAFKA_METRICS]

    assert len(names) == len(set(names))
    assert all(PROMETHEUS_NAME.fullmatch(name) for name in known_names())


def test_what_is_measured_in_a_unit_says_so() -> None:
    for metric in (*FoldGauge, *FoldDistribution):
        assert metric.value.endswith(("_ms", "_us"))


@pytest.mark.parametrize(
    ("value", "label"), [("headrace-admission", "headrace_admission"), ("limiter", "limiter"), ("a: b", "a:_b")]
)
def test_labels_are_written_as_flink_writes_them(value: str, label: str) -> None:
    assert prometheus_label(value) == label


@pytest.fixture(scope="module")
def flink_constants() -> str:
    """What the classes that register Flink's metrics have as text, in one string."""
    spec = importlib.util.find_spec("pyflink")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = (Path(spec.origin).parent / "lib").glob("flink-dist-*.jar")
    registering = re.compile(
        r"org/apache/flink/runtime/(metrics/(MetricNames|util/MetricUtils|groups/\w+)"
        r"|checkpoint/DefaultCheckpointStatsTracker|executiongraph/metrics/\w+|scheduler/metrics/\w+"
        r"|executiongraph/JobStatusProvider|shuffle/\w+|io/network/metrics/\w+)[\w$]*\.class"
    )
    with zipfile.ZipFile(jar) as opened:
        classes = [name for name in opened.namelist() if registering.fullmatch(name)]
        return "\n".join(opened.read(name).decode("latin-1") for name in classes)


@pytest.mark.parametrize("name", FLINK_METRICS)
def test_flink_registers_each_metric_that_is_used_of_it(name: str, flink_constants: str) -> None:
    """Scopes are groups of their own; what is left is a constant of the class that registers it."""
    words = re.sub(
        r"^flink_(taskmanager_job_task_operator|taskmanager_job_task|\w+?manager_job|\w+?manager)_", "", name
    )

    for word in words.split("_"):
        # Rates are their counter's name and a suffix, the time in a status is the status's name and one.
        stem = word.removesuffix("PerSecond")
        status = word.removesuffix("Time").upper()
        assert stem in flink_constants or status in STATUSES, word
