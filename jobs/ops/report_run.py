"""The run's part of the report: decisions of all tenants, lateness and watermark, odd input."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from jobs.ops import markup, plot
from jobs.ops.figures import count, duration, percent
from jobs.ops.plot import Scale
from jobs.ops.summary import JobFacts, RunSummary
from udfs.domain.anomaly import Anomaly

MOST_SOURCES: Final = 500

STACK: Final = ("admit", "extend", "throttle", "reject", "revoke")
"""Kinds of decision, from the foot of the stack."""

ANOMALY_MEANINGS: Final = {
    Anomaly.DUPLICATE: "seen before, or a chunk overtaken by a later one",
    Anomaly.EARLY_TOKENS: "tokens that reached the log before their prompt",
    Anomaly.AFTER_END: "events of requests already settled",
    Anomaly.VOID: "recorded events of requests that the limits refused or cut: taken as not having happened",
    Anomaly.UNKNOWN_REQUEST: "ends of requests whose prompt was not seen before",
    Anomaly.IMPLAUSIBLE_COUNT: "token counts that are negative or absurdly large",
    Anomaly.RESUMED: "requests settled for their silence that spoke again",
    Anomaly.OVERDRAWN: "tokens generated beyond what was granted",
    Anomaly.WRITTEN_OFF: "overdrawn tokens beyond what a limit carries as debt",
    Anomaly.SUBJECTS_FULL: "keys, users or models beyond the number followed",
    Anomaly.LATE: "events behind their source's watermark",
    Anomaly.UNCHECKED: "events older than the ids that are remembered",
}

COUNTER_MEANINGS: Final = {
    "behind_clock": "events older than their tenant's clock, decided at the clock",
    "watermark_ahead": "watermarks too far ahead to be believed alone",
    "clock_ahead": "event times too far ahead of the watermark, decided at the bound",
    "keys_expired": "tenants forgotten after a long silence",
}
"""Of the fold's own counters, those that speak of odd input."""


def decision_plot(summary: RunSummary) -> str:
    """Bars of all tenants' decisions, stacked by kind."""
    axis = markup.axis_of(summary)
    series = [(kind, summary.decisions[kind]) for kind in STACK]
    highest = max(map(sum, zip(*(values for _, values in series), strict=True)), default=0)
    scale = Scale(max(highest, 1) * 1.05)
    totals = ", ".join(f"{kind} {count(sum(values))}" for kind, values in series)
    body = plot.plot(
        axis,
        scale,
        plot.stacked(axis, scale, series),
        label=f"Decisions over time, stacked by kind: {totals}",
        unit=f"decisions per {duration(summary.bucket_us)}",
        size="tall",
    )
    legend = "".join(
        f'<li><span class="key {kind}"></span>{kind} <b>{count(sum(values))}</b></li>' for kind, values in series
    )
    return f'<figure class="panel wide" data-series="decisions"><ul class="legend">{legend}</ul>{body}</figure>'


