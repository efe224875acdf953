"""What may be chosen about a watermark, validated where it is built."""

from __future__ import annotations

import msgspec

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_MAX_HALF_LIFE_EVENTS = 2**40


class WatermarkPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a source's watermark follows its events. Times are in microseconds.

    quantile: share of events that should not be late; delta follows this quantile of lateness.
    min_delta_us, max_delta_us: bounds of delta.
    max_ahead_us: reach of belief. An event further than this from the believed maximum, ahead or
        behind, tells of a wrong clock rather than of lateness. At least max_delta_us, because a
        lateness that delta may cover must be believable.
    confirmations: how many such events in a row, near each other, move the believed maximum; also how
        many first events must agree before there is a watermark at all.
    half_life_events: the weight of a past lateness halves each time this many events were recorded.
    idle_after_us: a source without a believed event for this long, on the arrival clock, is idle.

    Raises ValueError that names the field; decoding one raises msgspec.ValidationError.

    >>> WatermarkPolicy(quantile=1.0)
    Traceback (most recent call last):
    ValueError: quantile must be above 0 and below 1, got 1.0
    """

    quantile: float = 0.99
    min_delta_us: int = 50_000
    max_delta_us: int = 60_000_000
    max_ahead_us: int = 3_600_000_000
    confirmations: int = 3
    half_life_events: int = 2_048
    idle_after_us: int = 30_000_000

    def __post_init__(self) -> None:
        # The constructor of a msgspec.Struct doesn't check types, so that is done here.
        _require_share("quantile", self.quantile)
        _require_int("min_delta_us", self.min_delta_us, 1, INT64_MAX)
        _require_int("max_delta_us", self.max_delta_us, self.min_delta_us, INT64_MAX, "min_delta_us")
        _require_int("max_ahead_us", self.max_ahead_us, self.max_delta_us, INT64_MAX, "max_delta_us")
        _require_int("confirmations", self.confirmations, 1, 1_000)
        _require_int("half_life_events", self.half_life_events, 1, _MAX_HALF_LIFE_EVENTS)
        _require_int("idle_after_us", self.idle_after_us, 1, INT64_MAX)


def _require_share(field: str, value: object) -> None:
    if not isinstance(value, float) or not 0.0 < value < 1.0:
        raise ValueError(f"{field} must be above 0 and below 1, got {value!r}")


def _require_int(field: str, value: object, least: int, most: int, least_is: str = "") -> None:
    # bool is an int to isinstance, and never what was meant here.
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return
    origin = f" ({least_is})" if least_is else ""
    raise ValueError(f"{field} must be a whole number from {least}{origin} to {most}, got {value!r}")
