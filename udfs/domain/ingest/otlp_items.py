"""What an OTLP request holds, whichever of its two encodings it came in: spans, log records and metrics."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, Union

import msgspec

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.fields import malformed
from udfs.domain.ingest.record import UnreadableRecordError

MAX_ITEMS: Final = 100_000
"""A request with more spans, log records or metrics is refused: each costs memory, even an empty one."""

Value: TypeAlias = Union[str, bool, int, float, bytes, "list[Value]", "dict[str, Value]", None]
"""Of an attribute. A 64-bit integer that JSON gives as a string is an int here."""

Attributes: TypeAlias = Mapping[str, Value]
"""By name; of two with the same name the last counts. Read only: spans that repeat an attribute share its value."""

STATUS_ERROR: Final = 2
"""Span.status_code of a span that failed; 0: not set, 1: all is well."""


class SpanEvent(msgspec.Struct, frozen=True, gc=False):
    """Something that happened during a span."""

    name: str
    at_us: int
    attributes: Attributes


class Span(msgspec.Struct, frozen=True, gc=False):
    """One span. Ids are bytes, 16 and 8 of them, or empty. Times are microseconds since 1970; 0: not said."""

    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    name: str
    kind: int
    started_at_us: int
    ended_at_us: int
    attributes: Attributes
    events: Sequence[SpanEvent]
    status_code: int
    resource: Attributes
    scope: str
    payload: bytes | msgspec.Raw = b""
    """Its bytes as they came."""


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One log record, or event, without its body."""

    event_name: str
    at_us: int
    trace_id: bytes
    span_id: bytes
    attributes: Attributes
    resource: Attributes


class Point(msgspec.Struct, frozen=True, gc=False):
    """One number of a metric."""

    at_us: int
    value: float
    attributes: Attributes


class Metric(msgspec.Struct, frozen=True, gc=False):
    """One metric. Only gauges and sums have points here; the other kinds are aggregates of many numbers."""

    name: str
    points: Sequence[Point]
    resource: Attributes
    payload: bytes | msgspec.Raw = b""


class Unreadable(msgspec.Struct, frozen=True):
    """In place of an item that can't be read: why, and its bytes."""

    error: UnreadableRecordError
    payload: bytes


Item: TypeAlias = Span | LogRecord | Metric | Unreadable


def too_many_items() -> UnreadableRecordError:
    """The error for a request past MAX_ITEMS."""
    detail = f"the request has more than {MAX_ITEMS:,} items; send smaller batches"
    return UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail)


def identity(value: bytes, length: int, name: str) -> bytes:
    """A trace or span id; empty where it is left out or all zeros, which the specification calls not valid."""
    if len(value) == length:
        return value if value.strip(b"\0") else b""
    if not value:
        return b""
    raise malformed(f"{name} has {len(value)} bytes, it must have {length}")
