"""`headrace ingest`: what gateways and engines wrote, as a log of events."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from jobs.ops.figures import count, printable
from jobs.ops.foreign_reading import Account, ForeignReading, opened
from jobs.ops.log_options import JsonOption
from jobs.ops.log_target import log_target
from jobs.ops.outputs import dead_letters_to
from jobs.ops.run_command import BATCH_AGE_US, progress_on
from jobs.wiring.event_file_writer import write_event_file, write_json_lines
from jobs.wiring.event_files import EventFormat, format_of_name
from jobs.wiring.foreign_files import (
    ForeignFile,
    ForeignFileError,
    Reader,
    load_mapping,
    reader_of_format,
    reader_of_mapping,
    reader_of_shipped,
    shipped_mappings,
)
from jobs.wiring.settings import load_settings
from udfs.domain.ingest.fields import name_text, time_of_iso
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Origin, UnreadableRecordError

INGEST_EXAMPLES: Final = (
    "headrace ingest --from litellm payloads.jsonl.gz --to monday.pb.gz",
    "headrace ingest --from otlp --tenant acme spans/*.json",
    "headrace ingest --from azure-llm-2023 --tenant azure AzureLLMInferenceTrace_conv.csv",
    "headrace ingest --mapping ours.yaml --tenant acme requests.csv",
)
FORMAT_HELP: Final = (
    "What the files hold: "
    + "; ".join(f"{it.name} ({it.words})" for it in FORMATS.values())
    + f"; or a mapping that is shipped: {', '.join(shipped_mappings())}."
)


def ingest(
    files: Annotated[list[Path], typer.Argument(help="Files to read, in log order; .gz is unpacked.")],
    *,
    source_format: Annotated[str | None, typer.Option("--from", metavar="FORMAT", help=FORMAT_HELP)] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="Mapping file, for CSV and JSON lines of your own.", dir_okay=False)
    ] = None,
    to: Annotated[Path, typer.Option(help="Log to write: .pb, .pb.gz or .jsonl.", dir_okay=False)] = Path(
        "events.pb.gz"
    ),
    tenant: Annotated[str, typer.Option(help="Tenant of records that name none.")] = "",
    region: Annotated[str, typer.Option(help="Region of records that name none.")] = "",
    backend: Annotated[str, typer.Option(help="Backend of records that name none.")] = "",
    source: Annotated[str | None, typer.Option(help="Name of the producer.", show_default="the format")] = None,
    received_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="When records without a time of their own came, in ISO 8601.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read what gateways and engines write, and write one log of events, stamped with watermarks.

    What can't be read goes to the file named like the log with .dead-letters.jsonl, and the exit status is 1.
    `headrace run` decides the log, `headrace doctor` says what a file is.
    """
    reader = _reader(source_format, mapping)
    received_us = _time(received_at)
    inputs = opened(files, received_us)
    if reader.names_rows:
        _refuse_namesakes(inputs)
    aside = log_target(to, [*files, mapping] if mapping is not None else files)
    origin = _origin(source or reader.name, tenant, region, backend)
    with dead_letters_to(aside) as put_aside:
        reading = ForeignReading(reader, origin, put_aside)
        written = _write(reading, inputs, to)
    account = msgspec.to_builtins(reading.account)
    reasons = account.pop("refused")
    if as_json:
        facts = {"log": str(to), "format": reader.name, "written": written, "dead_letters": reasons}
        typer.echo(msgspec.json.encode({**facts, **account}).decode())
    else:
        _show(reading.account, reasons, to, aside)
    if not account["events"] and not reasons:
        raise ForeignFileError(f"no event in {account['records']} records: not {reader.name}? headrace doctor FILE")
    if reasons:
        raise typer.Exit(1)


def _origin(source: str, tenant: str, region: str, backend: str) -> Origin:
    """Raises ForeignFileError for names that no event may have."""
    given = {"--source": source, "--tenant": tenant, "--region": region, "--backend": backend}
    try:
        names = [name_text(value.strip(), option) for option, value in given.items()]
    except UnreadableRecordError as error:
        raise ForeignFileError(error.detail) from error
    return Origin(source=names[0], tenant=names[1], region=names[2], backend=names[3])


def _refuse_namesakes(inputs: list[ForeignFile]) -> None:
    names = Counter(file.name for file in inputs)
    twice = sorted(name for name, times in names.items() if times > 1)
    if twice:
        raise ForeignFileError(
            f"{twice[0]}: two files of this name; without `request_id` in the mapping a row is known by its file's "
            "name and number, so rename one"
        )


def _write(reading: ForeignReading, inputs: list[ForeignFile], to: Path) -> int:
    total = sum(file.size_bytes for file in inputs) or 1
    with progress_on(Console(stderr=True)) as steps, steps.step("Reading", known=True) as step:
        events = reading.events(inputs, lambda done: step(done / total))
        if format_of_name(to) is EventFormat.JSON_LINES:
            return write_json_lines(to, events)
        shards = load_settings().shard_count
        return write_event_file(to, events, shard_count=shards, batch_age_us=BATCH_AGE_US).events


def _reader(source_format: str | None, mapping: Path | None) -> Reader:
    """Raises ForeignFileError where it is not said what the files are."""
    if mapping is not None:
        if source_format is not None:
            raise ForeignFileError("--from and --mapping: leave out either, a mapping says what its files are")
        return reader_of_mapping(mapping.stem, load_mapping(mapping))
    if source_format is None:
        raise ForeignFileError("--from: say what the files hold; `headrace doctor FILE` finds it out")
    if source_format in FORMATS:
        return reader_of_format(FORMATS[source_format])
    if source_format in shipped_mappings():
        return reader_of_shipped(source_format)
    known = ", ".join((*FORMATS, *shipped_mappings()))
    raise ForeignFileError(f"--from {source_format}: no such format; known are {known}")


def _time(received_at: str | None) -> int:
    try:
        return time_of_iso(received_at, "--received-at") or 0
    except UnreadableRecordError as error:
        raise ForeignFileError(error.detail) from error


def _show(account: Account, reasons: dict[str, int], to: Path, aside: Path) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "records read": account.records,
        "events written": account.events,
        "requests": account.requests,
        "  completed": account.completed,
        "  failed": account.failed,
        "  interrupted": account.interrupted,
        "prompt tokens": account.prompt_tokens,
        "completion tokens": account.completion_tokens,
        "duplicates left out": account.duplicates,
        "late events": account.late,
        **({"too old to be checked for repeats": account.unchecked} if account.unchecked else {}),
        **{f"passed over: {what}": number for what, number in sorted(account.passed_over.items())},
        **{f"dead letters: {reason}": number for reason, number in sorted(reasons.items())},
    }
    for what, number in rows.items():
        table.add_row(what, count(number))
    console = Console()
    console.print(table)
    console.print(printable(str(to), 4_096), soft_wrap=True, highlight=False)
    if reasons:
        console.print(f"dead letters: {printable(str(aside), 4_096)}", soft_wrap=True, highlight=False)
