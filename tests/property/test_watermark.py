"""What holds of the adaptive watermark whatever comes in."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.domain.watermark import (
    NO_WATERMARK,
    RELATIVE_ERROR,
    LatenessHistogram,
    MergedWatermark,
    Observation,
    SourceWatermark,
    WatermarkPolicy,
    WatermarkState,
    heartbeat,
    lateness_statistics,
    merge,
    observe,
)
from udfs.domain.watermark.histogram import bucket_of, highest_in

SECOND = 1_000_000
HOUR = 3_600 * SECOND
NOW = 1_700_000_000 * SECOND
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

policies = st.builds(
    WatermarkPolicy,
    quantile=st.sampled_from([0.5, 0.9, 0.99, 0.999]),
    min_delta_us=st.integers(1, SECOND),
    max_delta_us=st.integers(SECOND, HOUR),
    max_ahead_us=st.sampled_from([HOUR, 10 * HOUR, INT64_MAX]),
    confirmations=st.integers(1, 4),
    half_life_events=st.integers(1, 100),
    idle_after_us=st.integers(1, HOUR),
)

# A few clocks, so that events out of reach do agree now and then.
clocks_us = st.sampled_from([INT64_MIN, -1, 0, NOW - 20 * HOUR, NOW, NOW + 2 * HOUR, NOW * 1_000, INT64_MAX])
times_us = st.one_of(
    st.tuples(clocks_us, st.integers(-HOUR, HOUR)).map(lambda pair: min(max(sum(pair), INT64_MIN), INT64_MAX)),
    st.integers(NOW - 60 * SECOND, NOW + 60 * SECOND),
    st.integers(INT64_MIN, INT64_MAX),
)


class Event(msgspec.Struct, frozen=True):
    event_time_us: int
    arrival_us: int | None = None


class Beat(msgspec.Struct, frozen=True):
    arrival_us: int | None


events = st.builds(Event, times_us, st.none() | times_us)
steps = st.lists(st.one_of(events, events, events, st.builds(Beat, st.none() | times_us)), max_size=60)


def step(state: WatermarkState, policy: WatermarkPolicy, what: Event | Beat) -> Observation | SourceWatermark:
    if isinstance(what, Event):
        return observe(state, policy, what.event_time_us, what.arrival_us)
    return heartbeat(state, policy, what.arrival_us)


@given(policies, steps)
def test_never_moves_back(policy: WatermarkPolicy, inputs: list[Event | Beat]) -> None:
    state = WatermarkState()
    before_us = NO_WATERMARK
    for what in inputs:
        told = step(state, policy, what)
        assert told.watermark_us == state.watermark_us >= before_us
        before_us = told.watermark_us


@given(policies, steps)
def test_delta_keeps_to_its_bounds(policy: WatermarkPolicy, inputs: list[Event | Beat]) -> None:
    state = WatermarkState()
    for what in inputs:
        step(state, policy, what)
        delta_us = lateness_statistics(state, policy).delta_us
        assert policy.min_delta_us <= delta_us <= policy.max_delta_us
        assert state.max_event_time_us is None or delta_us == state.delta_us


@given(policies, st.lists(times_us, max_size=60))
def test_keeps_behind_the_highest_time_believed(policy: WatermarkPolicy, event_times_us: list[int]) -> None:
    state = WatermarkState()
    highest_us = INT64_MIN
    for event_time_us in event_times_us:
        told = observe(state, policy, event_time_us)
        assert state.max_event_time_us is not None
        highest_us = max(highest_us, state.max_event_time_us)
        assert told.watermark_us == NO_WATERMARK or told.watermark_us <= highest_us - policy.min_delta_us


@given(policies, steps)
def test_keeps_behind_the_events_and_the_arrival_clock(policy: WatermarkPolicy, inputs: list[Event | Beat]) -> None:
    state = WatermarkState()
    highest_us = INT64_MIN
    for what in inputs:
        told = step(state, policy, what)
        moved_to_us = what.event_time_us if isinstance(what, Event) else what.arrival_us
        highest_us = max(highest_us, INT64_MIN if moved_to_us is None else moved_to_us)
        assert told.watermark_us == NO_WATERMARK or told.watermark_us <= highest_us - policy.min_delta_us


@given(policies, st.lists(st.integers(NOW - HOUR // 2, NOW + HOUR // 2), min_size=1, max_size=200))
def test_events_within_reach_follow_the_definition(policy: WatermarkPolicy, event_times_us: list[int]) -> None:
    state = WatermarkState()
    expected = LatenessHistogram()
    watermark_us = NO_WATERMARK
    for index, event_time_us in enumerate(event_times_us):
        earlier_us = event_times_us[:index]
        lateness_us = max(0, max(earlier_us, default=event_time_us) - event_time_us)
        late = event_time_us < watermark_us
        told = observe(state, policy, event_time_us)
        if index + 1 >= policy.confirmations:
            watermark_us = max(watermark_us, max(event_times_us[: index + 1]) - state.delta_us)
        assert told == Observation(watermark_us, lateness_us, late, believed=True)
        expected.record(lateness_us)
    if len(event_times_us) < policy.half_life_events:
        assert state.histogram == expected


@given(policies, steps, st.sets(st.integers(0, 60)))
def test_saved_and_loaded_anywhere_gives_the_same(
    policy: WatermarkPolicy, inputs: list[Event | Beat], restarts: set[int]
) -> None:
    unbroken, restarted = WatermarkState(), WatermarkState()
    for index, what in enumerate(inputs):
        if index in restarts:
            restarted = msgspec.msgpack.decode(msgspec.msgpack.encode(restarted), type=WatermarkState)
        assert step(restarted, policy, what) == step(unbroken, policy, what)
        assert lateness_statistics(restarted, policy) == lateness_statistics(unbroken, policy)
    assert restarted == unbroken


@given(policies, steps)
def test_the_saved_state_is_bounded(policy: WatermarkPolicy, inputs: list[Event | Beat]) -> None:
    state = WatermarkState()
    for what in inputs:
        step(state, policy, what)
    assert len(state.histogram.weights) <= 64 + 32 * (64 - 6)
    assert all(0 <= bucket <= bucket_of(policy.max_ahead_us) for bucket in state.histogram.weights)


@given(
    st.lists(st.integers(-60 * SECOND, 60 * SECOND), min_size=1, max_size=100),
    st.integers(0, 99),
    st.integers(NOW + 2 * HOUR, INT64_MAX),
)
def test_one_event_far_ahead_changes_counters_alone(offsets_us: list[int], place: int, far_us: int) -> None:
    policy = WatermarkPolicy(half_life_events=20)
    place = 1 + place % len(offsets_us)
    without, with_it = WatermarkState(), WatermarkState()
    for index, offset_us in enumerate(offsets_us, start=1):
        assert observe(with_it, policy, NOW + offset_us) == observe(without, policy, NOW + offset_us)
        if index == place:
            told = observe(with_it, policy, far_us)
            assert told == Observation(without.watermark_us, 0, late=False, believed=False)
    assert lateness_statistics(with_it, policy) == msgspec.structs.replace(
        lateness_statistics(without, policy), events=len(offsets_us) + 1, ahead_count=1
    )


@given(st.integers(0, 2**64))
def test_a_bucket_holds_its_values_within_the_error(value: int) -> None:
    bucket = bucket_of(value)
    assert value <= highest_in(bucket) < max(value, 1) * (1 + RELATIVE_ERROR) or value == highest_in(bucket)
    assert bucket_of(highest_in(bucket)) == bucket
    assert bucket_of(highest_in(bucket) + 1) == bucket + 1


def quantile_by_nearest_rank(values: list[int], quantile: float) -> int:
    ordered = sorted(values)
    return next(x for rank, x in enumerate(ordered, start=1) if rank >= quantile * len(ordered))


values_of_any_size = st.integers(0, 62).flatmap(lambda bits: st.integers(0, 2**bits))


@given(
    st.lists(values_of_any_size, min_size=1, max_size=300),
    st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
)
def test_a_quantile_is_within_the_error_of_the_exact_one(values: list[int], quantile: float) -> None:
    histogram = LatenessHistogram()
    for value in values:
        histogram.record(value)
    exact = quantile_by_nearest_rank(values, quantile)
    estimate = histogram.quantile(quantile)
    assert exact <= estimate
    assert estimate == exact or estimate < exact * (1 + RELATIVE_ERROR)


@given(st.lists(st.lists(values_of_any_size, max_size=30), min_size=1, max_size=5))
def test_a_halving_halves_the_say_of_the_past(spells: list[list[int]]) -> None:
    histogram = LatenessHistogram()
    for spell in spells:
        histogram.halve()
        for value in spell:
            histogram.record(value)
    # Halving the past is doubling the present, as far as quantiles go.
    weighted = [value for age, spell in enumerate(reversed(spells)) for value in spell * 2 ** (len(spells) - 1 - age)]
    if weighted:
        exact = quantile_by_nearest_rank(weighted, 0.9)
        assert exact <= histogram.quantile(0.9) <= exact * (1 + RELATIVE_ERROR)


def exponential(rng: random.Random) -> float:
    return rng.expovariate(1 / (2 * SECOND))


def uniform(rng: random.Random) -> float:
    return rng.uniform(0, 10 * SECOND)


def heavy_tailed(rng: random.Random) -> float:
    return min(rng.paretovariate(1.5), 600) * SECOND / 10


@pytest.mark.parametrize("lag_us", [exponential, uniform, heavy_tailed])
@pytest.mark.parametrize("quantile", [0.9, 0.99])
def test_the_late_share_settles_near_what_was_asked(lag_us: Callable[[random.Random], float], quantile: float) -> None:
    rng = random.Random(20_231_116)
    state, policy = WatermarkState(), WatermarkPolicy(quantile=quantile)
    seen = [observe(state, policy, NOW + index * 5_000 - int(lag_us(rng))) for index in range(24_000)][4_000:]
    share = sum(one.late for one in seen) / len(seen)
    assert share < 1.3 * (1 - quantile)
    # Delta may lie above the exact quantile by the histogram's error, never below: what lies between the two
    # may be spared. Where lateness is bounded, as here in the uniform case, that can be all of it.
    exact_us = quantile_by_nearest_rank([one.lateness_us for one in seen], quantile)
    beyond = sum(one.lateness_us >= exact_us * (1 + RELATIVE_ERROR) for one in seen) / len(seen)
    assert share > 0.7 * beyond
    assert share > 0.5 * (1 - quantile) or lag_us is uniform


marks = st.builds(SourceWatermark, st.just(NO_WATERMARK) | st.integers(0, 100), st.booleans())


@given(st.lists(st.lists(marks, max_size=4), max_size=20))
def test_a_merge_is_the_running_maximum_of_minima(rounds: list[list[SourceWatermark]]) -> None:
    merged = MergedWatermark()
    minima = [NO_WATERMARK]
    for sources in rounds:
        active = [one.watermark_us for one in sources if not one.idle]
        idle = [one.watermark_us for one in sources if one.watermark_us != NO_WATERMARK]
        minima += [min(active)] if active else [min(idle)] if idle else []
        merged = msgspec.msgpack.decode(msgspec.msgpack.encode(merged), type=MergedWatermark)
        assert merge(merged, sources) == max(minima)
