"""Events as lines: both forms of an event are equal, and nothing that is read raises."""

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from schemas import events as ev
from schemas.codec import decode_events, encode_events, wire_event
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position
from schemas.decisions import Decision
from schemas.gen.headrace.v1.events_pb2 import EventBatch
from schemas.json_lines import decision_line, decision_of_line, decode_line, encode_line
from tests.generated_events import damaged, decisions, events

WHERE = Position("events.jsonl", 0, 4096)


@given(events(with_provenance=True))
def test_an_event_reads_as_it_was_written(event: ev.Event) -> None:
    assume(event.provenance != ev.Provenance())
    assert decode_line(encode_line(event), WHERE) == (event, ())


@given(events())
def test_both_forms_of_an_event_are_equal(event: ev.Event) -> None:
    from_line = decode_line(encode_line(event), WHERE).result
    assert not isinstance(from_line, DeadLetter)
    assert decode_events(encode_events(0, [from_line]), WHERE).events == [event]


@given(events(with_provenance=True))
def test_digits_in_a_string_read_as_the_number(event: ev.Event) -> None:
    line = encode_line(event)
    as_text = json.dumps(json.loads(line, parse_int=str)).encode()
    assert decode_line(as_text, WHERE) == decode_line(line, WHERE)


@given(
    events(), st.text(st.characters(codec="utf-8")) | st.sampled_from(("1.0", "1.0.0", "1.1", "1.2.3", "2.0.0", "0.9"))
)
def test_both_forms_accept_the_same_versions(event: ev.Event, version: str) -> None:
    wire = wire_event(event)
    wire.schema_version = version
    batch = decode_events(EventBatch(events=[wire]).SerializeToString(), WHERE)
    fields = json.loads(encode_line(event)) | {"schema_version": version}
    result = decode_line(json.dumps(fields).encode(), WHERE).result
    if batch.events:
        assert result == batch.events[0]
    else:
        assert isinstance(result, DeadLetter)
        assert (result.reason, result.detail) == (batch.dead[0].reason, batch.dead[0].detail)


def _rendered_key(name: str, *, escaped: bool, spaced: bool) -> str:
    key = "".join(f"\\u{ord(character):04x}" for character in name) if escaped else name
    return f'"{key}"' + (" " if spaced else "") + ":"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("model", "region", "backend", "source")),
            st.sampled_from(('"x"', '":x"', '"\\":"', '"a b"', '"\\\\"', '" :"')),
            st.booleans(),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_a_key_that_stands_twice_is_seen_however_it_is_written(pairs: list[tuple[str, str, bool, bool]]) -> None:
    fields = [f"{_rendered_key(name, escaped=escaped, spaced=spaced)}{value}" for name, value, escaped, spaced in pairs]
    line = "{" + ",".join(['"kind":"heartbeat"', '"event_time_us":1', *fields]) + "}"
    result = decode_line(line.encode(), WHERE).result
    names = [name for name, *_ in pairs]
    if len(set(names)) == len(names):
        assert isinstance(result, ev.Heartbeat)
        assert {name: getattr(result, name) for name in names} == {name: json.loads(value) for name, value, *_ in pairs}
    else:
        assert isinstance(result, DeadLetter)
        assert result.reason is DeadLetterReason.MALFORMED
        assert "stands there twice" in result.detail


_json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(events(with_provenance=True), st.data())
def test_any_value_in_any_field_is_read_or_refused(event: ev.Event, data: st.DataObject) -> None:
    fields = json.loads(encode_line(event))
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(_json_values)
    line = json.dumps(fields).encode()
    result = decode_line(line, WHERE).result
    if isinstance(result, DeadLetter):
        assert result.payload == line
        assert result.detail
    else:
        # What is accepted fits the wire.
        assert decode_events(encode_events(0, [result]), WHERE, with_provenance=True).dead == []


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(line: bytes) -> None:
    result = decode_line(line, WHERE).result
    assert not isinstance(result, DeadLetter) or result.payload == line


@given(events(with_provenance=True), st.data())
def test_a_damaged_line_is_read_or_refused(event: ev.Event, data: st.DataObject) -> None:
    line = data.draw(damaged(encode_line(event)))
    result = decode_line(line, WHERE).result
    if isinstance(result, DeadLetter):
        assert result.payload == line
    else:
        assert decode_line(encode_line(result), WHERE).result == result


@given(decisions)
def test_a_decision_reads_as_it_was_written(decision: Decision) -> None:
    assert decision_of_line(decision_line(decision)) == decision
