"""One watermark for several sources."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from udfs.domain.watermark.state import NO_WATERMARK, SourceWatermark


class MergedWatermark(msgspec.Struct):
    """State of a merge: the highest watermark it has given. Round-trips through msgspec.msgpack."""

    watermark_us: int = NO_WATERMARK


def merge(state: MergedWatermark, sources: Iterable[SourceWatermark]) -> int:
    """The watermark that holds for all the sources together, in microseconds. Never moves back.

    It is the minimum over the sources that are not idle; one of those without a watermark yet holds it
    where it is. Where all are idle it is the minimum over those that have a watermark, which then follow
    the arrival clock; Flink takes the maximum there, which would declare the slower source's events late
    whenever all pause together. A source that comes back from idleness behind the merged watermark, or
    is new, does not take it back: its events are late until they pass it. Without sources it stays.

    >>> merged = MergedWatermark()
    >>> merge(merged, [SourceWatermark(70, idle=False), SourceWatermark(50, idle=False)])
    50
    >>> merge(merged, [SourceWatermark(70, idle=False), SourceWatermark(50, idle=True)])
    70
    >>> merge(merged, [SourceWatermark(80, idle=False), SourceWatermark(60, idle=False)])
    70
    """
    active_us: int | None = None
    idle_us: int | None = None
    for source in sources:
        watermark_us = source.watermark_us
        if not source.idle:
            active_us = watermark_us if active_us is None else min(active_us, watermark_us)
        elif watermark_us != NO_WATERMARK:
            idle_us = watermark_us if idle_us is None else min(idle_us, watermark_us)
    lowest_us = idle_us if active_us is None else active_us
    if lowest_us is not None and lowest_us > state.watermark_us:
        state.watermark_us = lowest_us
    return state.watermark_us
