"""Streams of one session, put side by side on event time.

Chunks wait in a buffer, in media order. The group of the oldest one is all that begins within the tolerance after it.
It is told once no stream that is waited for can add to it, because each has passed its end, or else when the session's
clock is the wait beyond its end. What comes for a time that has been told is late.
"""

from bisect import insort
from typing import Final

from schemas.codec import MAX_TIME_US
from udfs.domain.alignment import drift
from udfs.domain.alignment.chunk import ModalChunk, Modality, in_media_order
from udfs.domain.alignment.outputs import (
    Aligned,
    Alone,
    ClockStep,
    Drift,
    Gap,
    Late,
    LateReason,
    Output,
    Overflow,
    OverflowReason,
    Silent,
)
from udfs.domain.alignment.policy import AlignmentPolicy
from udfs.domain.alignment.state import SessionState, StreamState, Told
from udfs.domain.anomaly import Anomaly

NO_ONE_IS_WAITED_FOR_US: Final = 2 * MAX_TIME_US
"""Beyond the end of every group."""


def apply(state: SessionState, chunk: ModalChunk, policy: AlignmentPolicy, now_us: int) -> list[Output | Anomaly]:
    """Take one chunk in at the session's clock `now_us`, which never goes back. A repeat changes nothing but the clock.

    What time alone decides until `now_us` is decided first.
    """
    if not state.has_begun:
        _begin(state, policy, now_us)
    out: list[Output | Anomaly] = list(advance(state, policy, now_us))
    stream = state.stream(chunk.modality)
    if chunk.sequence in stream.seen:
        out.append(Anomaly.DUPLICATE)
        return out
    stream.is_silent = False
    stream.heard_us = now_us
    if chunk.sequence < stream.seen.floor:
        out.append(_late(state, chunk, LateReason.FORGOTTEN))
    else:
        stream.seen.add(chunk.sequence, policy.remembered_holes)
        out += _place(state, stream, chunk, policy, now_us)
    out += _tell_whole(state, policy)
    _schedule(state, policy)
    out += advance(state, policy, now_us)
    return out


def advance(state: SessionState, policy: AlignmentPolicy, now_us: int) -> list[Output]:
    """What time alone decides up to `now_us`, each thing at its own time. `state.due_us` is beyond it afterwards."""
    out: list[Output] = []
    while state.due_us is not None and state.due_us <= now_us:
        due_us = state.due_us
        for modality in Modality:
            stream = state.stream(modality)
            if not stream.is_silent and stream.heard_us + policy.silent_after_us <= due_us:
                stream.is_silent = True
                if stream.is_seen:
                    out.append(Silent(session=state.session, modality=modality, since_us=stream.heard_us))
        while state.buffer and _deadline_us(state.buffer[0], policy) <= due_us:
            out += _tell_group(state, policy)
        out += _tell_whole(state, policy)
        _schedule(state, policy)
    return out


def _begin(state: SessionState, policy: AlignmentPolicy, now_us: int) -> None:
    state.has_begun = True
    for modality in policy.expected:
        stream = state.stream(modality)
        stream.is_silent = False
        stream.heard_us = now_us


def _deadline_us(oldest: ModalChunk, policy: AlignmentPolicy) -> int:
    return oldest.event_time_us + policy.tolerance_us + policy.wait_us


def _schedule(state: SessionState, policy: AlignmentPolicy) -> None:
    times_us = [stream.heard_us + policy.silent_after_us for stream in state.streams if not stream.is_silent]
    if state.buffer:
        times_us.append(_deadline_us(state.buffer[0], policy))
    state.due_us = min(times_us, default=None)


# --- one chunk comes ------------------------------------------------------------------------------------------------


def _place(
    state: SessionState, stream: StreamState, chunk: ModalChunk, policy: AlignmentPolicy, now_us: int
) -> list[Output]:
    """Put a chunk that had not come before into the buffer, or tell why not."""
    if not stream.is_seen:
        stream.is_seen = True
        stream.next_sequence = chunk.sequence
    time_us = chunk.event_time_us
    is_next = chunk.sequence == stream.next_sequence
    if time_us > now_us + policy.wait_us:
        # Such a time is not believed: neither the stream's progress nor its clock is judged by it.
        if is_next:
            _pass(state, stream, chunk.modality, chunk.sequence)
        return [_overflow(state, chunk, OverflowReason.AHEAD)]
    out = _measured(state, stream, chunk, policy)
    if time_us <= state.frontier_us:
        out.append(_late(state, chunk, LateReason.BEHIND))
    else:
        insort(state.buffer, chunk, key=in_media_order)
        stream.buffered += 1
    if is_next:
        stream.passed_us = max(stream.passed_us, time_us)
        _pass(state, stream, chunk.modality, chunk.sequence)
    while stream.buffered > policy.buffer_chunks:
        index = next(i for i, held in enumerate(state.buffer) if held.modality is chunk.modality)
        out.append(_overflow(state, state.buffer.pop(index), OverflowReason.FULL))
        stream.buffered -= 1
    return out


