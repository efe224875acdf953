"""The transitions of one source: an event, and time passing without one.

What an event does depends on where it lies, r being max_ahead_us:

| event time | believed | believed maximum | histogram | also |
| --- | --- | --- | --- | --- |
| first of the source | yes | the event | lateness 0 | |
| in reach | yes | the later of both | lateness | drops both candidates |
| further ahead, fewer than n agree | no | unchanged | unchanged | ahead_count |
| further ahead, the n-th that agrees | yes | highest of the n | unchanged | ahead_count |
| more than r behind, fewer than n agree | no | unchanged | unchanged | behind_count |
| more than r behind, the n-th that agrees | yes | highest of the n | unchanged | behind_count |

In reach is what lies within r of the maximum, or ahead of it and within r of the watermark: such an event
can't drag the watermark further than any believed one may, and near the watermark is where events belong
after idle time, or when a backlog took the maximum back for a moment. So r is what one wrong event can cost.

n is `confirmations`. Events agree if they are out of reach on the same side, within r of each other, with
no believed event between them; events out of reach on the other side neither help nor hinder. One that
is out of reach and disagrees with those before it starts the count again.
"""

from __future__ import annotations

from udfs.domain.watermark.histogram import SUB_BUCKET_BITS, UNIT
from udfs.domain.watermark.policy import WatermarkPolicy
from udfs.domain.watermark.state import Observation, SourceWatermark, WatermarkState

# Delta is computed anew after every recorded event at first, then each time their number has grown by
# about a sixteenth, then every 128: a quantile costs tens of microseconds where an event may cost one.
_MAX_REFRESH_INTERVAL = 128
_REFRESH_GROWTH_BITS = 4

_SHIFT_FROM = SUB_BUCKET_BITS + 1


def observe(
    state: WatermarkState, policy: WatermarkPolicy, event_time_us: int, arrival_us: int | None = None
) -> Observation:
    """Fold one event into the source's state, which is changed in place.

    The result follows from the sequence of calls (observe and heartbeat) with their arguments alone.

    event_time_us: any int64. arrival_us: when the event came in, an int64 on a clock that is trusted; None
    where there is no such clock, as in replays of files. Hand it to both observe and heartbeat or to
    neither: without it here, events don't show heartbeat that a source lives.

    The first event is believed, having nothing to be compared with, but there is no watermark until
    `confirmations` events have been believed with no far-behind one among them. So a bad first event does
    no harm: if it was far ahead, the next n events lie far behind, agree, and take the maximum to where
    they are before there is a watermark; if it was far behind, they take it ahead. A wrong clock that is
    confirmed does harm: the believed maximum comes back with n events that agree, so that lateness is
    measured rightly again, but the watermark stays where it got to, and the source's events are late
    (decided and counted, see late_events) until their time passes it or its state is made anew.

    >>> state, policy = WatermarkState(), WatermarkPolicy(confirmations=2)
    >>> for event_time_us in (1_000_000, 2_000_000, 1_970_000, 1_940_000):
    ...     seen = observe(state, policy, event_time_us)
    ...     print(seen.watermark_us, seen.lateness_us, seen.late)
    -9223372036854775808 0 False
    1950000 0 False
    1950000 30000 False
    1950000 60000 True
    """
    late = event_time_us < state.watermark_us
    if late:
        state.late_events += 1
    max_event_time_us = state.max_event_time_us
    if max_event_time_us is None:
        state.max_event_time_us = max_event_time_us = event_time_us
    lateness_us = max_event_time_us - event_time_us
    max_ahead_us = policy.max_ahead_us
    if abs(lateness_us) > max_ahead_us and (lateness_us > 0 or abs(event_time_us - state.watermark_us) > max_ahead_us):
        believed = _doubt(state, policy, event_time_us, arrival_us)
        return Observation(state.watermark_us, max(lateness_us, 0), late, believed)

    # From here on each line is paid by every event: calls and stores into the state are what costs.
    if lateness_us > 0:
        if lateness_us > state.max_lateness_us:  # noqa: PLR1730 - max() is a call
            state.max_lateness_us = lateness_us
    else:
        state.max_event_time_us = max_event_time_us = event_time_us
        lateness_us = 0
    # histogram.bucket_of, written out.
    shift = lateness_us.bit_length() - _SHIFT_FROM
    bucket = lateness_us if shift <= 0 else (shift << SUB_BUCKET_BITS) + (lateness_us >> shift)
    weights = state.histogram.weights
    weights[bucket] = weights.get(bucket, 0) + UNIT
    state.recorded_events = recorded_events = state.recorded_events + 1
    if recorded_events >= state.refresh_at_events:
        _refresh_delta(state, policy)
    if state.disputed:
        _drop_candidates(state)
    if arrival_us is not None:
        _note_arrival(state, arrival_us)
    if state.agreeing_events < policy.confirmations and not _enough_agree(state, policy):
        return Observation(state.watermark_us, lateness_us, late, believed=True)
    watermark_us = max_event_time_us - state.delta_us
    if watermark_us > state.watermark_us:
        state.watermark_us = watermark_us
    else:
        watermark_us = state.watermark_us
    return Observation(watermark_us, lateness_us, late, believed=True)


