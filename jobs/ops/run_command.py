"""`headrace demo`, `run` and `convert`: govern a log of events on a MiniCluster, and show what came of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from jobs.admission import build
from jobs.ops import azure_trace
from jobs.ops.figures import printable
from jobs.ops.lateness import LatenessWatch
from jobs.ops.log_target import log_target
from jobs.ops.older_schema import OlderSchema
from jobs.ops.outputs import (
    ODD_COUNTS,
    Outputs,
    dead_letters_of,
    decisions_of,
    write_dead_letters,
    write_decision_file,
    write_report,
    write_summary,
)
from jobs.ops.report import Origin
from jobs.ops.summary import JobFacts, RunSummary, summarise
from jobs.ops.summary_view import print_summary
from jobs.wiring.embedded import planned
from jobs.wiring.embedded import run as run_job
from jobs.wiring.environment import Folders
from jobs.wiring.event_files import format_of_name
from jobs.wiring.file_log import Block, BlockReader, EventFileError, EventFormat, plan_files, write_event_file
from jobs.wiring.names import ADMISSION_JOB
from jobs.wiring.policies import load_policies
from jobs.wiring.settings import AdmissionSettings, load_settings
from schemas.codec import decode_events
from schemas.dead_letters import DeadLetter, Position
from schemas.events import SCHEMA_VERSION, Event
from udfs.domain.policy_log import PolicyLog

DEMO_POLICIES = azure_trace.TRACE.parents[1] / "policies" / "demo.yaml"
EARLY_US = 100_000_000_000_000
BATCH_AGE_US = 60_000_000
"""Batches of a file may span a minute of event time: nobody waits for them."""


class DecisionsFormat(str, Enum):
    """How decisions are written."""

    PARQUET = "parquet"
    JSONL = "jsonl"


OutputOption: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for everything that the run writes.", file_okay=False)
]
FormatOption: TypeAlias = Annotated[DecisionsFormat, typer.Option("--decisions", help="Format of the decisions.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object instead.")]


class Steps:
    """Progress on standard error, a line a step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def step(self, title: str, *, known: bool = False) -> Iterator["Step"]:
        """One step; `known`: how far it is will be told."""
        task = self._progress.add_task(title, total=1.0 if known else None)
        yield Step(self._progress, task)
        self._progress.update(task, total=1.0, completed=1.0)


class Step:
    """One line of progress."""

    def __init__(self, progress: Progress, task: object) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, share: float) -> None:
        """Tell how far it is, 0 to 1."""
        self._progress.update(self._task, completed=share)  # type: ignore[arg-type]


@contextmanager
def progress_on(console: Console) -> Iterator[Steps]:
    """Progress lines that stay when a step is done."""
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Steps(progress)


class EventLog:
    """What can be read of event files, in log order, and what could not."""

    def __init__(self, blocks: list[Block], shard_count: int, *, with_provenance: bool = False) -> None:
        self._blocks = blocks
        self._shard_count = shard_count
        self._with_provenance = with_provenance
        self.dead: list[DeadLetter] = []
        self.unknown_fields: Counter[str] = Counter()

    def events(self) -> Iterator[Event]:
        """The events; what is put aside meanwhile is in `dead` and `unknown_fields` at the end."""
        # Lines stand in log order whatever their tenant: read as one shard they stay in it.
        with BlockReader(self._shard_count) as batches, BlockReader(shard_count=1) as lines:
            for block in self._blocks:
                found = (lines if block.file_format is EventFormat.JSON_LINES else batches).read(block)
                self.dead.extend(found.dead)
                self.unknown_fields.update(found.unknown_fields)
                for _, record, offset in found.batches:
                    where = Position(block.path, 0, offset)
                    batch = decode_events(record, where, with_provenance=self._with_provenance)
                    self.dead.extend(batch.dead)
                    yield from batch.events


def tell_of_unknown(fields: Counter[str]) -> None:
    """Say which fields were passed over: a newer schema's, or a slip of the pen."""
    if fields:
        named = ", ".join(f"{printable(name)} ({count:,})" for name, count in sorted(fields.items())[:20])
        typer.echo(f"fields that this version does not know, passed over: {named}", err=True)


