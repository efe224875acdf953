"""The summary for a terminal: at 80 columns what matters, at 110 and more also the rest.

Words carry what colours stress, so nothing is lost without them or in a pipe. Foreign names are made printable and are
never read as markup.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.figures import compact, count, duration, percent, printable
from jobs.ops.summary import RunSummary, SourceLateness, TenantSummary
from jobs.ops.verdict import verdict_of

MOST_ROWS: Final = 24
MOST_SOURCES: Final = 3
WIDE_COLUMNS: Final = 110
_LONGEST_TENANT: Final = 24
_SHORTEST_TENANT: Final = 8


class _Column(NamedTuple):
    """A count of a tenant. `is_wide`: only where there is room; `is_needed`: also elsewhere once it is not zero."""

    heading: str
    field: str
    is_wide: bool = False
    is_needed: bool = False
    is_tokens: bool = False


_COLUMNS: Final = (
    _Column("Requests", "requests", is_wide=True),
    _Column("Admitted", "admitted"),
    _Column("Throttled", "throttled"),
    _Column("Rejected", "rejected", is_wide=True, is_needed=True),
    _Column("Revoked", "revoked"),
    _Column("Used", "used_tokens", is_tokens=True),
    _Column("Refunded", "refunded_tokens", is_tokens=True),
    _Column("Overdrawn", "overdrawn_tokens", is_wide=True, is_tokens=True),
)


def _peak(tenant: TenantSummary) -> Text:
    peak = tenant.peak
    if peak is None:
        return Text("no limit", style="dim")
    style = "" if peak.within else "bold red"
    return Text(f"{'' if peak.within else 'OVER '}{percent(peak.share)} of {compact(peak.limit)}", style=style)


def _tenant_table(summary: RunSummary, width: int) -> Table:
    is_wide = width >= WIDE_COLUMNS
    columns = [
        column
        for column in _COLUMNS
        if is_wide or not column.is_wide or (column.is_needed and getattr(summary.total, column.field))
    ]
    counts = [tenant.counts for tenant in summary.tenants[:MOST_ROWS]] + [summary.total]
    cells = [
        [
            (compact if column.is_tokens and not is_wide else count)(getattr(of_tenant, column.field))
            for column in columns
        ]
        for of_tenant in counts
    ]
    headings = [*(column.heading for column in columns), "Fullest window"]
    peaks = [*map(_peak, summary.tenants[:MOST_ROWS]), Text()]
    rows = [[*map(Text, row), peak] for row, peak in zip(cells, peaks, strict=True)]

    # The name gives way, never a number: it gets what the others leave.
    numbers_width = sum(
        max(len(heading), *(row[index].cell_len for row in rows)) for index, heading in enumerate(headings)
    )
    names = [Text(printable(tenant.tenant)) for tenant in summary.tenants[:MOST_ROWS]]
    longest = min(max((name.cell_len for name in names), default=0), _LONGEST_TENANT)
    gap = 2 if numbers_width + 2 * len(headings) + longest <= width else 1
    tenant_width = max(min(width - numbers_width - gap * len(headings), longest), _SHORTEST_TENANT)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), show_footer=True)
    table.add_column("Tenant", footer="all", no_wrap=True, max_width=tenant_width, overflow="ellipsis")
    for heading, footer in zip(headings, rows[-1], strict=True):
        table.add_column(heading, footer=footer, justify="right", no_wrap=True)
    for name, row in zip(names, rows[:-1], strict=True):
        table.add_row(name, *row)
    return table


def _lateness(source: SourceLateness) -> str:
    late = percent(source.late_events / source.events) if source.events else percent(0.0)
    return (
        f"Watermark of {printable(source.source) or 'the source'}: delta {duration(source.delta_us)}; lateness "
        f"p50 {duration(source.p50_us)}, p99 {duration(source.p99_us)}, highest {duration(source.max_lateness_us)}; "
        f"{late} of events late."
    )


def _counted(title: str, numbers: Mapping[str, int]) -> str:
    parts = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return (
        f"{title}: " + ", ".join(f"{printable(name).lower().replace('_', ' ')} {count(n)}" for name, n in parts) + "."
    )


def print_summary(console: Console, summary: RunSummary, outputs: Sequence[tuple[str, str]] = ()) -> None:
    """Print the summary. `outputs`: what was written and where, as (what, path)."""
    total, job = summary.total, summary.job
    tenants = f"{count(len(summary.tenants))} tenant{'' if len(summary.tenants) == 1 else 's'}"
    requests = f"{count(total.requests)} request{'' if total.requests == 1 else 's'}"

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), highlight=False)

    say(f"Governed {requests} of {tenants}.", "bold")
    rate = f"{count(round(job.events_per_second))} events/s"
    span = duration(summary.end_us - summary.start_us)
    say(f"{count(job.events)} events in {duration(job.wall_seconds * 1e6)}: {rate}; event time {span}.")
    say("")
    console.print(_tenant_table(summary, console.width))
    if len(summary.tenants) > MOST_ROWS:
        say(f"and {count(len(summary.tenants) - MOST_ROWS)} tenants more, which used less; the report has them.")
    say("")
    verdict = verdict_of(summary)
    say(verdict.sentence, "green" if verdict.held else "bold red")
    if total.shadow:
        say(f"Shadow limits would have decided otherwise {count(total.shadow)} times.")
    if total.in_flight:
        say(f"{count(total.in_flight)} requests were still in flight, holding {count(total.held_tokens)} tokens.")
    worst_first = sorted(job.lateness, key=lambda source: (-source.p99_us, source.source))
    for source in worst_first[:MOST_SOURCES]:
        say(_lateness(source))
    if len(worst_first) > MOST_SOURCES:
        say(f"The other {count(len(worst_first) - MOST_SOURCES)} sources were less late.")
    if job.dead_letters:
        say(_counted(f"Dead letters, {count(sum(job.dead_letters.values()))} in all", job.dead_letters), "yellow")
    if job.anomalies:
        say(_counted("Noticed", job.anomalies))
    if outputs:
        say("")
        longest = max(len(what) for what, _ in outputs)
        for what, path in outputs:
            # Not wrapped: a path is to be copied whole.
            console.print(Text(f"{what.ljust(longest)}  {printable(path, len(path))}"), soft_wrap=True, highlight=False)
