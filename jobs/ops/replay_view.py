"""What a replay came to, for a terminal."""

from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.figures import compact, count, day_and_time, printable
from jobs.ops.replay import ReplaySummary, TenantReplay

MOST_ROWS = 24
_KINDS = ("admit", "throttle", "reject", "extend", "revoke", "settle")


def print_replay(console: Console, summary: ReplaySummary, output: Path | None) -> None:
    """Print the summary of a replay."""
    start = "the beginning" if summary.from_us is None else f"{day_and_time(summary.from_us)} UTC"
    end = "the end of the log" if summary.to_us is None else f"{day_and_time(summary.to_us)} UTC"
    console.print(Text(f"{count(summary.decisions)} decisions from {start} to {end}.", style="bold"), highlight=False)
    console.print(
        Text(f"{count(summary.events)} events in {count(summary.records)} records were folded."), highlight=False
    )
    for warning in summary.warnings:
        console.print(Text(f"Beware: {printable(warning, 1_000)}.", style="yellow"), highlight=False)
    if summary.tenants:
        console.print()
        console.print(_table(summary.tenants))
    bound = sum((tenant.bound for tenant in summary.tenants), Counter[str]())
    for title, numbers in (
        ("Throttled, rejected or revoked by", bound),
        ("Dead letters of all that was folded", summary.dead_letters),
        ("Noticed in all that was folded", summary.noticed),
    ):
        if numbers:
            named = ", ".join(
                f"{printable(name).replace('_', ' ')} {count(number)}" for name, number in sorted(numbers.items())
            )
            console.print(Text(f"{title}: {named}."), highlight=False)
    if output is not None:
        console.print(Text(f"Decisions  {output}"), soft_wrap=True, highlight=False)


def _table(tenants: list[TenantReplay]) -> Table:
    most_first = sorted(tenants, key=lambda tenant: (-sum(tenant.decisions.values()), tenant.tenant))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Tenant", no_wrap=True, overflow="ellipsis", max_width=24)
    for kind in _KINDS:
        table.add_column(kind.capitalize(), justify="right", no_wrap=True)
    table.add_column("Used", justify="right", no_wrap=True)
    for tenant in most_first[:MOST_ROWS]:
        table.add_row(
            Text(printable(tenant.tenant)),
            *(count(tenant.decisions[kind]) for kind in _KINDS),
            compact(tenant.used_tokens),
        )
    if len(most_first) > MOST_ROWS:
        table.add_row(Text(f"and {count(len(most_first) - MOST_ROWS)} more", style="dim"))
    return table
