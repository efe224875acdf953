"""Which types of a field may take each other's place, in bytes and in JSON.

Source: https://protobuf.dev/programming-guides/proto3/#updating for bytes, #json there for JSON. A value that the other
type can't hold is cut off or turned negative, so a change within a group is only safe while no such value is written.
"""

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

TYPE_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(number, int)
}

_SAME_ON_WIRE: Final = (
    frozenset(("int32", "uint32", "int64", "uint64", "bool", "enum")),
    frozenset(("sint32", "sint64")),
    frozenset(("fixed32", "sfixed32")),
    frozenset(("fixed64", "sfixed64")),
    # While the bytes are what a serialised message is: EventFrames is EventBatch so read.
    frozenset(("message", "bytes")),
)


def type_of(field: Any) -> str:
    """The type as it stands in the .proto, names of messages and enums whole; of a map, the message of its entries."""
    referred = field.message_type or field.enum_type
    if referred is None:
        return TYPE_NAMES[field.type]
    return f"group {referred.full_name}" if field.type == FieldDescriptor.TYPE_GROUP else str(referred.full_name)


def is_wire_compatible(old: Any, new: Any) -> bool:
    """Whether bytes of the one type are read as the other, as far as the values fit. Both are of different types."""
    kinds = {TYPE_NAMES[old.type], TYPE_NAMES[new.type]}
    if kinds == {"enum"}:
        return True
    if len(kinds) == 1:
        # Two messages: their fields would have to be compared, and no name says that they mean the same.
        return False
    # A reader of text refuses bytes that are no UTF-8; one of bytes takes any text.
    if TYPE_NAMES[old.type] == "string" and TYPE_NAMES[new.type] == "bytes":
        return True
    return any(kinds <= group for group in _SAME_ON_WIRE)
