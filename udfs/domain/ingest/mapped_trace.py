"""Plain traces, CSV or JSON lines, read by a mapping.

A file is taken apart into rows by `rows_of`, and a row is read by the adapter that `mapped_adapter` makes.
"""

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from schemas.codec import MAX_TIME_US
from schemas.dead_letters import DeadLetterReason
from schemas.events import UsageSource
from udfs.domain.ingest.attempt import Attempt, End, Usage, events_of
from udfs.domain.ingest.durations import time_after
from udfs.domain.ingest.fields import (
    json_object_of,
    malformed,
    missing,
    name_text,
    number,
    out_of_range,
    time_of_iso,
    tokens,
)
from udfs.domain.ingest.mapping import ALL_OTHERS, Mapping, MappingError, Time, Value
from udfs.domain.ingest.record import MAX_RECORD_BYTES, Adapter, Foreign, Origin, Reading, UnreadableRecordError

ROW: Final = "row"
"""Header of a record that names its row: the file and its number in it."""

COLUMNS: Final = "columns"
"""Header of a record of CSV: the header line of its file."""

_MAX_LINES_OF_A_ROW: Final = 64
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MICROSECONDS: Final = {"seconds": 1e6, "milliseconds": 1e3, "microseconds": 1.0, "nanoseconds": 1e-3}


# --- rows ---------------------------------------------------------------------------------------------------------


