"""The `headrace` command."""

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from jobs.ops import (
    diff_command,
    dlq_command,
    doctor_command,
    ingest_command,
    job_command,
    load_command,
    local_command,
    merge_command,
    replay_command,
    rollback_command,
    run_command,
)
from jobs.ops.azure_trace import TraceError
from jobs.ops.decision_sides import SideError
from jobs.ops.dlq import DlqError
from jobs.ops.explain import RequestNotFoundError
from jobs.ops.generations import GenerationError
from jobs.ops.load.plan import PlanError
from jobs.ops.local.layout import LocalError
from jobs.ops.log_options import with_hint
from jobs.ops.policy_command import policy_app
from jobs.ops.schema_command import schema_app
from jobs.ops.snapshots import SnapshotError
from jobs.wiring.atomic_file import OutputFileError
from jobs.wiring.decision_files import DecisionFileError
from jobs.wiring.embedded import JobFailedError
from jobs.wiring.file_log import EventFileError
from jobs.wiring.flink_rest import FlinkError
from jobs.wiring.foreign_files import ForeignFileError
from jobs.wiring.java import JavaNotFoundError
from jobs.wiring.kafka_log import KafkaLogError
from jobs.wiring.kafka_topics import KafkaUnavailableError
from jobs.wiring.policies import PolicyFileError
from jobs.wiring.settings import SettingsError, load_settings

MISTAKES = (
    DecisionFileError,
    DlqError,
    EventFileError,
    FlinkError,
    ForeignFileError,
    GenerationError,
    JavaNotFoundError,
    JobFailedError,
    KafkaLogError,
    KafkaUnavailableError,
    LocalError,
    OutputFileError,
    PlanError,
    PolicyFileError,
    RequestNotFoundError,
    SettingsError,
    SideError,
    SnapshotError,
    TraceError,
)
"""What a user can put right: one line each and exit status 1, never a traceback."""

app = typer.Typer(
    name="headrace",
    help="Stream governance for LLM inference: limits decided in a log, replayable and exact.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(policy_app, name="policy")
app.add_typer(dlq_command.dlq_app, name="dlq")
app.add_typer(schema_app, name="schema")


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


app.command(
    epilog=_examples("headrace demo", "headrace demo --tenants 40 --seed 7 --output out/forty", "headrace demo --json")
)(run_command.demo)
app.command(
    epilog=_examples(
        "headrace run events.pb.gz --policies policies.yaml",
        "headrace run monday.jsonl tuesday.jsonl -p policies.yaml -o out/week --decisions jsonl",
    )
)(run_command.run)
app.command(epilog=_examples(*ingest_command.INGEST_EXAMPLES))(ingest_command.ingest)
app.command(epilog=_examples(*doctor_command.DOCTOR_EXAMPLES))(doctor_command.doctor)
app.command("merge", epilog=_examples(*merge_command.MERGE_EXAMPLES))(merge_command.merge_logs)
app.command(
    epilog=_examples(
        "headrace convert events.jsonl events.pb.gz",
        "headrace convert part-*.jsonl log.pb",
        "headrace convert events.jsonl log.pb --schema 1.1",
    )
)(run_command.convert)


app.command(
    epilog=_examples(
        "headrace up",
        "headrace up --policies policies.yaml --taskmanagers 1",
        "headrace up --base-port 29090 --folder out/b",
    )
)(local_command.up)
app.command(epilog=_examples("headrace down", "headrace down --keep-data"))(local_command.down)
app.command(epilog=_examples("headrace status", "headrace status --json"))(local_command.status)
app.command(
    epilog=_examples("headrace savepoint admission", "headrace savepoint admission --to s3://state/savepoints")
)(job_command.savepoint)
app.command(epilog=_examples("headrace stop admission", "headrace stop admission --drain"))(job_command.stop)
app.command(
    epilog=_examples(
        "headrace restore admission --from latest",
        "headrace restore admission --from latest --policies policies.yaml",
        "headrace restore admission --from latest --parallelism 2",
    )
)(job_command.restore)
app.command(
    epilog=_examples(
        "headrace rollback admission --to 2026-11-30T03:00:00Z --policies corrected.yaml",
        "headrace rollback admission --promote",
        "headrace rollback admission --abort",
    )
)(rollback_command.rollback)
app.command(
    epilog=_examples(
        "headrace diff gen:1 gen:2",
        "headrace diff monday.parquet gen:1 --tenant acme --since 2026-11-30T03:00:00Z",
    )
)(diff_command.diff)
app.command(
    epilog=_examples(
        "headrace replay --tenant acme --from 2026-11-30T03:00:00Z --to 2026-11-30T03:10:00Z --policies policies.yaml",
        "headrace replay --tenant acme --policies policies.yaml --against gen:1",
    )
)(replay_command.replay)
app.command(
    epilog=_examples(
        "headrace explain request-00042 --policies policies.yaml",
        "headrace explain request-00042 --events events.pb.gz --policies policies.yaml --json",
    )
)(replay_command.explain)
app.command(epilog=_examples(*load_command.LOAD_EXAMPLES))(load_command.load)


@app.command(
    epilog=_examples(
        "headrace config", "HEADRACE_PARALLELISM=4 headrace config", "headrace config --config job.yaml --json"
    )
)
def config(
    *,
    file: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show every setting with its value, from the file, the environment (HEADRACE_...) and the defaults."""
    settings = load_settings(file)
    if as_json:
        typer.echo(settings.model_dump_json(indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "meaning"):
        table.add_column(title)
    for name, value, meaning in _rows(settings):
        table.add_row(name, value, meaning)
    Console().print(table)


def _rows(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _rows(value, f"{prefix}{name}.")
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        yield prefix + name, shown or "-", field.description or ""


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda wanted: _version(wanted=wanted), is_eager=True)
    ] = False,
) -> None:
    """Stream governance for LLM inference: limits decided in a log, replayable and exact."""


def main() -> None:
    """Entry point. A user's mistake is one line on standard error and exit status 1."""
    # What a client has to say of a broken connection is said in one line by our own errors.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        app(prog_name="headrace")
    except MISTAKES as mistake:
        sys.stderr.write("".join(f"headrace: {line}\n" for line in with_hint(mistake).splitlines()))
        raise SystemExit(1) from None
    except OSError as error:
        sys.stderr.write(f"headrace: {error.filename or 'input or output'}: {error.strerror or error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt as stopped:
        sys.stderr.write(f"headrace: {str(stopped) or 'stopped'}\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
