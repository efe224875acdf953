"""Which decisions differ: classes, sums, examples, files and exit statuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from jobs.ops import diff as diffing
from jobs.ops.diff import diff_decisions
from jobs.ops.diff_command import diff
from jobs.ops.diff_view import print_diff
from jobs.wiring.decision_files import DecisionFileError, write_decisions
from jobs.wiring.decision_reader import read_decisions
from schemas.codec import encode_decisions
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from tests.generated_events import decisions


def decision(number: int, kind: DecisionKind = DecisionKind.ADMIT, **fields: Any) -> Decision:
    return Decision(
        **{
            "decision_id": f"r{number}/0/0",
            "kind": kind,
            "reason": DecisionReason.WITHIN_LIMITS,
            "tenant": "acme",
            "request_id": f"r{number}",
            "attempt": 0,
            "decided_at_us": 1_700_000_000_000_000 + number,
            **fields,
        }
    )


A = [decision(number) for number in range(6)]


def test_equal_repeats_count_once() -> None:
    found = diff_decisions([*A, *A[:3]], A)
    assert found.is_same
    assert (found.decisions_a, found.repeats_a, found.all.same) == (9, 3, 6)


def test_a_change_of_kind_is_a_transition() -> None:
    found = diff_decisions(A, [decision(0, DecisionKind.THROTTLE), *A[1:]])
    (acme,) = found.tenants
    assert acme.transitions == {"admit -> throttle": 1}
    assert acme.changed_fields == {"kind": 1}
    (example,) = acme.examples
    assert (example.kind, example.decision_id, example.fields) == ("changed", "r0/0/0", ("kind",))
    assert example.a is not None
    assert example.a["kind"] == "admit"


def test_a_shadow_decision_is_told_apart_from_one_that_binds() -> None:
    found = diff_decisions(A[:1], [decision(0, mode=DecisionMode.SHADOW)])
    assert found.all.transitions == {"admit -> admit (shadow)": 1}


def test_one_id_for_two_decisions_is_a_fault_of_its_side() -> None:
    found = diff_decisions(A, [*A, replace(A[0], used_tokens=1)])
    assert (found.all.conflicts_a, found.all.conflicts_b, found.all.changed) == (0, 1, 0)
    assert not found.is_same
    assert found.tenants[0].examples[0].kind == "conflict_b"


def test_sides_that_contradict_themselves_alike_are_still_at_fault() -> None:
    both = [*A, replace(A[0], used_tokens=1)]
    assert not diff_decisions(both, both).is_same


def test_settled_tokens_are_summed_by_the_last_settlement_of_a_request() -> None:
    first = decision(0, DecisionKind.SETTLE, decision_id="r0/0/9", used_tokens=5)
    later = decision(0, DecisionKind.SETTLE, decision_id="r0/0/10", used_tokens=7, refunded_tokens=2)
    found = diff_decisions([first, later], [first])
    assert (found.all.settled_a.used_tokens, found.all.settled_b.used_tokens) == (7, 5)
    assert found.all.settled_a.refunded_tokens == 2


def test_examples_are_the_earliest_of_a_tenant() -> None:
    found = diff_decisions(list(reversed(A)), [], examples=2)
    assert [example.decision_id for example in found.tenants[0].examples] == ["r0/0/0", "r1/0/0"]
    assert diff_decisions(A, [], examples=0).tenants[0].examples == []


def test_tenants_that_differ_most_come_first() -> None:
    others = [decision(number, tenant="bloom") for number in range(2)]
    found = diff_decisions([*A, *others], [decision(9, tenant="corex")])
    assert [tenant.tenant for tenant in found.tenants] == ["acme", "bloom", "corex"]


def test_sides_too_large_for_memory_are_compared_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "IN_MEMORY_BYTES", 1)
    many = [decision(number) for number in range(500)]
    found = diff_decisions(many, many[:-1])
    assert (found.all.same, found.all.only_a) == (499, 1)


@pytest.mark.parametrize("field", ["tenant", "no_such_field"])
def test_what_decisions_are_matched_by_can_not_be_ignored(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: not a field that can be ignored"):
        diff_decisions(A, A, ignore=[field])


@pytest.mark.parametrize("field", diffing.COMPARABLE)
def test_every_other_field_can_be_ignored(field: str) -> None:
    value = getattr(decision(0), field)
    others = {
        "kind": DecisionKind.REVOKE,
        "mode": DecisionMode.SHADOW,
        "reason": DecisionReason.FAILED,
        "bound": BoundLimit("tokens", LimitLevel.TENANT, "acme", LimitUnit.TOKENS, 10, 5, 0),
    }
    other = others.get(field, "x" if isinstance(value, str) else b"x" if isinstance(value, bytes) else 77)
    changed = [replace(A[0], **{field: other})]
    assert not diff_decisions(A[:1], changed).is_same
    assert diff_decisions(A[:1], changed, ignore=[field]).is_same


def test_names_from_outside_are_made_printable(tmp_path: Path) -> None:
    console = Console(record=True, width=100, file=(tmp_path / "shown").open("w"))
    print_diff(console, diff_decisions([decision(0, tenant="evil\x1b[2J")], []), "a", "b")
    shown = console.export_text()
    assert "evil" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("tenants", "left"), [(8, None), (9, "1 tenant more"), (12, "4 tenants more")])
def test_examples_that_are_not_shown_are_counted(tenants: int, left: str | None, tmp_path: Path) -> None:
    console = Console(record=True, width=120, file=(tmp_path / "shown").open("w"))
    found = diff_decisions([decision(0, tenant=f"tenant-{number}") for number in range(tenants)], [], examples=1)
    print_diff(console, found, "a", "b")
    shown = console.export_text()
    assert (f"No examples of {left} are shown" in shown) if left else ("No examples" not in shown)


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.parquet"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(decisions, max_size=5))
def test_a_file_of_decisions_reads_as_it_was_written(name: str, some: list[Decision], tmp_path: Path) -> None:
    # A retry at 1970 and none at all are the same in a file.
    write_decisions(tmp_path / name, [encode_decisions(0, some)])
    assert list(read_decisions(tmp_path / name)) == some


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.jsonl", b'{"kind":"maybe"}\n', r"d.jsonl:1: not a decision"),
        ("d.jsonl.gz", b"not gzip", "damaged"),
        ("d.parquet", b"not parquet", "not a file of decisions"),
        ("d.csv", b"", "known are"),
    ],
)
def test_a_file_that_is_none_is_named(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DecisionFileError, match=words):
        list(read_decisions(tmp_path / name))


# --- the command --------------------------------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(diff)
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, side in (("a.jsonl", A), ("b.parquet", [decision(0, DecisionKind.THROTTLE), *A[1:]])):
        write_decisions(tmp_path / name, [encode_decisions(0, side)])
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet")


def test_the_exit_status_is_that_of_diff(files: tuple[str, str]) -> None:
    a, b = files
    assert command(a, a).exit_code == 0
    assert command(a, b).exit_code == 1
    for trouble in ((a, "nothing.jsonl"), (a, "gen:0"), (a, b, "--ignore", "tenant"), (a, b, "--since", "noon")):
        assert command(*trouble).exit_code == 2


def test_the_command_shows_transitions_and_examples(files: tuple[str, str]) -> None:
    shown = command(*files).stdout
    assert "They differ in 1 decisions of 1 tenant: 1 changed" in shown
    assert "admit -> throttle 1" in shown
    assert "kind: admit | throttle" in shown


def test_the_command_prints_json(files: tuple[str, str]) -> None:
    found = json.loads(command(*files, "--json").stdout)
    assert found["same"] is False
    assert found["all"]["transitions"] == {"admit -> throttle": 1}
    assert found["tenants"][0]["examples"][0]["b"]["kind"] == "throttle"
    assert json.loads(command(*files, "--since", str(A[1].decided_at_us), "--json").stdout)["same"] is True
