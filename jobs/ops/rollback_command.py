"""`headrace rollback`: undo what a job decided since a time, and promote it only when it was looked at."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from jobs.ops.diff import DecisionDiff
from jobs.ops.diff_view import print_diff
from jobs.ops.generations import GenerationError, Phase
from jobs.ops.local.layout import DEFAULT_FOLDER
from jobs.ops.log_options import JsonOption, time_us
from jobs.ops.rollback import Rollback
from jobs.ops.run_command import progress_on
from jobs.ops.snapshots import SnapshotError, newest, snapshots
from jobs.ops.target import ConfigOption, FlinkOption, FolderOption, JobArgument, Target, name_of, target
from jobs.wiring.policies import load_policies

BEGINNING = "beginning"


def rollback(
    job: JobArgument,
    *,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHEN", help="A time, a savepoint, or `beginning` for the whole log."),
    ] = None,
    policies: Annotated[
        Path | None, typer.Option("--policies", "-p", help="The policies that should have held.", dir_okay=False)
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Let the replayed decisions hold.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Leave everything as it was before the rollback.")] = False,
    examples: Annotated[int, typer.Option(min=0, max=1_000, help="Examples for each tenant.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the replay.")] = 3_600,
    folder: FolderOption = DEFAULT_FOLDER,
    flink: FlinkOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the log from a snapshot into a new generation of decisions, and show what changes.

    Nothing that is in force changes until --promote; --abort takes it all back. Without options it goes on with a
    rollback that was begun, wherever it was broken off.
    """
    if promote and abort:
        raise typer.BadParameter("--promote and --abort: choose one")
    name_of(job, 1)
    at = target(folder, flink, config)
    console = Console(stderr=True)
    it = Rollback(at, job, console.print)
    if policies is not None and to is None:
        raise typer.BadParameter("--policies: are chosen when a rollback begins, with --to")
    if to is not None:
        if policies is not None:
            load_policies(policies)
        it.begin(_snapshot(at, to, it), policies.read_text(encoding="utf-8") if policies else None)
        origin = it.candidate.restored_from or "the beginning of the log"
        console.print(f"generation {it.candidate.generation}: from {origin}", soft_wrap=True)
    if promote and it.candidate.phase is Phase.ABORTING:
        raise GenerationError("this rollback is being aborted: --abort ends it")
    ended = _go_on(it, job, timeout, examples, console, promote=promote, abort=abort, shows=not as_json)
    if as_json:
        typer.echo(msgspec.json.encode(ended).decode())


def _go_on(
    it: Rollback,
    job: str,
    timeout: float,
    examples: int,
    console: Console,
    *,
    promote: bool,
    abort: bool,
    shows: bool,
) -> dict[str, object]:
    generation = it.candidate.generation
    if abort or it.candidate.phase is Phase.ABORTING:
        it.abort()
        return {"generation": generation, "outcome": "aborted"}
    found = None
    if it.candidate.phase is not Phase.PROMOTING:
        it.replay()
        with progress_on(console) as steps:
            with steps.step("Replaying", known=True) as share:
                ends = it.catch_up(share, timeout)
            with steps.step("Comparing"):
                # Who promotes has seen the examples.
                found = it.compare(ends, 0 if promote else examples)
        if shows:
            print_diff(Console(), found, f"generation {it.generations.live}, in force", f"generation {generation}")
    if promote or it.candidate.phase is Phase.PROMOTING:
        it.promote()
        return {"generation": generation, "outcome": "promoted", "diff": found and _facts(found)}
    console.print(f"nothing in force has changed: headrace rollback {job} --promote, or --abort")
    return {"generation": generation, "outcome": "replayed", "diff": found and _facts(found)}


def _facts(found: DecisionDiff) -> dict[str, object]:
    return {
        "same": found.all.same,
        "changed": found.all.changed,
        "only_before": found.all.only_a,
        "only_after": found.all.only_b,
    }


def _snapshot(at: Target, to: str, it: Rollback) -> str | None:
    if to == BEGINNING:
        return None
    if "/" in to:
        return to
    # A running job deletes its older checkpoints; one that is chosen now may be gone when the replay starts.
    running = {job.id for job in at.flink.jobs() if not job.is_over}
    candidate = it.generations.candidate
    if candidate is not None and candidate.job_id is not None:
        running.add(candidate.job_id)
    before_ms = time_us(to) // 1_000
    found = newest(snapshots(*at.snapshot_folders, without_jobs=running), before_ms)
    if found is None:
        raise SnapshotError(
            f"no savepoint in {', '.join(at.snapshot_folders) or 'any known folder'} was complete before {to}; "
            "--to beginning replays the whole log"
        )
    return str(found.path)
