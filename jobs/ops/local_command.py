"""`headrace up`, `down` and `status`."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from jobs.ops.generation_jobs import is_stray
from jobs.ops.generation_topic import read_generations
from jobs.ops.generations import Generations
from jobs.ops.local.alone import alone_in
from jobs.ops.local.cluster import Up, layout_of, metrics_of, policies_of, processes, read_record
from jobs.ops.local.cluster import down as end_all
from jobs.ops.local.layout import CHECKOUT, DEFAULT_FOLDER, Layout, Ports
from jobs.ops.log_options import JsonOption
from jobs.ops.snapshots import snapshots
from jobs.wiring.flink_rest import Flink, FlinkError
from jobs.wiring.kafka_log import KafkaLogError
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.names import job_name
from jobs.wiring.policies import load_policies

LOCAL_POLICIES = CHECKOUT / "data" / "policies" / "local.yaml"

FolderOption: TypeAlias = Annotated[
    Path, typer.Option("--folder", help="Folder of the local profile.", file_okay=False)
]


def up(
    *,
    folder: FolderOption = DEFAULT_FOLDER,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1024, max=65500, help="The first of twenty ports that are used.", show_default=str(Ports().base)
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Configuration in flink-conf: latency or throughput.", show_default="latency")
    ] = None,
    taskmanagers: Annotated[
        int | None, typer.Option(min=1, max=10, help="TaskManagers, one slot each.", show_default="2, or as before")
    ] = None,
    policies: Annotated[
        Path | None, typer.Option("--policies", "-p", help="Policy file of the admission job.", dir_okay=False)
    ] = None,
    flink_option: Annotated[
        list[str] | None,
        typer.Option("--flink-option", "-D", metavar="NAME=VALUE", help="An option of Flink's; again for more."),
    ] = None,
    postgres: Annotated[bool, typer.Option("--postgres/--no-postgres", help="Start the database too.")] = True,
    submit: Annotated[bool, typer.Option("--jobs/--no-jobs", help="Submit the jobs too.")] = True,
) -> None:
    """Start Kafka, Postgres and a Flink cluster on this machine, make the topics and submit the jobs.

    Starts what does not run; a second call repairs what has died.
    """
    console = Console(stderr=True)
    options = _options(flink_option) if flink_option else None
    with _interrupted_by_signals(), alone_in(folder.resolve(), "headrace up", makes=True):
        chosen = policies or (None if Layout(folder, Ports()).settings.is_file() else LOCAL_POLICIES)
        if chosen is not None:
            load_policies(chosen)
        before = read_record(folder)
        layout = Layout(folder, Ports(base=base_port or (before.base_port if before else Ports().base)))
        profile = profile or (before.profile if before else "latency")
        with console.status("starting"):
            Up(layout, profile, partial(console.print, soft_wrap=True), options).run(
                taskmanagers=taskmanagers, policies=chosen, submits=submit, with_postgres=postgres
            )
    _tell_where(console, layout, has_postgres=postgres)


def _tell_where(console: Console, layout: Layout, *, has_postgres: bool) -> None:
    for name, where in (
        ("Flink", layout.rest_url),
        ("Kafka", layout.kafka_servers),
        *([("Postgres", layout.postgres_url)] if has_postgres else []),
        ("metrics", ", ".join(metrics_of(layout)) or "nowhere yet"),
        ("policies", policies_of(layout) or "none: nothing is limited"),
        ("settings", layout.settings),
        ("logs", layout.logs),
    ):
        console.print(f"  {name:<9} {where}", soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt as Ctrl-C does: what is being started is then ended, and the lock given back."""

    def interrupt(number: int, _: object) -> NoReturn:
        raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}; headrace up goes on, headrace down ends it")

    with ExitStack() as after:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # nohup has SIGHUP ignored, and means it.
            if signal.getsignal(number) is signal.SIG_DFL:
                after.callback(signal.signal, number, signal.signal(number, interrupt))
        yield


