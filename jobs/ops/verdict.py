"""Whether the limits held, in one sentence that the terminal and the report share."""

from typing import NamedTuple

from jobs.ops.figures import count
from jobs.ops.summary import RunSummary


class Verdict(NamedTuple):
    """`held`: every token limit held, and the events bear out what the limiter settled."""

    held: bool
    sentence: str


def verdict_of(summary: RunSummary) -> Verdict:
    """Judge a run by what was counted from its events."""
    limited = [tenant for tenant in summary.tenants if tenant.peak is not None]
    over = summary.tenants_over
    if not limited:
        sentence = "No tenant has an enforced token limit of its own."
    elif over:
        sentence = f"{count(len(over))} of {count(len(limited))} limited tenants went beyond a token limit."
    elif len(limited) == 1:
        sentence = "The one limited tenant stayed within its token limits in every window."
    else:
        sentence = f"All {count(len(limited))} limited tenants stayed within their token limits in every window."
    wrong = summary.total.unreconciled
    if wrong:
        of = "1 settled request the events tell" if wrong == 1 else f"{count(wrong)} settled requests the events tell"
        sentence += f" Of {of} another number of tokens."
    return Verdict(not over and not wrong, sentence)
