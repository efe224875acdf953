"""The pieces of HTML that the sections of the report share. Foreign names are made printable and escaped here."""

from collections.abc import Iterable
from html import escape

from jobs.ops.figures import count, printable
from jobs.ops.plot import TimeAxis
from jobs.ops.summary import RunSummary


def name(foreign: str) -> str:
    """A tenant or source as it may stand in the page."""
    return escape(printable(foreign)) or "(empty)"


def cell(number: int, group: str = "") -> str:
    """A cell with a count; a zero is subdued."""
    css = " ".join(filter(None, (group, "" if number else "zero")))
    return f'<td class="{css}">{count(number)}</td>' if css else f"<td>{count(number)}</td>"


def axis_of(summary: RunSummary) -> TimeAxis:
    """The time axis of all plots."""
    return TimeAxis(summary.start_us, summary.bucket_us, summary.buckets)


def table(caption: str, head: str, rows: Iterable[str], foot: str = "") -> str:
    """A table in a box that scrolls sideways."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    foot = f"<tfoot><tr>{foot}</tr></tfoot>" if foot else ""
    # A region that scrolls can be reached with the keyboard and has a name.
    title = escape(caption)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{title}"><table><caption>{title}</caption>'
        f"<thead>{head}</thead><tbody>{body}</tbody>{foot}</table></div>"
    )


def heads(*names: str) -> str:
    """One row of column headers."""
    return "<tr>" + "".join(f'<th scope="col">{escape(head)}</th>' for head in names) + "</tr>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Terms and what they are, for a description list."""
    return "".join(f"<dt>{escape(term)}</dt><dd>{escape(value)}</dd>" for term, value in pairs)