def _pass(state: SessionState, stream: StreamState, modality: Modality, sequence: int) -> None:
    """The stream is whole, or given up, through `sequence` and what has come right after it."""
    end = stream.seen.end_of_run(sequence)
    stream.next_sequence = end + 1
    if end > sequence:
        # What came before its turn waits in the buffer.
        for held in state.buffer:
            if held.modality is modality and sequence < held.sequence <= end:
                stream.passed_us = max(stream.passed_us, held.event_time_us)


def _measured(state: SessionState, stream: StreamState, chunk: ModalChunk, policy: AlignmentPolicy) -> list[Output]:
    if not chunk.captured_at_us:
        return []
    found = drift.observe(stream.clock, policy, chunk.event_time_us, chunk.captured_at_us)
    if found is None:
        return []
    if isinstance(found, drift.Step):
        return [ClockStep(session=state.session, modality=chunk.modality, at_us=found.at_us, by_us=found.by_us)]
    return [
        Drift(
            session=state.session,
            modality=chunk.modality,
            at_us=found.at_us,
            rate_ppm=found.rate_ppb / 1_000,
            offset_us=found.offset_us,
            is_beyond=found.is_beyond,
        )
    ]


def _late(state: SessionState, chunk: ModalChunk, reason: LateReason) -> Late:
    late_by_us = max(0, state.frontier_us - chunk.event_time_us)
    return Late(session=state.session, at_us=chunk.event_time_us, late_by_us=late_by_us, reason=reason, chunk=chunk)


def _overflow(state: SessionState, chunk: ModalChunk, reason: OverflowReason) -> Overflow:
    return Overflow(session=state.session, at_us=chunk.event_time_us, reason=reason, chunk=chunk)


# --- a group is told ------------------------------------------------------------------------------------------------


def _tell_whole(state: SessionState, policy: AlignmentPolicy) -> list[Output]:
    """Tell the groups to which no stream that is waited for can add."""
    out: list[Output] = []
    while state.buffer:
        reached_us = min((s.passed_us for s in state.streams if not s.is_silent), default=NO_ONE_IS_WAITED_FOR_US)
        if reached_us <= state.buffer[0].event_time_us + policy.tolerance_us:
            break
        out += _tell_group(state, policy)
    return out


def _tell_group(state: SessionState, policy: AlignmentPolicy) -> list[Output]:
    """Take the oldest group from the buffer: the gaps before its chunks, then the group."""
    at_us = state.buffer[0].event_time_us
    end_us = at_us + policy.tolerance_us
    count = 0
    for held in state.buffer:
        if held.event_time_us > end_us:
            break
        count += 1
    chunks = tuple(state.buffer[:count])
    del state.buffer[:count]
    state.frontier_us = end_us
    out: list[Output] = []
    for chunk in chunks:
        stream = state.stream(chunk.modality)
        stream.buffered -= 1
        if (gap := _gap_before(state, stream, chunk, policy)) is not None:
            out.append(gap)
        if stream.told is None or chunk.sequence > stream.told.sequence:
            stream.told = Told(
                chunk.sequence, chunk.event_time_us + chunk.duration_us, chunk.offset_us + chunk.duration_us
            )
        if chunk.sequence >= stream.next_sequence:
            # What is missing before it would be late by now.
            stream.passed_us = max(stream.passed_us, chunk.event_time_us)
            _pass(state, stream, chunk.modality, chunk.sequence)
    if len({chunk.modality for chunk in chunks}) > 1:
        spread_us = chunks[-1].event_time_us - at_us
        out.append(Aligned(session=state.session, at_us=at_us, spread_us=spread_us, chunks=chunks))
    else:
        out += [Alone(session=state.session, at_us=chunk.event_time_us, chunk=chunk) for chunk in chunks]
    return out


def _gap_before(state: SessionState, stream: StreamState, chunk: ModalChunk, policy: AlignmentPolicy) -> Gap | None:
    told = stream.told
    if told is None or chunk.sequence <= told.sequence:
        return None
    missing = stream.seen.missing_between(max(told.sequence + 1, stream.seen.floor), chunk.sequence - 1)
    apart_us = max(chunk.event_time_us - told.end_us, chunk.offset_us - told.end_offset_us)
    if not missing and apart_us <= policy.gap_after_us:
        return None
    return Gap(
        session=state.session,
        modality=chunk.modality,
        from_us=told.end_us,
        to_us=chunk.event_time_us,
        from_offset_us=told.end_offset_us,
        to_offset_us=chunk.offset_us,
        missing=tuple(missing),
    )
