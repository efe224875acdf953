"""What becomes of an event of each version, and what of it survives."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ops.dlq import Letter, Place, prepare
from schemas import downcast as down
from schemas import events as ev
from schemas import upcast as up
from schemas.codec import decode_events, encode_events, wire_event
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position
from schemas.gen.headrace.v1.events_pb2 import Event, EventBatch
from schemas.json_lines import decode_line, encode_line
from schemas.topics import shard_of
from schemas.versions import (
    ADDED,
    CRITICAL,
    FIELD_OF_MARK,
    MARKS_OF_A_BODY,
    ROUTES,
    AddedField,
    Route,
    UnsupportedVersionError,
    critical_in,
    parse,
    route_of,
)
from tests.critical_field import added_as_critical

WHERE = Position("headrace.events", 0, 0)
SHARDS = 32
UNKNOWN = b"\xca\x3e\x03new"
"""Field 1001 as bytes: of a schema that is not written yet."""


def wire(version: str = "1.3.0", *, critical: tuple[int, ...] = ()) -> Event:
    event = Event(tenant="acme", request_id="r", event_time_us=1_500, schema_version=version, critical_fields=critical)
    event.prompt_submitted.prompt_tokens = 7
    return event


def prompt(*, choices: int = 0, lamport: int = 0, region: str = "", resumed_at_token: int = 0) -> ev.PromptSubmitted:
    return ev.PromptSubmitted(
        b"\1" * 16,
        "acme",
        "r",
        1,
        1_500,
        0,
        1,
        "s",
        "m",
        "b",
        region,
        "src",
        ev.Provenance(lamport=lamport),
        choices=choices,
        resumed_at_token=resumed_at_token,
    )


# --- routes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "route"),
    [
        ("1.0.0", Route.UPCAST),
        ("1.0", Route.UPCAST),
        ("1.1.0", Route.UPCAST),
        ("1.1.99", Route.UPCAST),
        ("1.2.0", Route.READ),
        ("1.2.1-rc1", Route.READ),
        ("1.3.0", Route.READ_IF_KNOWN),
        ("1.999999999", Route.READ_IF_KNOWN),
        ("2.0.0", Route.REFUSE),
        ("2.2.0", Route.REFUSE),
        ("0.1.0", Route.REFUSE),
        ("0.3.0", Route.REFUSE),
    ],
)
def test_every_version_has_a_route(version: str, route: Route) -> None:
    assert route_of(version) is route
    event = wire(version)
    if route is Route.REFUSE:
        with pytest.raises(UnsupportedVersionError):
            up.to_current(event)
        return
    up.to_current(event)
    assert event.schema_version == (ev.SCHEMA_VERSION if route is Route.UPCAST else version)


@pytest.mark.parametrize("version", ["", "1", "one", "1.2.x", "1.2.3.4", "٣.1", "1.2\n", "1" * 20 + ".0", "-1.0"])
def test_what_is_no_version_is_refused_and_quoted_in_part(version: str) -> None:
    with pytest.raises(UnsupportedVersionError, match="is not a semantic version") as refused:
        route_of(version)
    assert len(str(refused.value)) < 120


def test_steps_lead_through_every_version_both_ways() -> None:
    names = list(ADDED)
    assert names == list(ROUTES)
    assert [parse(name) for name in names] == sorted(map(parse, names))
    assert parse(names[-1]) == parse(ev.SCHEMA_VERSION)
    assert {old: step.to_version for old, step in up.STEPS.items()} == dict(itertools.pairwise(names))
    assert {new: step.to_version for new, step in down.STEPS.items()} == dict(itertools.pairwise(reversed(names)))
    assert [name for name, route in ROUTES.items() if route is Route.READ] == names[-1:]


# --- critical fields ----------------------------------------------------------------------------------------------


def test_marks_name_fields_of_the_envelope_and_of_bodies_apart() -> None:
    assert FIELD_OF_MARK[11] == "Event.request_failed"
    assert FIELD_OF_MARK[9_011] == "PromptSubmitted.resumed_at_token"
    assert FIELD_OF_MARK[12_003] == "StreamInterrupted.usage_source"
    assert len(set(FIELD_OF_MARK.values())) == len(FIELD_OF_MARK)
    # Beyond this the two kinds of mark would meet.
    assert all(field.number < MARKS_OF_A_BODY for field in Event.DESCRIPTOR.fields)
    bodies = Event.DESCRIPTOR.oneofs_by_name["body"].fields
    assert all(field.number < MARKS_OF_A_BODY for body in bodies for field in body.message_type.fields)


def test_every_field_that_a_version_added_is_there_with_a_reason() -> None:
    added = [field for fields in ADDED.values() for field in fields]
    assert {field.path for field in added} <= set(FIELD_OF_MARK.values())
    assert all(field.why for field in added)
    assert critical_in(ADDED) == CRITICAL


def test_a_prompt_that_goes_on_is_not_put_aside_by_older_readers() -> None:
    """Its counts are of the attempt alone. Were it marked, an older job would not decide the request."""
    event = prompt(resumed_at_token=40)
    assert list(wire_event(event).critical_fields) == []
    assert "critical_fields" not in msgspec.json.decode(encode_line(event))
    older, dropped = down.downcast(wire_event(event), "1.1")
    assert dropped == (("PromptSubmitted.resumed_at_token", 40),)
    assert older.prompt_submitted.resumed_at_token == 0


@pytest.mark.parametrize(
    ("path", "event", "marks"),
    [
        ("PromptSubmitted.choices", prompt(choices=3), [9_007]),
        ("PromptSubmitted.choices", prompt(region="eu"), []),
        ("Event.region", prompt(region="eu"), [19]),
        ("Event.region", prompt(choices=3), []),
        ("Event.lamport", prompt(lamport=9), [22]),
        ("Event.lamport", prompt(), []),
        ("Event.lamport", msgspec.structs.replace(prompt(), provenance=None), []),
        ("TokensGenerated.count", prompt(choices=3), []),
    ],
)
def test_a_critical_field_is_marked_where_it_is_set(path: str, event: ev.Event, marks: list[int]) -> None:
    message, name = path.split(".")
    plain = wire_event(event)
    with added_as_critical(message, name):
        marked = wire_event(event)
        assert list(marked.critical_fields) == marks
        assert msgspec.json.decode(encode_line(event)).get("critical_fields", []) == marks
        assert decode_events(encode_events(0, [event]), WHERE, with_provenance=True).events == [
            decode_events(EventBatch(events=[plain]).SerializeToString(), WHERE, with_provenance=True).events[0]
        ]
    del marked.critical_fields[:]
    assert marked == plain


def test_one_message_may_have_several_critical_fields() -> None:
    field = AddedField("PromptSubmitted", "choices", is_critical=True, why="made up")
    added = {"1.2": (field, field._replace(name="user", is_critical=False)), "1.3": (field._replace(name="stream"),)}
    assert critical_in(added) == {"PromptSubmitted": (("choices", 9_007), ("stream", 9_006))}


@pytest.mark.parametrize(("mark", "is_read"), [(5, True), (9_011, True), (29, False), (9_012, False), (16_001, False)])
def test_a_newer_event_is_read_if_its_critical_fields_are_known(mark: int, is_read: bool) -> None:
    record = EventBatch(events=[wire(critical=(2, mark))]).SerializeToString()
    decoded = decode_events(record, WHERE)
    if is_read:
        assert [type(event) for event in decoded.events] == [ev.PromptSubmitted]
        return
    (dead,) = decoded.dead
    assert dead.reason is DeadLetterReason.UNSUPPORTED_VERSION
    assert f"marks fields [{mark}] as critical" in dead.detail


# --- unknown fields -----------------------------------------------------------------------------------------------


def newer_bytes() -> bytes:
    """A newer event with fields that we do not know, in the envelope and in the body."""
    event = wire()
    event.prompt_submitted.MergeFromString(UNKNOWN)
    return event.SerializeToString() + UNKNOWN


def test_an_event_that_is_read_and_written_keeps_what_we_do_not_know() -> None:
    event = Event.FromString(newer_bytes())
    up.to_current(event)
    assert event.SerializeToString(deterministic=True) == newer_bytes()


def test_a_batch_keeps_what_we_do_not_know_of_its_events() -> None:
    batch = EventBatch.FromString(EventBatch(shard=3, events=[Event.FromString(newer_bytes())]).SerializeToString())
    assert batch.events[0].SerializeToString(deterministic=True) == newer_bytes()


@pytest.mark.parametrize("index", [0, -1])
def test_a_dead_letter_that_is_replayed_keeps_what_we_do_not_know(index: int) -> None:
    shard = shard_of("acme", SHARDS)
    record = EventBatch(shard=shard, events=[Event.FromString(newer_bytes())]).SerializeToString()
    payload = newer_bytes() if index == 0 else record
    letter = DeadLetter("headrace.events", 0, 0, index, DeadLetterReason.FOLD_FAILED, "", payload)
    prepared = prepare(Letter(Place(0, 0), 0, letter), SHARDS)
    assert prepared.problem == ""
    assert prepared.record == record


def test_what_folds_see_has_only_what_we_know() -> None:
    """A fold's events are typed: what is written from them again has lost the rest, and a line names it."""
    record = EventBatch(events=[Event.FromString(newer_bytes())]).SerializeToString()
    (event,) = decode_events(record, WHERE).events
    assert UNKNOWN not in encode_events(0, [event])
    line = b'{"kind":"heartbeat","event_time_us":1,"schema_version":"1.3.0","new":1}'
    assert decode_line(line, WHERE).unknown_fields == ("new",)


