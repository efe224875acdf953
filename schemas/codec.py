"""Between the bytes of the log and what folds see.

Decoding never raises on bad bytes: what can't be read comes back as a dead letter with its reason and place, and the
events around it are decoded all the same.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from schemas import events as ev
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position, dead_letter
from schemas.decision_codec import (
    DecidedBatch,
    decode_dead_letter,
    decode_decision_batch,
    decode_decisions,
    encode_dead_letter,
    encode_decisions,
)
from schemas.gen.headrace.v1 import events_pb2
from schemas.upcast import UnsupportedVersionError, to_current
from schemas.versions import CRITICAL

__all__ = [
    "KINDS",
    "MAX_EVENT_BYTES",
    "MAX_NAME_BYTES",
    "MAX_TIME_US",
    "NAME_OF_KIND",
    "DecidedBatch",
    "DecodedBatch",
    "UnreadableError",
    "canonical_body",
    "check_envelope",
    "critical_marks",
    "decode_dead_letter",
    "decode_decision_batch",
    "decode_decisions",
    "decode_events",
    "encode_dead_letter",
    "encode_decisions",
    "encode_events",
    "event_frame",
    "read_event",
    "shard_in",
    "wire_event",
]

MAX_EVENT_BYTES: Final = 1 << 20
"""A larger event is a dead letter: a stream's chunk is a few hundred bytes, a prompt's text does not travel here."""

MAX_NAME_BYTES: Final = 512
"""Longest tenant, request and session in UTF-8: they become keys of state."""

MAX_TIME_US: Final = 2**53
"""Latest event time, in the year 2255: sums with windows stay within 64 bits, and JSON keeps it exactly."""

_SURELY_FITS: Final = MAX_NAME_BYTES // 4
"""Characters that can't be more than MAX_NAME_BYTES bytes, so that the bytes of a longer name alone are counted."""


class DecodedBatch(NamedTuple):
    """Events of one record in log order, each with its index in the record, and what could not be read."""

    shard: int
    events: list[ev.Event]
    indexes: Sequence[int]
    dead: list[DeadLetter]


class UnreadableError(Exception):
    """Why one event goes to the dead letters. `decode_events` turns it into one."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# --- bodies: one function a kind, in the order of the fields of its class -----------------------------------------


def _prompt(body: events_pb2.PromptSubmitted) -> tuple[object, ...]:
    return (
        body.prompt_tokens,
        body.max_tokens,
        body.cached_tokens,
        body.api_key,
        body.user,
        body.stream,
        body.choices,
        body.prompt_fact_id,
        body.without_completion,
        body.provider,
        body.resumed_at_token,
    )


def _interrupted(body: events_pb2.StreamInterrupted) -> tuple[object, ...]:
    return body.token_offset, _enum(ev.InterruptReason, body.reason), _enum(ev.UsageSource, body.usage_source)


def _completed(body: events_pb2.RequestCompleted) -> tuple[object, ...]:
    return (
        body.prompt_tokens,
        body.completion_tokens,
        body.cached_tokens,
        _enum(ev.UsageSource, body.usage_source),
        body.finish_reason,
        body.cache_write_tokens,
    )


def _failed(body: events_pb2.RequestFailed) -> tuple[object, ...]:
    return (
        body.error_class,
        body.status,
        body.retryable,
        body.prompt_tokens,
        body.completion_tokens,
        _enum(ev.UsageSource, body.usage_source),
    )


def _health(body: events_pb2.HealthSample) -> tuple[object, ...]:
    return (
        body.gpu_memory_used_bytes,
        body.gpu_memory_total_bytes,
        body.queue_length,
        _finite("kv_cache_use", body.kv_cache_use),
        _finite("temperature_celsius", body.temperature_celsius),
    )


def _experts(body: events_pb2.ExpertsRouted) -> tuple[object, ...]:
    return body.layer, tuple(body.experts), tuple(_finite("weights", weight) for weight in body.weights)


def _finite(name: str, value: float) -> float:
    # One NaN that gets into an average stays in it for ever.
    if isfinite(value):
        return value
    raise UnreadableError(DeadLetterReason.OUT_OF_RANGE, f"{name} is {value}")


def _enum(kind: type[ev.UsageSource] | type[ev.InterruptReason], number: int) -> int:
    """A value that this version knows; one that a newer producer added reads as the first, like an unset one."""
    return kind(number) if number in kind._value2member_map_ else kind(0)


_Body = Callable[..., tuple[object, ...]]
KINDS: Final[dict[str, tuple[type[ev.Envelope], _Body]]] = {
    "prompt_submitted": (ev.PromptSubmitted, _prompt),
    "request_completed": (ev.RequestCompleted, _completed),
    "request_failed": (ev.RequestFailed, _failed),
    "stream_interrupted": (ev.StreamInterrupted, _interrupted),
    "heartbeat": (ev.Heartbeat, lambda _: ()),
    "health_sample": (ev.HealthSample, _health),
    "experts_routed": (ev.ExpertsRouted, _experts),
    "tokens_generated": (ev.TokensGenerated, lambda body: (body.count, body.cumulative, body.text)),
}
"""Name of the body's field -> its class, and how its fields are read."""