def tell_of_dropped(fields: Counter[str], version: str) -> None:
    """Say which fields an older version of the schema has no place for."""
    if fields:
        named = ", ".join(f"{name} ({count:,})" for name, count in sorted(fields.items()))
        typer.echo(f"fields that schema {version} does not have, left out: {named}", err=True)


def tell_of_odd_times(summary: RunSummary) -> None:
    """Say that times are hardly microseconds."""
    if 0 < summary.end_us < EARLY_US:
        typer.echo("event times are before 1973: are they seconds or milliseconds instead of microseconds?", err=True)


def govern(
    settings: AdmissionSettings, decisions_format: DecisionsFormat, origin: Origin, steps: Steps, watch: LatenessWatch
) -> tuple[RunSummary, Outputs]:
    """Run the job to its end, and write what people look at."""
    folders = Folders.below(settings.output)
    outputs = Outputs.below(settings.output, decisions_format.value)
    with steps.step("Deciding on Flink", known=True) as step:
        job = run_job(ADMISSION_JOB, build, settings, step)
    with steps.step("Writing decisions"):
        write_decision_file(folders, outputs.decisions)
        dead = write_dead_letters(dead_letters_of(folders), outputs.dead_letters)
    with steps.step("Summing up"):
        facts = JobFacts(
            events=job.counts.get("events", 0),
            wall_seconds=job.seconds,
            events_per_second=job.counts.get("events", 0) / job.seconds,
            dead_letters=dict(dead),
            anomalies={name: count for name, count in job.counts.items() if name in ODD_COUNTS},
            lateness=watch.statistics(),
            watermark=watch.points,
        )
        policies = load_policies(settings.policies).policies if settings.policies else ()
        log = EventLog(planned(folders), settings.shard_count)
        summary = summarise(log.events(), decisions_of(folders), PolicyLog(policies), facts)
        write_summary(summary, outputs.summary)
        write_report(summary, origin, outputs.report)
    tell_of_unknown(log.unknown_fields)
    tell_of_odd_times(summary)
    return summary, outputs


def show(summary: RunSummary, outputs: Outputs, *, as_json: bool) -> None:
    """Print the summary for a person, or for a script."""
    if as_json:
        typer.echo(msgspec.json.encode(summary).decode())
        return
    written = [("Report", outputs.report), ("Decisions", outputs.decisions), ("Summary", outputs.summary)]
    if outputs.dead_letters.exists():
        written.append(("Dead letters", outputs.dead_letters))
    print_summary(Console(), summary, [(what, str(path)) for what, path in written])


def demo(
    *,
    output: OutputOption = Path("out"),
    tenants: Annotated[int, typer.Option(help="Over how many tenants the trace is spread.", min=1, max=1000)] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the spreading.")] = 1,
    policies: Annotated[
        Path, typer.Option(help="Policy file.", show_default="data/policies/demo.yaml")
    ] = DEMO_POLICIES,
    decisions: FormatOption = DecisionsFormat.PARQUET,
    as_json: JsonOption = False,
) -> None:
    """Govern the Azure LLM conversation trace of 2023 on a MiniCluster, and write a report.

    An hour of real traffic, 19,366 requests, spread over tenants by a seeded rule, is admitted, throttled, extended and
    revoked by data/policies/demo.yaml.
    """
    load_policies(policies)
    log = output / "events.pb"
    settings = load_settings(input=(log,), output=output, policies=policies)
    watch = LatenessWatch()
    with progress_on(Console(stderr=True)) as steps:
        with steps.step("Turning the trace into events"):
            events = azure_trace.lives(azure_trace.read_trace(azure_trace.TRACE), tenants, seed)
        with steps.step("Stamping watermarks, writing the log"):
            output.mkdir(parents=True, exist_ok=True)
            stamped = watch.stamped(events)
            write_event_file(log, stamped, shard_count=settings.shard_count, batch_age_us=BATCH_AGE_US)
            del events
        origin = Origin(
            trace="Azure LLM inference trace 2023, conversations",
            licence="CC-BY 4.0",
            citation="Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024",
            spreading=azure_trace.SPREADING,
            seed=seed,
            version=version("headrace"),
        )
        summary, outputs = govern(settings, decisions, origin, steps, watch)
    show(summary, outputs, as_json=as_json)


