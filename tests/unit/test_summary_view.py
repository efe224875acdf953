"""The summary in a terminal: whole at 80 columns, nothing lost without colour, foreign names harmless."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from jobs.ops.summary import JobFacts, RunSummary
from jobs.ops.summary_view import MOST_ROWS, print_summary
from tests.unit.test_report import run, tenant

OUTPUTS = [("Decisions", "out/demo/decisions"), ("Report", "out/demo/" + "deep/" * 30 + "report.html")]


def printed(summary: RunSummary, width: int = 80, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    print_summary(console, summary, OUTPUTS)
    return stream.getvalue()


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("Report")]


def large(summary: RunSummary) -> RunSummary:
    """Figures with as many digits as a day of a large site has."""
    total = msgspec.structs.replace(
        summary.total, requests=12_345_678, admitted=11_111_111, throttled=1_234_567, rejected=99_999,
        revoked=88_888, used_tokens=123_456_789_012, refunded_tokens=98_765_432_109, overdrawn_tokens=1_234_567,
    )  # fmt: skip
    return msgspec.structs.replace(summary, total=total)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(len, lines_of(printed(run(tenant("acme")), width)))) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_are_never_cut(width: int) -> None:
    text = printed(large(run(tenant("acme"))), width)
    assert "\u2026" not in text
    assert "11,111,111" in text
    assert max(map(len, lines_of(text))) <= width


def test_a_long_name_gives_way() -> None:
    text = printed(run(tenant("a-tenant-with-a-very-long-name-" * 3)))
    row = next(line for line in text.splitlines() if line.startswith("a-tenant"))
    assert "\u2026" in row
    assert row.rstrip().endswith("90.0 % of 1k")


def test_says_what_was_governed_and_how_fast() -> None:
    text = printed(run(tenant("acme"), tenant("bolt")))
    assert text.startswith("Governed 10 requests of 2 tenants.\n300 events in 1.5 s: 200 events/s")


def test_a_narrow_table_gains_a_column_for_rejections_when_there_are_any() -> None:
    summary = run(tenant("acme"))
    assert "Rejected" not in printed(summary)
    assert "Rejected" in printed(large(summary))
    assert "Rejected" in printed(summary, 120)


def test_a_limit_that_did_not_hold_is_said_in_words() -> None:
    text = printed(run(tenant("acme", tokens=1100), tenant("bolt")))
    assert "OVER 110.0 % of 1k" in text
    assert "1 of 2 limited tenants went beyond a token limit." in text


def test_a_pipe_gets_no_escapes_and_a_terminal_gets_the_same_words() -> None:
    summary = run(tenant("acme"))
    plain, coloured = printed(summary), printed(summary, terminal=True)
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    stripped = "".join(part.partition("m")[2] if index else part for index, part in enumerate(coloured.split("\x1b[")))
    assert stripped == plain


@pytest.mark.parametrize("name", ["[red]x[/red]", "x\x1b[2J", "x\r\ny", "\u202ex"])
def test_a_foreign_name_changes_nothing_but_its_cell(name: str) -> None:
    text = printed(run(tenant(name)))
    shown = "".join(char if char.isprintable() else "\ufffd" for char in name)
    assert any(line.startswith(shown) for line in text.splitlines())
    assert len(text.splitlines()) == len(printed(run(tenant("acme"))).splitlines())


def test_dead_letters_and_anomalies_are_there_if_any() -> None:
    text = printed(run(tenant("acme")))
    assert "Dead letters, 2 in all: malformed 2." in text
    assert "Noticed: behind clock 9, void 7." in text
    calm = printed(run(tenant("acme"), job=JobFacts(events=1, wall_seconds=1.0, events_per_second=1.0)))
    assert "Dead letters" not in calm
    assert "Noticed" not in calm


def test_watermark_and_lateness() -> None:
    text = " ".join(printed(run(tenant("acme"))).split())
    assert (
        "Watermark of gateway-1: delta 900 ms; lateness p50 0 ms, p99 900 ms, highest 2 s; 1.0 % of events late."
        in text
    )


def test_of_many_sources_the_latest_are_shown() -> None:
    (one,) = run(tenant("acme")).job.lateness
    sources = tuple(msgspec.structs.replace(one, source=f"g{number}", p99_us=number) for number in range(5))
    summary = run(tenant("acme"))
    text = printed(msgspec.structs.replace(summary, job=msgspec.structs.replace(summary.job, lateness=sources)))
    assert [name in text for name in ("g4:", "g3:", "g2:", "g1:")] == [True, True, True, False]
    assert "The other 2 sources were less late." in text


def test_of_many_tenants_the_busiest_are_shown() -> None:
    text = printed(run(*(tenant(f"t{number:03d}") for number in range(100))))
    assert f"t{MOST_ROWS - 1:03d}" in text
    assert f"t{MOST_ROWS:03d}" not in text
    assert f"and {100 - MOST_ROWS} tenants more" in text


def test_paths_stay_whole() -> None:
    text = printed(run(tenant("acme")))
    for _, path in OUTPUTS:
        assert any(line.endswith(path) for line in text.splitlines())


def test_an_empty_run_has_a_summary() -> None:
    job = JobFacts(events=0, wall_seconds=0.0, events_per_second=0.0)
    assert printed(run(buckets=1, job=job)).startswith("Governed 0 requests of 0 tenants.")