def _options(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise typer.BadParameter(f"{name}: an option is NAME=VALUE, such as execution.checkpointing.interval=1s")
    return {name: value for name, _, value in pairs}


def down(
    *,
    folder: FolderOption = DEFAULT_FOLDER,
    keep_data: Annotated[bool, typer.Option("--keep-data", help="Keep topics, tables, checkpoints and logs.")] = False,
) -> None:
    """End everything that `headrace up` started, and delete its data."""
    console = Console(stderr=True)
    with ExitStack() as stack:
        stack.enter_context(_interrupted_by_signals())
        if folder.is_dir():
            stack.enter_context(alone_in(folder.resolve(), "headrace down"))
        stack.enter_context(console.status("ending"))
        end_all(folder, partial(console.print, soft_wrap=True), keep_data=keep_data)


def status(*, folder: FolderOption = DEFAULT_FOLDER, as_json: JsonOption = False) -> None:
    """What of the local profile runs, and how its jobs are. Exit status 1 where something does not run."""
    layout = layout_of(folder)
    found = [
        {"name": started.name, "runs": runs, "pid": started.pid, "ports": list(started.ports), "log": started.log}
        for started, runs in processes(folder)
    ]
    known = _jobs(Flink(layout.rest_url))
    jobs = known or []
    generations = _generations(layout)
    live, rollback = generations.live, _rollback_on_its_way(generations)
    healthy = all(it["runs"] for it in found) and any(
        job["name"] == job_name("admission", live) and job["state"] == "RUNNING" for job in jobs
    )
    if as_json:
        report = {"healthy": healthy, "flink": layout.rest_url, "kafka": layout.kafka_servers, "processes": found}
        further = {
            "jobmanager_answers": known is not None,
            "metrics": metrics_of(layout),
            "generation": live,
            "rollback": rollback,
            "jobs": jobs,
        }
        typer.echo(msgspec.json.encode(report | further).decode())
    else:
        console = Console()
        _show_processes(console, found)
        console.print()
        if jobs:
            show_jobs(console, jobs)
        else:
            words = _how_to_go_on(layout, folder, answers=known is not None)
            console.print(words, soft_wrap=True, highlight=False, markup=False)
        where = ", ".join(metrics_of(layout))
        if where:
            console.print(f"\nmetrics: {where}", soft_wrap=True, highlight=False)
        if live != 1 or rollback:
            typer.echo(f"generation {live} holds" + (f"; a rollback is on its way: {rollback}" if rollback else ""))
        for job in jobs:
            if is_stray(job["name"], "admission", generations):
                typer.echo(f"{job['name']} ({job['id']}): its generation neither holds nor is replayed; cancel it")
    if not healthy:
        raise typer.Exit(1)


def _generations(layout: Layout) -> Generations:
    """The generation that holds, and where a rollback stands."""
    try:
        return read_generations(KafkaSettings(servers=layout.kafka_servers), "admission")
    except KafkaLogError:
        return Generations()


def _rollback_on_its_way(generations: Generations) -> str | None:
    candidate = generations.candidate
    return f"generation {candidate.generation}, {candidate.phase.value}" if candidate else None


def _jobs(flink: Flink) -> list[dict[str, Any]] | None:
    """The jobs that are not over; None: nobody answers who knows."""
    try:
        return [_job_facts(flink, job.id, job.name, job.state) for job in flink.jobs() if not job.is_over]
    except FlinkError:
        return None


def _how_to_go_on(layout: Layout, folder: Path, *, answers: bool) -> str:
    """What starts the job where none is known to run."""
    option = "" if folder == DEFAULT_FOLDER else f" --folder {folder}"
    if not answers:
        return f"the JobManager does not answer at {layout.rest_url}: headrace up{option}"
    if snapshots(str(layout.savepoints), str(layout.checkpoints)):
        return f"no job runs; it goes on with: headrace restore admission --from latest{option}"
    return f"no job runs; it is submitted by: headrace up{option}"


def _job_facts(flink: Flink, job_id: str, name: str, state: str) -> dict[str, Any]:
    checkpoints = flink.checkpoints(job_id)
    latest = (checkpoints.get("latest") or {}).get("completed") or {}
    return {
        "name": name,
        "id": job_id,
        "state": state,
        "restarts": flink.restarts(job_id),
        "last_failure": flink.last_failure(job_id),
        "checkpoints": checkpoints["counts"]["completed"],
        "checkpoints_failed": checkpoints["counts"]["failed"],
        "last_checkpoint_bytes": latest.get("state_size"),
        "last_checkpoint_ms": latest.get("end_to_end_duration"),
    }


def _show_processes(console: Console, found: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("process", "state", "pid", "ports"):
        table.add_column(title)
    for it in found:
        state = "[green]runs[/]" if it["runs"] else "[red]ended[/]"
        table.add_row(it["name"], state, str(it["pid"]), ", ".join(map(str, it["ports"])))
    console.print(table)


def show_jobs(console: Console, jobs: list[dict[str, Any]]) -> None:
    """Print the jobs as `_job_facts` has them."""
    table = Table(box=None, pad_edge=False)
    for title in ("job", "state", "restarts", "checkpoints", "failed", "last checkpoint"):
        # Where there is too little room, headings and figures are broken, never a name to be typed.
        table.add_column(title, no_wrap=title in ("job", "state"))
    for job in jobs:
        size, took = job["last_checkpoint_bytes"], job["last_checkpoint_ms"]
        last = "-" if size is None else f"{size / 1e6:.1f} MB in {took} ms"
        table.add_row(
            job["name"],
            job["state"],
            str(job["restarts"]),
            str(job["checkpoints"]),
            str(job["checkpoints_failed"]),
            last,
        )
    console.print(table)
    for job in jobs:
        if job["last_failure"] and (job["restarts"] or job["state"] != "RUNNING"):
            console.print(f"{job['name']} failed last by: {job['last_failure']}", soft_wrap=True)
