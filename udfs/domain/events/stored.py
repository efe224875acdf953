"""The bytes that state of this package is stored as: one byte for the form, then msgpack.

A change of what is stored is a new form. Bytes of another form are refused: to start from nothing in silence would
give the same clock, or let the same fact pass, twice.
"""

from typing import TypeVar

import msgspec

Stored = TypeVar("Stored")


class UnreadableStoredError(ValueError):
    """Bytes that this release did not write. Restore those that it wrote, or start the release that wrote these."""


def pack(form: int, value: object) -> bytes:
    """The bytes of `value` in `form`."""
    return bytes((form,)) + msgspec.msgpack.encode(value)


def unpack(form: int, stored: bytes, kind: type[Stored], name: str) -> Stored:
    """The value of `kind` that `pack` wrote. Raises UnreadableStoredError, which names `name`, for all other bytes."""
    if stored[:1] != bytes((form,)):
        found = stored[0] if stored else "missing"
        raise UnreadableStoredError(f"{name}: its form is {found}, this release reads {form}")
    try:
        return msgspec.msgpack.decode(stored[1:], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UnreadableStoredError(f"{name}: {error}") from None