NAME_OF_KIND: Final = {kind: name for name, (kind, _) in KINDS.items()}


def _provenance(wire: events_pb2.Event) -> ev.Provenance:
    return ev.Provenance(
        trace_id=wire.trace_id,
        span_id=wire.span_id,
        lamport=wire.lamport,
        vector_clock=dict(wire.vector_clock),
        content_hash=wire.content_hash,
    )


def _trace(wire: events_pb2.Event) -> ev.Provenance | None:
    """The one part of it that decisions carry on."""
    trace_id = wire.trace_id
    return ev.Provenance(trace_id=trace_id, span_id=wire.span_id) if trace_id else None


def read_event(wire: events_pb2.Event, *, with_provenance: bool) -> ev.Event:
    """The event of a message, which is brought to SCHEMA_VERSION on the way. Raises UnreadableError."""
    if wire.schema_version != ev.SCHEMA_VERSION:
        _upcast(wire)
    kind = wire.WhichOneof("body")
    tenant = wire.tenant
    request_id = wire.request_id
    session = wire.session
    time_us = wire.event_time_us
    if not (
        kind
        and 0 < time_us <= MAX_TIME_US
        and 0 < len(tenant) <= _SURELY_FITS
        and 0 < len(request_id) <= _SURELY_FITS
        and len(session) <= _SURELY_FITS
        and 0 <= wire.watermark_us <= MAX_TIME_US
    ):
        check_envelope(kind, tenant, request_id, session, time_us, wire.watermark_us)
    if kind == "tokens_generated":
        chunk = wire.tokens_generated
        return ev.TokensGenerated(
            wire.event_id,
            tenant,
            request_id,
            wire.attempt,
            time_us,
            wire.watermark_us,
            wire.sequence,
            session,
            wire.model,
            wire.backend,
            wire.region,
            wire.source,
            _provenance(wire) if with_provenance else _trace(wire),
            chunk.count,
            chunk.cumulative,
            chunk.text,
        )
    event_type, read_body = KINDS[kind]
    return event_type(  # type: ignore[return-value]
        wire.event_id,
        tenant,
        request_id,
        wire.attempt,
        time_us,
        wire.watermark_us,
        wire.sequence,
        session,
        wire.model,
        wire.backend,
        wire.region,
        wire.source,
        _provenance(wire) if with_provenance else _trace(wire),
        *read_body(getattr(wire, kind)),
    )


_OF_REQUEST: Final = frozenset(
    ("prompt_submitted", "tokens_generated", "stream_interrupted", "request_completed", "request_failed")
)


