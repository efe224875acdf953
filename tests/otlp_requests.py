"""OTLP requests for tests: written as JSON, and turned into protobuf by OpenTelemetry's own generated code."""

import json
from base64 import b64encode
from collections.abc import Mapping
from copy import deepcopy
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from schemas.events import Event
from udfs.domain.ingest.otlp_adapter import read_otlp
from udfs.domain.ingest.record import Foreign, Origin, Reading

SHARED = Path(__file__).parents[2] / "shared"
SAMPLES = SHARED / "samples"
EXAMPLES = SHARED / "data" / "otlp-examples"

needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="the shared samples are not at hand")

ORIGIN = Origin(source="collector", tenant="origin-tenant")
START_US = 1_767_225_600_000_000
TRACE = "5b8efff798038103d269b633813fc60c"


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def any_value(value: Any) -> dict[str, Any]:
    """As OTLP's JSON has a value: integers are strings, and so is what no number in JSON can be."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if isfinite(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(element) for element in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"stringValue": value}


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": any_value(value)} for name, value in values.items()]


def span(
    values: Mapping[str, Any],
    *,
    number: int = 1,
    parent: int = 0,
    start_us: int = START_US,
    end_us: int = START_US + 1_000_000,
    **more: Any,
) -> dict[str, Any]:
    """A span as JSON; `number` is its id."""
    found = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "a span",
        "kind": 3,
        "startTimeUnixNano": str(start_us * 1_000),
        "endTimeUnixNano": str(end_us * 1_000),
        "attributes": attributes(values),
        "status": {},
    }
    if parent:
        found["parentSpanId"] = f"{parent:016x}"
    return {**found, **more}


def chat(values: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A call with 10 input and 5 output tokens, unless `values` say otherwise."""
    usual = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
    }
    merged = {**usual, **(values or {})}
    return span({name: value for name, value in merged.items() if value is not None}, **more)


def traces(*spans: Any, resource: Mapping[str, Any] | None = None, scope: str = "instrumentation") -> dict[str, Any]:
    named = {"service.name": "chat-api", "tenant.id": "tenant-a"} if resource is None else resource
    scoped = {"scope": {"name": scope}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": attributes(named)}, "scopeSpans": [scoped]}]}


def as_json(request: Any) -> bytes:
    return json.dumps(request).encode()


def as_protobuf(request: dict[str, Any]) -> bytes:
    """The same request in protobuf, by way of protobuf's own JSON, in which ids are Base64."""
    kinds: dict[str, type[Message]] = {
        "resourceSpans": ExportTraceServiceRequest,
        "resourceLogs": ExportLogsServiceRequest,
        "resourceMetrics": ExportMetricsServiceRequest,
    }
    (kind,) = kinds.keys() & request.keys()
    message = json_format.ParseDict(_with_base64_ids(deepcopy(request)), kinds[kind](), ignore_unknown_fields=True)
    return message.SerializeToString()


def _with_base64_ids(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_base64_ids(element) for element in part]
    if isinstance(part, dict):
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            name: b64encode(bytes.fromhex(value)).decode() if name in ids else _with_base64_ids(value)
            for name, value in part.items()
        }
    return part


def read(request: Any, origin: Origin = ORIGIN, received_at_us: int = 0) -> Reading:
    value = request if isinstance(request, bytes) else as_json(request)
    return read_otlp(Foreign(value=value, received_at_us=received_at_us), origin)


def assert_on_the_wire(events: list[Event]) -> None:
    """Each event comes back from the log as it is, but for its provenance, which is not asked for there."""
    decoded = decode_events(encode_events(0, events), Position("test", 0, 0), with_provenance=True)
    assert decoded.dead == []
    assert len(decoded.events) == len(events)
    for found, event in zip(decoded.events, events, strict=True):
        assert (found.event_id, found.event_time_us, found.request_id) == (
            event.event_id,
            event.event_time_us,
            event.request_id,
        )
