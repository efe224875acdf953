"""Events and decisions as JSON, one object a line.

An event is one flat object: `kind` is the name of the body's field in the .proto, and the fields of the envelope and of
that body stand next to each other (no body has a field that the envelope has too). `schemas.json_fields` tells how
values look.

    {"kind":"prompt_submitted","schema_version":"1.1.0","tenant":"acme","request_id":"r-1",
     "event_time_us":1700000000000000,"prompt_tokens":120,"max_tokens":256,"api_key":"key-1","stream":true}

- A field that is left out, or null, is unset: 0, empty, false.
- `schema_version` left out means the current one. Another one is upcast or refused as in the log (schemas.upcast).
- `event_id` left out is derived from session, sequence and kind (schemas.identity) where session and sequence are
  there. Where they are not it stays empty: a hash of the line would give a producer's retry, which stamps the time
  anew, another id than the first try, and two equal chunks of one stream the same one. No decision depends on it.
- Fields that this version does not know, and fields that hold an enum value it does not know, are accepted and named.
- A key that stands twice in one object is refused, because readers disagree on which one counts (RFC 8259, section 4).
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from schemas import events as ev
from schemas.codec import (
    KINDS,
    MAX_EVENT_BYTES,
    NAME_OF_KIND,
    UnreadableError,
    check_envelope,
    critical_marks,
    read_event,
)
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position, dead_letter
from schemas.decisions import BoundLimit, Decision
from schemas.gen.headrace.v1 import decisions_pb2, events_pb2
from schemas.identity import event_id
from schemas.json_fields import NEWER, FieldError, Reader, read_string, readers_of, written


class DecodedLine(NamedTuple):
    """What a line came to. `unknown_fields` are the sorted names of what an accepted line has beyond this version."""

    result: ev.Event | DeadLetter
    unknown_fields: tuple[str, ...]


_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PARSE: Final = msgspec.json.Decoder().decode
_RENDER: Final = msgspec.json.Encoder().encode

_ENVELOPE_READERS: Final = readers_of(events_pb2.Event)
_PROVENANCE: Final = frozenset(ev.Provenance.__struct_fields__)
_DEFAULTS: Final[dict[str, object]] = {
    name: "" if name in {"tenant", "request_id", "session", "model", "backend", "region", "source"} else 0
    for name in ev.Envelope.__struct_fields__
} | {"event_id": b"", "provenance": None}

_READ_APART: Final[Mapping[str, Reader]] = {
    name: read for name, read in _ENVELOPE_READERS.items() if name not in _DEFAULTS and name != "schema_version"
}
"""Provenance, and what matters to the versions alone."""

_READERS: Final[Mapping[str, Mapping[str, Reader]]] = {
    kind: {name: read for name, read in _ENVELOPE_READERS.items() if name in _DEFAULTS}
    | readers_of(getattr(events_pb2, event_type.__name__))
    for kind, (event_type, _) in KINDS.items()
}

_SPACED_COLON: Final = re.compile(rb"[ \t\r\n]:")


def decode_line(line: bytes, where: Position) -> DecodedLine:
    """Read one event. Whatever the bytes are, nothing is raised: what can't be read comes back as a dead letter.

    >>> where = Position("events.jsonl", 0, 0)
    >>> line = b'{"kind":"tokens_generated","tenant":"a","request_id":"r","event_time_us":1,"count":"3","colour":1}'
    >>> decoded = decode_line(line, where)
    >>> decoded.result.count, decoded.unknown_fields
    (3, ('colour',))
    >>> decode_line(b'{"kind":"heartbeat","event_time_us":"soon"}', where).result.detail
    "event_time_us must be a whole number, got 'soon'"
    """
    try:
        return _decoded(line)
    except UnreadableError as unreadable:
        return DecodedLine(dead_letter(where, WHOLE_RECORD, unreadable.reason, str(unreadable), line), ())


def _decoded(line: bytes) -> DecodedLine:
    fields = _parsed(line)
    kind = _text(fields, "kind")
    version = _text(fields, "schema_version")
    is_current = version is None or version == ev.SCHEMA_VERSION
    values = _DEFAULTS.copy() if is_current else {}
    apart: dict[str, object] = {}
    unknown: list[str] = []
    reader_of = _READERS.get(kind or "", {}).get
    name = ""
    try:
        for name, value in fields.items():
            read = reader_of(name)
            if read is read_string and type(value) is str:
                values[name] = value
            elif value is None:
                continue
            elif read is not None:
                found = read(value)
                if found is NEWER:
                    unknown.append(name)
                else:
                    values[name] = found
            elif name in _READ_APART:
                apart[name] = _READ_APART[name](value)
            else:
                unknown.append(name)
    except FieldError as error:
        raise UnreadableError(error.reason, f"{name} {error}") from error
    event = _event(kind, values, apart) if is_current else _event_of_other_version(kind, version or "", values, apart)
    return DecodedLine(event, tuple(sorted(unknown)) if unknown else ())


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.pop(name, None)
    if value is None or type(value) is str:
        return value
    raise UnreadableError(DeadLetterReason.MALFORMED, f"{name} must be a string")


def _event(kind: str | None, values: dict[str, Any], apart: Mapping[str, Any]) -> ev.Event:
    check_envelope(
        kind, values["tenant"], values["request_id"], values["session"], values["event_time_us"], values["watermark_us"]
    )
    if apart and not _PROVENANCE.isdisjoint(apart):
        values["provenance"] = ev.Provenance(**{name: apart[name] for name in _PROVENANCE & apart.keys()})
    if not values["event_id"] and values["session"] and values["sequence"]:
        values["event_id"] = event_id(values["session"], values["sequence"], kind or "")
    event: ev.Event = KINDS[kind or ""][0](**values)  # type: ignore[assignment]
    return event


def _event_of_other_version(
    kind: str | None, version: str, values: Mapping[str, Any], apart: Mapping[str, Any]
) -> ev.Event:
    """By way of the message, so that each step of schemas.upcast exists once."""
    wire = events_pb2.Event(schema_version=version)
    if kind in KINDS:
        getattr(wire, kind).SetInParent()
    for name, value in (*values.items(), *apart.items()):
        message = wire if name in _ENVELOPE_READERS else getattr(wire, kind or "")
        if isinstance(value, tuple):
            getattr(message, name).extend(value)
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        else:
            setattr(message, name, value)
    if not wire.event_id and wire.session and wire.sequence and kind in KINDS:
        wire.event_id = event_id(wire.session, wire.sequence, kind)
    return read_event(wire, with_provenance=not _PROVENANCE.isdisjoint(apart))


# --- from bytes to an object -----------------------------------------------------------------------------------------


def _parsed(line: bytes) -> dict[str, object]:
    """The object that `line` holds, in which no key stands twice."""
    if len(line) > MAX_EVENT_BYTES:
        why = f"the line has {len(line)} bytes, at most {MAX_EVENT_BYTES} are allowed"
        raise UnreadableError(DeadLetterReason.TOO_LARGE, why)
    line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        fields: object = _PARSE(line)
    except msgspec.ValidationError as error:
        raise _out_of_range(line, str(error)) from error
    except msgspec.DecodeError as error:
        raise UnreadableError(DeadLetterReason.MALFORMED, f"not JSON: {error}") from error
    except RecursionError as error:
        raise UnreadableError(DeadLetterReason.MALFORMED, "nested too deeply") from error
    if type(fields) is not dict:
        raise UnreadableError(DeadLetterReason.MALFORMED, "not a JSON object")
    if not _has_each_key_once(line, fields):
        _refuse_second_key(line)
    return fields


def _has_each_key_once(line: bytes, fields: dict[str, object]) -> bool:
    """Whether it is sure, at a glance, that no key stands twice: the parser keeps the last and does not tell.

    Where no space stands before a colon, there is one `":` for each key, and perhaps some in strings. So if there are
    as many as there are different keys, each stands there once.
    """
    keys = len(fields)
    clock = fields.get("vector_clock")
    if type(clock) is dict:
        keys += len(clock)
    if line.count(b'":') != keys:
        return False
    # One byte is found much faster than a pattern, and most lines have no space at all.
    has_space = b" " in line or b"\t" in line or b"\r" in line or b"\n" in line
    return not has_space or _SPACED_COLON.search(line) is None


def _refuse_second_key(line: bytes) -> None:
    def unique(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise UnreadableError(DeadLetterReason.MALFORMED, f"{name} stands there twice")
            seen.add(name)

    try:
        json.loads(line, object_pairs_hook=unique, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise UnreadableError(DeadLetterReason.MALFORMED, "nested too deeply") from error


def _out_of_range(line: bytes, why: str) -> UnreadableError:
    """The parser does not tell which field holds a number that no type can hold."""
    huge: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        huge.extend(name for name, value in pairs if _HUGE in (value if isinstance(value, list) else [value]))

    def integer(digits: str) -> object:
        return _HUGE if len(digits) > _MAX_DIGITS else 0

    def real(digits: str) -> object:
        return _HUGE if abs(float(digits)) == float("inf") else 0

    try:
        json.loads(line, object_pairs_hook=note, parse_int=integer, parse_float=real)
    except (ValueError, RecursionError):
        return UnreadableError(DeadLetterReason.MALFORMED, f"not JSON: {why}")
    detail = f"{huge[0]} is beyond every type of number" if huge else why
    return UnreadableError(DeadLetterReason.OUT_OF_RANGE, detail)


_HUGE: Final = "huge"
_MAX_DIGITS: Final = 1000


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_line(event: ev.Event) -> bytes:
    """One line, without its end. Raises ValueError for a NaN or an infinity.

    `provenance` reads back as None where all of it is unset.
    """
    fields: dict[str, object] = {"kind": NAME_OF_KIND[type(event)], "schema_version": ev.SCHEMA_VERSION}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if value and name != "provenance":
            fields[name] = written(value)
    if event.provenance is not None:
        for name in ev.Provenance.__struct_fields__:
            value = getattr(event.provenance, name)
            if value:
                fields[name] = written(value)
    marks = critical_marks(event)
    if marks:
        fields["critical_fields"] = marks
    return _RENDER(fields)


# --- decisions -------------------------------------------------------------------------------------------------------

_ALWAYS_WRITTEN: Final = frozenset(("kind", "mode", "reason"))
_DECISION_READERS: Final = readers_of(decisions_pb2.Decision)
_BOUND_READERS: Final = readers_of(decisions_pb2.BoundLimit)


def decision_line(decision: Decision) -> bytes:
    """One line, without its end: fields as in the .proto, unset ones left out, the bound limit whole as an object."""
    fields: dict[str, object] = {}
    for name in decision.__struct_fields__:
        value = getattr(decision, name)
        if isinstance(value, BoundLimit):
            fields[name] = {part: written(getattr(value, part)) for part in value.__struct_fields__}
        elif value or name in _ALWAYS_WRITTEN:
            fields[name] = written(value)
    return _RENDER(fields)


def decision_of_line(line: bytes) -> Decision:
    """Read a line that `decision_line` wrote. Raises ValueError, naming the field, where it is none.

    >>> decision_of_line(b'{"kind":"maybe"}')
    Traceback (most recent call last):
    ValueError: kind must be one that this version knows, got 'maybe'
    """
    fields = _PARSE(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is wrong, not its type in Python
    bound = fields.pop("bound", None)
    values = _all_known("a decision", _DECISION_READERS, fields, _REQUIRED)
    if bound is not None:
        if not isinstance(bound, dict):
            raise ValueError("bound must be an object")
        values["bound"] = BoundLimit(**_all_known("bound", _BOUND_READERS, bound, BoundLimit.__struct_fields__))
    return Decision(**{"attempt": 0, **values})


_REQUIRED: Final = ("decision_id", "kind", "reason", "tenant", "request_id", "decided_at_us")


def _all_known(
    whole: str, readers: Mapping[str, Reader], fields: Mapping[str, object], required: Iterable[str]
) -> dict[str, Any]:
    values = {}
    for name, value in fields.items():
        if name not in readers:
            raise ValueError(f"{name} is not a field of {whole}")
        try:
            values[name] = found = readers[name](value)
        except FieldError as error:
            raise ValueError(f"{name} {error}") from error
        if found is NEWER:
            raise ValueError(f"{name} must be one that this version knows, got {value!r}")
    missing = [name for name in required if name not in values]
    if missing:
        raise ValueError(f"{whole} lacks {', '.join(missing)}")
    return values
