"""One event a line: what is accepted, and what each refusal says."""

import json
from typing import Any

import pytest

from schemas import events as ev
from schemas.codec import MAX_EVENT_BYTES, MAX_NAME_BYTES
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from schemas.identity import event_id
from schemas.json_lines import decision_line, decision_of_line, decode_line, encode_line

WHERE = Position("events.jsonl", 0, 4096)
CHUNK: dict[str, Any] = {
    "kind": "tokens_generated",
    "tenant": "acme",
    "request_id": "r-1",
    "event_time_us": 1_700_000_000_000_000,
    "count": 16,
}


def read(**fields: Any) -> ev.Event:
    """The event of CHUNK with some fields changed; None takes one away."""
    result = decode_line(json.dumps(CHUNK | fields).encode(), WHERE).result
    assert not isinstance(result, DeadLetter), result
    return result


def refusal_of(line: bytes) -> tuple[DeadLetterReason, str]:
    decoded = decode_line(line, WHERE)
    assert isinstance(decoded.result, DeadLetter), decoded
    letter = decoded.result
    assert (letter.source, letter.partition, letter.offset, letter.index) == (*WHERE, WHOLE_RECORD)
    assert letter.payload == line
    assert decoded.unknown_fields == ()
    return letter.reason, letter.detail


def refused(**fields: Any) -> tuple[DeadLetterReason, str]:
    return refusal_of(json.dumps(CHUNK | fields).encode())


def test_a_line_reads_as_its_event() -> None:
    line = (
        b'{"kind":"request_completed","schema_version":"1.2.0","event_id":"00ff","tenant":"acme","request_id":"r-1",'
        b'"attempt":1,"event_time_us":5,"watermark_us":4,"sequence":3,"session":"s","model":"m","backend":"b",'
        b'"region":"eu","source":"gw","prompt_tokens":7,"completion_tokens":8,"cached_tokens":2,'
        b'"usage_source":"reported","finish_reason":"stop"}'
    )
    assert decode_line(line, WHERE) == (
        ev.RequestCompleted(
            b"\x00\xff",
            "acme",
            "r-1",
            1,
            5,
            4,
            3,
            "s",
            "m",
            "b",
            "eu",
            "gw",
            None,
            7,
            8,
            2,
            ev.UsageSource.REPORTED,
            "stop",
        ),
        (),
    )


def test_an_event_is_written_with_its_set_fields_alone() -> None:
    event = ev.StreamInterrupted(
        b"\x0a" * 16, "acme", "r-1", 0, 5, 0, 0, "", "", "", "", "", None, 12, ev.InterruptReason.REVOKED
    )
    assert json.loads(encode_line(event)) == {
        "kind": "stream_interrupted",
        "schema_version": "1.2.0",
        "event_id": "0a" * 16,
        "tenant": "acme",
        "request_id": "r-1",
        "event_time_us": 5,
        "token_offset": 12,
        "reason": "revoked",
    }


def test_a_field_newer_than_the_reader_is_accepted_and_named() -> None:
    """Case SC02: JSON with a field newer than the reader's schema was refused (confluentinc/kafka-rest#1260)."""
    case = {"event_id": "e1", "new_field": 1}
    decoded = decode_line(json.dumps(CHUNK | case).encode(), WHERE)
    assert isinstance(decoded.result, ev.TokensGenerated)
    assert decoded.result.event_id == b"\xe1"
    assert decoded.unknown_fields == ("new_field",)


def test_names_of_unknown_fields_are_sorted() -> None:
    line = json.dumps(CHUNK | {"zebra": {"a": [1]}, "ant": "x", "bee": None}).encode()
    assert decode_line(line, WHERE).unknown_fields == ("ant", "zebra")


def test_a_field_of_another_kind_is_unknown_here() -> None:
    assert decode_line(json.dumps(CHUNK | {"prompt_tokens": 3}).encode(), WHERE).unknown_fields == ("prompt_tokens",)


@pytest.mark.parametrize("value", ["guessed", 99, -1])
def test_an_enum_value_newer_than_the_reader_reads_as_unset_and_is_named(value: object) -> None:
    decoded = decode_line(json.dumps(CHUNK | {"kind": "request_completed", "usage_source": value}).encode(), WHERE)
    assert isinstance(decoded.result, ev.RequestCompleted)
    assert decoded.result.usage_source is ev.UsageSource.ABSENT
    assert decoded.unknown_fields == ("count", "usage_source")


