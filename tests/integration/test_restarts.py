"""A task that fails is started again in the same TaskManager, where the interpreter and all it imported live on."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from jobs.ops.local.flink import flink_environment, flink_home
from jobs.wiring.flink_rest import Flink
from jobs.wiring.names import ADMISSION_JOB
from tests.integration import failing_job
from tests.integration.conftest import cluster
from tests.integration.log_checks import DEMO_POLICIES, await_decided, decided, replayed, send, trace_records

if TYPE_CHECKING:
    from pathlib import Path

RESTARTS = 10
SETTLED_AFTER = 4
"""Restarts in which caches and code still grow to their size."""
MAX_GROWTH_BYTES = 64 << 20
"""From there to the last restart: some 10 MB for each, or more, is found."""


@pytest.mark.slow
def test_a_task_that_fails_ten_times_goes_on_in_the_same_taskmanager_and_leaks_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    records = trace_records(1_200, batch_events=50)
    part = len(records) // (RESTARTS + 1)
    options = {
        "execution.checkpointing.interval": "1 s",
        "restart-strategy.exponential-delay.max-backoff": "1 s",
        # All of Java's heap is resident from the start, so that what grows is not the heap.
        "env.java.opts.taskmanager": "-XX:+AlwaysPreTouch",
    }
    with cluster(folder, DEMO_POLICIES, options=options, submits=False) as running:
        servers = running.layout.kafka_servers
        flink = Flink(running.layout.rest_url)
        environment = flink_environment(running.layout) | {failing_job.SETTINGS: str(running.layout.settings)}
        command = [flink_home() / "bin" / "flink", "run", "--detached", "-pym", "tests.integration.failing_job"]
        subprocess.run(list(map(str, command)), env=os.environ | environment, check=True, capture_output=True)
        job_id = flink.require_running(ADMISSION_JOB).id
        flink.await_running(job_id, timeout_s=60)
        taskmanager = running.started("taskmanager-1").process()
        assert taskmanager is not None
        sizes = []
        for restart in range(RESTARTS):
            send(servers, records[restart * part : (restart + 1) * part])
            await_decided(servers)
            (folder / failing_job.TRIGGER).touch()
            send(servers, records[(restart + 1) * part : (restart + 1) * part + 1])
            _await_restart(flink, job_id, restart + 1)
            sizes.append(_resident(taskmanager))
        send(servers, records[(RESTARTS) * part + 1 :])
        await_decided(servers)
        assert decided(servers) == replayed(servers, DEMO_POLICIES)
        print("resident, in MB, after each restart:", [size >> 20 for size in sizes])
        assert taskmanager.is_running()
        assert sizes[-1] - sizes[SETTLED_AFTER - 1] < MAX_GROWTH_BYTES


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _await_restart(flink: Flink, job_id: str, restarts: int) -> None:
    deadline = time.monotonic() + 60
    while flink.restarts(job_id) < restarts or not flink.tasks_running(job_id):
        assert time.monotonic() < deadline, flink.last_failure(job_id)
        time.sleep(0.2)
