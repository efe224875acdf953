"""The admission job on a MiniCluster decides what the in-process fold decides, whatever happens to it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs.admission import build
from jobs.wiring.embedded import latest_checkpoint, run, start, total_counts
from jobs.wiring.environment import Folders
from jobs.wiring.settings import load_settings
from schemas.events import Event
from tests.limiter_world import by_tenant
from tests.pipeline.conftest import DEMO_POLICIES
from tests.pipeline.decided import as_set, by_job, in_process
from udfs.domain.limiter import LimiterPolicy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("backend", "parallelism"), [("hashmap", 1), ("rocksdb", 2)])
def test_decides_as_in_process(
    backend: str,
    parallelism: int,
    trace_log: Path,
    trace_events: Sequence[Event],
    demo_policies: tuple[LimiterPolicy, ...],
    tmp_path: Path,
) -> None:
    settings = load_settings(
        input=(trace_log,),
        policies=DEMO_POLICIES,
        output=tmp_path,
        state_backend=backend,
        parallelism=parallelism,
        compact_events=500,
        cache_entries=2,
    )
    job = run("test", build, settings)
    expected, dead = in_process([trace_log], demo_policies)
    assert not dead
    assert job.counts["events"] == len(trace_events)
    assert job.counts["compactions"] > 10
    assert as_set(by_job(tmp_path)) == as_set(expected)


def test_counts_show_as_metrics_of_flink(trace_log: Path, tmp_path: Path) -> None:
    logs = [Path(shutil.copy(trace_log, tmp_path / f"events-{number}.pb")) for number in range(3)]
    settings = load_settings(input=tuple(logs), policies=DEMO_POLICIES, output=tmp_path)
    client, rest = start("metrics", build, settings, Folders.below(tmp_path))
    assert rest is not None
    result = client.get_job_execution_result()
    highest = 0
    while not result.done():
        highest = max(highest, sum_of_metric(rest, str(client.get_job_id()), "limiter.fold.limiter.events"))
        time.sleep(0.1)
    result.result()
    assert 0 < highest <= total_counts(Folders.below(tmp_path))["events"]


def sum_of_metric(rest: str, job_id: str, metric: str) -> int:
    """The sum over subtasks and vertices, 0 where there is none yet."""
    total = 0
    try:
        with urllib.request.urlopen(f"{rest}/jobs/{job_id}", timeout=2) as answer:
            vertices = [vertex["id"] for vertex in json.load(answer)["vertices"]]
        for vertex in vertices:
            url = f"{rest}/jobs/{job_id}/vertices/{vertex}/subtasks/metrics?get={metric}&agg=sum"
            with urllib.request.urlopen(url, timeout=2) as answer:
                total += sum(int(found["sum"]) for found in json.load(answer))
    except (OSError, KeyError):
        # The MiniCluster is not up yet, or gone already.
        return total
    return total


def test_killed_and_restored_in_the_middle_it_decides_the_same_once(
    trace_log: Path, demo_policies: tuple[LimiterPolicy, ...], tmp_path: Path
) -> None:
    folders = Folders.below(tmp_path)
    arguments = ["--input", str(trace_log), "--policies", str(DEMO_POLICIES), "--output", str(tmp_path)]
    # RocksDB, small compactions and frequent checkpoints, so that the cut falls between many of each.
    environ = {
        **os.environ,
        "HEADRACE_CHECKPOINT_INTERVAL_MS": "50",
        "HEADRACE_COMPACT_EVENTS": "500",
        "HEADRACE_STATE_BACKEND": "rocksdb",
        "HEADRACE_BUFFER_TIMEOUT_MS": "0",
    }
    command = [sys.executable, "-m", "jobs.admission", *arguments]

    first = subprocess.Popen(command, env=environ, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not (list(folders.decisions.glob("part-*")) and latest_checkpoint(folders)):
            assert first.poll() is None, "the job ended before it could be killed"
            assert time.monotonic() < deadline, "no checkpoint in two minutes"
            time.sleep(0.01)
    finally:
        # Client, JVM and all: nothing gets to say goodbye.
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    expected, _ = in_process([trace_log], demo_policies)
    decided_before = len(by_job(tmp_path))
    assert 0 < decided_before < len(expected)

    checkpoint = latest_checkpoint(folders)
    assert checkpoint is not None
    subprocess.run([*command, "--restore-from", str(checkpoint)], env=environ, check=True)

    decided = by_job(tmp_path)
    assert as_set(decided) == as_set(expected)
    assert by_tenant(decided) == by_tenant(expected)