def run(
    files: Annotated[list[Path], typer.Argument(help="Event files (.pb, .jsonl; gzip or not), in log order.")],
    *,
    policies: Annotated[Path | None, typer.Option("--policies", "-p", help="Policy file; none: no limits.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for all output.", show_default="out")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings.")] = None,
    restore_from: Annotated[Path | None, typer.Option(help="Checkpoint folder to go on from.")] = None,
    decisions: FormatOption = DecisionsFormat.PARQUET,
    as_json: JsonOption = False,
) -> None:
    """Govern your own event log on a MiniCluster, and write a report.

    Files without watermarks work too, but streams that fall silent are then settled only when their tenant goes on;
    `headrace convert` stamps them. The exit status is 1 if anything could not be read or decided; it is in
    dead-letters.jsonl.
    """
    settings = load_settings(config, input=tuple(files), policies=policies, output=output, restore_from=restore_from)
    if settings.policies is not None:
        load_policies(settings.policies)
    with progress_on(Console(stderr=True)) as steps:
        origin = Origin(
            trace=", ".join(path.name for path in settings.input),
            licence="",
            citation="",
            spreading="",
            seed=None,
            version=version("headrace"),
        )
        summary, outputs = govern(settings, decisions, origin, steps, LatenessWatch())
    show(summary, outputs, as_json=as_json)
    if outputs.dead_letters.exists():
        raise typer.Exit(1)


def convert(
    files: Annotated[list[Path], typer.Argument(help="Event files (.pb, .jsonl; gzip or not), in log order.")],
    to: Annotated[Path, typer.Argument(help="The log to write, .pb or .pb.gz.")],
    *,
    schema: Annotated[
        str, typer.Option(metavar="VERSION", help="Write for consumers of this version, such as 1.1.")
    ] = SCHEMA_VERSION,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Read event files, stamp their watermarks, and write one log of batches.

    What can't be read goes to the file named like the log with .dead-letters.jsonl, and the exit status is 1. With
    --schema, fields that the older version lacks are left out and told; where one is critical, nothing is written.
    """
    aside = batch_log_target(to, files)
    older = OlderSchema(schema)
    watch = LatenessWatch()
    shard_count = load_settings().shard_count
    log = EventLog(plan_files(files), shard_count, with_provenance=True)
    with progress_on(Console(stderr=True)) as steps, steps.step("Converting"):
        events = watch.with_heartbeats(log.events())
        written = write_event_file(to, events, shard_count=shard_count, batch_age_us=BATCH_AGE_US, encode=older.encode)
    reasons = write_dead_letters(log.dead, aside)
    facts = {
        "log": str(to),
        "events": written.events,
        "records": written.records,
        "dead_letters": dict(reasons),
        "unknown_fields": dict(log.unknown_fields),
        "schema": older.version,
        "dropped_fields": dict(older.dropped),
        "lateness": [msgspec.structs.asdict(source) for source in watch.statistics()],
    }
    tell_of_unknown(log.unknown_fields)
    tell_of_dropped(older.dropped, older.version)
    if as_json:
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        typer.echo(f"{printable(str(to), 4_096)}: {written.events:,} events in {written.records:,} records")
        if reasons:
            typer.echo(f"{sum(reasons.values()):,} could not be read: {aside}")
    if reasons:
        raise typer.Exit(1)


def batch_log_target(to: Path, inputs: list[Path]) -> Path:
    """As `log_target`, for a log of batches: it must not have another format's name. Raises EventFileError."""
    if format_of_name(to) is not EventFormat.PROTOBUF:
        raise EventFileError(f"{to}: a log of batches is named .pb or .pb.gz")
    return log_target(to, inputs)
