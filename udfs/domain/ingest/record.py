"""What an adapter is given, and what it gives."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from schemas.codec import MAX_TIME_US
from schemas.dead_letters import WHOLE_RECORD, DeadLetterReason
from schemas.events import Event
from udfs.domain.ingest.trace_context import TRACEPARENT, in_trace, trace_context

MAX_RECORD_BYTES: Final = 10_000_000
"""A larger foreign record is refused unread: no adapter may be made to hold what it can't bound."""


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """One record as its producer wrote it.

    `received_at_us` is when the log or the file got it; it stands in where a record has no time of its own. 0: not
    known. `headers` are those of a Kafka record, by lower-case name.
    """

    value: bytes
    received_at_us: int = 0
    headers: Mapping[str, bytes] = {}


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all records of one producer. `source` names it: watermarks are kept per source.

    `tenant`, `region` and `backend` stand in where a record names none.
    """

    source: str
    tenant: str = ""
    region: str = ""
    backend: str = ""


class Refused(msgspec.Struct, frozen=True):
    """A part of a record, or all of it, that goes to the dead letters.

    `index` is that of the part within the record, `payload` its bytes; where they are empty, the record's are meant.
    `parts` of the record have the same fault; index and payload are those of the first.
    """

    reason: DeadLetterReason
    detail: str
    index: int = WHOLE_RECORD
    payload: bytes = b""
    parts: int = 1


class Reading(msgspec.Struct):
    """What came of one record. `passed_over` counts parts that are well-formed and no event, by what they are.

    Everything in a record is one of the three: nothing is dropped in silence.
    """

    events: list[Event] = []
    refused: list[Refused] = []
    passed_over: Counter[str] = msgspec.field(default_factory=Counter)


class UnreadableRecordError(ValueError):
    """Why a record, or a part of it, can't become events. `detail` names the field and what is wrong with it."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


Adapter: TypeAlias = Callable[[Foreign, Origin], Reading]
"""Reads one record. Raises UnreadableRecordError where nothing of it can be read, and no other error, whatever it is.

The same record gives the same events, with the same ids, however often it is read.
"""


def read_foreign(adapter: Adapter, record: Foreign, origin: Origin) -> Reading:
    """Read a record by its adapter; never raises. What can't be read comes back as refused.

    Events that name no trace belong to that of the record's `traceparent`.
    """
    if len(record.value) > MAX_RECORD_BYTES:
        detail = f"the record has {len(record.value):,} bytes, at most {MAX_RECORD_BYTES:,} are read"
        return Reading(refused=[Refused(DeadLetterReason.TOO_LARGE, detail)])
    if not 0 <= record.received_at_us <= MAX_TIME_US:
        # What Kafka writes where it knows no time, and clocks that are off.
        record = msgspec.structs.replace(record, received_at_us=0)
    try:
        reading = adapter(record, origin)
    except UnreadableRecordError as unreadable:
        return Reading(refused=[Refused(unreadable.reason, unreadable.detail)])
    except RecursionError:
        return Reading(refused=[Refused(DeadLetterReason.MALFORMED, "nested too deeply")])
    header = record.headers.get(TRACEPARENT)
    context = trace_context(header) if header else None
    if context is not None:
        reading.events = [in_trace(event, context) for event in reading.events]
    return reading
