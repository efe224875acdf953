"""Following the adaptive watermark while events pass, for the summary."""

from collections.abc import Iterable, Iterator

import msgspec

from jobs.ops.summary import SourceLateness, WatermarkPoint
from schemas.events import Event, Heartbeat
from udfs.domain.watermark import NO_WATERMARK, WatermarkPolicy, WatermarkState, lateness_statistics, observe

POINT_EVERY_US = 10_000_000


def _heartbeat(watermark_us: int) -> Heartbeat:
    return Heartbeat(
        event_id=b"",
        tenant="",
        request_id="",
        attempt=0,
        event_time_us=watermark_us,
        watermark_us=watermark_us,
        sequence=0,
        session="",
        model="",
        backend="",
        region="",
        source="",
        provenance=None,
    )


class LatenessWatch:
    """Stamps the events of every source with its adaptive watermark, and keeps what it saw."""

    def __init__(self, policy: WatermarkPolicy | None = None) -> None:
        self._policy = policy or WatermarkPolicy()
        self._states: dict[str, WatermarkState] = {}
        self._points: list[WatermarkPoint] = []

    def with_heartbeats(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events with their stamps, and a heartbeat every ten seconds of the slowest source's watermark.

        Nothing comes after the end, so the last heartbeat has the largest event time as its watermark.
        """
        beat_us = latest_us = 0
        for event in self.stamped(events):
            yield event
            latest_us = max(latest_us, event.event_time_us)
            if event.watermark_us >= beat_us:
                watermark_us = min((state.watermark_us for state in self._states.values()), default=0)
                if watermark_us >= beat_us:
                    yield _heartbeat(watermark_us)
                    beat_us = watermark_us + POINT_EVERY_US
        if latest_us:
            yield _heartbeat(latest_us)

    def stamped(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events with their stamps. One that has a stamp passes as it is; one before its source has any, too."""
        point_us = seen = late = 0
        for event in events:
            if event.watermark_us or isinstance(event, Heartbeat):
                yield event
                continue
            state = self._states.get(event.source)
            if state is None:
                state = self._states[event.source] = WatermarkState()
            observed = observe(state, self._policy, event.event_time_us)
            seen += 1
            late += observed.late
            if observed.watermark_us == NO_WATERMARK:
                yield event
                continue
            if observed.watermark_us >= point_us:
                delta_us = lateness_statistics(state, self._policy).delta_us
                self._points.append(WatermarkPoint(observed.watermark_us, delta_us, late / seen))
                point_us = observed.watermark_us + POINT_EVERY_US
                seen = late = 0
            yield msgspec.structs.replace(event, watermark_us=observed.watermark_us)

    @property
    def points(self) -> tuple[WatermarkPoint, ...]:
        """Delta and share of late events, about every ten seconds of event time."""
        return tuple(self._points)

    def statistics(self) -> tuple[SourceLateness, ...]:
        """How late each source was."""
        return tuple(
            SourceLateness(
                source=source,
                **{
                    name: getattr(found, name)
                    for name in (
                        "events",
                        "late_events",
                        "p50_us",
                        "p95_us",
                        "p99_us",
                        "max_lateness_us",
                        "delta_us",
                        "ahead_count",
                        "behind_count",
                    )
                },
            )
            for source, state in sorted(self._states.items())
            for found in (lateness_statistics(state, self._policy),)
        )