@pytest.mark.parametrize("value", ["16", '"16"', "16.0", "1.6e1"])
def test_integers_come_as_numbers_or_digits(value: str) -> None:
    line = json.dumps(CHUNK).replace('"count": 16', f'"count": {value}').encode()
    event = decode_line(line, WHERE).result
    assert isinstance(event, ev.TokensGenerated)
    assert event.count == 16
    assert type(event.count) is int


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("watermark_us", 0, 2**53),
        ("count", -(2**63), 2**63 - 1),
        ("sequence", 0, 2**64 - 1),
        ("lamport", 0, 2**64 - 1),
        ("attempt", 0, 2**32 - 1),
    ],
)
def test_an_integer_beyond_its_field_is_out_of_range(field: str, low: int, high: int) -> None:
    for fits in (low, high, str(low), str(high)):
        read(**{field: fits})
    for beyond in (low - 1, high + 1, str(low - 1), str(high + 1), "9" * 30, 10**400, 1e300):
        reason, detail = refused(**{field: beyond})
        assert reason is DeadLetterReason.OUT_OF_RANGE
        assert detail.startswith(f"{field} ")


@pytest.mark.parametrize("time_us", [-1, 2**53 + 1])
def test_a_time_before_the_epoch_or_after_2255_is_out_of_range(time_us: int) -> None:
    reason, detail = refused(event_time_us=time_us)
    assert reason is DeadLetterReason.OUT_OF_RANGE
    assert detail.startswith(f"event_time_us is {time_us}, it must be from 1 to ")


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5_000, b"-1e999", b"[1,1e999]"])
def test_a_number_that_no_type_can_hold_is_named(number: bytes) -> None:
    line = b'{"kind":"heartbeat","event_time_us":1,"lamport":' + number + b"}"
    reason, detail = refusal_of(line)
    assert reason is DeadLetterReason.OUT_OF_RANGE
    assert detail.startswith("lamport ")


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"count": "many"}, "count must be a whole number, got 'many'"),
        ({"count": " 3"}, "count must be a whole number, got ' 3'"),
        ({"count": "1_0"}, "count must be a whole number, got '1_0'"),
        ({"count": 1.5}, "count must be a whole number, got 1.5"),
        ({"count": True}, "count must be a whole number, got true"),
        ({"count": [1]}, "count must be a whole number, got a list"),
        ({"tenant": 7}, "tenant must be a string, got 7"),
        ({"text": {}}, "text must be a string, got an object"),
        ({"event_id": "xyz"}, "event_id must be an even number of hexadecimal digits, got 'xyz'"),
        ({"event_id": "0a 0b"}, "event_id must be an even number of hexadecimal digits, got '0a 0b'"),
        ({"event_id": "abc"}, "event_id must be an even number of hexadecimal digits, got 'abc'"),
        ({"vector_clock": [1]}, "vector_clock must be an object, got a list"),
        ({"vector_clock": {"eu": "x"}}, "vector_clock must be a whole number, got 'x'"),
        ({"critical_fields": 3}, "critical_fields must be a list, got 3"),
        ({"kind": "prompt_submitted", "stream": 1}, "stream must be true or false, got 1"),
        ({"kind": "health_sample", "kv_cache_use": "NaN"}, "kv_cache_use must be a number, got 'NaN'"),
        ({"kind": ["heartbeat"]}, "kind must be a string"),
        ({"schema_version": 1.1}, "schema_version must be a string"),
    ],
)
def test_a_value_of_the_wrong_type_is_malformed(fields: dict[str, object], detail: str) -> None:
    assert refused(**fields) == (DeadLetterReason.MALFORMED, detail)


def test_a_refused_enum_tells_the_names() -> None:
    reason, detail = refused(kind="stream_interrupted", reason=[1])
    assert reason is DeadLetterReason.MALFORMED
    assert detail == "reason must be one of unspecified, client_disconnected, connection_lost, revoked, got a list"


def test_a_weight_is_rounded_as_on_the_wire_and_refused_beyond_it() -> None:
    event = read(kind="experts_routed", experts=[1, "2"], weights=[0.1, 1], count=None)
    assert isinstance(event, ev.ExpertsRouted)
    assert (event.experts, event.weights) == ((1, 2), (0.10000000149011612, 1.0))
    assert refused(kind="experts_routed", weights=[1e39]) == (
        DeadLetterReason.OUT_OF_RANGE,
        "weights is 1e+39, beyond a 32-bit float",
    )


