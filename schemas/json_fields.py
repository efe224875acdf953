"""How the fields of a message look in JSON: one reader a field, made from the message's descriptor.

As protobuf's JSON mapping has it (https://protobuf.dev/programming-guides/json/), with four differences, made for
people who read and write such lines by hand: names are snake_case as in the .proto, bytes are hexadecimal, enum values
are the lower-case name without the type's prefix, and numbers that are not finite are refused.

- integers: a JSON number, or a string of decimal digits for languages without 64-bit integers; `3.0` and `3e2` too
- bytes: an even number of hexadecimal digits; written in lower case
- enums: `"reported"`, or the number; a value that this version does not know reads as the first, like an unset one
- null: the same as leaving the field out
"""

import re
import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from math import isfinite
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from schemas.dead_letters import DeadLetterReason
from schemas.decisions import DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.events import InterruptReason, UsageSource

Reader: TypeAlias = Callable[[object], object]
"""Gives the value of a field, or NEWER; raises FieldError."""

NEWER: Final = None
"""What a reader gives for a value that only a newer version of the schema knows."""

_ENUMS: Final[Mapping[str, type[IntEnum]]] = {
    kind.__name__: kind
    for kind in (
        UsageSource,
        InterruptReason,
        DecisionKind,
        DecisionMode,
        DecisionReason,
        LimitLevel,
        LimitUnit,
    )
}

_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_MANY_DIGITS: Final = re.compile(r"-?[0-9]+")
_EXACT_FLOAT: Final = 2.0**53
_float32: Final = struct.Struct("<f")


class FieldError(ValueError):
    """A value that its field can't hold. The message reads on after the field's name."""

    def __init__(self, reason: DeadLetterReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _wrong_type(expected: str, value: object) -> FieldError:
    return FieldError(DeadLetterReason.MALFORMED, f"must be {expected}, got {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN_CHARACTERS else repr(value[:_SHOWN_CHARACTERS]) + "..."
    return str(value)


_SHOWN_CHARACTERS: Final = 40


def read_string(value: object) -> str:
    """The reader of strings, by name because most fields are some and a reader of lines takes a short cut."""
    if type(value) is str:
        return value
    raise _wrong_type("a string", value)


def _bool(value: object) -> bool:
    if type(value) is bool:
        return value
    raise _wrong_type("true or false", value)


def _bytes(value: object) -> bytes:
    if type(value) is str:
        try:
            found = bytes.fromhex(value)
        except ValueError:
            pass
        else:
            # fromhex skips white space.
            if len(value) == 2 * len(found):
                return found
    raise _wrong_type("an even number of hexadecimal digits", value)


def _integer(name: str, low: int, high: int) -> Reader:
    def read(value: object) -> int:
        if type(value) is int:
            number = value
        elif type(value) is str:
            if _DECIMAL.fullmatch(value):
                number = int(value)
            elif _MANY_DIGITS.fullmatch(value) and len(value) > len("-18446744073709551616"):
                raise FieldError(DeadLetterReason.OUT_OF_RANGE, f"has {len(value)} digits, too many for {name}")
            else:
                raise _wrong_type("a whole number", value)
        elif type(value) is float and value.is_integer() and abs(value) <= _EXACT_FLOAT:
            number = int(value)
        elif type(value) is float and abs(value) > _EXACT_FLOAT:
            raise FieldError(DeadLetterReason.OUT_OF_RANGE, f"is {value}, which is not exact; write the digits")
        else:
            raise _wrong_type("a whole number", value)
        if low <= number <= high:
            return number
        raise FieldError(DeadLetterReason.OUT_OF_RANGE, f"is {number}, beyond {name} ({low} to {high})")

    return read


def _double(value: object) -> float:
    if type(value) is float or type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            raise FieldError(DeadLetterReason.OUT_OF_RANGE, "is too large for a double") from None
        if isfinite(number):
            return number
        raise FieldError(DeadLetterReason.OUT_OF_RANGE, f"is {number}")
    raise _wrong_type("a number", value)


def _float(value: object) -> float:
    # Rounded as the wire rounds it, so that both forms of an event are equal.
    number = _double(value)
    try:
        rounded: float = _float32.unpack(_float32.pack(number))[0]
    except OverflowError:
        raise FieldError(DeadLetterReason.OUT_OF_RANGE, f"is {number}, beyond a 32-bit float") from None
    return rounded


def _enum(kind: type[IntEnum]) -> Reader:
    by_name = {member.name.lower(): member for member in kind}
    by_number = {int(member): member for member in kind}

    def read(value: object) -> IntEnum | None:
        if type(value) is str:
            return by_name.get(value, NEWER)
        if type(value) is int:
            return by_number.get(value, NEWER)
        raise _wrong_type("one of " + ", ".join(by_name), value)

    return read


def _list(read_item: Reader) -> Reader:
    def read(value: object) -> tuple[object, ...]:
        if type(value) is list:
            return tuple(map(read_item, value))
        raise _wrong_type("a list", value)

    return read


def _map(read_item: Reader) -> Reader:
    def read(value: object) -> dict[str, object]:
        if type(value) is dict:
            return {key: read_item(item) for key, item in value.items()}
        raise _wrong_type("an object", value)

    return read


_SCALARS: Final[Mapping[int, Reader]] = {
    FieldDescriptor.TYPE_STRING: read_string,
    FieldDescriptor.TYPE_BYTES: _bytes,
    FieldDescriptor.TYPE_BOOL: _bool,
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_FLOAT: _float,
    FieldDescriptor.TYPE_INT64: _integer("int64", -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: _integer("uint64", 0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: _integer("int32", -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: _integer("uint32", 0, 2**32 - 1),
}


def readers_of(message: type[Message]) -> dict[str, Reader]:
    """A reader for each field of `message` but those that hold another message."""
    readers = {}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            readers[field.name] = _reader_of(field)
        elif field.message_type.GetOptions().map_entry:
            readers[field.name] = _map(_reader_of(field.message_type.fields_by_name["value"]))
    return readers


def _reader_of(field: Any) -> Reader:  # noqa: ANN401 - the two kinds of descriptor share no type
    read = _enum(_ENUMS[field.enum_type.name]) if field.enum_type is not None else _SCALARS[field.type]
    is_repeated = field.label == FieldDescriptor.LABEL_REPEATED
    return _list(read) if is_repeated else read


def written(value: object) -> object:
    """What stands in JSON for a value of a field: the inverse of its reader. ValueError for NaN and infinities."""
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} can't be written as JSON")
    if isinstance(value, tuple):
        return [written(item) for item in value]
    return value
