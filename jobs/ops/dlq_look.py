"""One dead letter, decoded as far as it goes.

Text of prompts and completions is personal data, and hidden unless it is asked for. Bytes that can't be decoded may
hold such text anywhere, so they are hidden too; their structure is shown.
"""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from jobs.ops.dlq import Letter
from schemas.codec import decode_events
from schemas.dead_letters import Position
from schemas.gen.headrace.v1 import events_pb2

HIDDEN: Final = "(hidden: --show-text shows it)"
MOST_EVENTS: Final = 20
_WIRE_TYPES: Final = {0: "varint", 1: "64 bits", 2: "bytes", 5: "32 bits"}
_SHOWN_TEXTS: Final = frozenset(
    ("tenant", "request_id", "session", "model", "backend", "region", "source", "schema_version")
)
_FIELDS: Final = {field.number: field.name for field in events_pb2.Event.DESCRIPTOR.fields}


class LetterView(msgspec.Struct, kw_only=True):
    """All there is to say of a letter. `payload_*` None: hidden. `decoded`: what can be read of it."""

    place: str
    sent_us: int
    source: str
    partition: int
    offset: int
    index: int
    reason: str
    detail: str
    payload_bytes: int
    payload_blake2b: str
    payload_hex: str | None
    payload_base64: str | None
    is_event: bool
    decoded: dict[str, Any]


def look(letter: Letter, *, show_text: bool = False) -> LetterView:
    """The letter, decoded as far as it goes."""
    found = letter.letter
    payload = found.payload
    is_event = found.index >= 0
    if is_event:
        decoded, is_safe = _event(payload, show_text=show_text)
    else:
        decoded, is_safe = _batch(found.payload, Position(found.source, found.partition, found.offset)), False
    is_shown = show_text or is_safe
    return LetterView(
        place=str(letter.place),
        sent_us=letter.sent_us,
        source=found.source,
        partition=found.partition,
        offset=found.offset,
        index=found.index,
        reason=found.reason.name.lower(),
        detail=found.detail,
        payload_bytes=len(payload),
        payload_blake2b=blake2b(payload, digest_size=16).hexdigest(),
        payload_hex=payload.hex() if is_shown else None,
        payload_base64=b64encode(payload).decode() if is_shown else None,
        is_event=is_event,
        decoded=decoded,
    )


def _event(payload: bytes, *, show_text: bool) -> tuple[dict[str, Any], bool]:
    """The event's fields, and whether its bytes hold no text for sure."""
    try:
        wire = events_pb2.Event.FromString(payload)
    except (DecodeError, UnicodeDecodeError):
        return {"event": None, "fields": list(fields_of(payload))}, False
    fields: dict[str, Any] = MessageToDict(wire, preserving_proto_field_name=True)
    has_text = bool(wire.tokens_generated.text)
    if has_text and not show_text:
        fields["tokens_generated"]["text"] = HIDDEN
    known = events_pb2.Event()
    known.CopyFrom(wire)
    known.DiscardUnknownFields()  # type: ignore[attr-defined]
    # Fields that are not known here, or stand twice, may hold text that the event as it is read does not show.
    others = len(payload) - known.ByteSize()
    found: dict[str, Any] = {"event": fields}
    if others:
        found["bytes_not_shown"] = others
    return found, not (has_text or others)


def _batch(payload: bytes, where: Position) -> dict[str, Any]:
    """What a whole record holds: its shard, which of its events can be read, and why the others can't."""
    try:
        frames = events_pb2.EventFrames.FromString(payload)
    except DecodeError:
        return {"batch": None, "fields": list(fields_of(payload, {1: "shard", 2: "events"}))}
    decoded = decode_events(payload, where)
    return {
        "batch": {
            "shard": frames.shard,
            "events": len(frames.events),
            "readable": len(decoded.events),
            "first": [
                {
                    "index": index,
                    "kind": type(event).__name__,
                    "tenant": event.tenant,
                    "request_id": event.request_id,
                    "event_time_us": event.event_time_us,
                }
                for index, event in zip(decoded.indexes, decoded.events[:MOST_EVENTS], strict=False)
            ],
            "unreadable": [
                {"index": letter.index, "reason": letter.reason.name.lower(), "detail": letter.detail}
                for letter in decoded.dead[:MOST_EVENTS]
            ],
        }
    }


def fields_of(payload: bytes, names: dict[int, str] | None = None) -> Iterator[str]:
    """The fields of a protobuf message, up to where its bytes make no sense. Values only where they can be no text.

    >>> list(fields_of(bytes.fromhex("12046163 6d652814ff")))
    ['tenant (2): acme', 'event_time_us (5): 20', 'from byte 8 on: no field of protobuf']
    """
    names = _FIELDS if names is None else names
    at = 0
    while at < len(payload):
        start = at
        tag, at = _varint(payload, at)
        number, wire_type = (tag >> 3, tag & 7) if tag is not None else (0, 7)
        name = f"{names.get(number, 'unknown')} ({number})"
        if not number or wire_type not in _WIRE_TYPES:
            yield f"from byte {start} on: no field of protobuf"
            return
        if wire_type == 0:
            value, at = _varint(payload, at)
            if value is None:
                yield f"{name}: cut off at byte {len(payload)}"
                return
            yield f"{name}: {value}"
            continue
        length: int | None = {1: 8, 5: 4}.get(wire_type)
        if length is None:
            length, at = _varint(payload, at)
        if length is None or at + length > len(payload):
            wanted = "" if length is None else f" of {length} bytes"
            yield f"{name}: cut off{wanted} at byte {len(payload)}"
            return
        yield f"{name}: {_shown(names.get(number, ''), payload[at : at + length])}"
        at += length


def _shown(name: str, value: bytes) -> str:
    if name in _SHOWN_TEXTS:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"{len(value)} bytes, not UTF-8: {value[:32].hex()}"
    return f"{len(value)} bytes"


def _varint(payload: bytes, at: int) -> tuple[int | None, int]:
    value = shift = 0
    while at < len(payload) and shift < 70:
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return None, at
