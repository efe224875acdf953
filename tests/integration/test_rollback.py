"""The rollback drill: a wrong policy is shipped, undone, and what holds in the end never had it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from jobs.ops.cli import app
from jobs.ops.generation_topic import read_generations
from jobs.ops.generations import Phase
from jobs.ops.rollback import Rollback
from jobs.ops.target import target
from jobs.wiring.kafka_settings import KafkaSettings
from tests.integration.conftest import cluster
from tests.integration.log_checks import DEMO_POLICIES, await_decided, decided, replayed, send, trace_records

if TYPE_CHECKING:
    from pathlib import Path


def headrace(*arguments: str) -> str:
    """Run a command; returns what it printed on standard output."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


@pytest.mark.slow
def test_what_holds_after_a_rollback_never_had_the_wrong_policy(tmp_path: Path) -> None:
    records = trace_records(2_000)
    folder = tmp_path / "local"
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(DEMO_POLICIES.read_text().replace("limit: 45k", "limit: 4k").replace("limit: 150k", "limit: 45k"))
    with cluster(folder, DEMO_POLICIES, taskmanagers=2) as running:
        servers = running.layout.kafka_servers
        at = ("--folder", str(folder))
        send(servers, records[: len(records) // 2])
        await_decided(servers)
        snapshot = msgspec.json.decode(headrace("stop", "admission", *at, "--json"))["savepoint"]
        headrace("restore", "admission", "--from", snapshot, "--policies", str(wrong), *at)
        send(servers, records[len(records) // 2 :])
        await_decided(servers)
        wrongly = decided(servers)
        should_be = replayed(servers, DEMO_POLICIES)
        assert wrongly != should_be

        # Abort leaves everything as it was.
        begin = ("rollback", "admission", "--to", snapshot, "--policies", str(DEMO_POLICIES), *at, "--json")
        shown = msgspec.json.decode(headrace(*begin).splitlines()[-1])
        assert shown["outcome"] == "replayed"
        assert shown["diff"]["changed"] > 0
        headrace("rollback", "admission", "--abort", *at)
        assert decided(servers) == wrongly

        # A crash after each step: whoever runs the command again goes on from what is on record.
        def again() -> Rollback:
            return Rollback(target(folder, None, None), "admission", print)

        again().begin(snapshot, DEMO_POLICIES)
        first = again()
        record = first._record
        first._record = lambda _: None  # type: ignore[method-assign,assignment]  # the job runs, the record does not say
        first.replay()
        second = again()
        assert second.candidate.phase is Phase.PREPARED
        headrace("rollback", "admission", *at)
        assert decided(servers) == wrongly
        third = again()
        third._target.flink.cancel = _crash  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            third.promote()
        del record

        headrace("rollback", "admission", *at)
        assert read_generations(KafkaSettings(servers=servers), "admission").lineage == (1, 3)
        assert decided(servers) == should_be

        # The generation that was promoted goes on.
        send(servers, trace_records(100, batch_events=7)[:40])
        await_decided(servers, "headrace-admission-g3")
        assert decided(servers) == replayed(servers, DEMO_POLICIES)


def _crash(job_id: str, timeout_s: float = 0) -> None:
    raise KeyboardInterrupt(job_id, timeout_s)


@pytest.mark.slow
def test_a_job_decides_the_same_when_it_is_scaled_to_two_subtasks_and_back(tmp_path: Path) -> None:
    records = trace_records(1_500)
    thirds = [records[at::3] for at in range(3)]
    folder = tmp_path / "local"
    with cluster(folder, DEMO_POLICIES, taskmanagers=2) as running:
        servers = running.layout.kafka_servers
        at = ("--folder", str(folder))
        for parallelism, third in zip((None, 2, 1), thirds, strict=True):
            if parallelism is not None:
                headrace("stop", "admission", *at)
                headrace("restore", "admission", "--from", "latest", "--parallelism", str(parallelism), *at)
            send(servers, third)
            await_decided(servers)
        assert decided(servers) == replayed(servers, DEMO_POLICIES)
