"""The rollback drill: a wrong policy is shipped, undone, and what holds in the end never had it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from jobs.ops.cli import app
from jobs.ops.generation_topic import read_generations
from jobs.ops.generations import GenerationError, Generations, Phase
from jobs.ops.rollback import Rollback
from jobs.ops.target import target
from jobs.wiring.flink_rest import Flink, FlinkError
from jobs.wiring.kafka_log import TopicMissingError, TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.names import job_name
from jobs.wiring.topic_catalog import decisions_topic
from tests.integration.conftest import cluster
from tests.integration.log_checks import DEMO_POLICIES, await_decided, decided, replayed, send, trace_records


def headrace(*arguments: str) -> str:
    """Run a command; returns what it printed on standard output."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


@pytest.mark.slow
def test_what_holds_after_a_rollback_never_had_the_wrong_policy(  # noqa: PLR0915 - one cluster takes a minute to start
    tmp_path: Path,
) -> None:
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

        kafka = KafkaSettings(servers=servers)
        flink = Flink(running.layout.rest_url)

        # Abort leaves everything as it was.
        begin = ("rollback", "admission", "--to", snapshot, "--policies", str(DEMO_POLICIES), *at, "--json")
        shown = msgspec.json.decode(headrace(*begin))
        assert shown["outcome"] == "replayed"
        assert shown["diff"]["changed"] > 0
        assert flink.running(job_name("admission", 2)) is not None
        candidate_id = flink.require_running(job_name("admission", 2)).id
        headrace("rollback", "admission", "--abort", *at)
        assert decided(servers) == wrongly
        assert flink.running(job_name("admission", 2)) is None
        assert flink.running(job_name("admission", 1)) is not None
        assert not (running.layout.checkpoints / candidate_id).exists()
        with pytest.raises(TopicMissingError):
            TopicReader(kafka, decisions_topic(2))

        # A candidate that died is not started again into a topic that holds half of its decisions.
        def again() -> Rollback:
            return Rollback(target(folder, None, None), "admission", print)

        policies = DEMO_POLICIES.read_text()
        begun = again()
        begun.begin(snapshot, policies)
        begun.replay()
        flink.cancel(str(begun.candidate.job_id))
        with pytest.raises(FlinkError, match="runs no more"):
            again().replay()
        with pytest.raises(FlinkError, match="does not run"):
            again().promote()
        assert flink.running(job_name("admission", 1)) is not None
        headrace("rollback", "admission", "--abort", *at)

        # A crash at each step: whoever runs the command again goes on from what is on record.
        again().begin(snapshot, policies)
        first = again()
        with pytest.raises(KeyboardInterrupt):
            _crash_when_recording(first).replay()
        assert again().candidate.phase is Phase.PREPARED
        assert flink.running(job_name("admission", 4)) is not None
        headrace("rollback", "admission", *at)
        assert decided(servers) == wrongly
        stale = again()
        third = again()
        third._target.flink.cancel = _crash  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            third.promote()
        assert again().candidate.phase is Phase.PROMOTING
        with pytest.raises(GenerationError, match="somebody else"):
            stale.abort()
        refused = CliRunner().invoke(app, ["stop", "admission", *at])
        assert "headrace rollback admission" in str(refused.exception)

        headrace("rollback", "admission", *at)
        assert read_generations(kafka, "admission").lineage == (1, 4)
        assert flink.running(job_name("admission", 1)) is None
        assert decided(servers) == should_be

        # The generation that was promoted goes on.
        send(servers, trace_records(100, batch_events=7)[:40])
        await_decided(servers, "headrace-admission-g4")
        assert decided(servers) == replayed(servers, DEMO_POLICIES)

        # The next job goes on from what this generation took, by the ids on record.
        flink.cancel(flink.require_running(job_name("admission", 4)).id)
        later = msgspec.json.decode(headrace("restore", "admission", "--from", "latest", *at, "--json"))
        assert read_generations(kafka, "admission").jobs[Path(later["restored_from"]).parent.name] == 4


def _crash(job_id: str, timeout_s: float = 0) -> None:
    raise KeyboardInterrupt(job_id, timeout_s)


def _crash_when_recording(rollback: Rollback) -> Rollback:
    def crash(generations: Generations) -> None:
        raise KeyboardInterrupt(generations)

    rollback._record = crash  # type: ignore[method-assign]
    return rollback


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
