"""Decisions out of files: the inverse of decision_files, a row group or a line at a time."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.wiring.decision_files import DecisionFileError
from schemas.decisions import BoundLimit, Decision, DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.json_lines import decision_of_line

DECISION_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".parquet")
_BATCH_ROWS: Final = 10_000


def read_decisions(path: Path) -> Iterator[Decision]:
    """The decisions of a file that `write_decisions` wrote, in its order.

    Raises DecisionFileError, naming the file and the line or column, where it is no such file.
    """
    name = path.name.lower()
    if not name.endswith(DECISION_SUFFIXES):
        raise DecisionFileError(
            f"{path}: the name tells no format for decisions; known are .parquet, .jsonl, .jsonl.gz"
        )
    if not path.is_file():
        raise DecisionFileError(f"{path}: there is no such file")
    return _parquet(path) if name.endswith(".parquet") else _lines(path, is_gzip=name.endswith(".gz"))


def _lines(path: Path, *, is_gzip: bool) -> Iterator[Decision]:
    try:
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    yield decision_of_line(line)
                except ValueError as error:
                    raise DecisionFileError(f"{path}:{number}: not a decision: {error}") from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise DecisionFileError(f"{path}: damaged: {error}") from error


def _parquet(path: Path) -> Iterator[Decision]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                # As numbers: the times of a decision are microseconds, beyond what a datetime of some rows may hold.
                columns = {
                    name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }
                for index in range(batch.num_rows):
                    yield _of_row({name: values[index] for name, values in columns.items()})
    except (pa.ArrowException, KeyError, ValueError) as error:
        said = f"column {error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise DecisionFileError(f"{path}: not a file of decisions: {said}") from error


def _of_row(row: dict[str, Any]) -> Decision:
    bound = None
    if row["bound_name"] is not None:
        bound = BoundLimit(
            name=row["bound_name"],
            level=LimitLevel[row["bound_level"].upper()],
            subject=row["bound_subject"],
            unit=LimitUnit[row["bound_unit"].upper()],
            limit=row["bound_limit"],
            remaining=row["bound_remaining"],
            reset_at_us=row["bound_reset_at"],
        )
    return Decision(
        decision_id=row["decision_id"],
        kind=DecisionKind[row["kind"].upper()],
        mode=DecisionMode[row["mode"].upper()],
        reason=DecisionReason[row["reason"].upper()],
        tenant=row["tenant"],
        request_id=row["request_id"],
        attempt=row["attempt"],
        decided_at_us=row["decided_at"],
        bound=bound,
        reserved_tokens=row["reserved_tokens"],
        used_tokens=row["used_tokens"],
        refunded_tokens=row["refunded_tokens"],
        overdrawn_tokens=row["overdrawn_tokens"],
        retry_at_us=row["retry_at"] or 0,
        policy_id=row["policy_id"],
        caused_by=row["caused_by"],
        trace_id=row["trace_id"],
    )
