"""What is on the wire outlives every deploy: numbers, types and names against what was committed.

A field or value that is added shows up here too: look at the difference, then run `pytest --regenerate-golden`.
"""

from enum import IntEnum
from typing import Any

import pytest

from jobs.wiring.decision_files import DECISION_SCHEMA
from schemas import events as ev
from schemas.codec import KINDS
from schemas.dead_letters import DeadLetterReason
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from schemas.gen.headrace.v1 import dead_letters_pb2, decisions_pb2, events_pb2
from schemas.topics import SHARD_COUNT, Topic
from tests.conftest import Golden

FILES: tuple[Any, ...] = (events_pb2, decisions_pb2, dead_letters_pb2)
TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(events_pb2.Event.DESCRIPTOR.fields[0].__class__).items()
    if name.startswith("TYPE_")
}
PYTHON_ENUMS: tuple[type[IntEnum], ...] = (
    ev.UsageSource,
    ev.InterruptReason,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
    DeadLetterReason,
)


def _field(field: Any) -> str:
    kind = (field.message_type or field.enum_type).name if field.message_type or field.enum_type else TYPES[field.type]
    label = "repeated " if field.label == field.LABEL_REPEATED else ""
    oneof = f" in {field.containing_oneof.name}" if field.containing_oneof else ""
    return f"{field.number}: {label}{kind}{oneof}"


def _messages() -> dict[str, dict[str, str]]:
    found = {}
    for file in FILES:
        for name, message in sorted(file.DESCRIPTOR.message_types_by_name.items()):
            for one in (message, *message.nested_types):
                key = name if one is message else f"{name}.{one.name}"
                found[key] = {field.name: _field(field) for field in sorted(one.fields, key=lambda it: it.number)}
    return found


def _enums() -> dict[str, dict[str, int]]:
    return {
        name: {value.name: value.number for value in enum.values}
        for file in FILES
        for name, enum in sorted(file.DESCRIPTOR.enum_types_by_name.items())
    }


def test_the_wire_is_as_committed(golden: Golden) -> None:
    golden.check(
        "wire_contract.json",
        {
            "schema_version": ev.SCHEMA_VERSION,
            "topics": {topic.name: topic.value for topic in Topic},
            "shard_count": SHARD_COUNT,
            "messages": _messages(),
            "enums": _enums(),
            "decision_columns": {field.name: str(field.type) for field in DECISION_SCHEMA},
        },
    )


@pytest.mark.parametrize("enum", PYTHON_ENUMS, ids=lambda enum: enum.__name__)
def test_enums_in_python_are_those_on_the_wire(enum: type[IntEnum]) -> None:
    wire = _enums()[enum.__name__]
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.__name__).lstrip("_") + "_"
    on_wire = {name.removeprefix(prefix): number for name, number in wire.items()}
    in_python = {member.name: int(member) for member in enum}
    # Where a value must be set, Python has none for "unspecified".
    if 0 not in in_python.values():
        assert on_wire.pop("UNSPECIFIED") == 0
    assert in_python == on_wire


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_body_in_python_has_the_fields_of_its_message_in_their_order(kind: str) -> None:
    event_type = KINDS[kind][0]
    body = event_type.__struct_fields__[len(ev.Envelope.__struct_fields__) :]
    message = events_pb2.Event.DESCRIPTOR.fields_by_name[kind].message_type
    assert message is not None
    assert list(body) == [field.name for field in message.fields]
    assert message.name == event_type.__name__


def test_every_kind_on_the_wire_is_one_in_python() -> None:
    assert {field.name for field in events_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields} == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_body_has_a_field_of_the_envelope(kind: str) -> None:
    """On a line both stand next to each other."""
    message = events_pb2.Event.DESCRIPTOR.fields_by_name[kind].message_type
    assert message is not None
    envelope = {field.name for field in events_pb2.Event.DESCRIPTOR.fields} | {"kind"}
    assert envelope.isdisjoint(field.name for field in message.fields)


@pytest.mark.parametrize(
    ("message", "struct"), [(decisions_pb2.Decision, Decision), (decisions_pb2.BoundLimit, BoundLimit)]
)
def test_decisions_in_python_have_the_fields_of_their_message(message: Any, struct: Any) -> None:
    assert [field.name for field in message.DESCRIPTOR.fields] == list(struct.__struct_fields__)
