"""An adaptive watermark for each source of events.

Contract: watermark = believed maximum of event time - delta. Delta follows a high quantile of the lateness
seen lately, within the policy's bounds. The watermark never moves back, whatever comes in. Clocks far
ahead or behind are counted and not believed until several events in a row agree. All times are whole
microseconds. No clock, no randomness: the same calls in the same order give the same results, and a state
dumped and loaded between any two of them goes on as if unbroken.

`observe` takes an event, `heartbeat` takes time without events, `merge` makes one watermark of several,
`lateness_statistics` reports. A late event is told as late; what to do with it is the caller's matter.
"""

from udfs.domain.watermark.histogram import RELATIVE_ERROR, LatenessHistogram
from udfs.domain.watermark.merged import MergedWatermark, merge
from udfs.domain.watermark.policy import WatermarkPolicy
from udfs.domain.watermark.source import heartbeat, observe
from udfs.domain.watermark.state import (
    NO_WATERMARK,
    LatenessStatistics,
    Observation,
    SourceWatermark,
    WatermarkState,
    lateness_statistics,
    source_watermark,
)

__all__ = [
    "NO_WATERMARK",
    "RELATIVE_ERROR",
    "LatenessHistogram",
    "LatenessStatistics",
    "MergedWatermark",
    "Observation",
    "SourceWatermark",
    "WatermarkPolicy",
    "WatermarkState",
    "heartbeat",
    "lateness_statistics",
    "merge",
    "observe",
    "source_watermark",
]