def heartbeat(state: WatermarkState, policy: WatermarkPolicy, arrival_us: int | None) -> SourceWatermark:
    """Let time pass without an event. Changes the state in place; arrival_us None changes nothing.

    The source is idle once the arrival clock is `idle_after_us` past its last believed event (or past the
    first heartbeat, where none came before it), until its next believed event. An idle source's watermark
    follows the arrival clock minus delta, never back. If the last event found the source's maximum behind
    the arrival clock, it keeps that distance too: a source that catches up on yesterday and pauses must
    not have the rest of yesterday declared late. A source without any event is idle with no watermark.
    """
    if arrival_us is None:
        return SourceWatermark(state.watermark_us, state.idle)
    if state.last_arrival_us is None:
        state.last_arrival_us = arrival_us
    silent_us = arrival_us - state.last_arrival_us
    if silent_us >= policy.idle_after_us:
        state.idle = True
        if state.max_event_time_us is not None:
            # Never past the clock itself: a wrong maximum must not take the watermark along.
            reached_us = min(state.max_event_time_us + silent_us, arrival_us)
            state.watermark_us = max(state.watermark_us, reached_us - state.delta_us)
    return SourceWatermark(state.watermark_us, state.idle)


def _doubt(state: WatermarkState, policy: WatermarkPolicy, event_time_us: int, arrival_us: int | None) -> bool:
    """Count an event out of reach; whether it was the one that confirms those before it."""
    if state.max_event_time_us is not None and event_time_us > state.max_event_time_us:
        state.ahead_count += 1
        candidate = state.ahead
    else:
        state.behind_count += 1
        candidate = state.behind
        if state.agreeing_events < policy.confirmations:
            state.agreeing_events = 0
    state.disputed = True
    if candidate.add(event_time_us, policy.max_ahead_us) < policy.confirmations:
        return False
    state.max_event_time_us = candidate.high_us
    state.agreeing_events = policy.confirmations
    state.watermark_us = max(state.watermark_us, candidate.high_us - state.delta_us)
    _drop_candidates(state)
    if arrival_us is not None:
        _note_arrival(state, arrival_us)
    return True


def _enough_agree(state: WatermarkState, policy: WatermarkPolicy) -> bool:
    state.agreeing_events += 1
    return state.agreeing_events >= policy.confirmations


def _drop_candidates(state: WatermarkState) -> None:
    state.ahead.events = 0
    state.behind.events = 0
    state.disputed = False


def _note_arrival(state: WatermarkState, arrival_us: int) -> None:
    state.idle = False
    if state.last_arrival_us is None or arrival_us > state.last_arrival_us:
        state.last_arrival_us = arrival_us


def _refresh_delta(state: WatermarkState, policy: WatermarkPolicy) -> None:
    histogram = state.histogram
    recorded_events = state.recorded_events
    if recorded_events - state.halved_at_events >= policy.half_life_events:
        histogram.halve()
        state.halved_at_events = recorded_events
    delta_us = histogram.quantile(policy.quantile)
    state.delta_us = min(max(delta_us, policy.min_delta_us), policy.max_delta_us)
    grown_by_a_share = max(recorded_events >> _REFRESH_GROWTH_BITS, 1)
    next_halving = state.halved_at_events + policy.half_life_events
    state.refresh_at_events = min(recorded_events + min(grown_by_a_share, _MAX_REFRESH_INTERVAL), next_halving)
