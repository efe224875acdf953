"""Records that hold one JSON object or many: an array, as HTTP callbacks send batches, or lines, as files have them."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.fields import json_object_of, malformed
from udfs.domain.ingest.record import Reading, UnreadableRecordError
from udfs.domain.ingest.refusals import Refusals

MAX_OBJECTS: Final = 10_000
"""More objects in one record are refused."""

EMPTY: Final = "empty batches"

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_elements = msgspec.json.Decoder(list[msgspec.Raw])

ReadObject = Callable[[dict[str, Any], Reading], None]
"""Adds what one object says to a reading. Raises UnreadableRecordError before it has added anything."""


def read_objects(value: bytes, read_object: ReadObject) -> Reading:
    """Read a JSON object, an array of them, or one a line. Of several, the ones that can't be read are refused alone,
    those of one fault together.

    Raises UnreadableRecordError where there is but one and it can't be read, or where nothing in it is JSON.
    """
    whole = value.removeprefix(_BYTE_ORDER_MARK).strip()
    reading = Reading()
    if whole.startswith(b"["):
        _read_each(_elements_of(whole), read_object, reading)
        return reading
    try:
        found = json_object_of(whole)
    except UnreadableRecordError as unreadable:
        lines = [line for line in whole.splitlines() if line.strip()]
        # A broken object on many lines is one record gone wrong, and not one for each line.
        if len(lines) < 2 or not any(_is_object(line) for line in lines[: MAX_OBJECTS + 1]):
            raise
        _read_each(lines, read_object, reading, unreadable)
        return reading
    read_object(found, reading)
    return reading


def _elements_of(whole: bytes) -> list[bytes]:
    try:
        return [bytes(element) for element in _elements.decode(whole)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(f"not JSON: {error}") from None


def _is_object(line: bytes) -> bool:
    try:
        json_object_of(line)
    except UnreadableRecordError:
        return False
    return True


def _read_each(
    parts: list[bytes], read_object: ReadObject, reading: Reading, cause: UnreadableRecordError | None = None
) -> None:
    if len(parts) > MAX_OBJECTS:
        detail = f"the record holds {len(parts):,} objects, at most {MAX_OBJECTS:,} are read; send smaller batches"
        raise UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail) from cause
    if not parts:
        reading.passed_over[EMPTY] += 1
    refusals = Refusals("object")
    for index, part in enumerate(parts):
        try:
            read_object(json_object_of(part), reading)
        except UnreadableRecordError as unreadable:
            refusals.add(unreadable, index, part)
    reading.refused += refusals.refused()
