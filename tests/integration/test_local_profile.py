"""`headrace up`, `status` and `down`, and what a job on that cluster does with snapshots and transactions."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil
import pytest
import yaml
from typer.testing import CliRunner

from jobs.ops.cli import app
from jobs.ops.effective import batches
from jobs.ops.local.cluster import read_record
from jobs.ops.local.flink import flink_environment
from jobs.ops.local.layout import Layout, LocalError
from jobs.ops.local.processes import is_listening, servers_in
from jobs.ops.submit import SubmitError, submit
from jobs.wiring.flink_rest import Flink, local_path
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import create_topic
from jobs.wiring.names import job_name
from jobs.wiring.topic_catalog import decisions_topic
from schemas.codec import decode_decision_batch
from tests.integration.conftest import free_block
from tests.integration.log_checks import DEMO_POLICIES, await_decided, replayed, send, trace_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.decisions import Decision

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "golden" / "savepoint_v1"
PARTITIONS = 4


class Profile(NamedTuple):
    layout: Layout
    flink: Flink

    @property
    def servers(self) -> str:
        return self.layout.kafka_servers

    def settings(self, generation: int, events_topic: str, **further: object) -> Path:
        """Settings of a job of its own, with topics of its own."""
        kafka = KafkaSettings(servers=self.servers)
        create_topic(kafka, events_topic, PARTITIONS, {}, 1)
        create_topic(kafka, decisions_topic(generation), PARTITIONS, {}, 1)
        path = self.layout.folder / f"settings-{generation}.yaml"
        given = {
            "profile": "cluster",
            "kafka": {"servers": self.servers},
            "policies": str(DEMO_POLICIES),
            "generation": generation,
            "events_topic": events_topic,
        }
        path.write_text(yaml.safe_dump(given | further))
        return path

    def start(self, settings: Path, snapshot: str | None = None) -> str:
        job_id = submit("admission", settings, flink_environment(self.layout), snapshot)
        self.flink.await_running(job_id, timeout_s=60)
        return job_id


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    # Mistakes are put into words by main(), which the runner passes by.
    said = str(result.exception) if isinstance(result.exception, LocalError) else ""
    return result.exit_code, result.output + said


@pytest.fixture(scope="module")
def profile() -> Iterator[Profile]:
    # Postgres runs as a user of its own where the tests are root, and has to get into the folder.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    layout = Layout(folder / "local", free_block())
    options = ("--folder", str(layout.folder), "--base-port", str(layout.ports.base))
    status, said = command(
        "up", *options, "--taskmanagers", "1", "--no-jobs", "-D", "execution.checkpointing.interval=1 s"
    )
    if status != 0:
        command("down", "--folder", str(layout.folder))
    assert status == 0, said
    yield Profile(layout, Flink(layout.rest_url))
    record = read_record(layout.folder)
    assert record is not None
    status, said = command("down", "--folder", str(layout.folder))
    assert status == 0, said
    # Nothing stays behind: no process, no port, no file.
    assert not record.alive
    assert not any(is_listening(port) for started in record.processes for port in started.ports)
    assert list(folder.iterdir()) == []
    shutil.rmtree(folder)


def test_a_second_up_finds_everything_running_and_status_says_what(profile: Profile) -> None:
    before = read_record(profile.layout.folder)
    status, said = command("up", "--folder", str(profile.layout.folder), "--taskmanagers", "1", "--no-jobs")
    assert status == 0
    assert said.count("runs already") == 5
    assert read_record(profile.layout.folder) == before
    status, said = command("status", "--folder", str(profile.layout.folder), "--json")
    # No job was submitted, which is not what a profile is for.
    assert status == 1
    facts = msgspec.json.decode(said)
    assert [it["name"] for it in facts["processes"]] == [
        "kafka",
        "postgres",
        "zookeeper",
        "jobmanager",
        "taskmanager-1",
    ]
    assert all(it["runs"] for it in facts["processes"])


def test_a_port_that_is_taken_is_refused_with_its_holder(profile: Profile, tmp_path: Path) -> None:
    other = tmp_path / "other"
    status, said = command("up", "--folder", str(other), "--base-port", str(profile.layout.ports.base))
    assert status == 1
    assert re.search(rf"port {profile.layout.ports.kafka}, which kafka needs, is taken by java \(pid \d+\)", said)
    command("down", "--folder", str(other))
    assert not other.exists()


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    status, said = command("up", "--folder", str(tmp_path))
    assert status == 1
    assert "not of a local profile" in said
    command("down", "--folder", str(tmp_path))
    assert (tmp_path / "theirs").read_text() == "precious"


def begin_up(profile: Profile) -> subprocess.Popen[str]:
    words = ["up", "--folder", str(profile.layout.folder), "--no-jobs"]
    return subprocess.Popen([sys.executable, "-m", "jobs.ops.cli", *words], stderr=subprocess.PIPE, text=True)


def kill_taskmanager(profile: Profile) -> None:
    record = read_record(profile.layout.folder)
    assert record is not None
    taskmanager = record.find("taskmanager-1")
    assert taskmanager is not None
    process = psutil.Process(taskmanager.pid)
    process.kill()
    process.wait(10)


def servers(profile: Profile) -> set[int]:
    return {process.pid for process in servers_in(profile.layout.folder)}


def test_two_at_once_start_nothing_twice(profile: Profile) -> None:
    count = len(servers(profile))
    kill_taskmanager(profile)
    ups = [begin_up(profile) for _ in range(2)]
    said = {up.communicate(timeout=120)[1]: up.returncode for up in ups}
    assert sorted(said.values()) == [0, 1], said
    refused = next(words for words, status in said.items() if status == 1)
    assert re.search(r"headrace up \(pid \d+\) is at work there", refused)
    assert len(servers(profile)) == count


def test_up_that_is_ended_leaves_no_half_started_process(profile: Profile) -> None:
    kill_taskmanager(profile)
    before = servers(profile)
    up = begin_up(profile)
    deadline = time.monotonic() + 60
    while servers(profile) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    up.send_signal(signal.SIGTERM)
    _, said = up.communicate(timeout=60)
    assert up.returncode == 130, said
    assert servers(profile) == before
    status, said = command("up", "--folder", str(profile.layout.folder), "--no-jobs")
    assert status == 0, said
    assert len(servers(profile)) == len(before) + 1


def decided(profile: Profile, generation: int) -> dict[str, Decision]:
    found: dict[str, Decision] = {}
    for batch in batches(KafkaSettings(servers=profile.servers), decisions_topic(generation)):
        for decision in batch.decisions:
            assert found.setdefault(decision.decision_id, decision) == decision
    return found


def test_a_savepoint_of_the_first_release_is_restored(profile: Profile, request: pytest.FixtureRequest) -> None:
    topic = "golden.events"
    records = trace_records(240, batch_events=20)
    settings = profile.settings(11, topic)
    half = len(records) // 2
    send(profile.servers, records[:half], topic)
    if request.config.getoption("--regenerate-golden"):
        job_id = profile.start(settings)
        await_decided(profile.servers, "headrace-admission-g11", topic)
        path = local_path(profile.flink.stop(job_id, None, drain=False, timeout_s=60))
        assert path is not None
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(path, GOLDEN)
        pytest.skip("savepoint_v1 written anew")
    with TopicReader(KafkaSettings(servers=profile.servers), topic) as reader:
        since = {it.partition: it.end for it in reader.slices()}
    send(profile.servers, records[half:], topic)
    job_id = profile.start(settings, GOLDEN.as_uri().replace("file://", "file:"))
    await_decided(profile.servers, "headrace-admission-g11", topic)
    assert decided(profile, 11) == replayed(profile.servers, DEMO_POLICIES, topic, since)
    profile.flink.cancel(job_id)


def test_a_snapshot_that_does_not_fit_is_refused_before_the_job_starts(profile: Profile) -> None:
    settings = profile.settings(12, "golden.events", shard_count=16)
    jobs_before = profile.flink.jobs()
    with pytest.raises(SubmitError, match="spread over 32 shards and shard_count is 16: set shard_count to 32"):
        submit("admission", settings, flink_environment(profile.layout), str(GOLDEN))
    assert profile.flink.jobs() == jobs_before


def test_a_snapshot_fits_whatever_sinks_are_to_guarantee(profile: Profile) -> None:
    settings = profile.settings(12, "golden.events", delivery="exactly-once")
    profile.flink.cancel(profile.start(settings, str(GOLDEN)))


def test_a_file_that_is_no_snapshot_is_refused(profile: Profile, tmp_path: Path) -> None:
    settings = profile.settings(12, "golden.events")
    with pytest.raises(SubmitError, match="_metadata"):
        submit("admission", settings, flink_environment(profile.layout), str(tmp_path))


def test_transactions_write_each_decision_once_though_the_taskmanager_is_killed(profile: Profile) -> None:
    topic = "exact.events"
    records = trace_records(600, batch_events=20)
    settings = profile.settings(13, topic, delivery="exactly-once")
    job_id = profile.start(settings)
    send(profile.servers, records[: len(records) // 2], topic)
    record = read_record(profile.layout.folder)
    assert record is not None
    taskmanager = record.find("taskmanager-1")
    assert taskmanager is not None
    psutil.Process(taskmanager.pid).kill()
    send(profile.servers, records[len(records) // 2 :], topic)
    status, said = command("up", "--folder", str(profile.layout.folder), "--taskmanagers", "1", "--no-jobs")
    assert status == 0, said
    await_decided(profile.servers, "headrace-admission-g13", topic)
    # What is committed is read, and only that; offsets are committed with the checkpoint that commits the transaction.
    written: Counter[str] = Counter()
    with TopicReader(KafkaSettings(servers=profile.servers), decisions_topic(13)) as reader:
        for it in reader.records(reader.slices()):
            assert it.value is not None
            written.update(decision.decision_id for decision in decode_decision_batch(it.value).decisions)
    assert set(written.values()) == {1}
    assert decided(profile, 13) == replayed(profile.servers, DEMO_POLICIES, topic)
    assert profile.flink.running(job_name("admission", 13)) is not None
    profile.flink.cancel(job_id)
