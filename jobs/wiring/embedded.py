"""Running a job on a MiniCluster: plan the files, start, follow, and leave results behind."""

import fcntl
import json
import logging
import os
import shutil
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import msgspec

from jobs.wiring.environment import Folders, flink_options, free_port, prepare_process
from jobs.wiring.file_log import Block, plan_files
from jobs.wiring.java import java_home
from jobs.wiring.java_errors import innermost_cause
from jobs.wiring.names import Uid
from jobs.wiring.policies import load_policies
from jobs.wiring.settings import AdmissionSettings, SettingsError

if TYPE_CHECKING:
    from pyflink.common import JobClient
    from pyflink.datastream import StreamExecutionEnvironment

Build: TypeAlias = Callable[["StreamExecutionEnvironment", AdmissionSettings, Folders], None]
Progress: TypeAlias = Callable[[float], None]
"""Called now and then with the share of the input that has been read, 0 to 1."""

POLL_S = 0.3
RECORD_NAME = "run.json"
_HELD: list[IO[str]] = []
"""Locks of folders whose run is not over."""


class JobFailedError(RuntimeError):
    """Flink ended the job; the message is its innermost cause in one line."""


class JobStoppedError(KeyboardInterrupt):
    """The user broke the run off; the message says how to go on."""

    def __init__(self, checkpoint: Path | None) -> None:
        """`checkpoint` is the newest one, if there is any."""
        hint = (
            f"; the same command with --restore-from {checkpoint} goes on" if checkpoint else ", without a checkpoint"
        )
        super().__init__(f"stopped{hint}")


class RunRecord(msgspec.Struct, frozen=True):
    """What a run was made of, kept beside its checkpoints: going on with anything else would decide wrongly."""

    folder: str
    plan: str
    shard_count: int
    policies: list[str]

    def require_to_go_on(self, checkpoint: Path, folders: Folders) -> None:
        """Raise SettingsError unless `checkpoint` is one of a run of the same make in these folders."""
        if not (checkpoint / "_metadata").is_file():
            raise SettingsError(f"restore_from: {checkpoint} is no checkpoint, it has no _metadata")
        if folders.checkpoints not in checkpoint.resolve().parents:
            raise SettingsError(f"restore_from: {checkpoint} is not of a run in this output folder; name its --output")
        try:
            before = msgspec.json.decode((folders.plan.parent / RECORD_NAME).read_bytes(), type=RunRecord)
        except (OSError, msgspec.DecodeError) as error:
            raise SettingsError(f"restore_from: the record of the run, {RECORD_NAME}, can't be read") from error
        if before.folder != self.folder:
            raise SettingsError(f"output: the run was made in {before.folder}; Flink goes on there and nowhere else")
        if before.shard_count != self.shard_count:
            raise SettingsError(f"shard_count: the run had {before.shard_count}, and its state is spread by that")
        if before.plan != self.plan:
            raise SettingsError("input: not the files of the run to go on with; name the same ones, unchanged")
        if before.policies != self.policies:
            raise SettingsError("policies: not those of the run to go on with; what it decided was decided by them")


class JobRun(msgspec.Struct, frozen=True):
    """How a run went. `seconds` is from submission to the end, without the start of the JVM."""

    job_id: str
    seconds: float
    counts: dict[str, int]


def start(name: str, build: Build, settings: AdmissionSettings, folders: Folders) -> tuple["JobClient", str | None]:
    """Plan the input and submit the job; returns its client, and the address of the MiniCluster's REST endpoint.

    What an earlier run left in `folders` is removed, unless the job goes on from there. Raises EventFileError,
    SettingsError or JavaNotFoundError before anything is touched, JobFailedError where Flink refuses the job.
    """
    for path in settings.input:
        if settings.input.count(path) > 1:
            raise SettingsError(f"input: {path} is named twice")
    plan = "".join(f"{block.to_line()}\n" for block in plan_files(settings.input))
    submitted_by_flink = "PYFLINK_GATEWAY_PORT" in os.environ
    if not submitted_by_flink:
        java_home()
    _make_room(plan, settings, folders)
    rest_port = free_port()
    options = flink_options(settings, folders, rest_port)
    if submitted_by_flink:
        options = {key: value for key, value in options.items() if not key.startswith(("rest.", "web."))}
    else:
        prepare_process(folders)

    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    # What it has to say when the JVM dies is said in one line by JobFailedError.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    configuration = Configuration()
    for key, value in options.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(env, settings, folders)
    try:
        client = env.execute_async(name)
    except Exception as error:
        raise _failed(error, folders) from error
    return client, None if submitted_by_flink else f"http://localhost:{rest_port}"


