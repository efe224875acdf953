"""OTLP requests in JSON: ids are hexadecimal, 64-bit integers numbers or strings, enums numbers or their names."""

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping
from math import nan
from typing import Final, TypeAlias, TypeVar

import msgspec

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest import otlp_json_structs as wire_of
from udfs.domain.ingest.fields import malformed, quoted, time_of_nanoseconds
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

_MAX_OBJECTS: Final = 1_000_000
"""Braces in one record: each is an object in memory before any of them can be looked at."""

_T = TypeVar("_T")
_Read: TypeAlias = Callable[[msgspec.Raw, Attributes, str], Item]


_request = msgspec.json.Decoder(wire_of.Request)
_span_of = msgspec.json.Decoder(wire_of.Span).decode
_log_of = msgspec.json.Decoder(wire_of.LogRecord).decode
_metric_of = msgspec.json.Decoder(wire_of.Metric).decode

_ESCAPES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_LONE_ESCAPE: Final = 6


def json_items(value: bytes) -> Iterator[Item]:
    """The items of a request, or of one a line. Raises UnreadableRecordError, before the first, where it is none."""
    if value.count(b"{") > _MAX_OBJECTS:
        raise too_many_items()
    value = value.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        requests: list[wire_of.Request | Unreadable] = [_request_of(value)]
    except UnreadableRecordError:
        # A broken request on many lines is one record gone wrong, and not one for each line.
        lines = [line for line in value.splitlines() if line.strip()]
        requests = [_request_or_error(line) for line in lines[:MAX_ITEMS]]
        if len(lines) < 2 or all(isinstance(request, Unreadable) for request in requests):
            raise
        if len(lines) > MAX_ITEMS:
            raise too_many_items() from None
    if sum(map(_count, requests)) > MAX_ITEMS:
        raise too_many_items()
    return _items(requests)


def _request_or_error(line: bytes) -> wire_of.Request | Unreadable:
    try:
        return _request_of(line)
    except UnreadableRecordError as unreadable:
        return Unreadable(unreadable, line)


def _request_of(value: bytes) -> wire_of.Request:
    request = _decoded(_request.decode, value)
    if request.resourceSpans is request.resourceLogs is request.resourceMetrics is None:
        detail = "without resourceSpans, resourceLogs or resourceMetrics; OTLP writes its names in lowerCamelCase"
        raise UnreadableRecordError(DeadLetterReason.MISSING_FIELD, detail)
    return request


