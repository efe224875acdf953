"""`headrace merge`: what an edge site wrote while it was offline, brought together with the cloud's log."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from jobs.ops.figures import count, printable
from jobs.ops.log_options import JsonOption
from jobs.ops.outputs import write_dead_letters
from jobs.ops.run_command import BATCH_AGE_US, EventLog, batch_log_target, progress_on
from jobs.wiring.event_file_writer import write_event_file
from jobs.wiring.file_log import plan_files
from jobs.wiring.settings import load_settings
from udfs.domain.edge.merge import Merged, merge

MERGE_EXAMPLES: Final = ("headrace merge cloud.pb.gz edge-monday.pb --to merged.pb.gz",)
_SHOWN: Final = 10


class Remark(msgspec.Struct, frozen=True):
    """One thing about one attempt."""

    what: str
    tenant: str
    request_id: str
    attempt: int
    detail: str


def merge_logs(
    files: Annotated[list[Path], typer.Argument(help="Logs of the sites (.pb, .jsonl; gzip or not), in any order.")],
    to: Annotated[Path, typer.Option(help="Log to write, .pb or .pb.gz.", dir_okay=False)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Bring logs of several sites into one order, each fact once and no token counted twice.

    The result depends on the events alone: not on the order of the files, nor on how often something was uploaded. A
    merged log can be merged again with what comes later. All events are held in memory. The exit status is 1 if
    something could not be read, could only have been guessed, or was told differently by two sites.
    """
    aside = batch_log_target(to, files)
    shards = load_settings().shard_count
    logs = [EventLog(plan_files([path]), shards, with_provenance=True) for path in files]
    with progress_on(Console(stderr=True)) as steps:
        with steps.step("Merging"):
            merged = merge(*(log.events() for log in logs))
        with steps.step("Writing"):
            write_event_file(to, merged.events, shard_count=shards, batch_age_us=BATCH_AGE_US)
    reasons = dict(write_dead_letters([letter for log in logs for letter in log.dead], aside))
    if as_json:
        facts = {"log": str(to), "read": merged.read, "events": len(merged.events), "dead_letters": reasons}
        remarks = [msgspec.structs.asdict(remark) for remark in _remarks(merged)]
        typer.echo(msgspec.json.encode({**facts, "not_kept": dict(merged.not_kept), "remarks": remarks}).decode())
    else:
        _show(merged, reasons, to)
    if reasons or merged.held_back or merged.contradictions:
        raise typer.Exit(1)


def _remarks(merged: Merged) -> list[Remark]:
    """What somebody should look at, by ids: events may hold text."""
    found = [
        Remark("contradiction", kept.tenant, kept.request_id, kept.attempt, f"{it.what}, kept {kept.event_id.hex()}")
        for it in merged.contradictions
        for kept in (it.kept,)
    ]
    found += [
        Remark("held back", event.tenant, event.request_id, event.attempt, f"{it.reason.value}, {event.event_id.hex()}")
        for it in merged.held_back
        for event in (it.event,)
    ]
    return found + [Remark("unlinked", *it.attempt, it.detail) for it in merged.unlinked]


def _show(merged: Merged, reasons: dict[str, int], to: Path) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "events read": merged.read,
        "events written": len(merged.events),
        **{f"left out: {why}": number for why, number in sorted(merged.not_kept.items())},
        "held back, could only be guessed": len(merged.held_back),
        "told differently by two sites": len(merged.contradictions),
        "resumptions that nothing bears out": len(merged.unlinked),
        **{f"dead letters: {reason}": number for reason, number in sorted(reasons.items())},
    }
    for what, number in rows.items():
        table.add_row(what, count(number))
    console = Console()
    console.print(table)
    remarks = _remarks(merged)
    for remark in remarks[:_SHOWN]:
        request = f"{printable(remark.tenant)} {printable(remark.request_id)} attempt {remark.attempt}"
        console.print(f"  {remark.what}: {request}: {printable(remark.detail, 200)}", soft_wrap=True, highlight=False)
    if len(remarks) > _SHOWN:
        console.print(f"  and {count(len(remarks) - _SHOWN)} more: --json has all of them")
    console.print(printable(str(to), 4_096), soft_wrap=True, highlight=False)
