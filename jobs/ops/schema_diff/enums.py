"""What changed in an enum."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import EnumDescriptorProto

from jobs.ops.schema_diff.change import BOTH, JSON, NOTHING, WIRE, Change
from jobs.ops.schema_diff.messages import reserved_changes, unreserved
from jobs.ops.schema_diff.numbers import Numbers


def enum_changes(old: Any, new: Any) -> Iterator[Change]:
    """Changes between two EnumDescriptors of one name. With allow_alias a number has several names."""
    before, after = _names(old), _names(new)
    was_reserved, had_names = _reserved(old)
    is_reserved, names = _reserved(new)
    in_use = {name for found in after.values() for name in found}
    for number, was in before.items():
        for name in was:
            yield from _value(new, number, name, after.get(number, []), is_reserved, names)
    for number, found in after.items():
        added = [name for name in found if name not in {one for was in before.values() for one in was}]
        if number in was_reserved:
            yield Change("reserved-used", f"{new.full_name}.{found[0]}", WIRE, f"number {number} was reserved")
        for name in added:
            where = f"{new.full_name}.{name}"
            if name in had_names:
                yield Change("reserved-used", where, JSON, "its name was reserved")
            elif number not in before and number not in was_reserved:
                yield Change("value-added", where, NOTHING, f"new, {number}; older readers keep the number")
    taken = Numbers([*is_reserved.spans, *((number, number + 1) for number in after)])
    yield from reserved_changes(old.full_name, was_reserved.without(taken), had_names - names - in_use)
    if old.is_closed != new.is_closed:
        detail = "values that a reader does not know are kept by an open enum, and set aside by a closed one"
        yield Change("enum-closedness-changed", old.full_name, BOTH, detail)


def _names(enum: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for value in enum.values:
        found.setdefault(value.number, []).append(value.name)
    return found


def _reserved(enum: Any) -> tuple[Numbers, frozenset[str]]:
    proto = EnumDescriptorProto()
    enum.CopyToProto(proto)
    # Unlike a message's, the end of an enum's range is in it.
    return Numbers((span.start, span.end + 1) for span in proto.reserved_range), frozenset(proto.reserved_name)


def _value(
    new: Any, number: int, name: str, found: list[str], reserved: Numbers, names: frozenset[str]
) -> Iterator[Change]:
    where = f"{new.full_name}.{name}"
    moved = new.values_by_name.get(name)
    if name in found:
        return
    if moved is not None:
        detail = f"{number} is now {moved.number}: older bytes are read as another value or none"
        yield Change("value-number-changed", where, WIRE, detail)
    elif found:
        detail = f"{number} is now named {', '.join(found)}: the same bytes, another word in JSON"
        yield Change("value-renamed", where, JSON, detail)
    else:
        yield unreserved("value", where, number, name, reserved, names)
