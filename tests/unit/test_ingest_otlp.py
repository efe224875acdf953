"""OTLP's two encodings, and what people's exporters make of them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.dead_letters import DeadLetterReason
from schemas.events import PromptSubmitted, Provenance, RequestCompleted
from tests.ingest_mutations import mutations
from tests.otlp_requests import (
    EXAMPLES,
    ORIGIN,
    SAMPLES,
    START_US,
    TRACE,
    as_json,
    as_protobuf,
    assert_on_the_wire,
    attributes,
    chat,
    needs_samples,
    read,
    sample,
    span,
    traces,
)
from udfs.domain.ingest.otlp import otlp_items
from udfs.domain.ingest.otlp_adapter import EMPTY_REQUEST, LOG_RECORD, read_otlp
from udfs.domain.ingest.otlp_items import MAX_ITEMS, Item, LogRecord, Metric, Point, Span, SpanEvent, Unreadable
from udfs.domain.ingest.record import Foreign, Origin, UnreadableRecordError, read_foreign
from udfs.domain.ingest.refusals import MAX_REFUSED


def items_of(request: bytes) -> list[Item]:
    """The items, without their bytes: the two encodings differ in them."""
    return [
        msgspec.structs.replace(item, payload=b"") if isinstance(item, (Span, Metric)) else item
        for item in otlp_items(request)
    ]


def only_span(request: bytes) -> Span:
    (found,) = items_of(request)
    assert isinstance(found, Span)
    return found


def tokens_of(request: Any) -> list[tuple[int, int]]:
    ends = [event for event in read(request).events if isinstance(event, RequestCompleted)]
    return [(end.prompt_tokens, end.completion_tokens) for end in ends]


# --- what a span is -------------------------------------------------------------------------------------------------

EXPECTED_SPAN = Span(
    trace_id=bytes.fromhex(TRACE),
    span_id=bytes(7) + b"\x07",
    parent_span_id=bytes(7) + b"\x02",
    name="a span",
    kind=3,
    started_at_us=START_US,
    ended_at_us=START_US + 5,
    attributes={"text": "a", "number": -3, "share": 0.5, "yes": True, "many": ["a", 1], "nested": {"b": "c"}},
    events=[SpanEvent("exception", START_US + 2, {"exception.type": "E"})],
    status_code=2,
    resource={"service.name": "s"},
    scope="a scope",
)


def full_request() -> dict[str, Any]:
    given_span = span(
        EXPECTED_SPAN.attributes,
        number=7,
        parent=2,
        end_us=START_US + 5,
        events=[
            {
                "name": "exception",
                "timeUnixNano": str((START_US + 2) * 1_000),
                "attributes": attributes({"exception.type": "E"}),
            }
        ],
        status={"code": 2, "message": "bad"},
    )
    return traces(given_span, resource={"service.name": "s"}, scope="a scope")


def test_a_span_in_json_is_read_whole() -> None:
    assert only_span(as_json(full_request())) == EXPECTED_SPAN


def test_a_span_in_protobuf_is_the_same_span() -> None:
    assert only_span(as_protobuf(full_request())) == EXPECTED_SPAN


@pytest.mark.parametrize("identity", [TRACE, TRACE.upper(), "W47/95gDgQPSabYzgT/GDA=="])
def test_an_id_is_hexadecimal_in_any_case_and_base64_is_known_by_its_length(identity: str) -> None:
    # https://github.com/open-telemetry/opentelemetry-swift/issues/537
    # https://github.com/open-telemetry/opentelemetry-collector/issues/8720
    assert only_span(as_json(traces(span({}, traceId=identity)))).trace_id.hex() == TRACE


@pytest.mark.parametrize("identity", ["5b8e", TRACE[:-1] + "g", " " + TRACE[1:], "W47/95gDgQPSabYzgT/GD", "é"])
def test_an_id_that_is_neither_is_refused_by_its_name(identity: str) -> None:
    reading = read(traces(chat(traceId=identity)))
    assert reading.events == []
    assert [(part.reason, part.index) for part in reading.refused] == [(DeadLetterReason.MALFORMED, 0)]
    assert "traceId" in reading.refused[0].detail
    assert "32 hexadecimal digits" in reading.refused[0].detail


def test_an_id_of_zeros_is_none() -> None:
    found = only_span(as_json(traces(span({}, traceId="0" * 32, spanId="0" * 16))))
    assert (found.trace_id, found.span_id) == (b"", b"")


@pytest.mark.parametrize("tokens", [1000, "1000", 1000.0])
def test_a_whole_number_may_be_a_number_or_a_string(tokens: Any) -> None:
    # https://github.com/coze-dev/coze-loop/pull/649
    given_span = chat()
    given_span["attributes"] = [
        pair if pair["key"] != "gen_ai.usage.input_tokens" else {"key": pair["key"], "value": {"intValue": tokens}}
        for pair in given_span["attributes"]
    ]
    assert tokens_of(traces(given_span)) == [(1000, 5)]


@pytest.mark.parametrize(("kind", "number"), [(3, 3), ("SPAN_KIND_CLIENT", 3), (None, 0), (99, 99)])
def test_an_enum_may_be_a_number_or_its_name(kind: Any, number: int) -> None:
    # https://github.com/open-telemetry/opentelemetry-specification/pull/2758
    assert only_span(as_json(traces(span({}, kind=kind)))).kind == number


def test_a_name_that_is_no_value_of_the_enum_is_refused() -> None:
    (found,) = otlp_items(as_json(traces(span({}, kind="CLIENT"))))
    assert isinstance(found, Unreadable)
    assert "kind is 'CLIENT'" in found.error.detail


@pytest.mark.parametrize("time", [START_US * 1_000, str(START_US * 1_000), float(START_US * 1_000)])
def test_a_time_may_be_a_number_or_a_string(time: Any) -> None:
    assert only_span(as_json(traces(span({}, startTimeUnixNano=time)))).started_at_us == START_US


@pytest.mark.parametrize("double", ["NaN", "Infinity", "-Infinity", "0.5", 1])
def test_a_number_with_a_fraction_may_be_written_out(double: Any) -> None:
    given_span = span({})
    given_span["attributes"] = [{"key": "a", "value": {"doubleValue": double}}]
    found = only_span(as_json(traces(given_span))).attributes["a"]
    assert repr(found) == repr(float(double))


def test_unknown_fields_and_nulls_are_ignored() -> None:
    request = traces(span({}, flags=257, links=None, unknown={"a": [1]}, events=None, attributes=None, status=None))
    request["resourceSpans"][0]["schemaUrl"] = None
    request["more"] = 1
    assert only_span(as_json(request)).attributes == {}


def test_of_two_attributes_of_one_name_the_last_counts_in_both_encodings() -> None:
    given_span = span({})
    given_span["attributes"] = [*attributes({"a": 1}), *attributes({"a": 2})]
    request = traces(given_span)
    assert only_span(as_json(request)).attributes == only_span(as_protobuf(request)).attributes == {"a": 2}


def test_text_that_was_cut_within_a_character_costs_that_character_alone() -> None:
    # A limit on the length of attributes counts halves of characters in JavaScript, and bytes in Go, where protobuf
    # then refuses the request: https://github.com/open-telemetry/opentelemetry-go/issues/3021
    request = as_json(traces(chat({"gen_ai.prompt.0.content": "CUT"})))
    halved = request.replace(b"CUT", rb"pair \ud83d\ude00, not \\ud83d, half \ud83d")
    assert only_span(halved).attributes["gen_ai.prompt.0.content"] == "pair \U0001f600, not \\ud83d, half \ufffd"
    bytes_cut = only_span(request.replace(b"CUT", b"\xf0\x9f\x98")).attributes["gen_ai.prompt.0.content"]
    assert bytes_cut == "\ufffd"
    in_protobuf = as_protobuf(traces(chat({"gen_ai.prompt.0.content": "CUT"}))).replace(b"CUT", b"\xf0\x9f\x98")
    assert only_span(in_protobuf).attributes["gen_ai.prompt.0.content"] == "\ufffd"


# --- which request it is --------------------------------------------------------------------------------------------


def log_request(**more: Any) -> dict[str, Any]:
    record = {"timeUnixNano": str(START_US * 1_000), "attributes": attributes({"a": 1}), **more}
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def metric_request(kind: str = "gauge", **more: Any) -> dict[str, Any]:
    point = {"timeUnixNano": str(START_US * 1_000), "asDouble": 2.5, "attributes": attributes({"a": 1}), **more}
    metric = {"name": "my.metric.of.16.", "description": "8 bytes.", kind: {"dataPoints": [point]}}
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}


@pytest.mark.parametrize("encode", [as_json, as_protobuf])
def test_a_log_record_is_known_in_both_encodings(encode: Any) -> None:
    found = list(otlp_items(encode(log_request(eventName="an.event", traceId=TRACE, spanId="00" * 7 + "01"))))
    ids = bytes.fromhex(TRACE), bytes(7) + b"\x01"
    assert found == [LogRecord("an.event", START_US, *ids, {"a": 1}, {})]


@pytest.mark.parametrize("encode", [as_json, as_protobuf])
@pytest.mark.parametrize("kind", ["gauge", "sum"])
def test_a_metric_is_known_in_both_encodings(encode: Any, kind: str) -> None:
    found = list(items_of(encode(metric_request(kind))))
    assert found == [Metric("my.metric.of.16.", [Point(START_US, 2.5, {"a": 1})], {})]


@pytest.mark.parametrize("kind", ["histogram", "exponentialHistogram", "summary"])
def test_a_metric_that_adds_up_has_no_points(kind: str) -> None:
    request = metric_request(kind)
    del request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0][kind]["dataPoints"][0]["asDouble"]
    expected = [Metric("my.metric.of.16.", [], {})]
    assert items_of(as_json(request)) == items_of(as_protobuf(request)) == expected


def test_a_protobuf_request_that_begins_like_json_is_protobuf() -> None:
    for padding in range(200):
        request = as_protobuf(traces(resource={"a": "x" * padding}))
        if request[:2] == b"\n{":
            break
    else:
        pytest.fail("no request of that length")
    assert read(request).passed_over == {EMPTY_REQUEST: 1}


def test_json_may_begin_with_space_or_a_byte_order_mark() -> None:
    request = as_json(traces(chat()))
    assert tokens_of(b"\n\t " + request) == tokens_of(b"\xef\xbb\xbf" + request) == [(10, 5)]


def test_a_file_may_have_one_request_a_line() -> None:
    lines = [as_json(traces(chat(number=number))) for number in (1, 2)]
    assert tokens_of(b"\n".join(lines) + b"\n\n") == [(10, 5), (10, 5)]


def test_a_broken_line_among_requests_is_refused_alone() -> None:
    reading = read(b"\r\n".join([as_json(traces(chat())), b'{"resourceSpans": [', as_json(log_request())]))
    assert len(reading.events) == 2
    assert reading.passed_over == {LOG_RECORD: 1}
    assert [(part.index, part.payload) for part in reading.refused] == [(1, b'{"resourceSpans": [')]


@pytest.mark.parametrize("record", [b"[]", b"{", b"null", b"hello", b"\x00", b"\x08\x01", b"\n\x02\x0a", b"{}" * 2])
def test_what_is_no_request_is_refused_as_a_whole(record: bytes) -> None:
    with pytest.raises(UnreadableRecordError):
        read(record)


def test_names_in_snake_case_are_refused_with_the_remedy() -> None:
    # https://github.com/open-telemetry/opentelemetry-collector/issues/8720
    with pytest.raises(UnreadableRecordError, match="lowerCamelCase"):
        read({"resource_spans": []})


def test_an_empty_request_is_counted() -> None:
    for record in (b"", b'{"resourceSpans": []}', b'{"resourceLogs": [{}]}'):
        assert read(record).passed_over == {EMPTY_REQUEST: 1}


# --- parts that are broken ------------------------------------------------------------------------------------------


def test_a_span_of_the_wrong_shape_is_refused_by_its_index_and_the_others_are_read() -> None:
    reading = read(traces(chat(number=1), chat(number=2, name=["x"]), 7, chat(number=4)))
    assert len(reading.events) == 4
    assert [part.index for part in reading.refused] == [1, 2]
    assert json.loads(reading.refused[0].payload)["name"] == ["x"]
    assert reading.refused[1].payload == b"7"


def test_a_span_of_impossible_tokens_is_refused_by_its_index_in_both_encodings() -> None:
    request = traces(chat(number=1), chat({"gen_ai.usage.output_tokens": -1}, number=2), chat(number=3))
    for encoded in (as_json(request), as_protobuf(request)):
        reading = read(encoded)
        assert len(reading.events) == 4
        assert [(part.index, part.reason) for part in reading.refused] == [(1, DeadLetterReason.OUT_OF_RANGE)]
        assert reading.refused[0].detail.startswith("gen_ai.usage.output_tokens is -1")


def test_a_span_that_is_no_protobuf_is_refused_by_its_index() -> None:
    first, second = (as_protobuf(traces(chat(number=number))) for number in (1, 2))
    broken = second.replace(bytes(7) + b"\x02", bytes(7) + b"\x02", 1)
    (item,) = [found for found in otlp_items(broken) if isinstance(found, Span)]
    assert item.span_id == bytes(7) + b"\x02"
    # An attribute's length, made to reach beyond the span.
    at = broken.rindex(b"gen_ai.usage.output_tokens") - 1
    reading = read(first + broken[:at] + b"\x7f" + broken[at + 1 :])
    assert len(reading.events) == 2
    assert [(part.index, part.reason) for part in reading.refused] == [(1, DeadLetterReason.MALFORMED)]


@pytest.mark.parametrize("encode", [as_json, as_protobuf])
def test_a_fault_that_a_thousand_spans_share_is_one_dead_letter_with_the_bytes_of_the_first(encode: Any) -> None:
    record = encode(traces(chat(), *[chat({"gen_ai.usage.output_tokens": -1}) for _ in range(1_000)]))
    reading = read(record)
    (one,) = reading.refused
    assert (one.index, one.detail.endswith("(1,000 items of this record, the first at index 1)")) == (1, True)
    assert 0 < len(one.payload) < len(record) // 500
    assert len(reading.events) == 2


@pytest.mark.parametrize("encode", [as_json, as_protobuf])
def test_spans_without_a_tenant_cost_no_more_than_their_record(encode: Any) -> None:
    record = encode(traces(*[chat({"a": number}) for number in range(1_000)], resource={}))
    reading = read_foreign(read_otlp, Foreign(value=record), Origin(source="s"))
    (one,) = reading.refused
    assert "1,000 items" in one.detail
    assert 0 < len(one.payload) < len(record) // 500


@pytest.mark.parametrize("encode", [as_json, as_protobuf])
def test_many_faults_in_one_request_are_few_dead_letters_of_fewer_bytes_than_it(encode: Any) -> None:
    spans = [chat({"gen_ai.usage.output_tokens": -1 - number}) for number in range(1_000)]
    record = encode(traces(*spans))
    refused = read(record).refused
    assert len(refused) == MAX_REFUSED
    assert all(one.payload for one in refused)
    assert sum(len(one.payload) for one in refused) <= len(record)
    assert "985 items of this record, not all for this reason, the first at index 15" in refused[-1].detail


def test_a_request_of_too_many_spans_is_refused_as_a_whole() -> None:
    many = b'{"resourceSpans": [{"scopeSpans": [{"spans": [' + b"{}," * MAX_ITEMS + b"{}]}]}]}"
    protobuf_spans = b"\x12\x00" * (MAX_ITEMS + 1)
    scope = b"\x12" + varint(len(protobuf_spans)) + protobuf_spans
    for record in (many, b"{" * 2_000_000, b"\x0a" + varint(len(scope)) + scope):
        reading = read_foreign(read_otlp, Foreign(value=record), ORIGIN)
        assert [part.reason for part in reading.refused] == [DeadLetterReason.TOO_LARGE]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize(("depth", "events"), [(20, 4), (100_000, 0)])
def test_a_value_nested_without_end_is_refused(depth: int, events: int) -> None:
    nested = b'{"arrayValue":{"values":[' * depth + b"]}}" * depth
    request = as_json(traces(chat({"deep": "X"}), chat(number=2))).replace(b'{"stringValue": "X"}', nested)
    reading = read_foreign(read_otlp, Foreign(value=request), ORIGIN)
    assert len(reading.events) == events
    assert [part.detail for part in reading.refused] == ["nested too deeply"] * (events < 4)


# --- the samples ----------------------------------------------------------------------------------------------------


@needs_samples
def test_the_provenance_is_that_of_the_span() -> None:
    event = read(sample("otlp_genai_chat_stream.json")).events[0]
    ids = bytes.fromhex("5b8efff798038103d269b633813fc60c"), bytes.fromhex("eee19b7ec3c1b174")
    assert event.provenance == Provenance(trace_id=ids[0], span_id=ids[1])


@needs_samples
@pytest.mark.parametrize(
    ("name", "passed_over"),
    [
        ("trace.json", {"no model call": 1}),
        ("logs.json", {LOG_RECORD: 1}),
        ("events.json", {LOG_RECORD: 1}),
        ("metrics.json", {"my.counter": 1, "my.gauge": 1, "my.histogram": 1, "my.exponential.histogram": 1}),
    ],
)
def test_the_examples_of_the_specification_are_well_formed_and_no_events(name: str, passed_over: Any) -> None:
    request = (EXAMPLES / name).read_bytes()
    for encoded in (request, as_protobuf(json.loads(request))):
        reading = read(encoded)
        assert (reading.events, reading.refused, reading.passed_over) == ([], [], passed_over)


@needs_samples
def test_the_span_of_the_specification_has_its_values() -> None:
    found = only_span((EXAMPLES / "trace.json").read_bytes())
    assert found == Span(
        trace_id=bytes.fromhex("5B8EFFF798038103D269B633813FC60C"),
        span_id=bytes.fromhex("EEE19B7EC3C1B174"),
        parent_span_id=bytes.fromhex("EEE19B7EC3C1B173"),
        name="I'm a server span",
        kind=2,
        started_at_us=1_544_712_660_000_000,
        ended_at_us=1_544_712_661_000_000,
        attributes={"my.span.attr": "some value"},
        events=(),
        status_code=0,
        resource={"service.name": "my.service"},
        scope="my.library",
    )


def otlp_samples() -> list[bytes]:
    return [path.read_bytes() for path in sorted(SAMPLES.glob("otlp_*.json"))]


@needs_samples
def test_protobuf_of_every_sample_gives_the_same_reading() -> None:
    for request in otlp_samples():
        assert read(as_protobuf(json.loads(request))) == read(request)


# --- properties -----------------------------------------------------------------------------------------------------

scalars = st.one_of(st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5
)
names = st.one_of(
    st.text(),
    st.sampled_from(
        (
            *("gen_ai.operation.name", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "tenant.id"),
            *("gen_ai.response.id", "error.type", "gen_ai.response.time_to_first_chunk", "gen_ai.conversation.id"),
            *("gen_ai.usage.cache_read.input_tokens", "http.response.status_code", "openinference.span.kind"),
        )
    ),
)
spans = st.builds(
    lambda given_attributes, number, parent, start, length, code, is_chat: (chat if is_chat else span)(
        given_attributes,
        number=number,
        parent=parent,
        start_us=START_US + start,
        end_us=START_US + start + length,
        status={"code": code},
    ),
    st.dictionaries(names, values, max_size=6),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.integers(0, 2),
    st.booleans(),
)


@given(st.lists(spans, min_size=1, max_size=6), st.dictionaries(names, values, max_size=3))
def test_json_and_protobuf_of_one_request_give_the_same_events(given_spans: list[Any], resource: Any) -> None:
    request = traces(*given_spans, resource=resource)
    in_json, in_protobuf = read(as_json(request)), read(as_protobuf(request))
    assert in_json.events == in_protobuf.events
    assert in_json.passed_over == in_protobuf.passed_over
    assert [(part.reason, part.index) for part in in_json.refused] == [
        (part.reason, part.index) for part in in_protobuf.refused
    ]
    assert_on_the_wire(in_json.events)


@given(st.lists(spans, min_size=1, max_size=6))
def test_nothing_of_a_request_is_lost(given_spans: list[Any]) -> None:
    reading = read(traces(*given_spans))
    calls = sum(isinstance(event, PromptSubmitted) for event in reading.events)
    told = [re.search(r"\(([0-9,]+) items of this record", one.detail) for one in reading.refused]
    refused = sum(int(found[1]) if found else 1 for found in told)
    assert calls + refused + sum(reading.passed_over.values()) == len(given_spans)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(record: bytes) -> None:
    assert_on_the_wire(read_otlp_or_refuse(record))


def read_otlp_or_refuse(record: bytes) -> list[Any]:
    try:
        return list(read_otlp(Foreign(value=record, received_at_us=START_US), ORIGIN).events)
    except UnreadableRecordError:
        return []


def fuzz_samples() -> Iterator[bytes]:
    requests = [
        *(json.loads(request) for request in otlp_samples()),
        full_request(),
        traces(chat(number=1), chat(number=2, parent=1), span({}, number=3, parent=2)),
        metric_request(),
        log_request(),
    ]
    for request in requests:
        yield as_json(request)
        yield as_protobuf(request)


def fuzz(count: int, seed: int) -> int:
    events = 0
    for record in mutations(list(fuzz_samples()), count, seed):
        found = read_otlp_or_refuse(record)
        assert_on_the_wire(found)
        events += len(found)
    return events


def test_broken_requests_are_read_or_refused() -> None:
    assert fuzz(2_000, seed=5) > 100


@pytest.mark.slow
def test_a_hundred_thousand_broken_requests_are_read_or_refused() -> None:
    assert fuzz(100_000, seed=6) > 5_000
