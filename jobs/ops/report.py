"""The run as one HTML file that needs nothing else: no network, no fonts, no libraries.

The same summary gives the same bytes. All that comes from data is escaped, and the page's own content security policy
allows no script but the one in the template, by its hash.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

import msgspec

from jobs.ops import markup, report_run, report_tenants
from jobs.ops.figures import clock, compact, count, day_and_time, duration, percent, printable
from jobs.ops.report_run import STACK
from jobs.ops.report_tenants import MOST_PLOTTED
from jobs.ops.summary import RunSummary
from jobs.ops.verdict import verdict_of

HOW_TO_READ: Final = (
    "A limit of tokens per window counts every prompt and completion token at the event time at which it was "
    "processed, and at no moment may more than the limit stand within one window back from it. "
    "The line of a tenant is the most that stood in the window at any moment of each bucket, counted from the log "
    "without the limiter's own books, so a line that stays at or below the dashed limit shows that the limit held. "
    "The marks under it are requests turned away: most stand where the line is near the limit, others elsewhere, "
    "because a request must also fit what running requests have reserved, and every other limit that applies to it."
)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the events come from, as the report states it. `seed` None: nothing was drawn."""

    trace: str
    licence: str
    citation: str
    spreading: str
    seed: int | None
    version: str


def _share_of(part: int, whole: int) -> str:
    return percent(part / whole) + " of requests" if whole else ""


def _stats(summary: RunSummary) -> str:
    total, job = summary.total, summary.job
    peaks = [tenant for tenant in summary.tenants if tenant.peak is not None]
    nearest = max(peaks, key=lambda tenant: tenant.peak.share if tenant.peak else 0.0, default=None)
    figures = [
        ("Requests", count(total.requests), f"{count(len(summary.tenants))} tenants"),
        ("Admitted", count(total.admitted), _share_of(total.admitted, total.requests)),
        (
            "Turned away",
            count(total.throttled + total.rejected),
            f"{count(total.throttled)} throttled, {count(total.rejected)} rejected",
        ),
        ("Revoked", count(total.revoked), "streams cut while they ran"),
        ("Tokens used", compact(total.used_tokens), f"{count(total.used_tokens)} settled"),
        ("Tokens refunded", compact(total.refunded_tokens), "reserved and not used"),
    ]
    if nearest is not None and nearest.peak is not None:
        figures.append(("Fullest window", percent(nearest.peak.share), f"of its limit, {printable(nearest.tenant)}"))
    figures.append(
        ("Events/s", compact(job.events_per_second), f"{count(job.events)} in {duration(job.wall_seconds * 1e6)}")
    )
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in figures
    )


def _verdict(summary: RunSummary) -> str:
    held, sentence = verdict_of(summary)
    return f'<p class="verdict{"" if held else " over"}">{escape(sentence)}</p>'


def _provenance(origin: Origin) -> str:
    facts = [("Trace", origin.trace), ("Licence", origin.licence), ("Citation", origin.citation)]
    facts.append(("Spreading", origin.spreading))
    if origin.seed is not None:
        facts.append(("Seed", str(origin.seed)))
    facts.append(("Version", f"headrace {origin.version}"))
    return markup.facts(facts)


def _series(summary: RunSummary) -> str:
    figures: dict[str, list[tuple[str, Sequence[float | None], str]]] = {
        "decisions": [(kind, summary.decisions[kind], "") for kind in reversed(STACK)],
        "delta": [
            ("delta", [None if value is None else round(value, 1) for value in report_run.delta_ms(summary)], " ms")
        ],
        "late": [("late", report_run.late_percent(summary), " %")],
    }
    for index, tenant in enumerate(summary.tenants[:MOST_PLOTTED]):
        turned_away = [a + b for a, b in zip(tenant.refused, tenant.revoked, strict=True)]
        figures[f"t{index}"] = [
            ("in the window", tenant.rolling_tokens, " tokens"),
            ("limit", report_tenants.limit_series(summary, tenant), " tokens"),
            ("turned away or cut", turned_away, ""),
        ]
    data = {
        "start_ms": summary.start_us // 1000,
        "bucket_ms": summary.bucket_us // 1000,
        "buckets": summary.buckets,
        "figures": figures,
    }
    # "<" can't end the element that it stands in.
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def render(summary: RunSummary, origin: Origin) -> str:
    """The report as HTML."""
    template = files("jobs.ops").joinpath("report_template.html").read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)[-1]
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    plotted = summary.tenants[:MOST_PLOTTED]
    total = summary.total
    tenants = f"{count(len(summary.tenants))} tenant{'' if len(summary.tenants) == 1 else 's'}"
    span = duration(summary.end_us - summary.start_us)
    return Template(template).substitute(
        script_hash=f"sha256-{digest}",
        title=escape(f"Headrace: {origin.trace}"),
        headline=escape(f"{count(total.requests)} requests of {tenants}, governed over {span}"),
        subline=escape(f"{origin.trace}, {day_and_time(summary.start_us)} to {clock(summary.end_us)[:5]} UTC"),
        verdict=_verdict(summary),
        stats=_stats(summary),
        tenants_note=escape(report_tenants.tenants_note(summary)),
        tenant_table=report_tenants.tenant_table(summary),
        rates_note=escape(report_tenants.rates_note(summary)),
        tenant_plots="".join(
            report_tenants.tenant_plot(summary, tenant, index) for index, tenant in enumerate(plotted)
        ),
        decision_plot=report_run.decision_plot(summary),
        watermark_plots=report_run.watermark_plots(summary),
        lateness_table=report_run.lateness_table(summary.job),
        oddities=report_run.oddities(summary.job),
        how_to_read=escape(HOW_TO_READ),
        provenance=_provenance(origin),
        series=_series(summary),
    )
