"""A gateway goes on sending while one thing after another breaks. No request is lost, none is settled twice, and what
was decided equals an undisturbed replay of the same log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from jobs.ops.local.flink import JOBMANAGER
from jobs.ops.local.kafka import NAME as KAFKA
from jobs.ops.local.processes import end
from jobs.wiring.flink_rest import Flink
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.names import ADMISSION_JOB, Uid
from schemas.codec import decode_dead_letter
from schemas.dead_letters import DeadLetter, DeadLetterReason
from schemas.topics import Topic
from tests.integration.conftest import Cluster, cluster
from tests.integration.log_checks import KEYS, await_decided, decided, replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIVE_POLICIES = Path(__file__).parents[2] / "data" / "policies" / "local.yaml"
EVENTS_PER_S = 400
MAX_LOAD_S = 900
"""It is told to end when all faults are over."""
RECOVERY_S = 90
"""No fault may keep decisions away for longer, whatever the machine."""


class Watch:
    """When decisions arrive."""

    def __init__(self, servers: str) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=servers)
        partitions = [
            TopicPartition(Topic.DECISIONS.value, number)
            for number in self._consumer.partitions_for_topic(Topic.DECISIONS.value)
        ]
        self._consumer.assign(partitions)
        self._consumer.seek_to_end()
        self._arrivals = [time.monotonic()]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._consumer.poll(timeout_ms=50):
                self._arrivals.append(time.monotonic())

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def await_silence_over(self, since: float, steady_s: float = 3.0) -> float:
        """Wait until decisions have flowed again for a while; returns the longest silence since then."""
        deadline = since + RECOVERY_S
        while True:
            now = time.monotonic()
            recent = [at for at in self._arrivals if at > now - steady_s]
            if now > since + steady_s and len(recent) > steady_s and recent[0] < now - steady_s + 1:
                times = [max(at for at in self._arrivals if at <= since), *(at for at in self._arrivals if at > since)]
                return max(later - earlier for earlier, later in pairwise(times))
            assert now < deadline, "no decisions any more"
            time.sleep(0.2)


def host_of_the_fold(flink: Flink, job_id: str, fold: str = Uid.LIMITER.value) -> str:
    """The name of the TaskManager that runs a fold."""
    vertices = flink._call(f"/jobs/{job_id}")["vertices"]
    vertex = next(it["id"] for it in vertices if it["name"].startswith(fold))
    resource = flink._call(f"/jobs/{job_id}/vertices/{vertex}")["subtasks"][0]["taskmanager-id"]
    return str(resource).rsplit("-", 1)[0]


def await_running(flink: Flink, job_id: str) -> None:
    """Tasks outlive a killed JobManager and go on deciding until they are begun anew: decisions alone don't tell."""
    deadline = time.monotonic() + RECOVERY_S
    while not ((state := flink.state(job_id)) == "RUNNING" and flink.tasks_running(job_id)):
        assert time.monotonic() < deadline, state
        time.sleep(0.2)


def await_count(flink: Flink, job_id: str, name: str, more: int, timeout_s: float = 60) -> None:
    """Wait until so many more checkpoints have completed, or failed."""
    goal = flink.checkpoints(job_id)["counts"][name] + more
    deadline = time.monotonic() + timeout_s
    while flink.checkpoints(job_id)["counts"][name] < goal:
        assert time.monotonic() < deadline, f"checkpoints {name}"
        time.sleep(0.2)