def _upcast(wire: events_pb2.Event) -> None:
    try:
        to_current(wire)
    except UnsupportedVersionError as refused:
        raise UnreadableError(DeadLetterReason.UNSUPPORTED_VERSION, str(refused)) from refused
    except OverflowError as refused:
        raise UnreadableError(DeadLetterReason.OUT_OF_RANGE, str(refused)) from refused


def check_envelope(
    kind: str | None, tenant: str, request_id: str, session: str, event_time_us: int, watermark_us: int
) -> None:
    """What every event must have, whichever form it comes in. Raises UnreadableError.

    `kind` is the name of the body's field. Every event has a time after 1970; those of a request have tenant and id.
    """
    if (
        kind in _OF_REQUEST
        and 0 < event_time_us <= MAX_TIME_US
        and 0 < len(tenant) <= _SURELY_FITS
        and 0 < len(request_id) <= _SURELY_FITS
        and len(session) <= _SURELY_FITS
        and 0 <= watermark_us <= MAX_TIME_US
    ):
        return
    if kind not in KINDS:
        why = "no body of a kind" if kind is None else f"kind {kind!r}, which is not"
        raise UnreadableError(DeadLetterReason.UNKNOWN_KIND, f"the event has {why} known to schema {ev.SCHEMA_VERSION}")
    if not 0 <= event_time_us <= MAX_TIME_US:
        why = f"event_time_us is {event_time_us}, it must be from 1 to {MAX_TIME_US} microseconds since 1970"
        raise UnreadableError(DeadLetterReason.OUT_OF_RANGE, why)
    if not 0 <= watermark_us <= MAX_TIME_US:
        why = f"watermark_us is {watermark_us}, it must be from 0 to {MAX_TIME_US} microseconds since 1970"
        raise UnreadableError(DeadLetterReason.OUT_OF_RANGE, why)
    for name, value in (("tenant", tenant), ("request_id", request_id), ("session", session)):
        length = len(value.encode())
        if length > MAX_NAME_BYTES:
            why = f"{name} has {length} bytes, at most {MAX_NAME_BYTES} are allowed"
            raise UnreadableError(DeadLetterReason.TOO_LARGE, why)
    missing = [] if event_time_us else ["event_time_us"]
    if kind in _OF_REQUEST:
        missing += [name for name, value in (("tenant", tenant), ("request_id", request_id)) if not value]
    if missing:
        raise UnreadableError(DeadLetterReason.MISSING_FIELD, f"{kind} without {', '.join(missing)}")


def decode_events(record: bytes, where: Position, *, with_provenance: bool = False) -> DecodedBatch:
    """Read one EventBatch. Bad bytes become dead letters, never an exception."""
    try:
        batch = events_pb2.EventBatch.FromString(record)
    except (DecodeError, UnicodeDecodeError):
        return _decode_apart(record, where, with_provenance=with_provenance)
    found: list[ev.Event] = []
    try:
        if len(record) <= MAX_EVENT_BYTES:
            found = [read_event(wire, with_provenance=with_provenance) for wire in batch.events]
            return DecodedBatch(batch.shard, found, range(len(found)), [])
    except UnreadableError:
        pass
    return _decode_apart(record, where, with_provenance=with_provenance)


def _decode_apart(record: bytes, where: Position, *, with_provenance: bool) -> DecodedBatch:
    """The slow way, for a batch in which something is wrong: each event by itself."""
    try:
        frames = events_pb2.EventFrames.FromString(record)
    except DecodeError:
        why = "not an EventBatch of headrace.v1"
        dead = dead_letter(where, WHOLE_RECORD, DeadLetterReason.MALFORMED, why, record)
        return DecodedBatch(0, [], (), [dead])
    found: list[ev.Event] = []
    indexes: list[int] = []
    dead_letters: list[DeadLetter] = []
    for index, frame in enumerate(frames.events):
        try:
            found.append(_event_of_frame(frame, with_provenance=with_provenance))
            indexes.append(index)
        except UnreadableError as unreadable:
            dead_letters.append(dead_letter(where, index, unreadable.reason, str(unreadable), frame))
    return DecodedBatch(frames.shard, found, indexes, dead_letters)


