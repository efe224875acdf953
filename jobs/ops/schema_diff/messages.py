"""What changed in a message: fields that are gone or new, what is reserved."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto

from jobs.ops.schema_diff.change import BOTH, JSON, NOTHING, WIRE, Change, Form
from jobs.ops.schema_diff.fields import cardinality_of, field_changes
from jobs.ops.schema_diff.numbers import Numbers


class _Reserved:
    """Numbers and names that a message keeps from being used."""

    def __init__(self, message: Any) -> None:
        proto = DescriptorProto()
        message.CopyToProto(proto)
        self.numbers = Numbers((span.start, span.end) for span in proto.reserved_range)
        self.names = frozenset(proto.reserved_name)


def message_changes(old: Any, new: Any) -> Iterator[Change]:
    """Changes between two Descriptors of one name, the messages within them aside."""
    was_reserved, is_reserved = _Reserved(old), _Reserved(new)
    for field in old.fields:
        found = new.fields_by_number.get(field.number)
        yield from _gone(field, new, is_reserved) if found is None else field_changes(field, found)
    for field in new.fields:
        if field.number not in old.fields_by_number:
            yield from _added(field, old, was_reserved)
    yield from reserved_changes(
        old.full_name,
        was_reserved.numbers.without(_joined(is_reserved.numbers, new.fields_by_number)),
        was_reserved.names - is_reserved.names - frozenset(new.fields_by_name),
    )
    if old.GetOptions().message_set_wire_format != new.GetOptions().message_set_wire_format:
        yield Change("message-set-changed", old.full_name, WIRE, "message_set_wire_format has changed")


def _joined(numbers: Numbers, more: Any) -> Numbers:
    """What is reserved or in use: a reserved number that is in use now is told at its field."""
    return Numbers([*numbers.spans, *((number, number + 1) for number in more)])


def reserved_changes(where: str, numbers: Iterator[Any], names: frozenset[str]) -> Iterator[Change]:
    """Changes for what is reserved no more, of a message or an enum."""
    for span in numbers:
        yield Change(
            "reserved-removed", where, WIRE, f"{span} is reserved no more: a later use reads old bytes wrongly"
        )
    for name in sorted(names):
        yield Change(
            "reserved-removed", where, JSON, f'"{name}" is reserved no more: a later use reads old JSON wrongly'
        )


def _gone(field: Any, new: Any, reserved: _Reserved) -> Iterator[Change]:
    where = f"{field.containing_type.full_name}.{field.name}"
    moved = new.fields_by_name.get(field.name)
    if moved is not None:
        detail = f"number {field.number} is now {moved.number}: what was written under the old one is not found"
        yield Change("number-changed", where, WIRE, detail)
        return
    if cardinality_of(field) == "required":
        yield Change("required-removed", where, BOTH, "older readers refuse a message without it")
    yield unreserved("field", where, field.number, field.name, reserved.numbers, reserved.names)


def unreserved(kind: str, where: str, number: int, name: str, numbers: Numbers, names: frozenset[str]) -> Change:
    """The change for a field or value of an enum that is gone: it breaks what its reuse would break."""
    missing = {
        form: line
        for form, line, is_reserved in (
            (Form.WIRE, f"`reserved {number};`", number in numbers),
            (Form.JSON, f'`reserved "{name}";`', name in names),
        )
        if not is_reserved
    }
    if not missing:
        return Change(f"{kind}-removed", where, NOTHING, f"removed; its number {number} and its name are reserved")
    detail = f"removed without {' and '.join(missing.values())}: nothing keeps it from being reused"
    return Change(f"{kind}-removed-unreserved", where, tuple(missing), detail)


def _added(field: Any, old: Any, reserved: _Reserved) -> Iterator[Change]:
    where = f"{field.containing_type.full_name}.{field.name}"
    is_free = True
    if field.number in reserved.numbers:
        is_free = False
        yield Change(
            "reserved-used", where, WIRE, f"number {field.number} was reserved: bytes of another use may be read"
        )
    if field.name in reserved.names:
        is_free = False
        yield Change("reserved-used", where, JSON, "its name was reserved: JSON of another use may be read")
    if cardinality_of(field) == "required":
        yield Change("required-added", where, BOTH, "a new field is required, and older messages lack it")
    elif is_free and field.name not in old.fields_by_name:
        yield Change("field-added", where, NOTHING, f"new, number {field.number}; older readers pass over it")
