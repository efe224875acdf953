"""What came of a load, for a terminal."""

from collections.abc import Iterator
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.figures import count, printable
from jobs.ops.load.outcome import LoadOutcome, Percentiles

MOST_TENANTS: Final = 24


def milliseconds(micros: int) -> str:
    """A latency, as precise as it matters.

    >>> milliseconds(850), milliseconds(4_260), milliseconds(77_400), milliseconds(1_234_567)
    ('0.85', '4.26', '77.4', '1,235')
    """
    millis = micros / 1000
    return f"{millis:,.2f}" if millis < 10 else f"{millis:,.1f}" if millis < 1000 else f"{millis:,.0f}"


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _latencies(outcome: LoadOutcome) -> Table:
    table = _table("Milliseconds", "p50", "p90", "p95", "p99", "p99.9", "max")
    rows: list[tuple[str, Percentiles]] = [
        ("decision, since it was due", outcome.latency_from_due_us),
        ("decision, since it was sent", outcome.latency_from_sent_us),
        ("sent after it was due", outcome.send_delay_us),
    ]
    if outcome.overshoot.streams_cut:
        rows.append(("stop, since it was revoked", outcome.overshoot.stop_us))
    for name, found in rows:
        values = (found.p50, found.p90, found.p95, found.p99, found.p999, found.max)
        table.add_row(name, *map(milliseconds, values))
    return table


def _tenants(outcome: LoadOutcome) -> Table:
    table = _table("Tenant", "Admitted", "Throttled", "Rejected", "Revoked")
    for tenant in outcome.tenants[:MOST_TENANTS]:
        counts = (tenant.admitted, tenant.throttled, tenant.rejected, tenant.revoked)
        table.add_row(Text(printable(tenant.tenant, 40)), *map(count, counts))
    return table


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count(number)}" for name, number in counts.items()) or "none"


def _verdict(outcome: LoadOutcome) -> tuple[str, str]:
    if outcome.is_ok:
        ended = "every request that ended" if outcome.open_requests else "every request"
        return f"Nothing lost: {ended} has exactly one final decision.", "green"
    parts = []
    if outcome.missing:
        parts.append(f"{count(outcome.missing)} requests without a final decision")
    if outcome.produce_errors:
        parts.append(f"{count(outcome.produce_errors)} records that the log did not take")
    if outcome.faults:
        parts.append(f"faults: {_counted(outcome.faults)}")
    return f"NOT RIGHT: {'; '.join(parts)}.", "bold red"


def _overshoot(outcome: LoadOutcome) -> Iterator[str]:
    shot = outcome.overshoot
    if shot.revoked:
        yield (
            f"{count(shot.streams_cut)} streams cut; {count(shot.tokens)} tokens flowed after their revocation, "
            f"p50 {count(shot.tokens_each.p50)}, p99 {count(shot.tokens_each.p99)} a request."
        )
    too_late = outcome.decisions.get("revoke", 0) - shot.streams_cut
    if too_late > 0:
        yield f"{count(too_late)} revocations came when their stream had ended; column Revoked counts them too."
    if shot.overdrawn_tokens:
        yield f"Settlements tell of {count(shot.overdrawn_tokens)} tokens beyond what was reserved."


def print_outcome(console: Console, outcome: LoadOutcome) -> None:
    """Print the outcome. Words carry what colours stress."""

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), highlight=False)

    say(f"Load {outcome.run_id}: {count(outcome.requests)} requests in {outcome.seconds:,.1f} s.", "bold")
    own = outcome.decisions_read - outcome.foreign_decisions
    others = f", and {count(outcome.foreign_decisions)} on requests of others" if outcome.foreign_decisions else ""
    say(
        f"{count(outcome.events_sent)} events sent, {count(round(outcome.events_per_second))}/s, in "
        f"{count(outcome.records_sent)} records; {count(own)} decisions read, "
        f"{count(round(own / outcome.seconds))}/s{others}."
    )
    say(f"Decisions: {_counted(outcome.decisions)}.")
    if outcome.shadow_decisions:
        say(f"In shadow: {_counted(outcome.shadow_decisions)}.")
    say(f"Requests ended: {_counted(outcome.outcomes)}.")
    say("")
    console.print(_latencies(outcome))
    if outcome.send_delay_us.p99 > outcome.latency_from_sent_us.p50 > 0:
        say("The load generator itself was late: what counts from when a prompt was due holds its share.", "yellow")
    say("")
    if outcome.tenants:
        console.print(_tenants(outcome))
        if len(outcome.tenants) > MOST_TENANTS:
            say(f"and {count(len(outcome.tenants) - MOST_TENANTS)} tenants more; --json has them.")
        say("")
    for line in _overshoot(outcome):
        say(line)
    if outcome.duplicates:
        say(f"{count(outcome.duplicates)} decisions were delivered again, unchanged: harmless.")
    odd = {
        "late decisions": outcome.late_decisions,
        "decisions on attempts never made": outcome.unknown_decisions,
        "records that are no decisions": outcome.unreadable_records,
        "failed reads": outcome.read_errors,
    }
    if any(odd.values()):
        say(f"Noticed: {_counted({name: number for name, number in odd.items() if number})}.", "yellow")
    if outcome.was_stopped:
        say(f"Stopped before its end, with {count(outcome.open_requests)} requests open.", "yellow")
    say(*_verdict(outcome))
    for example in outcome.fault_examples:
        say(f"  {printable(example, 200)}")
