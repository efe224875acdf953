"""OTLP requests in protobuf. Whether one holds spans, logs or metrics is not written in it: its first item tells."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from schemas.codec import MAX_TIME_US
from udfs.domain.ingest import otlp_frames as frames
from udfs.domain.ingest.fields import malformed, out_of_range
from udfs.domain.ingest.otlp_items import (
    MAX_ITEMS,
    Attributes,
    Item,
    LogRecord,
    Metric,
    Point,
    Span,
    SpanEvent,
    Unreadable,
    Value,
    identity,
    too_many_items,
)
from udfs.domain.ingest.record import UnreadableRecordError

_MAX_REMEMBERED: Final = 4_096
_NAME: Final = re.compile(rb"[\w./:-]+")
_NOT_OTLP: Final = "not an OTLP request: neither JSON nor protobuf with resource spans, logs or metrics"


class _Pairs(dict[bytes, tuple[str, Value]]):
    """Attributes by their bytes. Spans of one request repeat most of theirs; each is read once."""

    def __missing__(self, frame: bytes) -> tuple[str, Value]:
        wire = frames.KeyValue.FromString(frame)
        pair = (_text(wire.key), _value(wire.value, self))
        if len(self) < _MAX_REMEMBERED:
            self[frame] = pair
        return pair


def protobuf_items(value: bytes) -> Iterator[Item]:
    """The items of a request. Raises UnreadableRecordError, before the first of them, where it is no OTLP request."""
    try:
        request = frames.Request.FromString(value)
    except DecodeError:
        raise malformed(_NOT_OTLP) from None
    count, read = 0, None
    for resource in request.resources:
        for scope in resource.scopes:
            count += len(scope.items)
            read = read or next(filter(None, map(_reader_of, scope.items)), None)
    if count > MAX_ITEMS:
        raise too_many_items()
    if (count and read is None) or (value and not request.resources):
        raise malformed(_NOT_OTLP)
    return _items(request, read or _span)


_Read = Callable[[bytes, Attributes, str, _Pairs], Item]


def _items(request: Any, read: _Read) -> Iterator[Item]:  # noqa: ANN401 - see otlp_frames
    pairs = _Pairs()
    for group in request.resources:
        try:
            resource = _attributes(group.resource.attributes, pairs)
        except DecodeError:
            raise malformed("an attribute of a resource is not protobuf") from None
        for part in group.scopes:
            scope = _text(part.scope.name)
            for frame in part.items:
                try:
                    yield read(frame, resource, scope, pairs)
                except UnreadableRecordError as unreadable:
                    yield Unreadable(unreadable, frame)
                except DecodeError:
                    yield Unreadable(malformed("not protobuf of OTLP"), frame)


def _reader_of(frame: bytes) -> _Read | None:
    """What an item is, by fields whose numbers or types on the wire differ between the three; None: not to be told."""
    span = _parsed(frames.Span, frame)
    if span is not None and (span.start or span.end):
        return _span
    log = _parsed(frames.LogRecord, frame)
    if log is not None and (log.time or log.observed):
        return _log
    # A span without times has ids where a metric has its name and description.
    if span is not None and len(span.trace_id) == 16 and len(span.span_id) == 8 and not _NAME.fullmatch(span.trace_id):
        return _span
    metric = _parsed(frames.Metric, frame)
    if metric is not None and any(metric.HasField(kind) for kind in ("gauge", "sum")):
        return _metric
    return _metric if metric is not None and (metric.histogram or metric.exponential or metric.summary) else None


def _parsed(message: Any, frame: bytes) -> Any:  # noqa: ANN401 - see otlp_frames
    try:
        return message.FromString(frame)
    except DecodeError:
        return None


def _span(frame: bytes, resource: Attributes, scope: str, pairs: _Pairs) -> Span:
    wire = frames.Span.FromString(frame)
    return Span(
        identity(wire.trace_id, 16, "trace_id"),
        identity(wire.span_id, 8, "span_id"),
        identity(wire.parent_span_id, 8, "parent_span_id"),
        _text(wire.name),
        wire.kind,
        _time(wire.start, "start_time_unix_nano"),
        _time(wire.end, "end_time_unix_nano"),
        _attributes(wire.attributes, pairs),
        [_event(event, pairs) for event in wire.events] if wire.events else (),
        wire.status.code,
        resource,
        scope,
        frame,
    )


def _event(frame: bytes, pairs: _Pairs) -> SpanEvent:
    wire = frames.SpanEvent.FromString(frame)
    return SpanEvent(_text(wire.name), _time(wire.time, "time_unix_nano"), _attributes(wire.attributes, pairs))


def _log(frame: bytes, resource: Attributes, scope: str, pairs: _Pairs) -> LogRecord:  # noqa: ARG001 - see _Read
    wire = frames.LogRecord.FromString(frame)
    return LogRecord(
        _text(wire.event_name),
        _time(wire.time or wire.observed, "time_unix_nano"),
        identity(wire.trace_id, 16, "trace_id"),
        identity(wire.span_id, 8, "span_id"),
        _attributes(wire.attributes, pairs),
        resource,
    )


def _metric(frame: bytes, resource: Attributes, scope: str, pairs: _Pairs) -> Metric:  # noqa: ARG001 - see _Read
    wire = frames.Metric.FromString(frame)
    points = [_point(point, pairs) for kind in (wire.gauge, wire.sum) for point in kind.points]
    return Metric(_text(wire.name), points, resource, frame)


def _point(frame: bytes, pairs: _Pairs) -> Point:
    wire = frames.Point.FromString(frame)
    value = wire.as_int if wire.HasField("as_int") else wire.as_double
    return Point(_time(wire.time, "time_unix_nano"), float(value), _attributes(wire.attributes, pairs))


def _time(nanoseconds: int, name: str) -> int:
    if nanoseconds <= MAX_TIME_US * 1_000:
        return nanoseconds // 1_000
    raise out_of_range(name, nanoseconds, "nanoseconds after 1970 and before 2255")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _attributes(found: Iterable[bytes], pairs: _Pairs) -> dict[str, Value]:
    return dict(map(pairs.__getitem__, found))


def _value(wire: Any, pairs: _Pairs) -> Value:  # noqa: ANN401 - see otlp_frames
    kind = wire.WhichOneof("value")
    if kind is None:
        return None
    value: Any = getattr(wire, kind)
    if kind == "string_value":
        return _text(value)
    if kind == "array_value":
        return [_value(element, pairs) for element in value.values]
    if kind == "kvlist_value":
        return _attributes(value.values, pairs)
    found: Value = value
    return found
