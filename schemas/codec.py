"""Between the bytes of the log and what folds see.

Decoding never raises on bad bytes: what can't be read comes back as a dead letter with its reason and place, and the events
around it are decoded all the same.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from schemas import events as ev
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position, dead_letter
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from schemas.gen.headrace.v1 import dead_letters_pb2, decisions_pb2, events_pb2
from schemas.upcast import UnsupportedVersionError, to_current

MAX_EVENT_BYTES: Final = 1 << 20
"""A larger event is a dead letter: a stream's chunk is a few hundred bytes, a prompt's text does not travel here."""

MAX_NAME_BYTES: Final = 512
"""Longest tenant, request and session: they become keys of state."""


class DecodedBatch(NamedTuple):
    """Events of one record in log order, each with its index in the record, and what could not be read."""

    shard: int
    events: list[ev.Event]
    indexes: Sequence[int]
    dead: list[DeadLetter]


class _Unreadable(Exception):  # noqa: N818
    """Why one event goes to the dead letters; never leaves this module."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


# --- bodies: one function a kind, in the order of the fields of its class ---------------------------------------------


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
    )


def _interrupted(body: events_pb2.StreamInterrupted) -> tuple[object, ...]:
    return body.token_offset, _enum(ev.InterruptReason, body.reason)


def _completed(body: events_pb2.RequestCompleted) -> tuple[object, ...]:
    return (
        body.prompt_tokens,
        body.completion_tokens,
        body.cached_tokens,
        _enum(ev.UsageSource, body.usage_source),
        body.finish_reason,
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
        body.kv_cache_use,
        body.temperature_celsius,
    )


def _experts(body: events_pb2.ExpertsRouted) -> tuple[object, ...]:
    return body.layer, tuple(body.experts), tuple(body.weights)


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


def _event(wire: events_pb2.Event, *, with_provenance: bool) -> ev.Event:
    if wire.schema_version != ev.SCHEMA_VERSION:
        try:
            to_current(wire)
        except UnsupportedVersionError as refused:
            raise _Unreadable(DeadLetterReason.UNSUPPORTED_VERSION, str(refused)) from refused
    kind = wire.WhichOneof("body")
    tenant = wire.tenant
    request_id = wire.request_id
    time_us = wire.event_time_us
    if kind is None or time_us <= 0 or len(tenant) > MAX_NAME_BYTES or len(request_id) > MAX_NAME_BYTES:
        raise _refused_envelope(wire, kind)
    if kind == "tokens_generated":
        if not tenant or not request_id:
            raise _refused_envelope(wire, kind)
        chunk = wire.tokens_generated
        return ev.TokensGenerated(
            wire.event_id,
            tenant,
            request_id,
            wire.attempt,
            time_us,
            wire.watermark_us,
            wire.sequence,
            wire.session,
            wire.model,
            wire.backend,
            wire.region,
            wire.source,
            _provenance(wire) if with_provenance else None,
            chunk.count,
            chunk.cumulative,
            chunk.text,
        )
    event_type, read_body = KINDS[kind]
    is_of_request = event_type in _OF_REQUEST
    if is_of_request and not (tenant and request_id):
        raise _refused_envelope(wire, kind)
    return event_type(  # type: ignore[return-value]
        wire.event_id,
        tenant,
        request_id,
        wire.attempt,
        time_us,
        wire.watermark_us,
        wire.sequence,
        wire.session,
        wire.model,
        wire.backend,
        wire.region,
        wire.source,
        _provenance(wire) if with_provenance else None,
        *read_body(getattr(wire, kind)),
    )


_OF_REQUEST: Final = frozenset(
    (ev.PromptSubmitted, ev.TokensGenerated, ev.StreamInterrupted, ev.RequestCompleted, ev.RequestFailed)
)


