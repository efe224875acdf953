"""What is remembered of one source, and what is told about it."""

from __future__ import annotations

import msgspec

from udfs.domain.watermark.histogram import LatenessHistogram
from udfs.domain.watermark.policy import INT64_MIN, WatermarkPolicy

NO_WATERMARK = INT64_MIN
"""Watermark of a source that has none yet: behind every event, so that nothing is late."""


class Candidate(msgspec.Struct):
    """Events out of reach of the believed maximum that agree with each other: their number and span."""

    events: int = 0
    low_us: int = 0
    high_us: int = 0

    def add(self, event_time_us: int, max_span_us: int) -> int:
        """Count an event in, or start again with it if it lies too far from the others.

        Returns how many agree now.
        """
        low_us = min(self.low_us, event_time_us)
        high_us = max(self.high_us, event_time_us)
        if self.events and high_us - low_us <= max_span_us:
            self.events += 1
            self.low_us = low_us
            self.high_us = high_us
        else:
            self.events = 1
            self.low_us = self.high_us = event_time_us
        return self.events


class WatermarkState(msgspec.Struct):
    """State of one source: make a new one with `WatermarkState()`, change it with the transitions alone.

    Round-trips through msgspec.msgpack for event times and arrival times within int64. Its size is
    bounded by the histogram's (see LatenessHistogram), a few KiB at most.
    """

    max_event_time_us: int | None = None
    """The believed maximum; None before the first event."""
    watermark_us: int = NO_WATERMARK
    delta_us: int = 0
    """Set from the policy with the first event."""
    agreeing_events: int = 0
    """Believed events since the start or the last far-behind one; matters until there is a watermark."""
    histogram: LatenessHistogram = msgspec.field(default_factory=LatenessHistogram)
    recorded_events: int = 0
    """Events whose lateness went into the histogram: all but those out of reach."""
    refresh_at_events: int = 1
    """Delta is computed anew when recorded_events gets here."""
    halved_at_events: int = 0
    """recorded_events when the histogram was last halved."""
    ahead: Candidate = msgspec.field(default_factory=Candidate)
    behind: Candidate = msgspec.field(default_factory=Candidate)
    disputed: bool = False
    """Whether one of the candidates holds an event."""
    idle: bool = False
    last_arrival_us: int | None = None
    """Arrival of the last believed event, or the first heartbeat where none came before it."""
    late_events: int = 0
    max_lateness_us: int = 0
    ahead_count: int = 0
    behind_count: int = 0


class Observation(msgspec.Struct, frozen=True, gc=False):
    """What one event came to.

    watermark_us: the source's watermark after the event, to be stamped on it. NO_WATERMARK until there
        is one.
    lateness_us: believed maximum before the event minus its event time; 0 if it is ahead.
    late: the event is behind the watermark as it was before the event. One exactly at it is not late.
    believed: False for an event out of reach, ahead or behind, that has not been confirmed.
    """

    watermark_us: int
    lateness_us: int
    late: bool
    believed: bool


class SourceWatermark(msgspec.Struct, frozen=True, gc=False):
    """A source's watermark and whether the source is idle: what `merge` takes."""

    watermark_us: int
    idle: bool


class LatenessStatistics(msgspec.Struct, frozen=True, gc=False):
    """Lateness of one source, in microseconds.

    events, late_events, ahead_count, behind_count: since the state was made.
    max_lateness_us: since the state was made, over events within reach of the believed maximum (those
        further behind are counted in behind_count, or one wrong clock would hide all other lateness).
    p50_us, p95_us, p99_us: over the recent past, within the histogram's relative error.
    """

    events: int
    late_events: int
    max_lateness_us: int
    p50_us: int
    p95_us: int
    p99_us: int
    delta_us: int
    ahead_count: int
    behind_count: int


def source_watermark(state: WatermarkState) -> SourceWatermark:
    """The source's watermark as it stands."""
    return SourceWatermark(state.watermark_us, state.idle)


def lateness_statistics(state: WatermarkState, policy: WatermarkPolicy) -> LatenessStatistics:
    """The statistics as they stand; changes nothing."""
    p50_us, p95_us, p99_us = state.histogram.quantiles((0.5, 0.95, 0.99))
    return LatenessStatistics(
        events=state.recorded_events + state.ahead_count + state.behind_count,
        late_events=state.late_events,
        max_lateness_us=state.max_lateness_us,
        p50_us=p50_us,
        p95_us=p95_us,
        p99_us=p99_us,
        delta_us=min(max(state.delta_us, policy.min_delta_us), policy.max_delta_us),
        ahead_count=state.ahead_count,
        behind_count=state.behind_count,
    )
