# ruff: noqa: N815, D101 - names are those on the wire, and the specification says what they mean
"""The objects of OTLP's JSON, of which only the fields that are read here are named; others are ignored.

Whatever may be left out may be null. https://github.com/open-telemetry/opentelemetry-proto/tree/main/examples
"""

from typing import TypeAlias

import msgspec

Number: TypeAlias = int | float | str | None


class AnyValue(msgspec.Struct, gc=False):
    stringValue: str | None = None
    boolValue: bool | None = None
    intValue: Number = None
    doubleValue: Number = None
    arrayValue: "ArrayValue | None" = None
    kvlistValue: "Members | None" = None
    bytesValue: str | None = None


class ArrayValue(msgspec.Struct, gc=False):
    values: list[AnyValue | None] | None = None


class KeyValue(msgspec.Struct, gc=False):
    key: str = ""
    value: AnyValue | None = None


class Members(msgspec.Struct, gc=False):
    values: list[KeyValue] | None = None


class Resource(msgspec.Struct, gc=False):
    attributes: list[KeyValue] | None = None


class Scope(msgspec.Struct, gc=False):
    name: str | None = None


class Status(msgspec.Struct, gc=False):
    code: int | str | None = None


class SpanEvent(msgspec.Struct, gc=False):
    name: str | None = None
    timeUnixNano: Number = None
    attributes: list[KeyValue] | None = None


class Span(msgspec.Struct, gc=False):
    traceId: str | None = None
    spanId: str | None = None
    parentSpanId: str | None = None
    name: str | None = None
    kind: int | str | None = None
    startTimeUnixNano: Number = None
    endTimeUnixNano: Number = None
    attributes: list[KeyValue] | None = None
    events: list[SpanEvent] | None = None
    status: Status | None = None


class LogRecord(msgspec.Struct, gc=False):
    eventName: str | None = None
    timeUnixNano: Number = None
    observedTimeUnixNano: Number = None
    traceId: str | None = None
    spanId: str | None = None
    attributes: list[KeyValue] | None = None


class Point(msgspec.Struct, gc=False):
    asDouble: Number = None
    asInt: Number = None
    timeUnixNano: Number = None
    attributes: list[KeyValue] | None = None


class Points(msgspec.Struct, gc=False):
    dataPoints: list[Point] | None = None


class Metric(msgspec.Struct, gc=False):
    name: str | None = None
    gauge: Points | None = None
    sum: Points | None = None


class Scoped(msgspec.Struct, gc=False):
    scope: Scope | None = None
    spans: list[msgspec.Raw] | None = None
    logRecords: list[msgspec.Raw] | None = None
    metrics: list[msgspec.Raw] | None = None


class Group(msgspec.Struct, gc=False):
    resource: Resource | None = None
    scopeSpans: list[Scoped] | None = None
    scopeLogs: list[Scoped] | None = None
    scopeMetrics: list[Scoped] | None = None
    instrumentationLibrarySpans: list[Scoped] | None = None
    """What scopeSpans were called before OTLP 0.15."""


class Request(msgspec.Struct, gc=False):
    """Items stay bytes until their turn: a broken one does not take the others along, nor do all wait in memory."""

    resourceSpans: list[Group] | None = None
    resourceLogs: list[Group] | None = None
    resourceMetrics: list[Group] | None = None
