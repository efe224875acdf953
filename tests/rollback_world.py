"""What a rollback stands on, in memory: a cluster of jobs, the generations' topic, a job's folders."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from jobs.ops import generation_topic, job_command, rollback, rollback_command
from jobs.ops.cli import app
from jobs.ops.generations import Generations
from jobs.ops.rollback import Rollback
from jobs.ops.submit import SubmitError, new_job_id
from jobs.ops.target import Target
from jobs.wiring.flink_rest import Flink, Job
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.names import job_name
from jobs.wiring.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FlinkOf(Flink):
    """A cluster of jobs in memory."""

    def __init__(self) -> None:
        super().__init__("http://nowhere:8081")
        self.known: list[Job] = []
        self.slots = 1

    def jobs(self) -> list[Job]:
        return list(self.known)

    def run(self, generation: int, job_id: str | None = None, state: str = "RUNNING") -> str:
        job_id = job_id or new_job_id()
        self.known.append(Job(job_id, job_name("admission", generation), state, 0))
        return job_id

    def names(self) -> list[str]:
        return [job.name for job in self.known if not job.is_over]

    def overview(self) -> dict[str, int]:
        return {"slots-available": self.slots}

    def cancel(self, job_id: str, timeout_s: float = 60) -> None:  # noqa: ARG002
        self.known = [msgspec.structs.replace(job, state="CANCELED") if job.id == job_id else job for job in self.known]

    def await_running(self, job_id: str, timeout_s: float) -> None:  # noqa: ARG002
        assert job_id in {job.id for job in self.known if not job.is_over}

    def last_failure(self, job_id: str) -> str | None:  # noqa: ARG002
        return "it failed"


class World:
    """What a rollback stands on, in memory: the cluster, the generations' topic, and the folders of the job."""

    def __init__(self, folder: Path) -> None:
        self.flink = FlinkOf()
        self.folder = folder
        self.records: list[Generations] = [Generations()]
        self.submitted: list[str | None] = []
        self.topics_deleted: list[str] = []
        self.refusal: str | None = None
        self.settings_file = folder / "headrace.yaml"
        self.settings_file.write_text("profile: cluster\nkafka: {servers: 'nowhere:1'}\n")
        self.flink.run(1)

    @property
    def target(self) -> Target:
        settings = load_settings(self.settings_file)
        folders = (str(self.folder / "savepoints"), str(self.folder / "checkpoints"))
        return Target(self.flink, self.settings_file, settings, {}, folders, {})

    @property
    def now(self) -> Generations:
        return self.records[-1]

    def rollback(self) -> Rollback:
        return Rollback(self.target, "admission", lambda _: None)

    def checkpoint(self, job_id: str, taken_s: int) -> Path:
        return self.snapshot(f"checkpoints/{job_id}/chk-{taken_s}", taken_s)

    def snapshot(self, name: str, taken_s: int) -> Path:
        found = self.folder / name
        found.mkdir(parents=True)
        (found / "_metadata").touch()
        os.utime(found / "_metadata", (taken_s, taken_s))
        return found

    def submit(self, _: str, settings: Path, *further: object, job_id: str | None = None, **__: object) -> str:
        if self.refusal is not None:
            raise SubmitError(self.refusal)
        self.submitted.append(str(further[1]) if further[1] is not None else None)
        return self.flink.run(load_settings(settings).generation, job_id)


@contextmanager
def admin_of(world: World) -> Iterator[object]:
    class Admin:
        def delete_topics(self, topics: list[str]) -> None:
            world.topics_deleted += topics

    yield Admin()


def patched_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world that the commands and their modules see in place of Kafka and Flink."""
    it = World(tmp_path)

    def read(_: KafkaSettings, job: str) -> Generations:
        assert job == "admission"
        # As it comes back from the topic.
        return msgspec.json.decode(msgspec.json.encode(it.now), type=Generations)

    def write(_: KafkaSettings, __: str, record: Generations) -> None:
        it.records.append(record)

    for module in (generation_topic, rollback, job_command):
        monkeypatch.setattr(module, "read_generations", read)
    monkeypatch.setattr(generation_topic, "write_generations", write)
    for module in (rollback, job_command):
        monkeypatch.setattr(module, "submit", it.submit)
    monkeypatch.setattr(rollback, "create_topic", lambda *_, **__: None)
    monkeypatch.setattr(rollback, "end_offsets", lambda *_: {0: 0})
    monkeypatch.setattr(rollback, "admin_of", lambda _: admin_of(it))
    for module in (rollback_command, job_command):
        monkeypatch.setattr(module, "target", lambda *_: it.target)
    return it


def headrace(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout
