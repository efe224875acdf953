"""What could not be read or decided: where it was, why, and the bytes themselves."""

from enum import IntEnum
from typing import NamedTuple

import msgspec

WHOLE_RECORD = -1

MAX_DETAIL_CHARACTERS = 400
"""Details quote what producers sent, which may be long."""


class DeadLetterReason(IntEnum):
    """Why. The values are those on the wire."""

    MALFORMED = 1
    MISSING_FIELD = 2
    UNKNOWN_KIND = 3
    UNSUPPORTED_VERSION = 4
    TOO_LARGE = 5
    FOLD_FAILED = 6
    WRONG_SHARD = 7
    OUT_OF_RANGE = 8


class Position(NamedTuple):
    """Where a record stands: a topic or file, its partition, and the offset (in files, bytes before compression)."""

    source: str
    partition: int
    offset: int


class DeadLetter(msgspec.Struct, frozen=True):
    """One record, or one event of a batch (`index`), that was put aside."""

    source: str
    partition: int
    offset: int
    index: int
    reason: DeadLetterReason
    detail: str
    payload: bytes


def dead_letter(where: Position, index: int, reason: DeadLetterReason, detail: str, payload: bytes) -> DeadLetter:
    """A dead letter at `where`; `index` is WHOLE_RECORD or that of the event in its batch."""
    if len(detail) > MAX_DETAIL_CHARACTERS:
        detail = detail[: MAX_DETAIL_CHARACTERS - 3] + "..."
    return DeadLetter(where.source, where.partition, where.offset, index, reason, detail, payload)