def _make_room(plan: str, settings: AdmissionSettings, folders: Folders) -> None:
    """Take the folders for this run alone, and empty them or check that they are those of the run to go on with."""
    record = RunRecord(str(folders.plan.parent), plan, settings.shard_count, _policies_of(settings))
    try:
        folders.plan.parent.mkdir(parents=True, exist_ok=True)
        _lock(folders.plan.parent / "lock", settings)
        if settings.restore_from is None:
            for folder in folders:
                shutil.rmtree(folder) if folder.is_dir() else folder.unlink(missing_ok=True)
        else:
            record.require_to_go_on(settings.restore_from, folders)
        for folder in folders:
            if folder != folders.plan:
                folder.mkdir(exist_ok=True)
        folders.plan.write_text(plan, encoding="utf-8")
        (folders.plan.parent / RECORD_NAME).write_bytes(msgspec.json.encode(record))
    except OSError as error:
        raise SettingsError(f"output: {settings.output} can't be written: {error.strerror}") from error


def _policies_of(settings: AdmissionSettings) -> list[str]:
    policies = load_policies(settings.policies).policies if settings.policies else ()
    return [msgspec.json.encode(policy).decode() for policy in policies]


def _lock(path: Path, settings: AdmissionSettings) -> None:
    """Held until the run ends: two runs in one folder would mix their results."""
    holder = path.open("w")
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SettingsError(f"output: {settings.output} is in use by another run, choose another --output") from None
    _HELD.append(holder)


def run(name: str, build: Build, settings: AdmissionSettings, progress: Progress | None = None) -> JobRun:
    """Run a job to its end. Raises as `start` does, and JobFailedError; each with one clear line."""
    folders = Folders.below(settings.output)
    client, rest = start(name, build, settings, folders)
    began = time.monotonic()
    job_id = str(client.get_job_id())
    total_blocks = sum(1 for _ in folders.plan.open(encoding="utf-8"))
    result = client.get_job_execution_result()
    furthest = 0.0
    try:
        while progress is not None and rest is not None and total_blocks and not result.done():
            time.sleep(POLL_S)
            furthest = max(furthest, min(_blocks_read(rest, job_id) / total_blocks, 1.0))
            progress(furthest)
        result.result()
    except KeyboardInterrupt:
        raise JobStoppedError(latest_checkpoint(folders)) from None
    except Exception as error:
        raise _failed(error, folders) from error
    finally:
        while _HELD:
            _HELD.pop().close()
    return JobRun(job_id, time.monotonic() - began, total_counts(folders))


def _failed(error: Exception, folders: Folders) -> JobFailedError:
    cause = innermost_cause(str(error)) or type(error).__name__
    return JobFailedError(f"the job failed: {cause} (log: {folders.logs})")


def planned(folders: Folders) -> list[Block]:
    """The blocks that the job read."""
    return [Block.from_line(line) for line in folders.plan.read_text(encoding="utf-8").splitlines()]


def total_counts(folders: Folders) -> dict[str, int]:
    """What the fold counted over the whole run."""
    from jobs.wiring.file_io import written_records

    counts: Counter[str] = Counter()
    for record in written_records(folders.counts):
        counts.update(msgspec.json.decode(record, type=dict[str, int]))
    return dict(sorted(counts.items()))


def latest_checkpoint(folders: Folders) -> Path | None:
    """The newest complete checkpoint of this run, if there is one."""
    complete = list(folders.checkpoints.glob("*/chk-*/_metadata"))
    return max(complete, key=lambda path: path.stat().st_mtime_ns).parent if complete else None


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - loopback, a port of our own
        return json.load(response)


def _blocks_read(rest: str, job_id: str) -> int:
    """How many blocks have been read so far, by Flink's own metrics; 0 while they are not to be had."""
    metric = f"0.{Uid.READ_BLOCKS.value}.numRecordsIn"
    try:
        vertices = _get(f"{rest}/jobs/{job_id}")["vertices"]
        vertex = next(vertex["id"] for vertex in vertices if Uid.READ_BLOCKS.value in vertex["name"])
        found = _get(f"{rest}/jobs/{job_id}/vertices/{vertex}/metrics?get={metric}")
    except (urllib.error.URLError, OSError, KeyError, StopIteration, ValueError):
        return 0
    return int(found[0]["value"]) if found else 0