def _refused_envelope(wire: events_pb2.Event, kind: str | None) -> _Unreadable:
    if kind is None:
        return _Unreadable(
            DeadLetterReason.UNKNOWN_KIND,
            "the event has no body of a kind known to schema " + ev.SCHEMA_VERSION,
        )
    if wire.event_time_us < 0:
        return _Unreadable(DeadLetterReason.OUT_OF_RANGE, f"event_time_us is {wire.event_time_us}")
    for name in ("tenant", "request_id"):
        length = len(getattr(wire, name))
        if length > MAX_NAME_BYTES:
            return _Unreadable(
                DeadLetterReason.TOO_LARGE,
                f"{name} has {length} characters, at most {MAX_NAME_BYTES} are allowed",
            )
    missing = [name for name in ("event_time_us", "tenant", "request_id") if not getattr(wire, name)]
    return _Unreadable(DeadLetterReason.MISSING_FIELD, f"{kind} without {', '.join(missing)}")


def decode_events(record: bytes, where: Position, *, with_provenance: bool = False) -> DecodedBatch:
    """Read one EventBatch. Bad bytes become dead letters, never an exception."""
    try:
        batch = events_pb2.EventBatch.FromString(record)
    except (DecodeError, UnicodeDecodeError):
        return _decode_apart(record, where, with_provenance=with_provenance)
    found: list[ev.Event] = []
    try:
        if len(record) <= MAX_EVENT_BYTES:
            found = [_event(wire, with_provenance=with_provenance) for wire in batch.events]
            return DecodedBatch(batch.shard, found, range(len(found)), [])
    except _Unreadable:
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
        except _Unreadable as unreadable:
            dead_letters.append(dead_letter(where, index, unreadable.reason, str(unreadable), frame))
    return DecodedBatch(frames.shard, found, indexes, dead_letters)


def _event_of_frame(frame: bytes, *, with_provenance: bool) -> ev.Event:
    if len(frame) > MAX_EVENT_BYTES:
        why = f"the event has {len(frame)} bytes, at most {MAX_EVENT_BYTES} are allowed"
        raise _Unreadable(DeadLetterReason.TOO_LARGE, why)
    try:
        wire = events_pb2.Event.FromString(frame)
    except (DecodeError, UnicodeDecodeError):
        raise _Unreadable(DeadLetterReason.MALFORMED, "not an Event of headrace.v1") from None
    return _event(wire, with_provenance=with_provenance)


def shard_in(record: bytes) -> int | None:
    """The shard a batch says it belongs to, without reading its events; None: not a batch."""
    try:
        return events_pb2.EventFrames.FromString(record).shard
    except DecodeError:
        return None


# --- writing events ----------------------------------------------------------------------------------------------------


def wire_event(event: ev.Event) -> events_pb2.Event:
    """The message of an event. Raises ValueError where a number does not fit its field."""
    kind = NAME_OF_KIND[type(event)]
    provenance = event.provenance or ev.Provenance()
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
        trace_id=provenance.trace_id,
        span_id=provenance.span_id,
        lamport=provenance.lamport,
        vector_clock=provenance.vector_clock,
        content_hash=provenance.content_hash,
        schema_version=ev.SCHEMA_VERSION,
    )
    body: Message = getattr(wire, kind)
    body.SetInParent()
    for name in event.__struct_fields__[len(ev.Envelope.__struct_fields__) :]:
        value = getattr(event, name)
        if isinstance(value, tuple):
            getattr(body, name).extend(value)
        elif value:
            setattr(body, name, value)
    return wire


def canonical_body(event: ev.Event) -> bytes:
    """The bytes that `schemas.identity.content_hash` hashes: the body, serialised deterministically."""
    wire = wire_event(event)
    body: Message = getattr(wire, NAME_OF_KIND[type(event)])
    return body.SerializeToString(deterministic=True)


def encode_events(shard: int, batch: Iterable[ev.Event]) -> bytes:
    """One record of the events topic."""
    return events_pb2.EventBatch(shard=shard, events=[wire_event(event) for event in batch]).SerializeToString()


