"""What each adapter costs, beside reading the same bytes as JSON and doing nothing with them."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from jobs.wiring.foreign_files import reader_of_shipped
from tests.bench.figure import Figure
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Adapter, Foreign, Origin, read_foreign

BestRate = Callable[[int, Callable[[], object]], float]

ORIGIN = Origin(source="bench", tenant="acme")
SPANS_A_REQUEST = 200
CHUNKS_A_STREAM = 200
RECORDS = 2_000
START_NS = 1_767_225_600_000_000_000


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """OTLP's JSON of them."""
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}
    return [
        {"key": name, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for name, value in values.items()
    ]


def span(number: int) -> dict[str, Any]:
    """A streamed chat completion as instrumented SDKs write it."""
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number + 1:016x}",
        "name": "chat gpt-4o-mini",
        "kind": 3,
        "startTimeUnixNano": str(START_NS + number * 1_000_000),
        "endTimeUnixNano": str(START_NS + number * 1_000_000 + 2_500_000_000),
        "attributes": attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": "gpt-4o-mini",
                "gen_ai.request.max_tokens": 256,
                "gen_ai.request.temperature": 0.2,
                "gen_ai.request.stream": True,
                "gen_ai.conversation.id": f"conv-{number % 97}",
                "gen_ai.response.id": f"chatcmpl-{number}",
                "gen_ai.response.model": "gpt-4o-mini-2024-07-18",
                "gen_ai.response.time_to_first_chunk": 0.41,
                "gen_ai.usage.input_tokens": 1_000 + number % 50,
                "gen_ai.usage.output_tokens": 100,
                "gen_ai.usage.cache_read.input_tokens": 640,
                "server.address": "api.openai.com",
                "server.port": 443,
            }
        ),
    }


def otlp_request() -> bytes:
    """One export of a collector, as JSON."""
    resource = {"attributes": attributes({"service.name": "chat-api", "tenant.id": "tenant-a"})}
    spans = [span(number) for number in range(SPANS_A_REQUEST)]
    scopes = [{"scope": {"name": "openai_v2"}, "spans": spans}]
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}).encode()


def otlp_protobuf(request: bytes) -> bytes:
    """The same as protobuf, where ids are bytes and not hexadecimal."""
    said = json.loads(request)
    found = ExportTraceServiceRequest()
    spans = said["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ids = [(bytes.fromhex(it.pop("traceId")), bytes.fromhex(it.pop("spanId"))) for it in spans]
    json_format.ParseDict(said, found)
    for written, (trace_id, span_id) in zip(found.resource_spans[0].scope_spans[0].spans, ids, strict=True):
        written.trace_id, written.span_id = trace_id, span_id
    return bytes(found.SerializeToString())


def stream() -> bytes:
    """The answer of an OpenAI-compatible server, a token a chunk."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_767_225_600, "model": "gpt-4o-mini"}
    chunks = [
        {
            **head,
            "choices": [{"index": 0, "delta": {"content": f" word{number}"}, "finish_reason": None}],
            "usage": None,
        }
        for number in range(CHUNKS_A_STREAM - 2)
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None})
    usage = {"prompt_tokens": 12, "completion_tokens": CHUNKS_A_STREAM - 2, "total_tokens": CHUNKS_A_STREAM + 10}
    chunks.append({**head, "choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def litellm_payload(number: int) -> bytes:
    """A standard logging payload with what matters of it."""
    started_s = START_NS / 1e9 + number / 1_000
    return json.dumps(
        {
            "id": f"call-{number}",
            "trace_id": f"trace-{number % 97}",
            "call_type": "acompletion",
            "stream": True,
            "status": "success",
            "custom_llm_provider": "openai",
            "prompt_tokens": 1_000,
            "completion_tokens": 100,
            "total_tokens": 1_100,
            "startTime": started_s,
            "completionStartTime": started_s + 0.4,
            "endTime": started_s + 2.5,
            "model": "gpt-4o-mini",
            "model_group": "chat-small",
            "model_id": "deploy-a1",
            "metadata": {
                "user_api_key_hash": "0" * 64,
                "user_api_key_team_id": f"team-{number % 50}",
                "usage_object": {"prompt_tokens_details": {"cached_tokens": 640}},
            },
            "messages": [{"role": "user", "content": "Where is my parcel?"}],
        }
    ).encode()


def mooncake_row(number: int) -> bytes:
    """A line of the Mooncake trace."""
    return json.dumps({"timestamp": number, "input_length": 6_955, "output_length": 52, "hash_ids": [46, 47]}).encode()


def read_all(adapter: Adapter, records: list[Foreign]) -> int:
    """Read them; returns how many events they are. Raises AssertionError where one is refused."""
    events = 0
    for record in records:
        reading = read_foreign(adapter, record, ORIGIN)
        assert not reading.refused, reading.refused
        events += len(reading.events)
    return events


def bench_adapters(best_rate: BestRate) -> list[Figure]:
    """Records, spans or chunks a second of each adapter."""
    request = otlp_request()
    mooncake = reader_of_shipped("mooncake").adapter
    payloads = [litellm_payload(number) for number in range(RECORDS)]
    rows = [mooncake_row(number) for number in range(RECORDS)]
    chunks = [line.removeprefix(b"data: ") for line in stream().split(b"\n\n") if line.startswith(b"data: {")]
    otlp, transcript, litellm = (FORMATS[name].adapter for name in ("otlp", "transcript", "litellm"))
    spans = 10 * SPANS_A_REQUEST
    cases: tuple[tuple[str, str, Adapter, list[bytes], list[bytes], int, str], ...] = (
        (
            "OTLP protobuf",
            "spans/s",
            otlp,
            [otlp_protobuf(request)] * 10,
            [request] * 10,
            10 * SPANS_A_REQUEST,
            "50,000",
        ),
        ("OTLP JSON", "spans/s", otlp, [request] * 10, [request] * 10, spans, "50,000"),
        ("OpenAI stream", "chunks/s", transcript, [stream()] * 10, chunks * 10, 10 * CHUNKS_A_STREAM, "30,000"),
        ("LiteLLM", "payloads/s", litellm, payloads, payloads, RECORDS, ""),
        ("Mooncake rows by mapping", "rows/s", mooncake, rows, rows, RECORDS, ""),
    )
    figures = []
    decode = msgspec.json.decode
    for name, unit, adapter, values, as_json, count, aim in cases:
        headers = {"row": b"bench:1"} if adapter is mooncake else {}
        records = [Foreign(value=value, received_at_us=START_NS // 1_000, headers=headers) for value in values]
        read_all(adapter, records)
        rate = best_rate(count, partial(read_all, adapter, records))
        reference = best_rate(count, lambda texts=as_json: [decode(text) for text in texts])  # type: ignore[misc]
        figures.append(Figure(f"read {name}", rate, unit, "JSON decode alone", reference, aim))
    return figures
