"""How fast a producer's clock runs, measured on the way: a windowed, robust line through delays.

A chunk tells captured_at - event_time: how far the producer's clock is ahead, less the delay until the chunk was
stamped. Delays jitter upwards alone, so of each interval only the chunk with the least delay counts (the minima of V.
Paxson, "On Calibrating Measurements of Packet Transit Times", SIGMETRICS 1998). The rate is the median of the slopes
between all pairs of these points (P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", JASA
63, 1968), which a quarter of the points being wrong does not carry away. It is believed to be beyond the bound if what
it gains over the window exceeds what the bound allows by five times the scatter of the points about the line (their
median absolute deviation), so that noise is not told.

All in whole numbers: the same on every machine.
"""

from typing import NamedTuple

import msgspec

from udfs.domain.alignment.policy import LEAST_DRIFT_POINTS, AlignmentPolicy

_PPB = 1_000_000_000
_PPB_OF_PPM = 1_000
_SCATTERS = 5


class Rate(NamedTuple):
    """The clock's rate, in thousandths of a ppm, and how far it was ahead at `at_us`."""

    at_us: int
    rate_ppb: int
    offset_us: int
    is_beyond: bool


class Step(NamedTuple):
    """The clock was set between two intervals."""

    at_us: int
    by_us: int


class ClockState(msgspec.Struct, array_like=True):
    """What is remembered of one producer's clock: a point for each closed interval, and the best of the open one.

    A point is (event time, how far ahead). `told_ppb` is the rate that was told last as beyond the bound; None: none.
    """

    points: list[tuple[int, int]] = []
    open_interval: int = -1
    best_at_us: int = 0
    best_ahead_us: int = 0
    told_ppb: int | None = None


def observe(clock: ClockState, policy: AlignmentPolicy, event_time_us: int, captured_at_us: int) -> Rate | Step | None:
    """Note one chunk. What is to be told, which can only be when an interval has ended. Older chunks change nothing."""
    interval = event_time_us // policy.drift_interval_us
    ahead_us = captured_at_us - event_time_us
    if interval < clock.open_interval:
        return None
    if interval == clock.open_interval:
        if ahead_us > clock.best_ahead_us:
            clock.best_at_us, clock.best_ahead_us = event_time_us, ahead_us
        return None
    found = _close(clock, policy) if clock.open_interval >= 0 else None
    clock.open_interval, clock.best_at_us, clock.best_ahead_us = interval, event_time_us, ahead_us
    return found


def _close(clock: ClockState, policy: AlignmentPolicy) -> Rate | Step | None:
    at_us, ahead_us = clock.best_at_us, clock.best_ahead_us
    window_us = policy.drift_interval_us * policy.drift_points
    step: Step | None = None
    if clock.points and abs(by_us := ahead_us - clock.points[-1][1]) > policy.clock_step_us:
        step = Step(at_us, by_us)
        clock.points.clear()
        clock.told_ppb = None
    clock.points = [point for point in clock.points if at_us - point[0] < window_us][1 - policy.drift_points :]
    clock.points.append((at_us, ahead_us))
    return step or _told(clock, policy)


def _told(clock: ClockState, policy: AlignmentPolicy) -> Rate | None:
    """The rate, if it is news."""
    points = clock.points
    if len(points) < LEAST_DRIFT_POINTS:
        return None
    slopes = sorted(
        (ahead_us - earlier_us) * _PPB // (at_us - earlier_at_us)
        for index, (at_us, ahead_us) in enumerate(points)
        for earlier_at_us, earlier_us in points[:index]
    )
    rate_ppb = slopes[len(slopes) // 2]
    bound_ppb = policy.drift_bound_ppm * _PPB_OF_PPM
    now_us = points[-1][0]
    at_now = sorted(ahead_us + rate_ppb * (now_us - at_us) // _PPB for at_us, ahead_us in points)
    offset_us = at_now[len(at_now) // 2]
    scatter_us = sorted(abs(one_us - offset_us) for one_us in at_now)[len(at_now) // 2]
    gained_beyond_us = (abs(rate_ppb) - bound_ppb) * (now_us - points[0][0]) // _PPB
    is_beyond = gained_beyond_us > _SCATTERS * scatter_us
    told_ppb = clock.told_ppb
    if is_beyond:
        if told_ppb is not None and abs(rate_ppb - told_ppb) <= bound_ppb:
            return None
        clock.told_ppb = rate_ppb
    else:
        if told_ppb is None or abs(rate_ppb) > bound_ppb:
            return None
        clock.told_ppb = None
    return Rate(now_us, rate_ppb, offset_us, is_beyond)
