"""`headrace rollback`: undo what a job decided since a time, and promote it only when it was looked at."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from jobs.ops.diff import COMPARABLE, DecisionDiff
from jobs.ops.diff_view import print_diff
from jobs.ops.generation_jobs import generations_by_job, of_live
from jobs.ops.generations import GenerationError, Phase
from jobs.ops.local.layout import DEFAULT_FOLDER
from jobs.ops.log_options import JsonOption, time_us
from jobs.ops.rollback import Rollback
from jobs.ops.run_command import progress_on
from jobs.ops.snapshots import SnapshotError, newest, snapshots
from jobs.ops.target import ConfigOption, FlinkOption, FolderOption, JobArgument, Target, name_of, target
from jobs.wiring.policies import load_policies

BEGINNING = "beginning"
IGNORED = ("policy_id",)
"""Fields in which the decisions of other policies differ without deciding otherwise."""


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
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A field that may differ, beside policy_id; again for more."),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, max=1_000, help="Examples for each tenant.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the replay.")] = 3_600,
    folder: FolderOption = DEFAULT_FOLDER,
    flink: FlinkOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay the log from a snapshot into a new generation of decisions, and show what changes.

    Nothing that is in force changes until --promote; --abort takes it all back. Without options it goes on with a
    rollback that was begun, wherever it was broken off. A decision that differs in policy_id alone counts as the same,
    as other policies have other ids; `headrace diff gen:1 gen:2` counts those too.
    """
    if promote and abort:
        raise typer.BadParameter("--promote and --abort: choose one")
    unknown = [name for name in ignore or () if name not in COMPARABLE]
    if unknown:
        raise typer.BadParameter(f"--ignore: {', '.join(unknown)}: no such field; those are {', '.join(COMPARABLE)}")
    ignored = tuple(dict.fromkeys((*IGNORED, *(ignore or ()))))
    name_of(job, 1)
    at = target(folder, flink, config)
    console = Console(stderr=True)
    it = Rollback(at, job, console.print)
    if policies is not None and to is None:
        raise typer.BadParameter("--policies: are chosen when a rollback begins, with --to")
    if to is not None:
        if policies is not None:
            load_policies(policies)
        it.begin(_snapshot(at, job, to, it), policies.read_text(encoding="utf-8") if policies else None)
        origin = it.candidate.restored_from or "the beginning of the log"
        console.print(f"generation {it.candidate.generation}: from {origin}", soft_wrap=True)
    if promote and it.candidate.phase is Phase.ABORTING:
        raise GenerationError("this rollback is being aborted: --abort ends it")
    ended = _go_on(
        it, job, timeout, examples, console, ignored=ignored, promote=promote, abort=abort, shows=not as_json
    )
    if as_json:
        typer.echo(msgspec.json.encode(ended).decode())


def _go_on(
    it: Rollback,
    job: str,
    timeout: float,
    examples: int,
    console: Console,
    *,
    ignored: tuple[str, ...],
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
                found = it.compare(ends, 0 if promote else examples, ignored)
        if shows:
            print_diff(Console(), found, f"generation {it.generations.live}, in force", f"generation {generation}")
            Console().print(f"What differs in {', '.join(ignored)} alone counts as the same.", highlight=False)
    if promote or it.candidate.phase is Phase.PROMOTING:
        it.promote()
        return {"generation": generation, "outcome": "promoted", "diff": found and _facts(found, ignored)}
    console.print(f"nothing in force has changed: headrace rollback {job} --promote, or --abort")
    return {"generation": generation, "outcome": "replayed", "diff": found and _facts(found, ignored)}


def _facts(found: DecisionDiff, ignored: tuple[str, ...]) -> dict[str, object]:
    return {
        "same": found.all.same,
        "changed": found.all.changed,
        "only_before": found.all.only_a,
        "only_after": found.all.only_b,
        "ignored": ignored,
    }


def _snapshot(at: Target, job: str, to: str, it: Rollback) -> str | None:
    if to == BEGINNING:
        return None
    if "/" in to:
        return to
    # A running job deletes its older checkpoints; one that is chosen now may be gone when the replay starts.
    known = at.flink.jobs()
    running = {one.id for one in known if not one.is_over}
    by_job = generations_by_job(known, job, it.generations)
    complete = of_live(snapshots(*at.snapshot_folders, without_jobs=running), it.generations, by_job)
    found = newest(complete, time_us(to) // 1_000)
    if found is None:
        raise SnapshotError(
            f"no savepoint of generation {it.generations.live}, which holds, in "
            f"{', '.join(at.snapshot_folders) or 'any known folder'} was complete before {to}; "
            "name one, or --to beginning replays the whole log"
        )
    return str(found.path)