# --- down, case by case -------------------------------------------------------------------------------------------


def test_a_field_that_is_not_critical_is_dropped_and_told() -> None:
    event = wire("1.2.0")
    event.prompt_submitted.provider = "openai"
    older, dropped = down.downcast(event, "1.1")
    assert dropped == (("PromptSubmitted.provider", "openai"),)
    assert (older.schema_version, older.prompt_submitted.provider) == ("1.1.0", "")
    assert event.prompt_submitted.provider == "openai"


@pytest.mark.parametrize(
    ("path", "event"), [("PromptSubmitted.choices", prompt(choices=3)), ("Event.region", prompt(region="eu"))]
)
def test_a_critical_field_is_not_dropped(path: str, event: ev.Event) -> None:
    message, name = path.split(".")
    # Marked or not: a producer may have forgotten the mark.
    unmarked = wire_event(event)
    with added_as_critical(message, name):
        for whole in (unmarked, wire_event(event)):
            before = whole.SerializeToString(deterministic=True)
            for version in ("1.1", "1.0"):
                with pytest.raises(down.CriticalFieldsLostError, match=rf"{name}.*upgrade its readers") as refused:
                    down.downcast(whole, version)
                assert refused.value.fields == (path,)
                assert refused.value.version == version
            assert whole.SerializeToString(deterministic=True) == before
        assert down.downcast(wire_event(prompt()), "1.1").dropped == ()
    assert down.downcast(unmarked, "1.1").dropped == ()


