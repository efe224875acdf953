"""`headrace up` and `down`: everything the local profile runs, started once and ended without a trace."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import yaml

from jobs.ops.generation_topic import read_generations
from jobs.ops.local import flink, kafka, postgres
from jobs.ops.local.jars import fetch_jars
from jobs.ops.local.layout import Layout, LocalError, Ports
from jobs.ops.local.processes import Started, end, require_free
from jobs.ops.snapshots import snapshots
from jobs.ops.submit import submit
from jobs.wiring.atomic_file import replacing
from jobs.wiring.flink_rest import Flink
from jobs.wiring.kafka_offsets import committed_offsets
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import create_catalog
from jobs.wiring.names import job_name
from jobs.wiring.settings import load_settings

PARTITIONS: Final = 8
DEFAULT_TASKMANAGERS: Final = 2
Tell: TypeAlias = Callable[[str], None]


class Record(msgspec.Struct, frozen=True):
    """What was started, and with what. Kept in a file so that another command finds it."""

    base_port: int
    profile: str
    processes: tuple[Started, ...]
    flink_options: dict[str, str] = {}
    taskmanagers: int = DEFAULT_TASKMANAGERS

    def find(self, name: str) -> Started | None:
        """The process of that name, if it still runs."""
        return next((it for it in self.processes if it.name == name and it.process() is not None), None)

    @property
    def alive(self) -> list[Started]:
        """What still runs."""
        return [it for it in self.processes if it.process() is not None]


def read_record(folder: Path) -> Record | None:
    """What was started in a folder; None: nothing, or it was ended. Raises LocalError."""
    path = Layout(folder, Ports()).record
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LocalError(f"{path} can't be read: {error}") from error


def layout_of(folder: Path) -> Layout:
    """The layout of a profile that was started. Raises LocalError where none was."""
    record = read_record(folder)
    if record is None:
        raise LocalError(f"nothing was started in {folder}: headrace up")
    return Layout(folder, Ports(base=record.base_port))


class Up:
    """Starts what does not run yet, in the order of need."""

    def __init__(
        self, layout: Layout, profile: str, tell: Tell, flink_options: Mapping[str, str] | None = None
    ) -> None:
        """`tell` is told of each step that is done. `flink_options` win over those of the profile."""
        self._layout = layout
        self._tell = tell
        before = read_record(layout.folder)
        if before is not None and before.alive and before.base_port != layout.ports.base:
            raise LocalError(f"{layout.folder} runs on ports from {before.base_port}; headrace down first")
        if before is None and layout.folder.is_dir() and any(layout.folder.iterdir()):
            raise LocalError(f"{layout.folder} is not empty and not of a local profile; choose another folder")
        alive = tuple(before.alive) if before else ()
        # A repair must not change what the rest was started with.
        options = before.flink_options if before is not None and flink_options is None else dict(flink_options or {})
        taskmanagers = before.taskmanagers if before is not None else DEFAULT_TASKMANAGERS
        self._record = Record(layout.ports.base, profile, alive, options, taskmanagers)

    def run(
        self,
        *,
        taskmanagers: int | None = None,
        policies: Path | None = None,
        submits: bool,
        with_postgres: bool = True,
    ) -> None:
        """Start it all, without `taskmanagers` as many as before.

        What was started stays when a later step fails; the next call goes on from there.
        """
        layout = self._layout
        if taskmanagers is not None:
            self._record = msgspec.structs.replace(self._record, taskmanagers=taskmanagers)
        jars = fetch_jars()
        if self._record.find(flink.JOBMANAGER) is None:
            flink.prepare_flink(layout, jars, self._record.profile, self._record.flink_options)
        self._save()
        self._start(
            kafka.NAME, (layout.ports.kafka, layout.ports.kafka_controller), lambda: kafka.start_kafka(layout, jars)
        )
        made = create_catalog(KafkaSettings(servers=layout.kafka_servers), PARTITIONS)
        self._tell(f"topics: {len(made)} made" if made else "topics: all there")
        if with_postgres:
            self._start(postgres.NAME, (layout.ports.postgres,), lambda: postgres.start_postgres(layout))
        self._start(flink.ZOOKEEPER, (layout.ports.zookeeper,), lambda: flink.start_zookeeper(layout))
        jobmanager = (layout.ports.rest, layout.ports.jobmanager, layout.ports.blob)
        self._start(flink.JOBMANAGER, jobmanager, lambda: flink.start_jobmanager(layout))
        for number in range(1, self._record.taskmanagers + 1):
            name = f"{flink.TASKMANAGER}-{number}"
            self._start(name, (), partial(flink.start_taskmanager, layout, number))
        self._write_settings(policies)
        if submits:
            self._submit()

    def _start(self, name: str, ports: tuple[int, ...], begin: Callable[[], Started]) -> None:
        if (running := self._record.find(name)) is not None:
            self._tell(f"{name}: runs already (pid {running.pid})")
            return
        require_free(name, ports)
        started = begin()
        others = tuple(it for it in self._record.processes if it.name != name)
        self._record = msgspec.structs.replace(self._record, processes=(*others, started))
        self._save()
        where = f", ports {', '.join(map(str, ports))}" if ports else ""
        self._tell(f"{name}: started (pid {started.pid}{where})")

    def _save(self) -> None:
        self._layout.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._layout.record) as out:
            out.write(msgspec.json.format(msgspec.json.encode(self._record), indent=2))

    def _write_settings(self, policies: Path | None) -> None:
        """The settings of the admission job; a change of policies holds from the next submission."""
        layout = self._layout
        there = yaml.safe_load(layout.settings.read_text()) if layout.settings.is_file() else {}
        if policies is not None:
            there["policies"] = str(policies.resolve())
        with replacing(layout.settings) as out:
            settings = {**there, "profile": "cluster", "kafka": {"servers": layout.kafka_servers}}
            out.write(yaml.safe_dump(settings).encode())

    def _submit(self) -> None:
        settings = load_settings(self._layout.settings)
        name = job_name("admission", settings.generation)
        cluster = Flink(self._layout.rest_url)
        job = cluster.running(name)
        if job is not None:
            self._tell(f"{name}: runs already ({job.id})")
            return
        live = read_generations(settings.kafka, "admission").live
        before = snapshots(str(self._layout.savepoints), str(self._layout.checkpoints))
        if (
            before
            or live != settings.generation
            or committed_offsets(settings.kafka, settings.consumer_group, settings.events_topic)
        ):
            # To begin anew would decide the log again, perhaps otherwise, under the same ids.
            self._tell(f"{name}: was stopped or has failed; go on with: headrace restore admission --from latest")
            return
        environment = flink.flink_environment(self._layout)
        job_id = submit("admission", self._layout.settings, environment, parallelism=settings.parallelism)
        cluster.await_running(job_id, timeout_s=120)
        self._tell(f"{name}: submitted ({job_id})")


def down(folder: Path, tell: Tell, *, keep_data: bool) -> None:
    """End what was started, the last first, and delete its folder unless `keep_data`."""
    record = read_record(folder)
    if record is None:
        tell(f"nothing runs in {folder}")
        return
    for started in reversed(record.processes):
        if started.process() is not None:
            end(started)
            tell(f"{started.name}: ended")
    if keep_data:
        return
    shutil.rmtree(folder)
    tell(f"{folder}: deleted")


def processes(folder: Path) -> Iterator[tuple[Started, bool]]:
    """What was started, and whether it runs."""
    record = read_record(folder)
    for started in record.processes if record else ():
        yield started, started.process() is not None