def _bucketed(summary: RunSummary, values: Callable[[JobFacts], Iterable[tuple[int, float]]]) -> list[float | None]:
    """The highest value of each bucket; None where there is no point."""
    series: list[float | None] = [None] * summary.buckets
    for at_us, value in values(summary.job):
        index = min(max((at_us - summary.start_us) // summary.bucket_us, 0), summary.buckets - 1)
        series[index] = max(series[index] or 0.0, value)
    return series


def _held(series: Sequence[float | None]) -> list[float | None]:
    """A value that holds until the next one."""
    held: list[float | None] = []
    for value in series:
        held.append(value if value is not None or not held else held[-1])
    return held


def delta_ms(summary: RunSummary) -> list[float | None]:
    """Delta of the watermark in each bucket, in milliseconds; None before there is one."""
    points = _bucketed(summary, lambda job: ((point.event_time_us, point.delta_us / 1000) for point in job.watermark))
    return _held(points)


def late_percent(summary: RunSummary) -> list[float | None]:
    """Share of late events in each bucket, in percent; None where it was not noted."""
    points = _bucketed(summary, lambda job: ((point.event_time_us, point.late_share * 100) for point in job.watermark))
    return [None if value is None else round(value, 2) for value in points]


def watermark_plots(summary: RunSummary) -> str:
    """Delta and lateness over time, one plot each: they have different units."""
    if not summary.job.watermark:
        return '<p class="note">No watermark was recorded.</p>'
    axis = markup.axis_of(summary)
    delta, late = delta_ms(summary), late_percent(summary)
    known = [value for value in delta if value is not None]
    in_seconds = max(known) >= 1000
    unit, size = ("s", 1000.0) if in_seconds else ("ms", 1.0)
    points = [
        (axis.start_us + index * axis.bucket_us, None if value is None else value / size)
        for index, value in enumerate(delta)
    ]
    scale = Scale(max(known) / size * 1.08 or 1.0)
    first = plot.plot(
        axis,
        scale,
        plot.steps(axis, scale, points, "delta"),
        label=f"Delta of the watermark over time, from {min(known):,.0f} to {max(known):,.0f} ms",
        unit=f"delta, {unit}",
        size="low",
    )
    shares = [value or 0.0 for value in late]
    scale = Scale(max([*shares, 0.1]) * 1.08)
    second = plot.plot(
        axis,
        scale,
        plot.bars(axis, scale, shares, "late"),
        label=f"Share of late events over time, at most {max(shares):.1f} %",
        unit="late events, %",
        size="low",
    )
    return (
        f'<figure class="panel wide" data-series="delta">{first}</figure>'
        f'<figure class="panel wide" data-series="late">{second}</figure>'
    )


def lateness_table(job: JobFacts) -> str:
    """A row for each source."""
    if not job.lateness:
        return ""
    rows = (
        f'<th scope="row">{markup.name(source.source)}</th>'
        + markup.cell(source.events)
        + markup.cell(source.late_events)
        + f"<td>{percent(source.late_events / source.events) if source.events else '0.0 %'}</td>"
        + "".join(
            f"<td>{duration(micros)}</td>"
            for micros in (source.p50_us, source.p95_us, source.p99_us, source.max_lateness_us, source.delta_us)
        )
        + markup.cell(source.ahead_count)
        + markup.cell(source.behind_count)
        for source in job.lateness[:MOST_SOURCES]
    )
    head = markup.heads(
        "Source", "Events", "Late", "Late share", "Lateness p50", "p95", "p99", "Highest", "Delta at the end",
        "Clock ahead", "Clock behind",
    )  # fmt: skip
    return markup.table("Lateness and watermark of each source", head, rows)


def oddities(job: JobFacts) -> str:
    """Dead letters and anomalies with what they mean; nothing where there are none."""
    if not job.dead_letters and not job.anomalies:
        return ""
    meanings = COUNTER_MEANINGS | {anomaly.value: meaning for anomaly, meaning in ANOMALY_MEANINGS.items()}
    odd = [
        (
            f"dead letter: {reason.lower().replace('_', ' ')}",
            number,
            "could not be read or decided; kept with its place and reason",
        )
        for reason, number in sorted(job.dead_letters.items())
    ]
    odd += [
        (name.replace("_", " "), number, meanings.get(name, ""))
        for name, number in sorted(job.anomalies.items(), key=lambda item: (-item[1], item[0]))
    ]
    rows = (
        f'<th scope="row">{markup.name(kind)}</th>{markup.cell(number)}<td class="words">{meaning}</td>'
        for kind, number, meaning in odd
    )
    head = '<tr><th scope="col">Kind</th><th scope="col">Events</th><th scope="col" class="text">Meaning</th></tr>'
    return (
        '<section aria-labelledby="oddities"><h2 id="oddities">Odd input</h2>'
        '<p class="note">Nothing is dropped in silence: what was noticed and counted on the way.</p>'
        f"{markup.table('Dead letters and anomalies', head, rows)}</section>"
    )
