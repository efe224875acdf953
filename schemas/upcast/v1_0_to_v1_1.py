"""1.0 to 1.1: event time in microseconds instead of milliseconds.

1.0 stamped events in milliseconds, in which the chunks of one stream share a time, so that their order in event time
is lost. 1.1 has `event_time_us` and keeps field 28 for reading 1.0.
"""

from typing import Final

from schemas.gen.headrace.v1.events_pb2 import Event

_MOST_MS: Final = (2**63 - 1) // 1000


def upcast(event: Event) -> None:
    """Change a 1.0 event into a 1.1 event, in place. Raises OverflowError before any change."""
    if abs(event.event_time_ms) > _MOST_MS:
        raise OverflowError(f"event_time_ms is {event.event_time_ms}, too far to count in microseconds")
    if not event.event_time_us:
        event.event_time_us = event.event_time_ms * 1000
    event.ClearField("event_time_ms")
