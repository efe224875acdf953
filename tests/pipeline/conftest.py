"""Logs and policies for jobs that run on a MiniCluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.ops.azure_trace import TRACE, lives, read_trace
from jobs.ops.lateness import LatenessWatch
from jobs.wiring.environment import Folders, prepare_process
from jobs.wiring.file_log import write_event_file
from jobs.wiring.policies import load_policies
from schemas.events import Event

if TYPE_CHECKING:
    from udfs.domain.limiter import LimiterPolicy

DEMO_POLICIES = TRACE.parents[1] / "policies" / "demo.yaml"


@pytest.fixture(scope="session")
def trace_events() -> Sequence[Event]:
    """The first ten minutes of the shipped trace, stamped: about 60,000 events."""
    rows = list(read_trace(TRACE))
    early = [row for row in rows if row.arrival_us < rows[0].arrival_us + 600_000_000]
    return list(LatenessWatch().stamped(lives(early, tenants=40, seed=3)))


@pytest.fixture(scope="session")
def trace_log(trace_events: Sequence[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """They as a log, in batches of at most 50 events, so that there are enough of them to be cut between."""
    log = tmp_path_factory.mktemp("log") / "events.pb"
    write_event_file(log, trace_events, batch_events=50, batch_age_us=5_000_000)
    return log


@pytest.fixture(scope="session")
def demo_policies() -> "tuple[LimiterPolicy, ...]":
    return load_policies(DEMO_POLICIES).policies


@pytest.fixture(scope="session")
def started_java(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Flink's JVM can be started from this process."""
    prepare_process(Folders.below(tmp_path_factory.mktemp("java")))
