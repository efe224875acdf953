"""Running a job on a MiniCluster: plan the files, start, follow, and leave results behind."""

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from jobs.wiring.environment import Folders, flink_options, free_port, prepare_process
from jobs.wiring.file_log import plan_files
from jobs.wiring.names import Uid
from jobs.wiring.settings import AdmissionSettings

if TYPE_CHECKING:
    from pyflink.common import JobClient
    from pyflink.datastream import StreamExecutionEnvironment

Build: TypeAlias = Callable[["StreamExecutionEnvironment", AdmissionSettings, Folders], None]
Progress: TypeAlias = Callable[[float], None]
"""Called now and then with the share of the input that has been read, 0 to 1."""

POLL_S = 0.3


class JobFailedError(RuntimeError):
    """Flink ended the job; the message is its innermost cause in one line."""


class JobRun(msgspec.Struct, frozen=True):
    """How a run went. `seconds` is from submission to the end, without the start of the JVM."""

    job_id: str
    seconds: float
    counts: dict[str, int]


def start(name: str, build: Build, settings: AdmissionSettings, folders: Folders) -> tuple["JobClient", str | None]:
    """Plan the input and submit the job; returns its client, and the address of the MiniCluster's REST endpoint."""
    blocks = plan_files(settings.input)
    for folder in folders:
        (folder.parent if folder == folders.plan else folder).mkdir(parents=True, exist_ok=True)
    folders.plan.write_text("".join(f"{block.to_line()}\n" for block in blocks), encoding="utf-8")

    submitted_by_flink = "PYFLINK_GATEWAY_PORT" in os.environ
    rest_port = free_port()
    options = flink_options(settings, folders, rest_port)
    if submitted_by_flink:
        options = {key: value for key, value in options.items() if not key.startswith("rest.")}
    else:
        prepare_process(folders)

    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    configuration = Configuration()
    for key, value in options.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(env, settings, folders)
    client = env.execute_async(name)
    return client, None if submitted_by_flink else f"http://localhost:{rest_port}"


def run(name: str, build: Build, settings: AdmissionSettings, progress: Progress | None = None) -> JobRun:
    """Run a job to its end. Raises JobFailedError, EventFileError or JavaNotFoundError, each with one clear line."""
    folders = Folders.below(settings.output)
    if settings.restore_from is None:
        shutil.rmtree(folders.plan.parent, ignore_errors=True)
    client, rest = start(name, build, settings, folders)
    began = time.monotonic()
    job_id = str(client.get_job_id())
    total_blocks = sum(1 for _ in folders.plan.open(encoding="utf-8"))
    result = client.get_job_execution_result()
    furthest = 0.0
    while progress is not None and rest is not None and total_blocks and not result.done():
        time.sleep(POLL_S)
        furthest = max(furthest, min(_blocks_read(rest, job_id) / total_blocks, 1.0))
        progress(furthest)
    try:
        result.result()
    except Exception as error:
        raise JobFailedError(f"the job failed: {_innermost_cause(error)} (log: {folders.logs})") from error
    return JobRun(job_id, time.monotonic() - began, total_counts(folders))


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


def _innermost_cause(error: Exception) -> str:
    """The last `Caused by` of a Java stack trace, else the error's own first line."""
    lines = str(error).splitlines() or [type(error).__name__]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0]).strip()