def test_a_field_that_the_event_marks_as_critical_is_not_dropped() -> None:
    event = wire("1.2.0", critical=(9_010,))
    event.prompt_submitted.provider = "openai"
    with pytest.raises(down.CriticalFieldsLostError, match=r"PromptSubmitted\.provider"):
        down.downcast(event, "1.1")


def test_marks_of_fields_that_are_not_set_go() -> None:
    older, dropped = down.downcast(wire("1.2.0", critical=(2, 9_010)), "1.1")
    assert list(older.critical_fields) == [2]
    assert dropped == (("Event.critical_fields", (9_010,)),)


def test_a_time_is_rounded_down_to_milliseconds_and_what_is_cut_off_is_told() -> None:
    older, dropped = down.downcast(wire("1.2.0"), "1.0")
    assert (older.event_time_us, older.event_time_ms, older.schema_version) == (0, 1, "1.0.0")
    assert dropped == (("Event.event_time_us", 500),)


def test_a_time_that_milliseconds_can_not_hold_is_refused() -> None:
    event = wire("1.2.0")
    event.event_time_us = 999
    with pytest.raises(down.CriticalFieldsLostError, match="event_time_us"):
        down.downcast(event, "1.0")


@pytest.mark.parametrize(
    ("version", "target"), [("1.0.0", "1.1"), ("1.1.3", "1.1"), ("1.0", "1.0.0"), ("1.2.9", "1.2")]
)
def test_an_event_that_is_old_enough_is_left_as_it_is(version: str, target: str) -> None:
    event = Event.FromString(newer_bytes())
    event.schema_version = version
    older, dropped = down.downcast(event, target)
    assert dropped == ()
    assert older.SerializeToString() == event.SerializeToString()


def test_a_newer_event_loses_what_we_do_not_know() -> None:
    for target in ("1.2", "1.1"):
        older, dropped = down.downcast(Event.FromString(newer_bytes()), target)
        assert dropped == (("Event.1001", None), ("PromptSubmitted.1001", None))
        expected = wire(f"{target}.0")
        assert older == expected


@pytest.mark.parametrize(
    ("event", "target", "says"),
    [
        (wire("1.2.0"), "1.3", "there is no schema version 1.3"),
        (wire("1.2.0"), "0.9", "there is no schema version 0.9"),
        (wire("1.2.0"), "old", "not a semantic version"),
        (wire("2.0.0"), "1.1", "another major version"),
        (wire("0.9.0"), "1.1", "is not supported"),
        (wire(critical=(77,)), "1.1", r"marks fields \[77\] as critical"),
        (Event(schema_version="1.9.0"), "1.1", "no body of a kind known"),
    ],
)
def test_where_there_is_no_way_down_is_refused(event: Event, target: str, says: str) -> None:
    with pytest.raises(UnsupportedVersionError, match=says):
        down.downcast(event, target)


@given(st.text() | st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?", fullmatch=True))
def test_any_version_is_routed_or_refused(version: str) -> None:
    try:
        route = route_of(version)
    except UnsupportedVersionError:
        return
    major, minor = (int(part) for part in version.split(".")[:2])
    known = {(1, 0): Route.UPCAST, (1, 1): Route.UPCAST, (1, 2): Route.READ}
    assert route is known.get((major, minor), Route.READ_IF_KNOWN if major == 1 else Route.REFUSE)
