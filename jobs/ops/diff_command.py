"""`headrace diff`: which decisions differ."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console

from jobs.ops.decision_sides import SideError, common_starts, side_of
from jobs.ops.diff import Window, diff_decisions
from jobs.ops.diff_view import print_diff
from jobs.ops.log_options import ConfigOption, JsonOption, ServersOption, log_access, time_us
from jobs.ops.run_command import progress_on
from jobs.wiring.decision_files import DecisionFileError
from jobs.wiring.kafka_log import KafkaLogError
from jobs.wiring.settings import SettingsError

_TROUBLE = (DecisionFileError, KafkaLogError, OSError, SettingsError, SideError, ValueError)


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A file of decisions, gen:N or topic:NAME.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What to compare it with.")],
    *,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only what was decided from then on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only what was decided before then.")] = None,
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", "-t", help="Only this tenant; again for more.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A field that may differ, such as policy_id; again for more."),
    ] = None,
    examples: Annotated[int, typer.Option(help="Examples for each tenant.", min=0, max=1_000)] = 3,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which decisions differ between A and B, by tenant, with examples.

    Decisions are matched by tenant, request, attempt and decision id, in any order. Equal repeats count once; the same
    id with another content within a side is a fault, and counts as a difference. With --since and --until each side is
    cut by itself, so a decision that moved across the cut is on one side only.

    A generation that a rollback made begins at its snapshot. Without --since two generations are therefore compared
    from the first record that both decided, shard by shard.

    Exit status, as of diff: 0 the same, 1 different, 2 trouble.
    """
    try:
        window = Window(
            None if since is None else time_us(since),
            None if until is None else time_us(until),
            frozenset(tenant or ()),
        )
        access = log_access(config, servers)
        with (
            side_of(a, access, tuple(tenant or ())) as side_a,
            side_of(b, access, tuple(tenant or ())) as side_b,
            progress_on(Console(stderr=True)) as steps,
            steps.step("Comparing"),
        ):
            starts = common_starts(side_a, side_b) if since is None else None
            found = diff_decisions(
                side_a.decisions(starts),
                side_b.decisions(starts),
                window=window,
                ignore=ignore or (),
                examples=examples,
            )
    except _TROUBLE as error:
        for line in str(error).splitlines():
            typer.echo(f"headrace: {line}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        facts = {"same": found.is_same, "a": a, "b": b, "from_common_start": starts is not None}
        typer.echo(msgspec.json.encode({**facts, **msgspec.to_builtins(found)}).decode())
    else:
        if starts is not None:
            typer.echo(
                "From the first record that both decided, in each shard; --since TIME compares from a time instead."
            )
        print_diff(Console(), found, a, b)
    if not found.is_same:
        raise typer.Exit(1)
