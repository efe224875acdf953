"""`headrace schema`: whether a change of a schema breaks its readers, and what each version of ours has."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.figures import count, printable
from jobs.ops.schema_diff.change import Change
from jobs.ops.schema_diff.compare import compare
from jobs.ops.schema_diff.sources import SchemaSourceError, read_schema
from schemas.events import SCHEMA_VERSION
from schemas.versions import ADDED, ROUTES, Route

schema_app = typer.Typer(name="schema", help="Check changes of a schema, and show our versions.", no_args_is_help=True)

_BREAKING = 1
_UNREADABLE = 2

_CHECK_EXAMPLES = """
Examples:

  headrace schema check schemas/released/1.1 schemas/proto

  headrace schema check old.proto new.proto --json | jq '.changes[] | select(.breaks != [])'

  protoc --include_imports --descriptor_set_out=new.pb events.proto && headrace schema check old.pb new.pb

Exit status: 0 compatible, 1 breaking, 2 a schema can't be read, or wrong use of the command.
"""

_SHOW_EXAMPLES = """
Examples:

  headrace schema show

  headrace schema show --json
"""

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for scripts.")]


@schema_app.callback()
def _schema() -> None:
    """Check changes of a schema, and show our versions."""


@schema_app.command(epilog=_CHECK_EXAMPLES)
def check(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The schema as it was.", show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The schema as it is now.", show_default=False)],
    *,
    breaking_only: Annotated[bool, typer.Option("--breaking", help="Leave out changes that break nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tell which changes of a schema break its readers or writers, in bytes (wire) or in JSON.

    OLD and NEW are each a .proto file, a folder of them from which their imports start, or a FileDescriptorSet with
    its imports. Reading .proto files takes protoc: that of grpcio-tools, or one on the PATH. Sets take none.
    """
    try:
        was, now = read_schema(old), read_schema(new)
    except SchemaSourceError as error:
        for line in str(error).splitlines():
            typer.echo(f"headrace: {printable(line, 400)}", err=True)
        raise typer.Exit(_UNREADABLE) from error
    found = compare(was, now)
    breaking = [change for change in found if change.breaks]
    shown = breaking if breaking_only else found
    if as_json:
        typer.echo(
            json.dumps(
                {"compatible": not breaking, "breaking": len(breaking), "changes": [_fields(it) for it in shown]}
            )
        )
    else:
        packages = was.packages | now.packages
        # Where there is one package, its name before each place says nothing.
        prefix = f"{min(packages)}." if len(packages) == 1 else ""
        _print_changes(Console(highlight=False), shown, len(breaking), prefix)
    if breaking:
        raise typer.Exit(_BREAKING)


def _fields(change: Change) -> dict[str, Any]:
    return change._asdict() | {"breaks": [form.value for form in change.breaks]}


def _print_changes(console: Console, shown: list[Change], breaking: int, prefix: str) -> None:
    if shown:
        table = _table("Breaks", "Where", "What has changed")
        table.columns[0].no_wrap = True
        # What breaks comes first; each in the order of the schema.
        for change in sorted(shown, key=lambda it: not it.breaks):
            breaks = Text(", ".join(form.value for form in change.breaks) or "nothing")
            breaks.stylize("bold red" if change.breaks else "dim")
            where = Text(printable(change.where.removeprefix(prefix), 400))
            table.add_row(breaks, where, Text(printable(change.detail, 400)))
        console.print(table)
        console.print()
    if breaking:
        console.print(Text(f"Breaking: {count(breaking)} change{'' if breaking == 1 else 's'}.", style="bold red"))
    else:
        console.print(Text("Compatible.", style="bold green"))


@schema_app.command(epilog=_SHOW_EXAMPLES)
def show(*, as_json: JsonOption = False) -> None:
    """Show our versions: what becomes of an event of each, and which fields each added."""
    rows = [*((version, ROUTES[version]) for version in ADDED), *_OTHERS]
    if as_json:
        versions = {
            version: {
                "route": route.name.lower(),
                "added": [
                    {"field": it.path, "critical": it.is_critical, "why": it.why} for it in ADDED.get(version, ())
                ],
            }
            for version, route in rows
        }
        typer.echo(json.dumps({"current": SCHEMA_VERSION, "versions": versions}))
        return
    console = Console(highlight=False)
    console.print(Text(f"Events are read as schema {SCHEMA_VERSION}.", style="bold"))
    console.print()
    routes = _table("Version", "An event of it is")
    for version, route in rows:
        routes.add_row(version, route.value)
    console.print(routes)
    console.print()
    fields = _table("Since", "Field", "Critical", "To a reader without it")
    for version, added in ADDED.items():
        for field in added:
            critical = Text("yes", style="bold") if field.is_critical else Text("no", style="dim")
            fields.add_row(version, field.path, critical, field.why)
    console.print(fields)


_OTHERS = (
    (f"newer {SCHEMA_VERSION.partition('.')[0]}.x", Route.READ_IF_KNOWN),
    ("all else", Route.REFUSE),
)


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
