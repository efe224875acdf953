"""Decisions into files: JSON lines or Parquet, whole files or none.

Columns in Parquet are the fields of schemas.decisions.Decision, with times as timestamps (`decided_at`, `retry_at`,
null where there is none), enums as their lower-case names in a dictionary, the bound limit as columns that start with
`bound_`, null where no limit was looked at.
"""

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.wiring.atomic_file import replacing
from schemas.codec import decode_decisions
from schemas.decisions import Decision
from schemas.json_lines import decision_line

ROW_GROUP_ROWS: Final = 50_000
"""Decisions that are held in memory at a time."""

_JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_PARQUET_SUFFIX: Final = ".parquet"


class DecisionFileError(ValueError):
    """A decision file that can't be written; the message is one line and names the file."""


_TIME: Final = pa.timestamp("us", tz="UTC")
_NAME: Final = pa.dictionary(pa.int32(), pa.string())

_COLUMNS: Final[tuple[tuple[str, Any, Callable[[Decision], object]], ...]] = (
    ("decision_id", pa.string(), lambda it: it.decision_id),
    ("kind", _NAME, lambda it: it.kind.name.lower()),
    ("mode", _NAME, lambda it: it.mode.name.lower()),
    ("reason", _NAME, lambda it: it.reason.name.lower()),
    ("tenant", pa.string(), lambda it: it.tenant),
    ("request_id", pa.string(), lambda it: it.request_id),
    ("attempt", pa.uint32(), lambda it: it.attempt),
    ("decided_at", _TIME, lambda it: it.decided_at_us),
    ("bound_name", pa.string(), lambda it: it.bound and it.bound.name),
    ("bound_level", _NAME, lambda it: it.bound and it.bound.level.name.lower()),
    ("bound_subject", pa.string(), lambda it: it.bound and it.bound.subject),
    ("bound_unit", _NAME, lambda it: it.bound and it.bound.unit.name.lower()),
    ("bound_limit", pa.int64(), lambda it: it.bound and it.bound.limit),
    ("bound_remaining", pa.int64(), lambda it: it.bound and it.bound.remaining),
    ("bound_reset_at", _TIME, lambda it: it.bound and it.bound.reset_at_us),
    ("reserved_tokens", pa.int64(), lambda it: it.reserved_tokens),
    ("used_tokens", pa.int64(), lambda it: it.used_tokens),
    ("refunded_tokens", pa.int64(), lambda it: it.refunded_tokens),
    ("overdrawn_tokens", pa.int64(), lambda it: it.overdrawn_tokens),
    ("retry_at", _TIME, lambda it: it.retry_at_us or None),
    ("policy_id", pa.string(), lambda it: it.policy_id),
    ("caused_by", pa.binary(), lambda it: it.caused_by),
    ("trace_id", pa.binary(), lambda it: it.trace_id),
)

DECISION_SCHEMA: Final = pa.schema([pa.field(name, kind) for name, kind, _ in _COLUMNS])
"""The columns of a Parquet file of decisions: a contract with whoever queries it."""


def write_decisions(
    path: str | PathLike[str], records: Iterable[bytes], *, row_group_rows: int = ROW_GROUP_ROWS
) -> int:
    """Write the decisions of DecisionBatch `records`, in their order, and return how many.

    The name tells the format: .parquet, or .jsonl, .ndjson or .json, the latter with .gz too. Raises DecisionFileError
    for another name or a record that is no DecisionBatch, OutputFileError where the file can't be written; then `path`
    is as it was.
    """
    file = Path(path)
    is_gzip = file.suffix.lower() == ".gz"
    suffix = (file.with_suffix("") if is_gzip else file).suffix.lower()
    decisions = _decisions(file, records)
    if suffix in _JSON_SUFFIXES:
        with replacing(file, gzip=is_gzip) as out:
            return _write_lines(out, decisions)
    if suffix == _PARQUET_SUFFIX and not is_gzip:
        with replacing(file) as out:
            return _write_parquet(out, decisions, row_group_rows)
    raise DecisionFileError(
        f"{path}: the name tells no format for decisions; known are {_PARQUET_SUFFIX}, and "
        f"{', '.join(_JSON_SUFFIXES)}, these with .gz or without"
    )


def _decisions(file: Path, records: Iterable[bytes]) -> Iterator[Decision]:
    for number, record in enumerate(records):
        try:
            yield from decode_decisions(record)
        except ValueError as error:
            raise DecisionFileError(f"{file}: record {number} of the decisions: {error}") from error


def _write_lines(out: BinaryIO, decisions: Iterable[Decision]) -> int:
    written = 0
    for decision in decisions:
        out.write(decision_line(decision) + b"\n")
        written += 1
    return written


def _write_parquet(out: Any, decisions: Iterator[Decision], row_group_rows: int) -> int:
    written = 0
    with pq.ParquetWriter(out, DECISION_SCHEMA, compression="ZSTD") as writer:
        for rows in _in_groups(decisions, row_group_rows):
            columns: list[Any] = [pa.array([value(row) for row in rows], type=kind) for _, kind, value in _COLUMNS]
            writer.write_table(pa.Table.from_arrays(columns, schema=DECISION_SCHEMA), row_group_size=row_group_rows)
            written += len(rows)
    return written


def _in_groups(decisions: Iterator[Decision], size: int) -> Iterator[list[Decision]]:
    rows: list[Decision] = []
    for decision in decisions:
        rows.append(decision)
        if len(rows) >= size:
            yield rows
            rows = []
    if rows:
        yield rows