@pytest.mark.parametrize(
    ("missing", "detail"),
    [
        ("tenant", "tokens_generated without tenant"),
        ("request_id", "tokens_generated without request_id"),
        ("event_time_us", "tokens_generated without event_time_us"),
    ],
)
@pytest.mark.parametrize("as_null", [False, True])
def test_what_every_request_event_needs(missing: str, detail: str, as_null: bool) -> None:
    fields = CHUNK | {missing: None} if as_null else {name: CHUNK[name] for name in CHUNK if name != missing}
    assert refusal_of(json.dumps(fields).encode()) == (DeadLetterReason.MISSING_FIELD, detail)


def test_a_heartbeat_needs_a_time_and_no_tenant() -> None:
    assert isinstance(decode_line(b'{"kind":"heartbeat","event_time_us":1}', WHERE).result, ev.Heartbeat)
    assert refusal_of(b'{"kind":"heartbeat"}') == (DeadLetterReason.MISSING_FIELD, "heartbeat without event_time_us")


def test_an_unknown_kind_is_told_from_a_missing_one() -> None:
    assert refused(kind="tokens_eaten") == (
        DeadLetterReason.UNKNOWN_KIND,
        "the event has kind 'tokens_eaten', which is not known to schema 1.2.0",
    )
    assert refused(kind=None)[0] is DeadLetterReason.UNKNOWN_KIND


def test_a_name_that_is_too_long_for_a_key_is_too_large() -> None:
    assert read(tenant="ä" * (MAX_NAME_BYTES // 2)).tenant == "ä" * (MAX_NAME_BYTES // 2)
    assert refused(tenant="ä" * (MAX_NAME_BYTES // 2 + 1)) == (
        DeadLetterReason.TOO_LARGE,
        "tenant has 514 bytes, at most 512 are allowed",
    )


def test_a_line_that_is_too_large() -> None:
    line = json.dumps(CHUNK | {"text": "x" * MAX_EVENT_BYTES}).encode()
    reason, detail = refusal_of(line)
    assert reason is DeadLetterReason.TOO_LARGE
    assert detail == f"the line has {len(line)} bytes, at most {MAX_EVENT_BYTES} are allowed"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b'"text"',
        b"null",
        b"{}{}",
        b'{"kind":"heartbeat","event_time_us":1',
        b'{"kind":"heartbeat","event_time_us":NaN}',
        b'{"kind":"heartbeat","event_time_us":Infinity}',
        b'{"kind":"health_sample","event_time_us":1,"kv_cache_use":-Infinity}',
        b'{"kind":"heartbeat","event_time_us":1,"model":"\xff"}',
        b'{"kind":"heartbeat","event_time_us":1,"model":"\\ud800"}',
        b'{"kind":"heartbeat","event_time_us":1,"model":"\xed\xa0\x80"}',
        b'{"kind":"heartbeat","event_time_us":1,"model":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_json_object_is_malformed(line: bytes) -> None:
    assert refusal_of(line)[0] is DeadLetterReason.MALFORMED


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"heartbeat","event_time_us":1,"event_time_us":2}',
        b'{"kind":"heartbeat","event_time_us":1,"event\\u005ftime_us":1}',
        b'{"kind":"heartbeat","event_time_us" : 1,"event_time_us":2}',
        b'{"kind":"heartbeat","event_time_us":1,"event_time_us"\t:2,"model":":"}',
    ],
)
def test_a_key_that_stands_twice_is_malformed(line: bytes) -> None:
    assert refusal_of(line) == (DeadLetterReason.MALFORMED, "event_time_us stands there twice")


def test_a_region_that_stands_twice_in_a_vector_clock_is_malformed() -> None:
    line = b'{"kind":"heartbeat","event_time_us":1,"vector_clock":{"eu":1,"eu":2}}'
    assert refusal_of(line) == (DeadLetterReason.MALFORMED, "eu stands there twice")


@pytest.mark.parametrize("text", [':"', '":', '"a":1,"a":2', '\\":', '\\\\":"'])
def test_text_that_looks_like_keys_is_no_key(text: str) -> None:
    event = read(text=text)
    assert isinstance(event, ev.TokensGenerated)
    assert event.text == text


def test_a_byte_order_mark_is_passed_over() -> None:
    assert isinstance(decode_line(b'\xef\xbb\xbf{"kind":"heartbeat","event_time_us":1}', WHERE).result, ev.Heartbeat)


def test_a_missing_event_id_is_derived_where_session_and_sequence_name_the_event() -> None:
    assert read(session="s-1", sequence="3").event_id == event_id("s-1", 3, "tokens_generated")
    assert read(session="s-1", sequence=2**64 - 1).event_id == event_id("s-1", 2**64 - 1, "tokens_generated")
    assert read(session="s-1").event_id == b""
    assert read(sequence=3).event_id == b""
    assert read(session="s-1", sequence=3, event_id="01").event_id == b"\1"


