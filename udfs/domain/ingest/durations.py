"""How long something took, where a record has no time at which it ended."""

from typing import Final

from schemas.codec import MAX_TIME_US
from udfs.domain.ingest.fields import out_of_range

_MAX_DURATION_US: Final = 31 * 86_400_000_000


def time_after(started_at_us: int, duration_us: float, name: str) -> int:
    """When it ended, in microseconds since 1970. Raises UnreadableRecordError for less than 0 or more than a month.

    >>> time_after(1_000_000, 2.5, "duration")
    1000002
    """
    if not 0 <= duration_us <= _MAX_DURATION_US or started_at_us + duration_us > MAX_TIME_US:
        raise out_of_range(f"{name} in microseconds", duration_us, "from 0 to a month")
    return started_at_us + round(duration_us)
