"""Decisions into files that people and SQL read."""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.wiring.atomic_file import OutputFileError
from jobs.wiring.decision_files import DECISION_SCHEMA, DecisionFileError, write_decisions
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
from schemas.json_lines import decision_of_line
from tests.generated_events import decisions

THROTTLED = Decision(
    decision_id="r-1/0/1",
    kind=DecisionKind.THROTTLE,
    mode=DecisionMode.SHADOW,
    reason=DecisionReason.OVER_LIMIT,
    tenant="acme",
    request_id="r-1",
    attempt=2,
    decided_at_us=1_700_000_000_000_001,
    bound=BoundLimit("per-minute", LimitLevel.API_KEY, "key-1", LimitUnit.TOKENS, 100, 0, 1_700_000_000_000_003),
    retry_at_us=1_700_000_000_000_002,
    policy_id="p-1",
    caused_by=b"\x0a\x0b",
)
SETTLED = Decision(
    decision_id="r-2/0/2",
    kind=DecisionKind.SETTLE,
    reason=DecisionReason.COMPLETED,
    tenant="acme",
    request_id="r-2",
    attempt=0,
    decided_at_us=1_700_000_000_000_004,
    reserved_tokens=10,
    used_tokens=12,
    refunded_tokens=1,
    overdrawn_tokens=3,
)
RECORDS = [encode_decisions(1, [THROTTLED]), encode_decisions(2, []), encode_decisions(3, [SETTLED, THROTTLED])]


def at(microseconds: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000, timezone.utc).replace(microsecond=microseconds)


@pytest.mark.parametrize("name", ["decisions.jsonl", "decisions.ndjson", "decisions.JSON", "decisions.jsonl.gz"])
def test_decisions_as_lines(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert write_decisions(path, RECORDS) == 3
    content = path.read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).splitlines()
    assert [decision_of_line(line) for line in lines] == [THROTTLED, SETTLED, THROTTLED]
    assert json.loads(lines[0])["kind"] == "throttle"


@pytest.mark.parametrize("row_group_rows", [1, 2, 50_000])
def test_decisions_as_columns(row_group_rows: int, tmp_path: Path) -> None:
    path = tmp_path / "decisions.parquet"
    assert write_decisions(path, RECORDS, row_group_rows=row_group_rows) == 3
    table = pq.read_table(str(path))
    assert table.schema.remove_metadata() == DECISION_SCHEMA
    assert pq.ParquetFile(path).num_row_groups == -(-3 // row_group_rows)
    throttled, settled, again = table.to_pylist()
    assert (
        throttled
        == again
        == {
            "decision_id": "r-1/0/1",
            "kind": "throttle",
            "mode": "shadow",
            "reason": "over_limit",
            "tenant": "acme",
            "request_id": "r-1",
            "attempt": 2,
            "decided_at": at(1),
            "bound_name": "per-minute",
            "bound_level": "api_key",
            "bound_subject": "key-1",
            "bound_unit": "tokens",
            "bound_limit": 100,
            "bound_remaining": 0,
            "bound_reset_at": at(3),
            "reserved_tokens": 0,
            "used_tokens": 0,
            "refunded_tokens": 0,
            "overdrawn_tokens": 0,
            "retry_at": at(2),
            "policy_id": "p-1",
            "caused_by": b"\x0a\x0b",
            "trace_id": b"",
        }
    )
    assert settled["kind"] == "settle"
    assert settled["retry_at"] is None
    assert [settled[name] for name in settled if name.startswith("bound_")] == [None] * 7
    assert [settled[f"{name}_tokens"] for name in ("reserved", "used", "refunded", "overdrawn")] == [10, 12, 1, 3]


@given(batch=st.lists(decisions, max_size=5))
def test_any_decision_fits_the_columns(batch: list[Decision], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "decisions.parquet"
    assert write_decisions(path, [encode_decisions(0, batch)]) == len(batch)
    table = pq.read_table(str(path))
    assert table["decision_id"].to_pylist() == [decision.decision_id for decision in batch]
    assert table["bound_remaining"].to_pylist() == [decision.bound and decision.bound.remaining for decision in batch]


@pytest.mark.parametrize("name", ["decisions.jsonl", "decisions.parquet"])
def test_a_file_of_no_decisions(name: str, tmp_path: Path) -> None:
    assert write_decisions(tmp_path / name, []) == 0
    if name.endswith(".parquet"):
        assert pq.read_table(str(tmp_path / name)).num_rows == 0
    else:
        assert (tmp_path / name).read_bytes() == b""


@pytest.mark.parametrize("name", ["", "decisions", "decisions.csv", "decisions.parquet.gz", "parquet"])
def test_a_name_that_tells_no_format_gets_one_clear_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name if name else ""
    with pytest.raises(DecisionFileError, match=r"known are \.parquet, and \.jsonl, \.ndjson, \.json, these with \.gz"):
        write_decisions(path, RECORDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["decisions.jsonl", "decisions.jsonl.gz", "decisions.parquet"])
def test_a_file_is_written_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield RECORDS[0]
        yield b"\xff"

    path = tmp_path / name
    path.write_bytes(b"before")
    with pytest.raises(DecisionFileError, match="record 1 of the decisions: not a DecisionBatch"):
        write_decisions(path, broken(), row_group_rows=1)
    assert path.read_bytes() == b"before"
    assert [left.name for left in tmp_path.iterdir()] == [name]


def test_a_place_that_can_not_be_written_to_gets_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="no such file or directory"):
        write_decisions(tmp_path / "none" / "decisions.parquet", RECORDS)