def test_an_event_of_schema_1_0_is_upcast() -> None:
    fields = {"schema_version": "1.0.0", "event_time_us": None, "event_time_ms": 1_700_000_000_123, "lamport": 9}
    event = read(**fields, session="s-1", sequence=3)
    assert event.event_time_us == 1_700_000_000_123_000
    assert event.provenance == ev.Provenance(lamport=9)
    assert event.event_id == event_id("s-1", 3, "tokens_generated")


def test_a_time_of_schema_1_0_that_microseconds_can_not_hold_is_out_of_range() -> None:
    reason, detail = refused(schema_version="1.0.0", event_time_us=None, event_time_ms=2**62)
    assert reason is DeadLetterReason.OUT_OF_RANGE
    assert detail.startswith("event_time_ms is ")


@pytest.mark.parametrize("version", ["1.1.7", "1.2.7", "1.99.0"])
def test_a_newer_minor_version_is_read_if_nothing_critical_is_unknown(version: str) -> None:
    assert read(schema_version=version) == read()
    assert read(schema_version=version, critical_fields=[2, 5]) == read()


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"schema_version": "1.3.0", "critical_fields": [2, 4_000]}, "marks fields [4000] as critical"),
        ({"schema_version": "2.0.0"}, "of another major version"),
        ({"schema_version": "0.9.0"}, "is not supported"),
        ({"schema_version": ""}, "is not a semantic version"),
        ({"schema_version": "one"}, "is not a semantic version"),
        ({"schema_version": "2.0.0", "kind": "tokens_eaten"}, "of another major version"),
    ],
)
def test_another_version_is_refused_by_the_rules_of_the_log(fields: dict[str, object], detail: str) -> None:
    reason, found = refused(**fields)
    assert reason is DeadLetterReason.UNSUPPORTED_VERSION
    assert detail in found


def test_a_nan_is_not_written() -> None:
    event = ev.HealthSample(b"", "", "", 0, 1, 0, 0, "", "", "", "", "", None, kv_cache_use=float("nan"))
    with pytest.raises(ValueError, match="nan can't be written"):
        encode_line(event)


DECISION = Decision(
    decision_id="r-1/0/1",
    kind=DecisionKind.THROTTLE,
    mode=DecisionMode.ENFORCE,
    reason=DecisionReason.OVER_LIMIT,
    tenant="acme",
    request_id="r-1",
    attempt=0,
    decided_at_us=5,
    bound=BoundLimit("per-minute", LimitLevel.API_KEY, "key-1", LimitUnit.TOKENS, 100, 0, 9),
    retry_at_us=7,
    caused_by=b"\x0a\x0b",
)


def test_a_decision_is_written_with_names_and_its_bound_limit_whole() -> None:
    assert json.loads(decision_line(DECISION)) == {
        "decision_id": "r-1/0/1",
        "kind": "throttle",
        "mode": "enforce",
        "reason": "over_limit",
        "tenant": "acme",
        "request_id": "r-1",
        "decided_at_us": 5,
        "bound": {
            "name": "per-minute",
            "level": "api_key",
            "subject": "key-1",
            "unit": "tokens",
            "limit": 100,
            "remaining": 0,
            "reset_at_us": 9,
        },
        "retry_at_us": 7,
        "caused_by": "0a0b",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "maybe"}, "kind must be one that this version knows"),
        ({"used_tokens": "x"}, "used_tokens must be a whole number"),
        ({"colour": 1}, "colour is not a field of a decision"),
        ({"tenant": None}, "tenant must be a string"),
        ({"bound": 3}, "bound must be an object"),
        ({"bound": {"name": "n"}}, "bound lacks level, subject, unit, limit, remaining, reset_at_us"),
    ],
)
def test_a_line_that_is_no_decision_is_refused_with_the_field(change: dict[str, object], message: str) -> None:
    line = json.dumps(json.loads(decision_line(DECISION)) | change).encode()
    with pytest.raises(ValueError, match=message):
        decision_of_line(line)


def test_a_decision_without_a_field_names_it() -> None:
    fields = json.loads(decision_line(DECISION))
    del fields["decision_id"], fields["kind"]
    with pytest.raises(ValueError, match="a decision lacks decision_id, kind"):
        decision_of_line(json.dumps(fields).encode())
    with pytest.raises(ValueError, match="not a JSON object"):
        decision_of_line(b"[]")
