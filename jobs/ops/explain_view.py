"""An explanation for a terminal: each step with its time, the limits as they stood, and sentences."""

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jobs.ops.explain_words import time_words, words_of
from jobs.ops.explanation import Explanation, LimitSeen, Step
from jobs.ops.figures import count, day_and_time, printable
from schemas.decisions import DecisionKind

_STYLES = {
    DecisionKind.ADMIT: "green",
    DecisionKind.EXTEND: "green",
    DecisionKind.THROTTLE: "yellow",
    DecisionKind.REJECT: "red",
    DecisionKind.REVOKE: "red",
}


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Print all steps."""
    first = explanation.steps[0].at_us if explanation.steps else 0
    request, tenant = printable(explanation.request_id), printable(explanation.tenant)
    console.print(Text(f"Request {request} of tenant {tenant}, from {day_and_time(first)} UTC", style="bold"))
    for warning in explanation.warnings:
        console.print(Text(f"Beware: {warning}.", style="yellow"))
    has_attempts = len({step.attempt for step in explanation.steps}) > 1
    for step, words in zip(explanation.steps, words_of(explanation), strict=True):
        console.print()
        console.print(_title(step, has_attempts=has_attempts), highlight=False)
        for line in words:
            console.print(Padding(Text(line), (0, 0, 0, 2)), highlight=False)
        if step.limits:
            console.print(_limits(step.limits))
    if explanation.is_running:
        console.print()
        console.print(Text("The log ends while the request is still running."))


def _title(step: Step, *, has_attempts: bool) -> Text:
    what = step.kind.replace("_", " ")
    if step.events > 1:
        what = f"{count(step.events)} times {what}, to {time_words(step.until_us)}"
    facts = ", ".join(f"{name} {printable(str(value))}" for name, value in step.facts.items())
    attempt = f" (attempt {step.attempt})" if has_attempts else ""
    style = next((_STYLES[decision.kind] for decision in step.decisions if decision.kind in _STYLES), "")
    return Text.assemble(
        (time_words(step.at_us), "bold"),
        "  ",
        (f"{what}{attempt}", f"bold {style}".strip()),
        (f"  {facts}" if facts else "", "dim"),
        (f"  policy {printable(step.policy)}", "dim"),
    )


def _limits(limits: list[LimitSeen]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    # The name gives way where there is too little room, never a number.
    table.add_column("  Limit", overflow="fold")
    for heading in ("Used", "Reserved", "Debt", "Of", "Left", "Asked", "Then left"):
        table.add_column(heading, justify="right", no_wrap=True)
    for seen in limits:
        subject = "others" if seen.is_shared else seen.subject
        shadow = " (shadow)" if seen.mode == "shadow" else ""
        table.add_row(
            Text(f"  {printable(seen.name)}: {printable(subject)}{shadow}", style="bold" if seen.short else ""),
            count(seen.used),
            count(seen.reserved),
            count(seen.debt),
            count(seen.limit),
            Text(count(seen.left), style="red" if seen.short else ""),
            count(seen.asked) if seen.asked else "",
            "" if seen.left_after is None else count(seen.left_after),
        )
    return table
