"""Decisions and dead letters between the bytes of the log and their typed form. Both are our own: bad bytes raise."""

from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from schemas.dead_letters import DeadLetter, DeadLetterReason
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from schemas.gen.headrace.v1 import dead_letters_pb2, decisions_pb2


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
        trace_id=decision.trace_id,
    )


class DecidedBatch(NamedTuple):
    """The decisions of one record of events; `partition` and `offset` are that record's, None where it was not kept."""

    shard: int
    partition: int | None
    offset: int | None
    decisions: list[Decision]


def encode_decisions(shard: int, decisions: Iterable[Decision], decided: tuple[int, int] | None = None) -> bytes:
    """One record of the decisions topic; `decided` is partition and offset of the record of events."""
    batch = decisions_pb2.DecisionBatch(shard=shard, decisions=[_wire_decision(decision) for decision in decisions])
    if decided is not None:
        batch.decided.partition, batch.decided.offset = decided
    return batch.SerializeToString()


def decode_decision_batch(record: bytes) -> DecidedBatch:
    """Read one DecisionBatch. Raises ValueError where the record is none: decisions are our own."""
    try:
        batch = decisions_pb2.DecisionBatch.FromString(record)
    except DecodeError as error:
        raise ValueError("not a DecisionBatch of headrace.v1") from error
    partition, offset = (batch.decided.partition, batch.decided.offset) if batch.HasField("decided") else (None, None)
    return DecidedBatch(batch.shard, partition, offset, [_decision(wire) for wire in batch.decisions])


def decode_decisions(record: bytes) -> list[Decision]:
    """The decisions of one DecisionBatch. Raises ValueError."""
    return decode_decision_batch(record).decisions


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
        trace_id=wire.trace_id,
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