def _event_of_frame(frame: bytes, *, with_provenance: bool) -> ev.Event:
    if len(frame) > MAX_EVENT_BYTES:
        why = f"the event has {len(frame)} bytes, at most {MAX_EVENT_BYTES} are allowed"
        raise UnreadableError(DeadLetterReason.TOO_LARGE, why)
    try:
        wire = events_pb2.Event.FromString(frame)
    except (DecodeError, UnicodeDecodeError):
        raise UnreadableError(DeadLetterReason.MALFORMED, "not an Event of headrace.v1") from None
    return read_event(wire, with_provenance=with_provenance)


def event_frame(record: bytes, index: int) -> bytes:
    """The bytes of one event of a batch; all of the record where it is no batch."""
    try:
        return events_pb2.EventFrames.FromString(record).events[index]
    except (DecodeError, IndexError):
        return record


def shard_in(record: bytes) -> int | None:
    """The shard a batch says it belongs to, without reading its events; None: not a batch."""
    try:
        return events_pb2.EventFrames.FromString(record).shard
    except DecodeError:
        return None


# --- writing events -----------------------------------------------------------------------------------------------


_WRITTEN_AS: Final = {
    kind: (name, kind.__struct_fields__[len(ev.Envelope.__struct_fields__) :]) for kind, name in NAME_OF_KIND.items()
}
"""Class of an event -> name of the body's field, names of the body's fields."""


def critical_marks(event: ev.Event) -> list[int]:
    """What `critical_fields` says of an event: a reader that does not know one of these fields must not read it."""
    if not CRITICAL:
        return []
    known = (*CRITICAL.get("Event", ()), *CRITICAL.get(type(event).__name__, ()))
    return [mark for name, mark in known if _is_set(event, name)]


def _is_set(event: ev.Event, name: str) -> bool:
    holder = event.provenance if name in ev.Provenance.__struct_fields__ else event
    return holder is not None and bool(getattr(holder, name))


def wire_event(event: ev.Event) -> events_pb2.Event:
    """The message of an event. Raises ValueError where a number does not fit its field."""
    kind, body_fields = _WRITTEN_AS[type(event)]
    wire = events_pb2.Event(
        event_id=event.event_id,
        tenant=event.tenant,
        request_id=event.request_id,
        attempt=event.attempt,
        event_time_us=event.event_time_us,
        watermark_us=event.watermark_us,
        sequence=event.sequence,
        session=event.session,
        model=event.model,
        backend=event.backend,
        region=event.region,
        source=event.source,
        schema_version=ev.SCHEMA_VERSION,
    )
    provenance = event.provenance
    if provenance is not None:
        wire.trace_id = provenance.trace_id
        wire.span_id = provenance.span_id
        wire.lamport = provenance.lamport
        wire.vector_clock.update(provenance.vector_clock)
        wire.content_hash = provenance.content_hash
    body: Message = getattr(wire, kind)
    body.SetInParent()
    for name in body_fields:
        value = getattr(event, name)
        if isinstance(value, tuple):
            getattr(body, name).extend(value)
        elif value:
            setattr(body, name, value)
    if CRITICAL:
        wire.critical_fields.extend(critical_marks(event))
    return wire


def canonical_body(event: ev.Event) -> bytes:
    """The bytes that `schemas.identity.content_hash` hashes: the body, serialised deterministically."""
    wire = wire_event(event)
    body: Message = getattr(wire, NAME_OF_KIND[type(event)])
    return body.SerializeToString(deterministic=True)


def encode_events(shard: int, batch: Iterable[ev.Event]) -> bytes:
    """One record of the events topic."""
    return events_pb2.EventBatch(shard=shard, events=[wire_event(event) for event in batch]).SerializeToString()
