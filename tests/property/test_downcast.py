"""Down and up again loses what it says, and nothing else."""

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas import events as ev
from schemas.codec import wire_event
from schemas.downcast import CriticalFieldsLostError, downcast
from schemas.gen.headrace.v1.events_pb2 import Event
from schemas.upcast import to_current
from tests.critical_field import added_as_critical
from tests.generated_events import events

OLDER = st.sampled_from(("1.1", "1.0"))


def _fields(event: Event) -> dict[str, Any]:
    """Every field of the envelope and the body that is set, by message and name: the oracle's view."""
    kind = event.WhichOneof("body")
    found = {f"Event.{field.name}": value for field, value in event.ListFields() if field.name != kind}
    if kind is not None:
        body = getattr(event, kind)
        found |= {f"{body.DESCRIPTOR.name}.{field.name}": value for field, value in body.ListFields()}
    return {name: list(value) if _is_list(value) else value for name, value in found.items()}


def _is_list(value: object) -> bool:
    return hasattr(value, "append")


def _lost_by_definition(event: ev.Event, version: str) -> set[str]:
    """Written from docs/schema-versions.md, not from the tables of the code."""
    lost = set()
    if isinstance(event, ev.PromptSubmitted) and event.provider:
        lost.add("PromptSubmitted.provider")
    if isinstance(event, ev.PromptSubmitted) and event.resumed_at_token:
        lost.add("PromptSubmitted.resumed_at_token")
    if isinstance(event, ev.StreamInterrupted) and event.usage_source:
        lost.add("StreamInterrupted.usage_source")
    if isinstance(event, ev.RequestCompleted) and event.cache_write_tokens:
        lost.add("RequestCompleted.cache_write_tokens")
    if version == "1.0" and event.event_time_us % 1000:
        lost.add("Event.event_time_us")
    return lost


def _can_not_go_down(event: ev.Event, version: str) -> bool:
    """No version has added a critical field: only a time that 1.0 would take for none is in the way."""
    return version == "1.0" and event.event_time_us < 1000


@given(events(with_provenance=True), OLDER)
def test_up_again_only_what_was_told_is_missing(event: ev.Event, version: str) -> None:
    assume(not _can_not_go_down(event, version))
    whole = wire_event(event)
    before = whole.SerializeToString(deterministic=True)

    older, dropped = downcast(whole, version)

    assert whole.SerializeToString(deterministic=True) == before
    assert older.schema_version == f"{version}.0"
    told = dict(dropped)
    assert set(told) == _lost_by_definition(event, version)
    again = Event()
    again.CopyFrom(older)
    to_current(again)
    expected = _fields(whole)
    for name, value in told.items():
        if name == "Event.event_time_us":
            expected[name] -= value
        else:
            assert expected.pop(name) == value
    assert _fields(again) == expected


@given(events(with_provenance=True), OLDER)
def test_what_has_gone_down_has_nothing_more_to_lose(event: ev.Event, version: str) -> None:
    if _can_not_go_down(event, version):
        with pytest.raises(CriticalFieldsLostError) as refused:
            downcast(wire_event(event), version)
        assert refused.value.fields == ("Event.event_time_us",)
    else:
        older, _ = downcast(wire_event(event), version)
        assert downcast(older, version).dropped == ()


@given(events(with_provenance=True), OLDER)
def test_an_event_goes_down_unless_a_critical_field_is_set(event: ev.Event, version: str) -> None:
    assume(not _can_not_go_down(event, version))
    is_set = isinstance(event, ev.PromptSubmitted) and event.choices != 0
    with added_as_critical("PromptSubmitted", "choices"):
        whole = wire_event(event)
        assert list(whole.critical_fields) == ([9_007] if is_set else [])
        if is_set:
            with pytest.raises(CriticalFieldsLostError) as refused:
                downcast(whole, version)
            assert refused.value.fields == ("PromptSubmitted.choices",)
        else:
            assert {field for field, _ in downcast(whole, version).dropped} == _lost_by_definition(event, version)


@given(events(with_provenance=True))
def test_one_step_after_the_other_is_both_at_once(event: ev.Event) -> None:
    assume(not _can_not_go_down(event, "1.0"))
    at_once, told_at_once = downcast(wire_event(event), "1.0")
    half, told_first = downcast(wire_event(event), "1.1")
    apart, told_then = downcast(half, "1.0")
    assert apart == at_once
    assert told_first + told_then == told_at_once


@given(st.lists(st.integers(1_000, 2**53), min_size=2, max_size=5))
def test_times_keep_their_order(times_us: list[int]) -> None:
    found = []
    for time_us in sorted(times_us):
        event = Event(tenant="a", request_id="r", event_time_us=time_us, schema_version=ev.SCHEMA_VERSION)
        event.tokens_generated.count = 1
        found.append(downcast(event, "1.0").event.event_time_ms)
        assert found[-1] * 1000 <= time_us
    assert found == sorted(found)


@given(st.binary(max_size=60), st.sampled_from(("1.0.0", "1.1.0", "1.2.0", "1.3.0", "2.0.0", "")), OLDER)
def test_a_message_of_any_fields_goes_down_or_is_refused_as_a_value_error(
    unknown: bytes, version: str, older: str
) -> None:
    event = Event()
    try:
        event.MergeFromString(unknown)
    except (DecodeError, UnicodeDecodeError):
        event = Event()
    event.schema_version = version
    try:
        found = downcast(event, older)
    except ValueError:
        return
    assert found.event.schema_version.startswith("1.")
