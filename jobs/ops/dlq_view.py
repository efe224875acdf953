"""Dead letters for a terminal. Foreign names and details are made printable."""

import json
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jobs.ops.dlq import Group, Letter, Place, Prepared
from jobs.ops.dlq_look import HIDDEN, LetterView
from jobs.ops.figures import count, day_and_time, printable

MOST_ROWS: Final = 24
MOST_HEX_BYTES: Final = 256


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), highlight=False)


def print_groups(console: Console, topic: str, groups: Sequence[Group], unreadable: Sequence[str]) -> None:
    """Print the letters by reason and source."""
    total = sum(group.letters for group in groups)
    _say(console, f"{count(total)} letter{'' if total == 1 else 's'} in {printable(topic)}.", "bold")
    if groups:
        console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("Reason", no_wrap=True)
        table.add_column("Source", overflow="fold")
        for heading in ("Letters", "Replayed"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("First", "Last", "at"):
            table.add_column(heading, no_wrap=True)
        for group in groups[:MOST_ROWS]:
            table.add_row(
                group.reason,
                Text(printable(group.source)),
                count(group.letters),
                count(group.replayed),
                day_and_time(group.first_us),
                day_and_time(group.last_us),
                group.last,
            )
        console.print(table)
        if len(groups) > MOST_ROWS:
            _say(console, f"and {count(len(groups) - MOST_ROWS)} more; --json has them.")
        console.print()
        for group in groups[:MOST_ROWS]:
            _say(console, f"{group.reason}, last: {printable(group.detail, 400)}")
    if unreadable:
        shown = ", ".join(unreadable[:10])
        _say(console, f"{count(len(unreadable))} records are no letters: {shown}.", "yellow")


def print_letter(console: Console, view: LetterView) -> None:
    """Print one letter."""
    _say(console, f"Letter {view.place}, put aside {day_and_time(view.sent_us)} UTC", "bold")
    which = "the whole record" if view.index < 0 else f"event {view.index} of the record"
    _say(console, f"From   {printable(view.source)}, partition {view.partition}, offset {view.offset}: {which}")
    _say(console, f"Why    {view.reason}: {printable(view.detail, 400)}")
    _say(console, f"Bytes  {count(view.payload_bytes)}, BLAKE2b-128 {view.payload_blake2b}")
    console.print()
    _say(console, "Decoded as far as it goes", "bold")
    fields = view.decoded.get("fields")
    if fields is not None:
        _say(console, f"  Not {'an event' if view.is_event else 'a batch of events'}; its fields, up to the damage:")
        for line in fields:
            _say(console, f"  {printable(line, 200)}")
    else:
        text = json.dumps(view.decoded, indent=2, ensure_ascii=False)
        for line in text.splitlines():
            console.print(Padding(Text(printable(line, 400)), (0, 0, 0, 2)), highlight=False)
    console.print()
    if view.payload_hex is None:
        _say(console, f"Payload  {HIDDEN}")
        return
    _say(console, "Payload", "bold")
    for line in _hex_lines(bytes.fromhex(view.payload_hex[: 2 * MOST_HEX_BYTES])):
        _say(console, f"  {line}")
    if view.payload_bytes > MOST_HEX_BYTES:
        _say(console, f"  and {count(view.payload_bytes - MOST_HEX_BYTES)} bytes more; --json has all of them.")


def _hex_lines(data: bytes) -> list[str]:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<47}  {text}")
    return lines


def print_plan(
    console: Console,
    plan: Sequence[Prepared],
    done: Sequence[Letter],
    missing: Sequence[Place],
    *,
    sent: int | None,
    force: bool,
    topic: str,
) -> None:
    """Print what was put back, or with `sent` None what would be."""
    going = [one for one in plan if force or not one.problem]
    if sent is None:
        _say(console, f"{_letters(len(going))} would go back to {printable(topic)}; --yes does it.", "bold")
    else:
        _say(console, f"{_letters(sent)} went back to {printable(topic)}.", "bold green")
    if done:
        _say(console, f"{count(len(done))} went back before, and are left as they are; --again sends them again.")
    if missing:
        _say(console, f"Not there: {', '.join(map(str, missing[:10]))}.", "yellow")
    if plan:
        console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for heading in ("Letter", "From", "Reason", "Shard"):
            table.add_column(heading, no_wrap=True)
        table.add_column("Bytes", justify="right", no_wrap=True)
        table.add_column("", overflow="fold")
        for one in plan[:MOST_ROWS]:
            letter = one.letter.letter
            index = "" if letter.index < 0 else f", event {letter.index}"
            left_out = "forced, though " if force else "left out: "
            table.add_row(
                str(one.letter.place),
                f"{letter.partition}:{letter.offset}{index}",
                letter.reason.name.lower(),
                "?" if one.shard is None else str(one.shard),
                count(len(one.record)),
                Text(f"{left_out}{printable(one.problem, 200)}" if one.problem else "", style="yellow"),
            )
        console.print(table)
        if len(plan) > MOST_ROWS:
            _say(console, f"and {count(len(plan) - MOST_ROWS)} more; --json has them.")
    left = len(plan) - len(going)
    if left:
        console.print()
        _say(
            console,
            f"{count(left)} would fail again and are left out: repair one with --payload, or send them with --force.",
            "yellow",
        )


def _letters(number: int) -> str:
    return f"{count(number)} letter{'' if number == 1 else 's'}"