def _decoded(decode: Callable[[bytes], _T], value: bytes | msgspec.Raw) -> _T:
    try:
        return decode(value)
    except msgspec.ValidationError as error:
        raise malformed(f"not OTLP: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise malformed("nested too deeply") from None
    try:
        return decode(_with_valid_text(bytes(value)))
    except RecursionError:
        raise malformed("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"not JSON: {error}") from None


def _with_valid_text(value: bytes) -> bytes:
    """Text that was cut within a character, as limits on the length of attributes do it, with U+FFFD at the cut."""
    value = value.decode("utf-8", "replace").encode()
    return _ESCAPES.sub(lambda found: b"\\ufffd" if len(found[0]) == _LONE_ESCAPE else found[0], value)


def _parts(request: wire_of.Request) -> Iterator[tuple[wire_of.Group, wire_of.Scoped, list[msgspec.Raw], _Read]]:
    for group in request.resourceSpans or ():
        for scoped in [*(group.scopeSpans or ()), *(group.instrumentationLibrarySpans or ())]:
            yield group, scoped, scoped.spans or [], _span
    for group in request.resourceLogs or ():
        for scoped in group.scopeLogs or ():
            yield group, scoped, scoped.logRecords or [], _log
    for group in request.resourceMetrics or ():
        for scoped in group.scopeMetrics or ():
            yield group, scoped, scoped.metrics or [], _metric


def _count(request: wire_of.Request | Unreadable) -> int:
    return 1 if isinstance(request, Unreadable) else sum(len(items) for _, _, items, _ in _parts(request))


def _items(requests: list[wire_of.Request | Unreadable]) -> Iterator[Item]:
    for request in requests:
        if isinstance(request, Unreadable):
            yield request
            continue
        before, resource = None, _attributes(None)
        for group, scoped, items, read in _parts(request):
            if group is not before:
                before, resource = group, _attributes(group.resource.attributes if group.resource else None)
            scope = (scoped.scope.name if scoped.scope else None) or ""
            for item in items:
                try:
                    yield read(item, resource, scope)
                except UnreadableRecordError as unreadable:
                    yield Unreadable(unreadable, bytes(item))
                except RecursionError:
                    yield Unreadable(malformed("nested too deeply"), bytes(item))


def _span(item: msgspec.Raw, resource: Attributes, scope: str) -> Span:
    wire = _decoded(_span_of, item)
    return Span(
        _id(wire.traceId, 16, "traceId"),
        _id(wire.spanId, 8, "spanId"),
        _id(wire.parentSpanId, 8, "parentSpanId"),
        wire.name or "",
        _enum(wire.kind, _KINDS, "kind"),
        time_of_nanoseconds(wire.startTimeUnixNano, "startTimeUnixNano") or 0,
        time_of_nanoseconds(wire.endTimeUnixNano, "endTimeUnixNano") or 0,
        _attributes(wire.attributes),
        [_event(event) for event in wire.events] if wire.events else (),
        _enum(wire.status.code, _STATUSES, "status.code") if wire.status else 0,
        resource,
        scope,
        item,
    )


def _event(wire: wire_of.SpanEvent) -> SpanEvent:
    return SpanEvent(
        wire.name or "", time_of_nanoseconds(wire.timeUnixNano, "timeUnixNano") or 0, _attributes(wire.attributes)
    )


def _log(item: msgspec.Raw, resource: Attributes, scope: str) -> LogRecord:  # noqa: ARG001 - see _Read
    wire = _decoded(_log_of, item)
    at_us = time_of_nanoseconds(wire.timeUnixNano, "timeUnixNano")
    return LogRecord(
        wire.eventName or "",
        at_us or time_of_nanoseconds(wire.observedTimeUnixNano, "observedTimeUnixNano") or 0,
        _id(wire.traceId, 16, "traceId"),
        _id(wire.spanId, 8, "spanId"),
        _attributes(wire.attributes),
        resource,
    )


def _metric(item: msgspec.Raw, resource: Attributes, scope: str) -> Metric:  # noqa: ARG001 - see _Read
    wire = _decoded(_metric_of, item)
    points = [_point(point) for kind in (wire.gauge, wire.sum) if kind for point in kind.dataPoints or ()]
    return Metric(wire.name or "", points, resource, item)


def _point(wire: wire_of.Point) -> Point:
    at_us = time_of_nanoseconds(wire.timeUnixNano, "timeUnixNano") or 0
    value = _float(wire.asDouble if wire.asInt is None else wire.asInt)
    return Point(at_us, value if isinstance(value, float) else nan, _attributes(wire.attributes))


_KINDS: Final[Mapping[str, int]] = {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}
_STATUSES: Final[Mapping[str, int]] = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}


def _enum(value: int | str | None, numbers: Mapping[str, int], name: str) -> int:
    """The number of an enum. A name has been forbidden since 2022, and is still sent."""
    if isinstance(value, int):
        return value
    if value is None:
        return 0
    number = numbers.get(value)
    if number is None:
        raise malformed(f"{name} is {quoted(value)}, it must be a number, or one of {', '.join(numbers)}")
    return number


def _id(value: str | None, length: int, name: str) -> bytes:
    """Bytes of a hexadecimal id. Base64, which protobuf's own JSON writes, differs in length, and is read too."""
    if not value:
        return b""
    try:
        found = bytes.fromhex(value) if len(value) == 2 * length else a2b_base64(value)
    except ValueError:
        found = b""
    if len(found) == length and (len(value) == 2 * length or b2a_base64(found, newline=False) == value.encode()):
        return identity(found, length, name)
    raise malformed(f"{name} is {quoted(value)}, it must have {2 * length} hexadecimal digits")


def _attributes(pairs: list[wire_of.KeyValue] | None) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for pair in pairs or ():
        value = pair.value
        if value is None:
            found[pair.key] = None
        elif value.stringValue is not None:
            found[pair.key] = value.stringValue
        else:
            found[pair.key] = _other(value)
    return found


def _value(wire: wire_of.AnyValue | None) -> Value:
    if wire is None:
        return None
    return wire.stringValue if wire.stringValue is not None else _other(wire)


def _other(wire: wire_of.AnyValue) -> Value:
    if wire.intValue is not None:
        return _int(wire.intValue)
    if wire.boolValue is not None:
        return wire.boolValue
    if wire.doubleValue is not None:
        return _float(wire.doubleValue)
    if wire.arrayValue is not None:
        return [_value(value) for value in wire.arrayValue.values or ()]
    if wire.kvlistValue is not None:
        return _attributes(wire.kvlistValue.values)
    return None if wire.bytesValue is None else _bytes(wire.bytesValue)


def _int(value: float | str) -> Value:
    """An integer; what is none stays as it is written, for the reader of the attribute to refuse by its name."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return value
    return int(value) if value == value // 1 else value


def _float(value: float | str | None) -> Value:
    """The same of a number with a fraction, which may be "NaN" or "Infinity"."""
    try:
        return None if value is None else float(value)
    except (ValueError, OverflowError):
        return str(value)


def _bytes(value: str) -> Value:
    try:
        return a2b_base64(value)
    except ValueError:
        return value