def rows_of(mapping: Mapping, lines: Iterable[bytes], file: str) -> Iterator[Foreign]:
    """The records of a file, for the adapter of its mapping. `file` is its name: it becomes part of ids.

    Lines may end in any way and be quoted over several; empty ones are none. Raises MappingError, before the first row,
    where the header of a CSV file lacks a column or has one that the mapping does not know.
    """
    rest = iter(lines)
    first = next(rest, b"").removeprefix(_BYTE_ORDER_MARK)
    headers: dict[str, bytes] = {}
    if mapping.format == "csv":
        _check_columns(mapping, _header_of(first, mapping.delimiter), file)
        headers[COLUMNS] = first
        rows = _joined(rest)
    else:
        rows = _chained(first, rest)
    number_of_row = 0
    for row in rows:
        if row.strip():
            number_of_row += 1
            yield Foreign(value=row, headers={**headers, ROW: f"{file}:{number_of_row}".encode("utf-8", "replace")})


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _joined(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines, with those put together that a quoted line end divides. A quote that is never closed costs its line.

    What is put together is at most a record and a line more.
    """
    waiting: list[bytes] = []
    while True:
        line = waiting.pop(0) if waiting else next(lines, None)
        if line is None:
            return
        if line.count(b'"') % 2 == 0:
            yield line
            continue
        row = [line]
        is_open, row_bytes = True, len(line)
        while is_open and row_bytes <= MAX_RECORD_BYTES and len(row) < _MAX_LINES_OF_A_ROW:
            following = waiting.pop(0) if waiting else next(lines, None)
            if following is None:
                break
            row.append(following)
            row_bytes += len(following)
            is_open = following.count(b'"') % 2 == 0
        if is_open:
            yield line
            waiting = row[1:] + waiting
        else:
            yield b"".join(row)


@lru_cache(maxsize=64)
def _header_of(line: bytes, delimiter: str) -> tuple[str, ...]:
    try:
        return tuple(_cells(line, delimiter))
    except UnreadableRecordError as unreadable:
        raise MappingError(f"the header can't be read: {unreadable.detail}") from None


def _check_columns(mapping: Mapping, found: Collection[str], file: str) -> None:
    lacking, unknown = _misfits(mapping, found)
    if lacking:
        have = ", ".join(found) or "none"
        raise MappingError(f"{file} has no column {', '.join(lacking)}; it has {have}. Name its columns in the mapping")
    if unknown:
        raise MappingError(f"{file} has columns the mapping does not know: {unknown}. Map them or add to passed_over")
    if len(set(found)) < len(found):
        raise MappingError(f"{file} has two columns of one name; rename one in its header")


def _misfits(mapping: Mapping, found: Collection[str]) -> tuple[list[str], str]:
    """Columns that are not there, and the names of those that should not be."""
    lacking = [column for column in mapping.columns if column not in found]
    if ALL_OTHERS in mapping.passed_over:
        return lacking, ""
    return lacking, ", ".join(column for column in found if column not in {*mapping.columns, *mapping.passed_over})


# --- the adapter --------------------------------------------------------------------------------------------------


def mapped_adapter(mapping: Mapping) -> Adapter:
    """The adapter that reads rows by a mapping. CSV rows are those of `rows_of`; a JSON object may come from anywhere.

    Rows without a request id need the header that `rows_of` gives them.
    """
    allowed = frozenset((*mapping.columns, *mapping.passed_over))
    base_us = mapping.time.base_us
    end_base_us = mapping.end_time.base_us if mapping.end_time else 0

    def read(record: Foreign, origin: Origin) -> Reading:
        row = record.headers.get(ROW, b"").decode("utf-8", "replace")
        try:
            cells = _row_of(record, mapping)
            if mapping.format == "jsonl":
                _check_keys(cells, allowed)
            return Reading(events=events_of(_attempt(cells, mapping, row, base_us, end_base_us), origin))
        except UnreadableRecordError as unreadable:
            where = f"row {row}: " if row else ""
            raise UnreadableRecordError(unreadable.reason, where + unreadable.detail) from None

    return read


def _row_of(record: Foreign, mapping: Mapping) -> dict[str, Any]:
    if mapping.format == "jsonl":
        return json_object_of(record.value)
    header = record.headers.get(COLUMNS)
    if header is None:
        raise missing(f"the header line of its file, in the record's header {COLUMNS}")
    try:
        columns = _header_of(header, mapping.delimiter)
    except MappingError as error:
        raise malformed(str(error)) from None
    cells = _cells(record.value, mapping.delimiter)
    if len(cells) != len(columns):
        raise malformed(f"it has {len(cells)} cells, the header has {len(columns)}")
    return dict(zip(columns, cells, strict=True))


def _cells(line: bytes, delimiter: str) -> list[str]:
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise malformed("not UTF-8; convert the file") from None
    if '"' not in text:
        return [cell.strip() for cell in text.split(delimiter)]
    try:
        # Not splitlines: it divides at characters that end no line of CSV.
        rows = list(csv.reader(re.findall(r"[^\n]*\n|[^\n]+", text), delimiter=delimiter, strict=True))
    except csv.Error as error:
        # Its limit is one for the whole process, and not ours to change.
        if "field limit" in str(error):
            detail = f"a quoted cell has more than {csv.field_size_limit():,} characters"
            raise UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail) from None
        raise malformed(f"not CSV: {error}") from None
    if len(rows) != 1:
        raise malformed(f"it is {len(rows)} rows of CSV, where one was expected")
    return [cell.strip() for cell in rows[0]]


def _check_keys(cells: dict[str, Any], allowed: frozenset[str]) -> None:
    if ALL_OTHERS in allowed or cells.keys() <= allowed:
        return
    unknown = sorted(cells.keys() - allowed)
    shown = ", ".join(unknown[:5]).encode("utf-8", "replace").decode()[:200]
    raise malformed(f"the mapping does not know {shown}; map it or add it to passed_over")


def _attempt(cells: dict[str, Any], mapping: Mapping, row: str, base_us: int, end_base_us: int) -> Attempt:
    prompt = _count(cells, mapping.prompt_tokens)
    completion = _count(cells, mapping.completion_tokens)
    started_at_us = _time(cells, mapping.time, base_us)
    if mapping.end_time:
        ended_at_us = _time(cells, mapping.end_time, end_base_us)
    elif mapping.duration:
        took = number(cells.get(mapping.duration.column), mapping.duration.column)
        if took is None:
            raise missing(mapping.duration.column)
        ended_at_us = time_after(started_at_us, took * _MICROSECONDS[mapping.duration.unit], mapping.duration.column)
    else:
        ended_at_us = started_at_us
    is_failed = mapping.failed_without_completion and not completion
    return Attempt(
        request_id=name_text(cells.get(mapping.request_id) if mapping.request_id else row, mapping.request_id or ROW),
        started_at_us=started_at_us,
        ended_at_us=ended_at_us,
        usage=Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=_count(cells, mapping.cached_tokens) if mapping.cached_tokens else 0,
            source=UsageSource.REPORTED,
        ),
        end=End.FAILED if is_failed else End.COMPLETED,
        tenant=_text(cells, mapping.tenant),
        model=_text(cells, mapping.model),
        session=_text(cells, mapping.session),
        user=_text(cells, mapping.user),
        provider=_text(cells, mapping.provider),
        backend=_text(cells, mapping.backend),
        region=_text(cells, mapping.region),
    )


def _count(cells: dict[str, Any], column: str) -> int:
    found = tokens(cells.get(column), column)
    if found is None:
        raise missing(column)
    return found


def _text(cells: dict[str, Any], value: Value | None) -> str:
    if value is None:
        return ""
    return name_text(cells.get(value.column), value.column) if value.column else value.constant


def _time(cells: dict[str, Any], time: Time, base_us: int) -> int:
    value = cells.get(time.column)
    is_iso = time.unit == "iso"
    found = time_of_iso(value, time.column) if is_iso else _time_after_base(value, time, base_us)
    if found is None:
        raise missing(time.column)
    return found


def _time_after_base(value: object, time: Time, base_us: int) -> int | None:
    # A whole number of nanoseconds has more digits than a float keeps.
    if time.unit == "nanoseconds" and (whole := _whole(value)) is not None:
        after_us: float = whole // 1_000
    else:
        found = number(value, time.column)
        if found is None:
            return None
        after_us = found * _MICROSECONDS[time.unit]
    if not (0 <= after_us <= MAX_TIME_US and 0 < base_us + after_us <= MAX_TIME_US):
        raise out_of_range(time.column, value, "0 or more, and before 2255")
    return base_us + round(after_us)


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
