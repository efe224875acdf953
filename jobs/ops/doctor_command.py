"""`headrace doctor`: what a file is, and what is wrong with it, in words."""

import shlex
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from jobs.ops.doctor import Diagnosis, diagnose
from jobs.ops.figures import count, printable
from jobs.ops.log_options import JsonOption
from jobs.ops.run_command import progress_on

DOCTOR_EXAMPLES: Final = ("headrace doctor spans.json", "headrace doctor access.log.gz --json")


def doctor(
    file: Annotated[Path, typer.Argument(help="File that something wrote, .gz or not.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Find out what a file holds, read all of it, and say what is wrong with it.

    Nothing is written. The exit status is 0 if all of it can be read.
    """
    with progress_on(Console(stderr=True)) as steps, steps.step("Examining"):
        found = diagnose(file)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _say(found, file)
    if not found.is_healthy:
        raise typer.Exit(1)


def _say(found: Diagnosis, file: Path) -> None:
    console = Console(soft_wrap=True, highlight=False)
    name = printable(str(file), 4_096)
    if not found.format:
        console.print(f"{name}: no format reads it. It looks like {printable(found.looks_like, 1_000)}.", markup=False)
        console.print("A mapping file says what its columns mean: see docs/ingest.md; then headrace ingest --mapping.")
        return
    records = "record" if found.records == 1 else "records"
    console.print(
        f"{name}: {found.format}, {count(found.records)} {records}, {count(found.events)} events.", markup=False
    )
    for what, number in sorted(found.passed_over.items()):
        console.print(f"  {count(number)} are no event of a request: {printable(what, 400)}", markup=False)
    if found.without_tenant:
        console.print(f"  {count(found.without_tenant)} name no tenant: give one with --tenant", markup=False)
    for finding in found.findings:
        times = "once" if finding.count == 1 else f"{count(finding.count)} times, first"
        console.print(
            f"  {finding.reason}, {times} in line {count(finding.line)}: {printable(finding.detail, 400)}", markup=False
        )
    options = " --tenant NAME" if found.without_tenant else ""
    if any("without a time" in finding.detail for finding in found.findings):
        options += " --received-at TIME"
    console.print(f"headrace ingest --from {found.format}{options} {shlex.quote(name)}", markup=False)