# --- decisions and dead letters ----------------------------------------------------------------------------------------


def _wire_decision(decision: Decision) -> decisions_pb2.Decision:
    bound = decision.bound
    return decisions_pb2.Decision(
        decision_id=decision.decision_id,
        kind=decision.kind,  # type: ignore[arg-type]
        mode=decision.mode,  # type: ignore[arg-type]
        reason=decision.reason,  # type: ignore[arg-type]
        tenant=decision.tenant,
        request_id=decision.request_id,
        attempt=decision.attempt,
        decided_at_us=decision.decided_at_us,
        bound=bound
        and decisions_pb2.BoundLimit(
            name=bound.name,
            level=bound.level,  # type: ignore[arg-type]
            subject=bound.subject,
            unit=bound.unit,  # type: ignore[arg-type]
            limit=bound.limit,
            remaining=bound.remaining,
            reset_at_us=bound.reset_at_us,
        ),
        reserved_tokens=decision.reserved_tokens,
        used_tokens=decision.used_tokens,
        refunded_tokens=decision.refunded_tokens,
        overdrawn_tokens=decision.overdrawn_tokens,
        retry_at_us=decision.retry_at_us,
        policy_id=decision.policy_id,
        caused_by=decision.caused_by,
    )


def encode_decisions(shard: int, decisions: Iterable[Decision]) -> bytes:
    """One record of the decisions topic."""
    return decisions_pb2.DecisionBatch(
        shard=shard, decisions=[_wire_decision(decision) for decision in decisions]
    ).SerializeToString()


def decode_decisions(record: bytes) -> list[Decision]:
    """Read one DecisionBatch. Raises ValueError where the record is none: decisions are our own."""
    try:
        batch = decisions_pb2.DecisionBatch.FromString(record)
    except DecodeError as error:
        raise ValueError("not a DecisionBatch of headrace.v1") from error
    return [_decision(wire) for wire in batch.decisions]


def _decision(wire: decisions_pb2.Decision) -> Decision:
    bound = None
    if wire.HasField("bound"):
        bound = BoundLimit(
            name=wire.bound.name,
            level=LimitLevel(wire.bound.level),
            subject=wire.bound.subject,
            unit=LimitUnit(wire.bound.unit),
            limit=wire.bound.limit,
            remaining=wire.bound.remaining,
            reset_at_us=wire.bound.reset_at_us,
        )
    return Decision(
        decision_id=wire.decision_id,
        kind=DecisionKind(wire.kind),
        mode=DecisionMode(wire.mode),
        reason=DecisionReason(wire.reason),
        tenant=wire.tenant,
        request_id=wire.request_id,
        attempt=wire.attempt,
        decided_at_us=wire.decided_at_us,
        bound=bound,
        reserved_tokens=wire.reserved_tokens,
        used_tokens=wire.used_tokens,
        refunded_tokens=wire.refunded_tokens,
        overdrawn_tokens=wire.overdrawn_tokens,
        retry_at_us=wire.retry_at_us,
        policy_id=wire.policy_id,
        caused_by=wire.caused_by,
    )


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """One record of the dead-letter topic."""
    return dead_letters_pb2.DeadLetter(
        source=letter.source,
        partition=letter.partition,
        offset=letter.offset,
        index=letter.index,
        reason=letter.reason,  # type: ignore[arg-type]
        detail=letter.detail,
        payload=letter.payload,
    ).SerializeToString()


def decode_dead_letter(record: bytes) -> DeadLetter:
    """Read one dead letter. Raises ValueError where the record is none."""
    try:
        wire = dead_letters_pb2.DeadLetter.FromString(record)
    except DecodeError as error:
        raise ValueError("not a DeadLetter of headrace.v1") from error
    return DeadLetter(
        wire.source,
        wire.partition,
        wire.offset,
        wire.index,
        DeadLetterReason(wire.reason),
        wire.detail,
        wire.payload,
    )
