"""Behaviour of the adaptive watermark, case by case."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import msgspec
import pytest

from udfs.domain.watermark import (
    NO_WATERMARK,
    RELATIVE_ERROR,
    MergedWatermark,
    Observation,
    SourceWatermark,
    WatermarkPolicy,
    WatermarkState,
    heartbeat,
    lateness_statistics,
    merge,
    observe,
    source_watermark,
)

MS = 1_000
SECOND = 1_000_000
HOUR = 3_600 * SECOND
YEAR = 365 * 24 * HOUR
NOW = 1_700_000_000 * SECOND
YEAR_2200 = 7_258_118_400 * SECOND
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

POLICY = WatermarkPolicy()


def observe_all(
    state: WatermarkState, event_times_us: Iterable[int], policy: WatermarkPolicy = POLICY
) -> list[Observation]:
    return [observe(state, policy, event_time_us) for event_time_us in event_times_us]


def settled_state(last_us: int = NOW, events: int = 10) -> WatermarkState:
    """A state after events a millisecond apart and in order, the last at last_us."""
    state = WatermarkState()
    observe_all(state, [last_us - (events - 1 - index) * MS for index in range(events)])
    return state


class TestPolicy:
    def test_defaults(self) -> None:
        expected = WatermarkPolicy(
            quantile=0.99,
            min_delta_us=50_000,
            max_delta_us=60_000_000,
            max_ahead_us=3_600_000_000,
            confirmations=3,
        )
        assert expected == POLICY

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("quantile", {"quantile": 0.0}),
            ("quantile", {"quantile": 1.0}),
            ("quantile", {"quantile": float("nan")}),
            ("quantile", {"quantile": 1}),
            ("min_delta_us", {"min_delta_us": 0}),
            ("min_delta_us", {"min_delta_us": 0.5}),
            ("min_delta_us", {"min_delta_us": True}),
            ("max_delta_us", {"min_delta_us": 10, "max_delta_us": 9}),
            ("max_ahead_us", {"max_delta_us": HOUR, "max_ahead_us": HOUR - 1}),
            ("max_ahead_us", {"max_ahead_us": 2**63}),
            ("confirmations", {"confirmations": 0}),
            ("half_life_events", {"half_life_events": 0}),
            ("idle_after_us", {"idle_after_us": -1}),
        ],
    )
    def test_an_invalid_one_cannot_be_built(self, field: str, values: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=f"^{field} must be"):
            WatermarkPolicy(**values)  # type: ignore[arg-type]

    def test_an_invalid_one_cannot_be_decoded_or_replaced(self) -> None:
        with pytest.raises(msgspec.ValidationError, match="quantile must be"):
            msgspec.json.decode(b'{"quantile": 2.0}', type=WatermarkPolicy)
        with pytest.raises(ValueError, match="quantile must be"):
            msgspec.structs.replace(POLICY, quantile=2.0)

    def test_is_frozen(self) -> None:
        with pytest.raises(AttributeError):
            POLICY.quantile = 0.5  # type: ignore[misc]


class TestOrdinaryEvents:
    def test_no_watermark_until_enough_events_agree(self) -> None:
        stamped = [seen.watermark_us for seen in observe_all(WatermarkState(), [NOW, NOW + 1, NOW + 2])]
        assert stamped == [NO_WATERMARK, NO_WATERMARK, NOW + 2 - POLICY.min_delta_us]

    def test_in_order_events_keep_delta_at_its_minimum(self) -> None:
        state = settled_state(NOW, events=500)
        assert source_watermark(state) == SourceWatermark(NOW - POLICY.min_delta_us, idle=False)
        assert lateness_statistics(state, POLICY).late_events == 0

    def test_lateness_is_measured_to_the_maximum_before_the_event(self) -> None:
        seen = observe_all(WatermarkState(), [NOW, NOW - 7, NOW + 9, NOW + 9, NOW + 4])
        assert [one.lateness_us for one in seen] == [0, 7, 0, 0, 5]

    def test_late_is_strictly_behind_the_watermark_before_the_event(self) -> None:
        watermark_us = NOW - POLICY.min_delta_us
        assert not observe(settled_state(), POLICY, watermark_us).late
        assert observe(settled_state(), POLICY, watermark_us - 1).late

    def test_delta_follows_lateness_up_and_the_watermark_waits(self) -> None:
        state = settled_state()
        before_us = state.watermark_us
        seen = observe_all(state, [NOW - 2 * SECOND] * 20)
        assert 2 * SECOND <= state.delta_us < 2 * SECOND * (1 + RELATIVE_ERROR)
        assert {one.watermark_us for one in seen} == {before_us}
        assert all(one.late for one in seen)
        after = observe(state, POLICY, NOW + 10 * SECOND)
        assert after.watermark_us == NOW + 10 * SECOND - state.delta_us

    def test_delta_never_passes_its_maximum(self) -> None:
        state = settled_state()
        observe_all(state, [NOW - HOUR // 2] * 300)
        assert lateness_statistics(state, POLICY).delta_us == POLICY.max_delta_us

    def test_delta_comes_down_after_a_bad_spell(self) -> None:
        state = WatermarkState()
        time_us = NOW
        for index in range(4_000):
            time_us += MS
            observe(state, POLICY, time_us - (20 * SECOND if index % 2 else 0))
        assert state.delta_us >= 20 * SECOND
        for _ in range(10 * POLICY.half_life_events):
            time_us += MS
            observe(state, POLICY, time_us)
        assert state.delta_us == POLICY.min_delta_us
        assert state.watermark_us == time_us - POLICY.min_delta_us


class TestClocksOutOfReach:
    def test_one_event_far_ahead_changes_counters_alone(self) -> None:
        state = settled_state()
        before = lateness_statistics(state, POLICY)
        seen = observe(state, POLICY, YEAR_2200)
        assert seen == Observation(NOW - POLICY.min_delta_us, 0, late=False, believed=False)
        after = lateness_statistics(state, POLICY)
        assert after == msgspec.structs.replace(before, events=before.events + 1, ahead_count=1)
        assert state.max_event_time_us == NOW

    def test_microseconds_taken_for_milliseconds_are_not_believed(self) -> None:
        state = settled_state()
        assert not observe(state, POLICY, NOW * 1_000).believed

    def test_exactly_at_the_reach_is_believed(self) -> None:
        assert observe(settled_state(), POLICY, NOW + HOUR).believed
        assert not observe(settled_state(), POLICY, NOW + HOUR + 1).believed

    def test_far_ahead_events_that_agree_move_the_maximum_to_their_highest(self) -> None:
        state = settled_state()
        there_us = NOW + 5 * HOUR
        seen = observe_all(state, [there_us, there_us + SECOND, there_us - SECOND])
        assert [one.believed for one in seen] == [False, False, True]
        assert state.max_event_time_us == there_us + SECOND
        assert seen[-1].watermark_us == there_us + SECOND - POLICY.min_delta_us
        assert lateness_statistics(state, POLICY).ahead_count == 3

    def test_far_ahead_events_that_disagree_start_again(self) -> None:
        state = settled_state()
        far_us = [NOW + hours * HOUR for hours in (2, 4, 6, 8, 10, 12)]
        assert not any(one.believed for one in observe_all(state, far_us))

    def test_far_ahead_events_must_all_be_near_each_other(self) -> None:
        state = settled_state()
        far_us = [NOW + 9 * HOUR, NOW + 9 * HOUR + HOUR * 2 // 3, NOW + 9 * HOUR + HOUR * 4 // 3]
        assert not any(one.believed for one in observe_all(state, far_us))

    def test_a_believed_event_between_breaks_the_row(self) -> None:
        state = settled_state()
        far_us = NOW + 5 * HOUR
        seen = observe_all(state, [far_us, far_us, NOW, far_us, far_us, NOW])
        assert [one.believed for one in seen] == [False, False, True, False, False, True]

    def test_one_event_far_behind_is_late_and_leaves_delta_alone(self) -> None:
        state = settled_state()
        before = lateness_statistics(state, POLICY)
        seen = observe(state, POLICY, NOW - YEAR)
        assert seen == Observation(NOW - POLICY.min_delta_us, YEAR, late=True, believed=False)
        assert lateness_statistics(state, POLICY) == msgspec.structs.replace(
            before, events=before.events + 1, late_events=1, behind_count=1
        )
        assert observe(state, POLICY, NOW + 1).watermark_us == NOW + 1 - POLICY.min_delta_us

    def test_a_bad_first_event_far_ahead_does_no_harm(self) -> None:
        state = WatermarkState()
        seen = observe_all(state, [YEAR_2200, NOW, NOW + 1, NOW + 2, NOW + 3])
        assert [one.believed for one in seen] == [True, False, False, True, True]
        assert not any(one.late for one in seen)
        assert seen[-1].watermark_us == NOW + 3 - POLICY.min_delta_us

    def test_a_wrong_clock_among_the_first_events_does_no_harm(self) -> None:
        seen = observe_all(WatermarkState(), [YEAR_2200, NOW, YEAR_2200, NOW, YEAR_2200, NOW, NOW + 1, NOW + 2])
        assert seen[-1].watermark_us == NOW + 2 - POLICY.min_delta_us

    def test_a_bad_first_event_far_behind_does_no_harm(self) -> None:
        seen = observe_all(WatermarkState(), [0, NOW, NOW + 1, NOW + 2])
        assert not any(one.late for one in seen)
        assert seen[-1].watermark_us == NOW + 2 - POLICY.min_delta_us

    def test_after_a_confirmed_wrong_clock_the_maximum_comes_back_but_not_the_watermark(self) -> None:
        state = settled_state()
        observe_all(state, [YEAR_2200] * 3)
        seen = observe_all(state, [NOW + 1, NOW + 2, NOW + 3, NOW + 4, NOW])
        assert [one.believed for one in seen] == [False, False, True, True, True]
        assert [one.lateness_us for one in seen[3:]] == [0, 4]
        assert all(one.late for one in seen)
        assert {one.watermark_us for one in seen} == {YEAR_2200 - POLICY.min_delta_us}

    def test_a_backlog_does_not_hold_up_the_live_events(self) -> None:
        state = settled_state()
        observe_all(state, [NOW - 5 * HOUR + index for index in range(4)])
        assert state.max_event_time_us == NOW - 5 * HOUR + 3
        seen = observe(state, POLICY, NOW + SECOND)
        assert seen.believed
        assert seen.watermark_us == NOW + SECOND - POLICY.min_delta_us

    def test_confirmations_of_one_believe_at_once(self) -> None:
        policy = WatermarkPolicy(confirmations=1)
        seen = observe_all(WatermarkState(), [0, NOW], policy)
        assert [one.watermark_us for one in seen] == [-policy.min_delta_us, NOW - policy.min_delta_us]

    @pytest.mark.parametrize("first_us", [INT64_MIN, -NOW, -1, 0, NOW, INT64_MAX])
    def test_extremes_are_taken_and_can_be_saved(self, first_us: int) -> None:
        state = WatermarkState()
        observe_all(state, [first_us, INT64_MIN, INT64_MAX, 0, -1, INT64_MAX, INT64_MAX, INT64_MAX])
        observe_all(state, [INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN])
        heartbeat(state, POLICY, INT64_MIN)
        heartbeat(state, POLICY, INT64_MAX)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=WatermarkState) == state


class TestIdleSources:
    def live_state(self, lag_us: int = 0) -> WatermarkState:
        """A state whose events came in lag_us after their time, the last one at NOW on the arrival clock."""
        state = WatermarkState()
        for index in range(5):
            arrival_us = NOW - (4 - index) * MS
            observe(state, POLICY, arrival_us - lag_us, arrival_us)
        return state

    def test_is_not_idle_before_the_time(self) -> None:
        state = self.live_state()
        told = heartbeat(state, POLICY, NOW + POLICY.idle_after_us - 1)
        assert told == SourceWatermark(NOW - POLICY.min_delta_us, idle=False)

    def test_an_idle_source_follows_the_arrival_clock_minus_delta(self) -> None:
        state = self.live_state()
        told = heartbeat(state, POLICY, NOW + POLICY.idle_after_us)
        assert told == SourceWatermark(NOW + POLICY.idle_after_us - POLICY.min_delta_us, idle=True)

    def test_an_idle_source_that_lags_keeps_its_distance(self) -> None:
        state = self.live_state(lag_us=24 * HOUR)
        told = heartbeat(state, POLICY, NOW + HOUR)
        assert told == SourceWatermark(NOW - 23 * HOUR - POLICY.min_delta_us, idle=True)

    def test_an_idle_source_with_a_clock_ahead_does_not_pass_the_arrival_clock(self) -> None:
        state = WatermarkState()
        observe(state, POLICY, YEAR_2200, NOW)
        told = heartbeat(state, POLICY, NOW + HOUR)
        assert told == SourceWatermark(NOW + HOUR - POLICY.min_delta_us, idle=True)

    def test_the_watermark_does_not_go_back_with_the_arrival_clock(self) -> None:
        state = self.live_state()
        high_us = heartbeat(state, POLICY, NOW + HOUR).watermark_us
        assert heartbeat(state, POLICY, NOW + POLICY.idle_after_us).watermark_us == high_us
        assert heartbeat(state, POLICY, 0).watermark_us == high_us

    def test_the_next_event_ends_idleness_and_is_believed_after_hours(self) -> None:
        state = self.live_state()
        heartbeat(state, POLICY, NOW + 9 * HOUR)
        seen = observe(state, POLICY, NOW + 9 * HOUR, NOW + 9 * HOUR + 1)
        assert seen.believed
        assert not seen.late
        assert not source_watermark(state).idle

    def test_an_event_that_is_not_believed_does_not_end_idleness(self) -> None:
        state = self.live_state()
        heartbeat(state, POLICY, NOW + HOUR)
        observe(state, POLICY, YEAR_2200, NOW + HOUR)
        assert source_watermark(state).idle

    def test_a_replay_without_arrival_clock_is_never_idle(self) -> None:
        state = settled_state()
        before = msgspec.msgpack.encode(state)
        assert heartbeat(state, POLICY, None) == SourceWatermark(NOW - POLICY.min_delta_us, idle=False)
        assert msgspec.msgpack.encode(state) == before

    def test_a_source_that_never_spoke_is_idle_without_watermark(self) -> None:
        state = WatermarkState()
        assert heartbeat(state, POLICY, NOW) == SourceWatermark(NO_WATERMARK, idle=False)
        told = heartbeat(state, POLICY, NOW + POLICY.idle_after_us)
        assert told == SourceWatermark(NO_WATERMARK, idle=True)


class TestMerge:
    def test_is_the_minimum_of_the_sources_that_are_not_idle(self) -> None:
        sources = [
            SourceWatermark(9, idle=False),
            SourceWatermark(7, idle=False),
            SourceWatermark(3, idle=True),
        ]
        assert merge(MergedWatermark(), sources) == 7

    def test_never_moves_back(self) -> None:
        merged = MergedWatermark()
        merge(merged, [SourceWatermark(9, idle=False)])
        assert merge(merged, [SourceWatermark(9, idle=False), SourceWatermark(2, idle=False)]) == 9

    def test_a_source_without_watermark_holds_it(self) -> None:
        sources = [SourceWatermark(9, idle=False), SourceWatermark(NO_WATERMARK, idle=False)]
        assert merge(MergedWatermark(), sources) == NO_WATERMARK

    def test_all_idle_is_the_minimum_of_those_with_a_watermark(self) -> None:
        sources = [SourceWatermark(mark, idle=True) for mark in (9, 5, NO_WATERMARK)]
        assert merge(MergedWatermark(), sources) == 5

    def test_stays_without_sources(self) -> None:
        assert merge(MergedWatermark(4), []) == 4


def test_statistics_are_of_the_events_seen() -> None:
    state = settled_state(NOW, events=80)
    observe_all(state, [NOW - lateness_us for lateness_us in [10] * 10 + [SECOND] * 10])
    statistics = lateness_statistics(state, POLICY)
    assert (statistics.events, statistics.max_lateness_us, statistics.p50_us) == (100, SECOND, 0)
    assert SECOND <= statistics.p95_us == statistics.p99_us < SECOND * (1 + RELATIVE_ERROR)


def trace_file() -> Path | None:
    """The Azure LLM conversation trace, where it is shipped or where HEADRACE_TRACE_DIR says."""
    folders = [Path(__file__).parents[2] / "data", Path(os.environ.get("HEADRACE_TRACE_DIR", "data"))]
    found = [path for folder in folders for path in sorted(folder.rglob("AzureLLMInferenceTrace_conv.csv*"))]
    return found[0] if found else None


def open_trace(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def arrivals_in_order_of_completion(path: Path, token_us: int) -> list[int]:
    def rows() -> Iterator[tuple[int, int]]:
        with open_trace(path) as lines:
            for row in csv.DictReader(lines):
                second, _, fraction = row["TIMESTAMP"].partition(".")
                moment = datetime.fromisoformat(second).replace(tzinfo=timezone.utc)
                arrival_us = int(moment.timestamp()) * SECOND + int(fraction[:6].ljust(6, "0"))
                yield arrival_us + int(row["GeneratedTokens"]) * token_us, arrival_us

    return [arrival_us for _, arrival_us in sorted(rows())]


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
def test_late_share_on_a_real_trace_in_order_of_completion(quantile: float) -> None:
    path = trace_file()
    if path is None:
        pytest.skip("the Azure LLM conversation trace is not there")
    arrivals_us = arrivals_in_order_of_completion(path, token_us=30 * MS)
    assert len(arrivals_us) == 19_366
    state, policy = WatermarkState(), WatermarkPolicy(quantile=quantile)
    late = [seen.late for seen in observe_all(state, arrivals_us, policy)]
    settled = late[2_000:]
    assert sum(late) == lateness_statistics(state, policy).late_events
    share = sum(settled) / len(settled)
    assert 0.5 * (1 - quantile) < share < 1.25 * (1 - quantile)
    assert SECOND < state.delta_us < 30 * SECOND
