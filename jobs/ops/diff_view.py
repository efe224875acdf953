"""A comparison of decisions, for a terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.diff import DecisionDiff, Example, TenantDiff
from jobs.ops.figures import count, printable

MOST_ROWS = 24
MOST_TENANTS_IN_EXAMPLES = 8
_WHAT = {
    "only_a": "only in A",
    "only_b": "only in B",
    "changed": "changed",
    "conflict_a": "A contradicts itself",
    "conflict_b": "B contradicts itself",
}


def print_diff(console: Console, found: DecisionDiff, a: str, b: str) -> None:
    """Print a comparison of `a` and `b`."""
    total = found.all

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), highlight=False)

    say(f"A  {printable(a, 400)}: {count(found.decisions_a)} decisions{_repeats(found.repeats_a)}")
    say(f"B  {printable(b, 400)}: {count(found.decisions_b)} decisions{_repeats(found.repeats_b)}")
    if found.is_same:
        say(f"They decide the same: {count(total.same)} decisions of {_tenants(found.same_tenants)}.", "green")
        return
    say(
        f"They differ in {count(total.differences)} decisions of {_tenants(len(found.tenants))}: "
        f"{count(total.changed)} changed, {count(total.only_a)} only in A, {count(total.only_b)} only in B; "
        f"{count(total.same)} are the same.",
        "bold",
    )
    if total.conflicts:
        say(
            f"{count(total.conflicts_a)} ids in A and {count(total.conflicts_b)} in B stand for several decisions, "
            "which is a fault of that side.",
            "bold red",
        )
    console.print()
    console.print(_table(found))
    for title, numbers in (
        ("Changed", total.transitions),
        ("Fields that changed", total.changed_fields),
        ("Only in A", total.only_a_kinds),
        ("Only in B", total.only_b_kinds),
    ):
        if numbers:
            parts = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
            say(f"{title}: " + ", ".join(f"{name} {count(number)}" for name, number in parts) + ".")
    _print_examples(console, found.tenants)


def _repeats(number: int) -> str:
    return f", {count(number)} of them equal repeats" if number else ""


def _tenants(number: int) -> str:
    return f"{count(number)} tenant{'' if number == 1 else 's'}"


def _table(found: DecisionDiff) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), show_footer=True)
    table.add_column("Tenant", footer="all", no_wrap=True, overflow="ellipsis", max_width=24)
    rows = found.tenants[:MOST_ROWS]
    for heading, footer in zip(
        ("Same", "Changed", "Only A", "Only B", "Conflicts", "Used A", "Used B", "B - A"),
        _cells(found.all),
        strict=True,
    ):
        table.add_column(heading, footer=footer, justify="right", no_wrap=True)
    for tenant in rows:
        table.add_row(Text(printable(tenant.tenant)), *_cells(tenant))
    if len(found.tenants) > MOST_ROWS:
        table.add_row(Text(f"and {count(len(found.tenants) - MOST_ROWS)} more", style="dim"))
    return table


def _cells(tenant: TenantDiff) -> list[str]:
    used_a, used_b = tenant.settled_a.used_tokens, tenant.settled_b.used_tokens
    return [
        *map(count, (tenant.same, tenant.changed, tenant.only_a, tenant.only_b, tenant.conflicts, used_a, used_b)),
        f"{used_b - used_a:+,}",
    ]


def _print_examples(console: Console, tenants: list[TenantDiff]) -> None:
    left = sum(bool(tenant.examples) for tenant in tenants[MOST_TENANTS_IN_EXAMPLES:])
    for tenant in tenants[:MOST_TENANTS_IN_EXAMPLES]:
        if tenant.examples:
            console.print()
            console.print(Text(printable(tenant.tenant), style="bold"))
        for example in tenant.examples:
            console.print(Text(f"  {printable(example.decision_id)}: {_WHAT[example.kind]}"), highlight=False)
            for line in _lines(example):
                console.print(Text(f"    {line}"), highlight=False)
    if left:
        more = f"No examples of {_tenants(left)} more are shown: headrace diff --tenant NAME shows those of one."
        console.print()
        console.print(Text(more), highlight=False)


def _lines(example: Example) -> list[str]:
    if example.a is not None and example.b is not None:
        return [
            f"{name}: {_value(name, example.a.get(name))} | {_value(name, example.b.get(name))}"
            for name in example.fields
        ]
    one: dict[str, Any] = example.a or example.b or {}
    shown = ("kind", "mode", "reason", "reserved_tokens", "used_tokens", "policy_id")
    return [", ".join(f"{name} {_value(name, one[name])}" for name in shown if name in one)]


def _value(name: str, value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, dict):
        return printable(", ".join(f"{name} {part}" for name, part in value.items()), 200)
    # A time is a number to be copied, a count one to be read.
    is_count = isinstance(value, int) and not name.endswith("_us")
    return printable(f"{value:,}" if is_count else str(value), 200)