@contextmanager
def unusable(folder: Path) -> Iterator[None]:
    """A file in the place of a folder: whatever the user, nothing can be written below it."""
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside)
    folder.write_text("")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder mounted read-only; where that is not allowed, unusable in another way."""
    mount = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        with unusable(folder):
            yield
        return
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start_load(servers: str, record: Path) -> subprocess.Popen[str]:
    options = [
        "--rate",
        EVENTS_PER_S,
        "--seconds",
        MAX_LOAD_S,
        "--speed",
        4,
        "--tenants",
        40,
        "--decision-timeout",
        200,
    ]
    command = [Path(sys.executable).with_name("headrace"), "load", *options, "--servers", servers, "--record", record]
    return subprocess.Popen([*map(str, command), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def poison(servers: str) -> list[tuple[int, int]]:
    """Records that no job can read, and where they are."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    sent = [
        producer.send(Topic.EVENTS.value, key=KEYS[3], value=b"\xff" * 40),
        producer.send(Topic.EVENTS.value, key=b"no shard", value=b"not protobuf at all"),
        producer.send(Topic.EVENTS.value, key=None, value=b"\x00\x01\x02"),
    ]
    places = [(it.partition, it.offset) for it in (future.get(timeout=30) for future in sent)]
    producer.close()
    return places


def dead_letters(servers: str) -> list[DeadLetter]:
    with TopicReader(KafkaSettings(servers=servers), Topic.DEAD_LETTERS.value) as reader:
        return [decode_dead_letter(it.value) for it in reader.records(reader.slices()) if it.value]


@pytest.mark.slow
def test_whatever_breaks_no_request_is_lost_and_decisions_are_those_of_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    options = {"execution.checkpointing.interval": "2 s", "execution.checkpointing.min-pause": "0"}
    with cluster(folder, LIVE_POLICIES, taskmanagers=2, options=options) as running:
        servers = running.layout.kafka_servers
        flink = Flink(running.layout.rest_url)
        job_id = flink.require_running(ADMISSION_JOB).id
        load = start_load(servers, tmp_path / "load.jsonl")
        watch = Watch(servers)
        try:
            watch.await_silence_over(time.monotonic())
            await_count(flink, job_id, "completed", 1)
            places = _break_one_thing_after_another(running, flink, job_id, watch)
            load.send_signal(signal.SIGINT)
            said, complaints = load.communicate(timeout=120)
        finally:
            load.kill()
            watch.close()
        outcome = json.loads(said)
        assert load.returncode == 0, complaints + said
        assert outcome["requests"] > 500
        assert outcome["outcomes"]["settled"] > 400
        assert outcome["missing"] == 0
        assert outcome["faults"] == {}
        await_decided(servers)
        assert decided(servers) == replayed(servers, LIVE_POLICIES)
        letters = {(it.partition, it.offset): it for it in dead_letters(servers)}
        assert sorted(letters) == sorted(places)
        assert {it.reason for it in letters.values()} == {DeadLetterReason.MALFORMED}
        assert {it.source for it in letters.values()} == {Topic.EVENTS.value}


def _break_one_thing_after_another(running: Cluster, flink: Flink, job_id: str, watch: Watch) -> list[tuple[int, int]]:
    checkpoints = running.layout.checkpoints
    places: list[tuple[int, int]] = []

    def kill_taskmanager() -> None:
        running.kill(host_of_the_fold(flink, job_id))
        running.repair(submits=False)

    def kill_jobmanager() -> None:
        running.kill(JOBMANAGER)
        running.repair(submits=False)

    def stop_broker() -> None:
        end(running.started(KAFKA))
        time.sleep(3)
        running.repair(submits=False)

    def send_poison() -> None:
        places.extend(poison(running.layout.kafka_servers))

    def fail_checkpoint() -> None:
        with unusable(checkpoints / job_id):
            await_count(flink, job_id, "failed", 1)
        await_count(flink, job_id, "completed", 1)

    def fill_disk() -> None:
        with read_only(checkpoints):
            await_count(flink, job_id, "failed", 2)
        await_count(flink, job_id, "completed", 1)

    faults: tuple[Callable[[], None], ...] = (
        kill_taskmanager,
        send_poison,
        kill_jobmanager,
        fail_checkpoint,
        stop_broker,
        fill_disk,
    )
    for fault in faults:
        began = time.monotonic()
        fault()
        await_running(flink, job_id)
        silence = watch.await_silence_over(began)
        print(f"{fault.__name__}: longest time without a decision {silence:.1f} s")
        await_running(flink, job_id)
    return places
