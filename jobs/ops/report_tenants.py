"""The tenants' part of the report: one table, and one small plot each."""

from html import escape
from typing import Final

from jobs.ops import markup, plot
from jobs.ops.figures import clock, compact, count, duration, percent, printable
from jobs.ops.plot import Scale
from jobs.ops.summary import Counts, RunSummary, TenantSummary

MOST_PLOTTED: Final = 24
MOST_LISTED: Final = 500
"""Of the busiest tenants: the file stays below 1.5 MB however many there are."""


_REQUEST_COLUMNS: Final = (("Seen", "requests"), ("In flight", "in_flight"))
_DECISION_COLUMNS: Final = (
    ("Admitted", "admitted"),
    ("Throttled", "throttled"),
    ("Rejected", "rejected"),
    ("Extended", "extended"),
    ("Revoked", "revoked"),
    ("Settled", "settled"),
    ("Shadow", "shadow"),
)
_TOKEN_COLUMNS: Final = (
    ("Reserved", "reserved_tokens"),
    ("Used", "used_tokens"),
    ("Refunded", "refunded_tokens"),
    ("Overdrawn", "overdrawn_tokens"),
)
_GROUPS: Final = (("Requests", _REQUEST_COLUMNS), ("Decisions", _DECISION_COLUMNS), ("Tokens", _TOKEN_COLUMNS))


def _count_cells(counts: Counts) -> str:
    return "".join(
        markup.cell(getattr(counts, field), "group" if index == 0 else "")
        for _, columns in _GROUPS
        for index, (_, field) in enumerate(columns)
    )


def _peak_cells(tenant: TenantSummary) -> str:
    peak = tenant.peak
    if peak is None:
        return '<td class="group zero">none</td><td class="zero">none</td><td></td><td class="text zero">no limit</td>'
    css, width = ("meter" if peak.within else "meter over"), f"{min(peak.share, 1) * 100:.1f}%"
    meter = f'<span class="{css}"><i style="width:{width}"></i></span>'
    check = '<td class="text good">within</td>' if peak.within else '<td class="text bad">over</td>'
    limit = f"{compact(peak.limit)} in {duration(peak.window_us)}"
    share = f"{percent(peak.share)}{meter}"
    return f'<td class="group">{count(peak.tokens)}</td><td>{limit}</td><td>{share}</td>{check}'


def tenant_table(summary: RunSummary) -> str:
    """A row for each tenant, the fullest window first: it is what one looks for."""
    top = "".join(f'<th scope="colgroup" colspan="{len(columns)}">{name}</th>' for name, columns in _GROUPS)
    names = "".join(
        f'<th scope="col"{css}>{name}</th>'
        for _, columns in _GROUPS
        for index, (name, _) in enumerate(columns)
        for css in (' class="group"' if index == 0 else "",)
    )
    head = (
        f'<tr><th scope="col" rowspan="2">Tenant</th><th scope="colgroup" colspan="4">Fullest window</th>{top}</tr>'
        '<tr><th scope="col" class="group">Tokens</th><th scope="col">Limit</th><th scope="col">Share</th>'
        f'<th scope="col" class="text">Check</th>{names}</tr>'
    )
    rows = (
        f'<th scope="row" title="{name}">{name}</th>{_peak_cells(tenant)}{_count_cells(tenant.counts)}'
        for tenant in summary.tenants[:MOST_LISTED]
        for name in (markup.name(tenant.tenant),)
    )
    foot = f'<th scope="row">All</th><td class="group" colspan="4"></td>{_count_cells(summary.total)}'
    return markup.table("Requests, decisions and tokens of each tenant", head, rows, foot)


def _more(summary: RunSummary, shown: int) -> str:
    return (
        f" The {count(shown)} busiest of {count(len(summary.tenants))} are shown."
        if len(summary.tenants) > shown
        else ""
    )


def tenants_note(summary: RunSummary) -> str:
    """What the table's columns mean."""
    held = f" + held by requests in flight ({count(summary.total.held_tokens)})" if summary.total.held_tokens else ""
    return (
        "Fullest window: the highest use of an enforced tenant-level token limit in any of its windows. "
        f"Tokens reserved + overdrawn = used + refunded{held}." + _more(summary, MOST_LISTED)
    )


_MARKS: Final = ((1, "some"), (2, "more"), (5, "many"))
"""How many requests turned away in a bucket make which mark; the template's legend names them."""


def tenant_plot(summary: RunSummary, tenant: TenantSummary, index: int) -> str:
    """Tokens in the rolling window against the limit, with marks for requests turned away."""
    axis, peak = markup.axis_of(summary), tenant.peak
    limits = [step.limit for step in tenant.steps if step.limit is not None]
    scale = Scale(max([1, *limits, *tenant.rolling_tokens]) * 1.08)
    content = plot.line(axis, scale, tenant.rolling_tokens, "use") + plot.steps(
        axis, scale, [(step.from_us, step.limit) for step in tenant.steps], "limit"
    )
    window_us = tenant.steps[-1].window_us if tenant.steps else 60_000_000
    name = printable(tenant.tenant)
    if peak is None:
        note, told = "no limit", "no limit"
    else:
        note = f"{percent(peak.share)} of {compact(peak.limit)} at {clock(peak.at_us)}"
        told = f"at most {count(peak.tokens)} of {count(peak.limit)}, at {clock(peak.at_us)} UTC"
    refused, revoked = sum(tenant.refused), sum(tenant.revoked)
    marks = plot.marks(axis, tenant.refused, _MARKS) + plot.marks(axis, tenant.revoked, ((1, "revoke"),), 0.5)
    remarks = ((refused, f"{count(refused)} turned away"), (revoked, f"{count(revoked)} revoked"))
    told_below = f"{count(refused)} requests turned away, {count(revoked)} revoked"
    below = plot.strip(marks, label=f"{name}: {told_below}, over time")
    body = plot.plot(
        axis,
        scale,
        content,
        label=f"{name}: tokens in the rolling window over time against the limit; {told}",
        unit=f"tokens in {duration(window_us)}",
        remark=", ".join(part for number, part in remarks if number),
        below=below,
    )
    return (
        f'<figure class="panel" data-series="t{index}"><figcaption><h3>{markup.name(tenant.tenant)}</h3>'
        f'<span class="note">{escape(note)}</span></figcaption>{body}</figure>'
    )


def rates_note(summary: RunSummary) -> str:
    """What the small plots show."""
    return (
        f"Tokens in the rolling window, the highest of each {duration(summary.bucket_us)}. Marks under the line: "
        "requests turned away (throttled or rejected) and streams revoked in that time." + _more(summary, MOST_PLOTTED)
    )


def limit_series(summary: RunSummary, tenant: TenantSummary) -> list[int | None]:
    """The limit that the plot shows, at the start of each bucket."""
    limits: list[int | None] = []
    for index in range(summary.buckets):
        at_us = summary.start_us + index * summary.bucket_us
        held = [step.limit for step in tenant.steps if step.from_us <= at_us]
        limits.append(held[-1] if held else None)
    return limits
