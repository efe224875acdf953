"""`headrace up` and `down`: everything the local profile runs, started once and ended without a trace."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from jobs.ops.generation_topic import read_generations
from jobs.ops.local import flink, kafka, postgres
from jobs.ops.local.alone import NOTE
from jobs.ops.local.jars import fetch_jars
from jobs.ops.local.layout import HOST, Layout, LocalError, Ports
from jobs.ops.local.processes import Note, Started, end, end_family, is_listening, require_free, servers_in
from jobs.ops.snapshots import snapshots
from jobs.ops.submission_lock import submission_lock
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


def policies_of(layout: Layout) -> str | None:
    """The policy file that the next submission of the admission job takes."""
    found = _settings(layout).get("policies")
    return None if found is None else str(found)


def metrics_of(layout: Layout) -> list[str]:
    """Where Prometheus finds metrics now: one address a Flink process."""
    return [f"http://{HOST}:{port}" for port in layout.ports.metrics if is_listening(port)]


def _settings(layout: Layout) -> dict[str, Any]:
    there = yaml.safe_load(layout.settings.read_text()) if layout.settings.is_file() else None
    return there if isinstance(there, dict) else {}


class Up:
    """Starts what does not run yet, in the order of need. One at a time in a folder: see `alone_in`."""

    def __init__(
        self, layout: Layout, profile: str, tell: Tell, flink_options: Mapping[str, str] | None = None
    ) -> None:
        """`tell` is told of each step that is done. `flink_options` win over those of the profile."""
        self._layout = layout
        self._tell = tell
        before = read_record(layout.folder)
        if before is not None and before.alive and before.base_port != layout.ports.base:
            raise LocalError(f"{layout.folder} runs on ports from {before.base_port}; headrace down first")
        if before is None and layout.folder.is_dir() and any(it.name != NOTE for it in layout.folder.iterdir()):
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
        flink.require_usable(layout, self._record.profile)
        # First of all: if this is broken off, the next call must not take other policies.
        self._save()
        has_other_policies = self._write_settings(policies)
        jars = fetch_jars()
        if self._record.find(flink.JOBMANAGER) is None:
            flink.prepare_flink(layout, jars, self._record.profile, self._record.flink_options)
        broker = (layout.ports.kafka, layout.ports.kafka_controller)
        self._start(kafka.NAME, broker, partial(kafka.start_kafka, layout, jars))
        made = create_catalog(KafkaSettings(servers=layout.kafka_servers), PARTITIONS)
        self._tell(f"topics: {len(made)} made" if made else "topics: all there")
        if with_postgres:
            self._start(postgres.NAME, (layout.ports.postgres,), partial(postgres.start_postgres, layout))
        self._start(flink.ZOOKEEPER, (layout.ports.zookeeper,), partial(flink.start_zookeeper, layout))
        jobmanager = (layout.ports.rest, layout.ports.jobmanager, layout.ports.blob)
        self._start(flink.JOBMANAGER, jobmanager, partial(flink.start_jobmanager, layout))
        for number in range(1, self._record.taskmanagers + 1):
            name = f"{flink.TASKMANAGER}-{number}"
            self._start(name, (), partial(flink.start_taskmanager, layout, number))
        if submits:
            self._submit(has_other_policies=has_other_policies)

    def _start(self, name: str, ports: tuple[int, ...], begin: Callable[[Note], Started]) -> None:
        if (running := self._record.find(name)) is not None:
            self._tell(f"{name}: runs already (pid {running.pid})")
            return
        require_free(name, ports)
        started = begin(self._note)
        where = f", ports {', '.join(map(str, ports))}" if ports else ""
        self._tell(f"{name}: started (pid {started.pid}{where})")

    def _note(self, started: Started) -> None:
        """Record a process before it is ready: it goes on if we don't."""
        others = tuple(it for it in self._record.processes if it.name != started.name)
        self._record = msgspec.structs.replace(self._record, processes=(*others, started))
        self._save()

    def _save(self) -> None:
        self._layout.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._layout.record) as out:
            out.write(msgspec.json.format(msgspec.json.encode(self._record), indent=2))

    def _write_settings(self, policies: Path | None) -> bool:
        """The settings of the admission job; whether its policies are others now, from its next submission on."""
        layout = self._layout
        there = _settings(layout)
        before = there.get("policies")
        if policies is not None:
            there["policies"] = str(policies.resolve())
        with replacing(layout.settings) as out:
            settings = {**there, "profile": "cluster", "kafka": {"servers": layout.kafka_servers}}
            out.write(yaml.safe_dump(settings).encode())
        return bool(there.get("policies") != before)

    def _submit(self, *, has_other_policies: bool) -> None:
        # An `up` that was killed may have a job on its way still.
        with submission_lock(self._layout.settings, self._tell) as lock:
            self._submit_alone(lock, has_other_policies=has_other_policies)

    def _submit_alone(self, lock: int | None, *, has_other_policies: bool) -> None:
        settings = load_settings(self._layout.settings)
        name = job_name("admission", settings.generation)
        cluster = Flink(self._layout.rest_url)
        job = cluster.running(name)
        if job is not None:
            later = "; the other policies hold once it is stopped and restored" if has_other_policies else ""
            self._tell(f"{name}: runs already ({job.id}){later}")
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
        job_id = submit("admission", self._layout.settings, environment, parallelism=settings.parallelism, lock=lock)
        cluster.await_running(job_id, timeout_s=120)
        self._tell(f"{name}: submitted ({job_id})")


def down(folder: Path, tell: Tell, *, keep_data: bool) -> None:
    """End what was started, the last first, and delete its folder unless `keep_data`.

    Ends servers that work with files of the folder too, if no record knows them. One at a time: see `alone_in`.
    """
    try:
        record = read_record(folder)
    except LocalError:
        _end_strays(folder, tell)
        raise
    for started in reversed(record.processes if record else ()):
        if started.process() is not None:
            end(started)
            tell(f"{started.name}: ended")
    if not _end_strays(folder, tell) and record is None:
        tell(f"nothing runs in {folder}")
    if record is None or keep_data:
        return
    shutil.rmtree(folder)
    tell(f"{folder}: deleted")


def _end_strays(folder: Path, tell: Tell) -> bool:
    strays = servers_in(folder.resolve())
    for process in strays:
        end_family(process)
        tell(f"a process on no record: ended (pid {process.pid})")
    return bool(strays)


def processes(folder: Path) -> Iterator[tuple[Started, bool]]:
    """What was started, and whether it runs."""
    record = read_record(folder)
    for started in record.processes if record else ():
        yield started, started.process() is not None
