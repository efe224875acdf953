"""1.1 to 1.0: event time in milliseconds instead of microseconds.

The time is rounded down, so that the order of times stays and none comes to lie in the future. A time in the first
millisecond of 1970 has none to round down to: 0 means that there is no time.
"""

from schemas.downcast.dropped import CriticalFieldsLostError, Dropped
from schemas.gen.headrace.v1.events_pb2 import Event


def downcast(event: Event) -> list[Dropped]:
    """Change a 1.1 event into a 1.0 event, in place; returns what is dropped.

    Raises CriticalFieldsLostError for a time that would be taken for none.
    """
    milliseconds, microseconds = divmod(event.event_time_us, 1000)
    if microseconds and not milliseconds:
        raise CriticalFieldsLostError(("Event.event_time_us",), "1.0")
    dropped = [Dropped("Event.event_time_us", microseconds)] if microseconds else []
    if event.event_time_ms:
        # 1.1 and later read nothing there; 1.0 would.
        dropped.append(Dropped("Event.event_time_ms", event.event_time_ms))
    event.event_time_ms = milliseconds
    event.ClearField("event_time_us")
    return dropped
