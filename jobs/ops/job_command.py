"""`headrace savepoint`, `stop` and `restore`: what an operator does with a running job."""

import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
import yaml
from rich.console import Console

from jobs.ops.generation_jobs import generations_by_job, of_live
from jobs.ops.generation_topic import move, read_generations
from jobs.ops.generations import GenerationError, Generations, with_job
from jobs.ops.local.layout import DEFAULT_FOLDER
from jobs.ops.log_options import JsonOption
from jobs.ops.snapshots import SnapshotError, newest, snapshots
from jobs.ops.submission_lock import submission_lock
from jobs.ops.submit import new_job_id, submit
from jobs.ops.target import ConfigOption, FlinkOption, FolderOption, JobArgument, Target, name_of, target
from jobs.wiring.atomic_file import replacing
from jobs.wiring.flink_rest import FlinkError, location_of
from jobs.wiring.policies import load_policies
from jobs.wiring.settings import SettingsError

TimeoutOption: TypeAlias = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for Flink.")]
TargetDirectory: TypeAlias = Annotated[
    str | None, typer.Option("--to", metavar="DIRECTORY", help="Where the savepoint goes; else as configured.")
]
LATEST = "latest"
DATED_WITHIN_US = 600_000_000
"""A policy that was dated within the last ten minutes is meant to hold from now on."""
NOTHING = "nothing"


def savepoint(
    job: JobArgument,
    *,
    to: TargetDirectory = None,
    folder: FolderOption = DEFAULT_FOLDER,
    flink: FlinkOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 600,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job, which goes on."""
    at = target(folder, flink, config)
    running = at.flink.require_running(_live_name(at, job))
    with Console(stderr=True).status("taking a savepoint"):
        path = at.flink.savepoint(running.id, to and location_of(to), timeout)
    _say({"job": running.name, "id": running.id, "savepoint": path}, path, as_json=as_json)


def stop(
    job: JobArgument,
    *,
    drain: Annotated[
        bool, typer.Option("--drain", help="Let event time run out first: the job is then done for good.")
    ] = False,
    to: TargetDirectory = None,
    folder: FolderOption = DEFAULT_FOLDER,
    flink: FlinkOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 600,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint and end the job, so that it can be restored where it stopped."""
    at = target(folder, flink, config)
    running = at.flink.require_running(_live_name(at, job))
    with Console(stderr=True).status("stopping"):
        path = at.flink.stop(running.id, to and location_of(to), drain=drain, timeout_s=timeout)
    _say({"job": running.name, "id": running.id, "savepoint": path}, path, as_json=as_json)


def restore(
    job: JobArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SNAPSHOT",
            help="Savepoint or checkpoint folder; latest; or nothing, for the log's beginning.",
        ),
    ],
    policies: Annotated[
        Path | None,
        typer.Option("--policies", "-p", help="Policies from now on; else those of before.", dir_okay=False),
    ] = None,
    parallelism: Annotated[
        int | None, typer.Option(min=1, max=128, help="Subtasks from now on; else as before.")
    ] = None,
    folder: FolderOption = DEFAULT_FOLDER,
    flink: FlinkOption = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 120,
    as_json: JsonOption = False,
) -> None:
    """Start a job that does not run from a snapshot: after `stop` or a crash, with other policies or parallelism."""
    name_of(job, 1)
    at = target(folder, flink, config)
    generations = _settled_generations(at, job)
    name = name_of(job, generations.live)
    if at.settings.generation != generations.live:
        raise SettingsError(
            f"{at.settings_file}: generation is {at.settings.generation}, and generation {generations.live} holds: "
            f"set it to {generations.live}"
        )
    console = Console(stderr=True)
    with submission_lock(at.settings_file, console.print) as lock:
        running = at.flink.running(name)
        if running is not None:
            raise FlinkError(f"{name} runs already ({running.id}); headrace stop {job} first")
        snapshot = _chosen(at, job, start, generations)
        before = at.settings_file.read_bytes()
        _change_settings(at, policies, parallelism)
        job_id = new_job_id()
        try:
            if generations.live != 1:
                # Before it is submitted: what this job will have taken must be known as this generation's.
                move(at.settings.kafka, job, generations, with_job(generations, generations.live, job_id))
            with console.status("restoring"):
                job_id = submit(
                    job,
                    at.settings_file,
                    at.environment,
                    snapshot,
                    parallelism=parallelism or at.settings.parallelism,
                    rest=at.rest_options,
                    job_id=job_id,
                    lock=lock,
                )
        except BaseException:
            # What was not started must not be what the next one is started with.
            _write(at.settings_file, before)
            raise
    at.flink.await_running(job_id, timeout)
    said = f"{name} runs ({job_id}), from {snapshot or 'the beginning of the log'}"
    _say({"job": name, "id": job_id, "restored_from": snapshot}, said, as_json=as_json)


def _live_name(at: Target, job: str) -> str:
    name_of(job, 1)
    return name_of(job, _settled_generations(at, job).live)


def _settled_generations(at: Target, job: str) -> Generations:
    """How they stand. Raises GenerationError while two jobs may run and settings may name the old one."""
    found = read_generations(at.settings.kafka, job)
    if found.is_promoting:
        raise GenerationError(
            f"generation {found.live} holds, but its promotion was broken off: headrace rollback {job} ends it, "
            "then try again"
        )
    return found


def _chosen(at: Target, job: str, start: str, generations: Generations) -> str | None:
    if start == NOTHING:
        return None
    if start != LATEST:
        return location_of(start)
    by_job = generations_by_job(at.flink.jobs(), job, generations)
    found = newest(of_live(snapshots(*at.snapshot_folders), generations, by_job))
    if found is None:
        raise SnapshotError(
            f"there is no snapshot of generation {generations.live}, which holds, in "
            f"{', '.join(at.snapshot_folders) or 'any known folder'}: name one, with --from SNAPSHOT"
        )
    return location_of(str(found.path))


def _change_settings(at: Target, policies: Path | None, parallelism: int | None) -> None:
    if policies is None and parallelism is None:
        return
    settings = yaml.safe_load(at.settings_file.read_text(encoding="utf-8"))
    if policies is not None:
        _warn_of_undated(at, policies)
        settings["policies"] = str(policies.resolve())
    if parallelism is not None:
        settings["parallelism"] = parallelism
    _write(at.settings_file, yaml.safe_dump(settings).encode())


def _warn_of_undated(at: Target, policies: Path) -> None:
    """Say which policies reach back: the input that a snapshot holds as a log is folded again by those given now."""
    before = load_policies(at.settings.policies).policies if at.settings.policies else ()
    now_us = time.time_ns() // 1_000
    for policy in load_policies(policies).policies:
        if policy not in before and policy.effective_from_us < now_us - DATED_WITHIN_US:
            since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            warning = (
                f"warning: policy {policy.id} is new or changed and holds for the past too: what the snapshot logged "
                f"is decided by it again. To change it from now on, date it: effective_from: {since}"
            )
            Console(stderr=True).print(warning, soft_wrap=True, highlight=False)


def _write(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode & 0o777
    with replacing(path) as out:
        os.fchmod(out.fileno(), mode)
        out.write(content)


def _say(facts: dict[str, str | None], line: str, *, as_json: bool) -> None:
    typer.echo(msgspec.json.encode(facts).decode() if as_json else line)
