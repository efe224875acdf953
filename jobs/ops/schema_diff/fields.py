"""What changed in a field that keeps its number."""

from collections.abc import Iterator
from typing import Any

from jobs.ops.schema_diff.change import BOTH, JSON, NOTHING, WIRE, Change
from jobs.ops.schema_diff.field_types import is_wire_compatible, type_of


def field_changes(old: Any, new: Any) -> Iterator[Change]:
    """Changes between two FieldDescriptors of one message and number."""
    where = f"{old.containing_type.full_name}.{old.name}"
    is_renamed, is_retyped = old.name != new.name, type_of(old) != type_of(new)
    if is_renamed and is_retyped:
        detail = f"number {old.number} was {type_of(old)} and is now {type_of(new)} {new.name}: another field"
        yield Change("number-reused", where, BOTH, detail)
        return
    if is_renamed:
        detail = f"renamed to {new.name}: the same bytes, another key in JSON; if it means something else, a reuse"
        yield Change("field-renamed", where, JSON, detail)
    elif old.json_name != new.json_name:
        yield Change("json-name-changed", where, JSON, f"in JSON {old.json_name} is now {new.json_name}")
    if is_retyped:
        yield _retyped(where, old, new)
    yield from _cardinality(where, old, new)
    if oneof_of(old) != oneof_of(new):
        detail = f"was {_in_oneof(old)}, is {_in_oneof(new)}: setting one field of a oneof clears the others"
        yield Change("oneof-changed", where, WIRE, detail)
    if _default(old) != _default(new):
        yield Change("default-changed", where, BOTH, f"default {_default(old)!r} is now {_default(new)!r}")


def _retyped(where: str, old: Any, new: Any) -> Change:
    detail = f"{type_of(old)} is now {type_of(new)}"
    if old.enum_type is not None and new.enum_type is not None:
        before = {(value.name, value.number) for value in old.enum_type.values}
        if before <= {(value.name, value.number) for value in new.enum_type.values}:
            return Change("enum-replaced", where, NOTHING, f"{detail}, which has all its values")
        return Change("type-changed", where, BOTH, f"{detail}, which lacks values of it")
    if is_wire_compatible(old, new):
        detail = f"{detail}: the same bytes as far as values fit; in JSON another form or range"
        return Change("type-changed-alike", where, JSON, detail)
    return Change("type-changed", where, BOTH, detail)


def _cardinality(where: str, old: Any, new: Any) -> Iterator[Change]:
    before, after = cardinality_of(old), cardinality_of(new)
    detail = f"{before} is now {after}"
    if {before, after} == {"singular", "optional"}:
        # Within a oneof a field always tells whether it is set, and the oneof is told by itself.
        if oneof_of(old) == oneof_of(new):
            detail = f"{detail}: the same bytes; whether it was set is told by one of the two alone"
            yield Change("presence-changed", where, NOTHING, detail)
    elif {before, after} == {"repeated", "map"}:
        yield Change("cardinality-changed", where, JSON, f"{detail}: the same bytes; in JSON a list and an object")
    elif before != after:
        yield Change("cardinality-changed", where, BOTH, detail)


def cardinality_of(field: Any) -> str:
    """`singular`, `optional` (it tells whether it is set), `required`, `repeated` or `map`."""
    if field.label == field.LABEL_REPEATED:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        return "map" if is_map else "repeated"
    if field.label == field.LABEL_REQUIRED:
        return "required"
    return "optional" if field.has_presence else "singular"


def oneof_of(field: Any) -> str | None:
    """The oneof of a field; None without one, and for proto3's `optional`, behind which stands one of its own."""
    oneof = field.containing_oneof
    # protoc names it so, and puts nothing else into it.
    if oneof is None or ([one.name for one in oneof.fields] == [field.name] and oneof.name == f"_{field.name}"):
        return None
    return str(oneof.name)


def _in_oneof(field: Any) -> str:
    name = oneof_of(field)
    return f"in oneof {name}" if name else "in no oneof"


def _default(field: Any) -> object:
    """The default where the .proto gives one: what an absent field is read as."""
    if field.label == field.LABEL_REPEATED or field.message_type is not None:
        return None
    if field.enum_type is not None:
        # By name: the same number under another name is the enum's change.
        value = field.enum_type.values_by_number.get(field.default_value)
        return None if not field.has_default_value or value is None else value.name
    return field.default_value if field.has_default_value else None
