"""Streams of a session put side by side: what is told when all goes well, and when it does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from tests.alignment_world import (
    MS,
    SECOND,
    SESSION,
    SPEECH,
    START_US,
    TEXT,
    VISION,
    Session,
    arriving,
    chunk,
    chunks_in,
    in_place,
    run,
    stream,
)
from udfs.domain.alignment import (
    Aligned,
    AlignmentPolicy,
    Alone,
    ClockStep,
    Drift,
    Gap,
    ImplausibleChunkError,
    InvalidPolicyError,
    Late,
    LateReason,
    ModalChunk,
    Modality,
    Overflow,
    OverflowReason,
    Silent,
    apply,
)
from udfs.domain.alignment.state import dump, load
from udfs.domain.anomaly import Anomaly

POLICY = AlignmentPolicy(tolerance_us=40 * MS, wait_us=500 * MS, silent_after_us=2 * SECOND)


# --- in sync --------------------------------------------------------------------------------------------------------


def test_chunks_that_begin_within_the_tolerance_are_one_group_in_order_of_media_time() -> None:
    vision, text, speech = chunk(VISION, 0, 40 * MS), chunk(TEXT, 0, 25 * MS), chunk(SPEECH, 0, 0)
    (group,) = in_place(run([vision, text, speech], POLICY))
    assert group == Aligned(session=SESSION, at_us=START_US, spread_us=40 * MS, chunks=(speech, text, vision))


def test_a_microsecond_beyond_the_tolerance_is_another_group() -> None:
    first, second = in_place(run([chunk(SPEECH, 0, 0), chunk(TEXT, 0, 40 * MS + 1)], POLICY))
    assert isinstance(first, Alone)
    assert isinstance(second, Alone)


def test_a_second_chunk_at_the_very_end_of_the_tolerance_still_belongs() -> None:
    chunks = [chunk(SPEECH, 0, 0), chunk(SPEECH, 1, 40 * MS), chunk(TEXT, 0, 40 * MS), chunk(VISION, 0, 50 * MS)]
    group, _ = in_place(run([*chunks, chunk(TEXT, 1, 40 * MS), chunk(SPEECH, 2, 40 * MS)], POLICY))
    assert [(one.modality, one.sequence) for one in chunks_in(group)] == [
        (SPEECH, 0),
        (TEXT, 0),
        (TEXT, 1),
        (SPEECH, 1),
        (SPEECH, 2),
    ]


def test_several_chunks_of_a_fast_stream_are_in_the_group_of_a_slow_one() -> None:
    outputs = run(arriving(stream(SPEECH, 20 * MS, 100 * MS), stream(VISION, 100 * MS, 100 * MS)), POLICY)
    kinds = [[one.modality for one in chunks_in(output)] for output in outputs if chunks_in(output)]
    assert kinds == [[SPEECH, VISION, SPEECH, SPEECH], [SPEECH], [SPEECH]]


def test_streams_in_step_are_told_without_waiting() -> None:
    session = Session(POLICY)
    streams = arriving(*(stream(one, 50 * MS, 10 * SECOND) for one in Modality))
    told = list(in_place(session.tell(*streams)))
    assert all(isinstance(group, Aligned) and len(group.chunks) == 3 for group in told)
    # All but the last, of which it is not known whether anything is still to come within its tolerance.
    assert len(told) == 199
    assert len(session.state.buffer) == 3


# --- one stream late ------------------------------------------------------------------------------------------------


def test_a_stream_that_is_late_by_less_than_the_wait_is_aligned_as_if_it_were_not() -> None:
    streams = [stream(one, 50 * MS, 10 * SECOND) for one in Modality]
    assert run(arriving(*streams, lag_us=(499 * MS, 0, 20 * MS)), POLICY) == run(arriving(*streams), POLICY)


def test_a_stream_that_is_late_by_more_is_told_as_late_and_the_others_go_on() -> None:
    streams = [stream(one, 50 * MS, 10 * SECOND) for one in Modality]
    outputs = run(arriving(*streams, lag_us=(700 * MS, 0, 0)), POLICY)
    late = [one for one in outputs if isinstance(one, Late)]
    assert late[0].chunk == streams[0][0]
    assert {one.chunk.modality for one in late} == {TEXT}
    # Text whose time had passed by then; what comes after the others have ended is in its place again.
    assert len(late) > 180
    assert all(one.reason is LateReason.BEHIND and 0 <= one.late_by_us <= 700 * MS for one in late)
    groups = [one for one in outputs if isinstance(one, Aligned)]
    assert {one.modality for group in groups[:180] for one in group.chunks} == {SPEECH, VISION}


def test_no_group_waits_longer_than_tolerance_and_wait() -> None:
    session = Session(POLICY)
    assert session.tell(chunk(SPEECH, 0, 0)) == []
    assert session.wake(540 * MS - 1) == []
    assert session.state.due_us == START_US + 540 * MS
    assert [chunks_in(one) for one in session.wake(540 * MS)] == [(chunk(SPEECH, 0, 0),)]


@pytest.mark.parametrize(("at_us", "is_late"), [(40 * MS, True), (40 * MS + 1, False)])
def test_what_would_have_belonged_to_a_group_that_was_told_is_late(at_us: int, is_late: bool) -> None:
    session = Session(POLICY)
    session.tell(chunk(SPEECH, 0, 0))
    session.wake(540 * MS)
    assert any(isinstance(one, Late) for one in session.tell(chunk(TEXT, 0, at_us))) == is_late


# --- gaps -----------------------------------------------------------------------------------------------------------


def test_missing_chunks_are_a_gap_before_the_one_that_follows() -> None:
    whole = stream(SPEECH, 20 * MS, 2 * SECOND)
    lost = {10, 11, 13}
    outputs = run(arriving([one for one in whole if one.sequence not in lost], stream(VISION, 40 * MS, 2 * SECOND)))
    gaps = [one for one in outputs if isinstance(one, Gap)]
    assert gaps == [
        Gap(
            session=SESSION,
            modality=SPEECH,
            from_us=START_US + 200 * MS,
            to_us=START_US + 240 * MS,
            from_offset_us=200 * MS,
            to_offset_us=240 * MS,
            missing=((10, 11),),
        ),
        Gap(
            session=SESSION,
            modality=SPEECH,
            from_us=START_US + 260 * MS,
            to_us=START_US + 280 * MS,
            from_offset_us=260 * MS,
            to_offset_us=280 * MS,
            missing=((13, 13),),
        ),
    ]
    before = outputs[: outputs.index(gaps[0])]
    assert {one.sequence for output in before for one in chunks_in(output) if one.modality is SPEECH} == set(range(10))


def test_a_missing_chunk_that_comes_after_its_gap_was_told_is_late() -> None:
    session = Session(POLICY)
    whole = stream(SPEECH, 20 * MS, 2 * SECOND)
    session.tell(*whole[:10], *whole[11:])
    (late,) = session.tell(whole[10])
    assert isinstance(late, Late)
    assert late.chunk == whole[10]


def test_chunks_that_were_overtaken_are_no_gap() -> None:
    whole = stream(SPEECH, 20 * MS, 2 * SECOND)
    swapped = [whole[0], *(one for pair in zip(whole[2::2], whole[1::2], strict=False) for one in pair)]
    assert not [one for one in run(swapped, POLICY) if isinstance(one, (Gap, Late))]


@pytest.mark.parametrize(
    ("offset_us", "at_us", "is_gap"),
    [
        (20 * MS, 20 * MS, False),
        (220 * MS, 20 * MS, False),
        (221 * MS, 20 * MS, True),
        (20 * MS, 220 * MS, False),
        (20 * MS, 221 * MS, True),
    ],
)
def test_time_that_is_missing_in_a_stream_or_on_the_sessions_clock_is_a_gap(
    offset_us: int, at_us: int, is_gap: bool
) -> None:
    outputs = run([chunk(SPEECH, 0, 0), chunk(SPEECH, 1, at_us, offset_us=offset_us)], POLICY)
    gaps = [one for one in outputs if isinstance(one, Gap)]
    assert [(gap.to_us, gap.to_offset_us, gap.missing) for gap in gaps] == [(START_US + at_us, offset_us, ())] * is_gap


def test_after_a_lost_chunk_was_given_up_nothing_waits_any_more() -> None:
    session = Session(POLICY)
    speech, text, vision = (stream(one, 50 * MS, 10 * SECOND) for one in (SPEECH, TEXT, VISION))
    session.tell(*arriving(speech[:10] + speech[11:], text, vision))
    assert len(session.state.buffer) == 3


def test_a_chunk_that_was_overtaken_lets_what_overtook_it_count() -> None:
    session = Session(POLICY)
    speech, text, vision = (stream(one, 50 * MS, 150 * MS) for one in (SPEECH, TEXT, VISION))
    told = session.tell(*text, *vision, speech[0], speech[2], speech[1])
    assert [len(chunks_in(one)) for one in told] == [3, 3]


def test_numbers_that_run_against_time_are_no_gap() -> None:
    chunks = [chunk(SPEECH, 5, 0), chunk(SPEECH, 3, 50 * MS), chunk(SPEECH, 6, 100 * MS)]
    assert not [one for one in run(chunks, POLICY) if isinstance(one, Gap)]


def test_of_numbers_that_are_forgotten_none_is_said_to_be_missing() -> None:
    chunks = [chunk(SPEECH, 10 * index, 20 * MS * index) for index in range(4)]
    outputs = run(chunks, AlignmentPolicy(remembered_holes=1))
    assert [one.missing for one in outputs if isinstance(one, Gap)] == [((11, 19),), ((21, 29),)]


# --- drift ----------------------------------------------------------------------------------------------------------


def clocked(ahead_us: Callable[[int], int], seconds: int, *, from_second: int = 0) -> list[ModalChunk]:
    """Speech of 20 ms chunks whose producer's clock is so much ahead at each time."""
    times_us = range(from_second * SECOND, seconds * SECOND, 20 * MS)
    return [chunk(SPEECH, at_us // (20 * MS), at_us, ahead_us=SECOND + ahead_us(at_us)) for at_us in times_us]


def drifts(chunks: list[ModalChunk]) -> list[Drift | ClockStep]:
    return [one for one in run(chunks, POLICY) if isinstance(one, (Drift, ClockStep))]


@pytest.mark.parametrize("ppm", [200, -200])
def test_a_drift_of_200_ppm_is_told_after_eight_intervals(ppm: int) -> None:
    (found,) = drifts(clocked(lambda at_us: at_us * ppm // 1_000_000, 120))
    assert isinstance(found, Drift)
    assert found.is_beyond
    assert found.at_us <= START_US + 16 * SECOND
    assert found.rate_ppm == pytest.approx(ppm, abs=1)
    assert found.offset_us == pytest.approx(SECOND + (found.at_us - START_US) * ppm // 1_000_000, abs=10)


@pytest.mark.parametrize("seed", range(8))
def test_a_drift_of_200_ppm_is_told_within_a_minute_where_delays_jitter(seed: int) -> None:
    rng = random.Random(seed)
    noisy = clocked(lambda at_us: at_us * 200 // 1_000_000 - int(rng.expovariate(1 / (5 * MS))), 60)
    found = drifts(noisy)
    assert found
    assert all(isinstance(one, Drift) and one.is_beyond for one in found)
    last = found[-1]
    assert isinstance(last, Drift)
    assert last.rate_ppm == pytest.approx(200, abs=60)
    assert last.offset_us == pytest.approx(SECOND + (last.at_us - START_US) * 200 // 1_000_000, abs=2 * MS)


@pytest.mark.parametrize("seed", range(8))
def test_a_good_clock_is_not_told_of_whatever_the_delays(seed: int) -> None:
    rng = random.Random(seed)
    assert drifts(clocked(lambda _: -int(rng.expovariate(1 / (5 * MS))), 300)) == []


@pytest.mark.parametrize("seed", range(8))
def test_few_chunks_with_wild_delays_are_no_drift(seed: int) -> None:
    rng = random.Random(seed)
    few = clocked(lambda _: -int(rng.expovariate(1 / (20 * MS))), 300)[::100]
    assert drifts(few) == []


def test_a_stall_of_the_network_is_no_drift() -> None:
    def stalled(at_us: int) -> int:
        return at_us * 200 // 1_000_000 - (200 * MS if 20 * SECOND <= at_us < 26 * SECOND else 0)

    assert [one.rate_ppm for one in drifts(clocked(stalled, 120)) if isinstance(one, Drift)] == [
        pytest.approx(200, abs=1)
    ]


def test_a_clock_that_comes_back_within_the_bound_is_told_of() -> None:
    beyond, within = drifts(clocked(lambda at_us: min(at_us, 60 * SECOND) * 200 // 1_000_000, 200))
    assert isinstance(beyond, Drift)
    assert isinstance(within, Drift)
    assert beyond.is_beyond
    assert not within.is_beyond
    assert abs(within.rate_ppm) <= 100
    assert START_US + 60 * SECOND < within.at_us < START_US + 124 * SECOND


def test_a_clock_that_was_set_is_told_of_and_measured_anew() -> None:
    (step,) = drifts(clocked(lambda at_us: 3 * SECOND * (at_us >= 30 * SECOND), 120))
    assert isinstance(step, ClockStep)
    assert step.by_us == 3 * SECOND


def test_a_drift_is_told_again_of_a_clock_that_was_set() -> None:
    def drifting(at_us: int) -> int:
        return at_us * 200 // 1_000_000 + 3 * SECOND * (at_us >= 60 * SECOND)

    assert [type(one) for one in drifts(clocked(drifting, 120))] == [Drift, ClockStep, Drift]


def test_points_from_before_the_window_do_not_count() -> None:
    def ahead_us(at_us: int) -> int:
        return at_us * 200 // 1_000_000 if at_us >= 900 * SECOND else 0

    # Seven intervals after a pause are too few, with what was before it they would be enough.
    assert drifts(clocked(ahead_us, 12) + clocked(ahead_us, 914, from_second=900)) == []


@pytest.mark.parametrize("captured_at_us", [0, 7])
def test_the_producers_clock_does_not_move_its_chunks(captured_at_us: int) -> None:
    text, *others = (stream(one, 50 * MS, 5 * SECOND) for one in Modality)
    shifted = [msgspec.structs.replace(one, captured_at_us=captured_at_us) for one in text]

    def places(text: list[ModalChunk]) -> list[list[tuple[Modality, int]]]:
        told = in_place(run(arriving(text, *others), POLICY))
        return [[(one.modality, one.sequence) for one in chunks_in(output)] for output in told]

    assert places(shifted) == places(text)


def test_a_clock_that_is_not_given_is_not_measured() -> None:
    assert drifts([msgspec.structs.replace(one, captured_at_us=0) for one in clocked(lambda _: 0, 60)]) == []


# --- silence --------------------------------------------------------------------------------------------------------


def test_a_stream_that_ends_holds_the_others_up_no_longer_than_the_wait_and_then_not_at_all() -> None:
    session = Session(POLICY)
    text = stream(TEXT, 50 * MS, SECOND)
    streams = arriving(text, stream(SPEECH, 50 * MS, 10 * SECOND), stream(VISION, 50 * MS, 10 * SECOND))
    told: list[tuple[int, Aligned | Alone]] = []
    silences: list[Silent] = []
    for one in streams:
        outputs = session.tell(one)
        silences += [found for found in outputs if isinstance(found, Silent)]
        told += [(session.clock_us - found.at_us, found) for found in in_place(outputs)]
    assert silences == [Silent(session=SESSION, modality=TEXT, since_us=text[-1].event_time_us)]
    delays_us = [delay_us for delay_us, found in told if found.at_us >= START_US + SECOND]
    assert max(delays_us) <= 550 * MS
    after_us = [delay_us for delay_us, found in told if found.at_us >= START_US + 3 * SECOND]
    assert max(after_us) == 50 * MS


def test_a_stream_that_never_begins_is_waited_for_no_longer_than_one_that_falls_silent() -> None:
    session = Session(POLICY)
    streams = arriving(stream(SPEECH, 50 * MS, 10 * SECOND), stream(VISION, 50 * MS, 10 * SECOND))
    outputs = session.tell(*streams)
    assert not [one for one in outputs if isinstance(one, Silent)]
    assert len(session.state.buffer) == 2


def test_a_stream_that_is_not_expected_holds_nothing_up_before_it_begins() -> None:
    session = Session(AlignmentPolicy(expected=(SPEECH, VISION)))
    outputs = session.tell(*arriving(stream(SPEECH, 50 * MS, SECOND), stream(VISION, 50 * MS, SECOND)))
    assert len(list(in_place(outputs))) == 19


def test_a_stream_that_speaks_again_is_aligned_again_after_its_gap() -> None:
    text = [
        one for one in stream(TEXT, 50 * MS, 10 * SECOND) if not SECOND <= one.event_time_us - START_US < 6 * SECOND
    ]
    renumbered = [msgspec.structs.replace(one, sequence=number) for number, one in enumerate(text)]
    outputs = run(arriving(renumbered, stream(SPEECH, 50 * MS, 10 * SECOND)), POLICY)
    (gap,) = (one for one in outputs if isinstance(one, Gap))
    assert (gap.from_us, gap.to_us, gap.missing) == (START_US + SECOND, START_US + 6 * SECOND, ())
    groups = [one for one in outputs if isinstance(one, Aligned)]
    assert len(groups) == len(text)


def test_where_every_stream_is_silent_nothing_is_held_back_for_them() -> None:
    session = Session(AlignmentPolicy(wait_us=10 * SECOND, silent_after_us=SECOND))
    session.tell(chunk(SPEECH, 0, 0))
    silent, told = session.wake(SECOND)
    assert isinstance(silent, Silent)
    assert isinstance(told, Alone)


def test_a_session_that_has_ended_wants_nothing_more() -> None:
    session = Session(POLICY)
    session.tell(*arriving(*(stream(one, 50 * MS, SECOND) for one in Modality)))
    outputs = session.finish()
    assert [one.modality for one in outputs if isinstance(one, Silent)] == [TEXT, SPEECH, VISION]
    assert session.state.buffer == []
    assert session.state.due_us is None


# --- overflow -------------------------------------------------------------------------------------------------------


def test_a_full_buffer_lets_the_oldest_of_that_modality_go() -> None:
    session = Session(AlignmentPolicy(wait_us=10 * SECOND, buffer_chunks=5))
    session.tell(chunk(VISION, 0, 0))
    speech = stream(SPEECH, 20 * MS, 160 * MS)
    outputs = session.tell(*speech)
    assert outputs == [
        Overflow(session=SESSION, at_us=one.event_time_us, reason=OverflowReason.FULL, chunk=one) for one in speech[:3]
    ]
    assert [one.modality for one in session.state.buffer] == [VISION, *[SPEECH] * 5]


def test_what_was_let_go_is_not_said_to_be_missing() -> None:
    outputs = run(stream(SPEECH, 20 * MS, SECOND), AlignmentPolicy(wait_us=10 * SECOND, buffer_chunks=5))
    assert sum(isinstance(one, Overflow) for one in outputs) == 45
    assert not [one for one in outputs if isinstance(one, Gap)]


def test_a_chunk_too_far_ahead_of_the_clock_is_let_go_and_does_not_hurry_the_others() -> None:
    session = Session(POLICY)
    session.tell(chunk(TEXT, 0, 0))
    # As the keyed fold does with a time that it does not believe: the clock stays where it was.
    ahead = chunk(SPEECH, 0, 3600 * SECOND)
    session.clock_us = START_US
    (found,) = apply(session.state, ahead, POLICY, session.clock_us)
    assert found == Overflow(session=SESSION, at_us=ahead.event_time_us, reason=OverflowReason.AHEAD, chunk=ahead)
    assert session.tell(chunk(VISION, 0, 10 * MS)) == []
    assert len(session.state.buffer) == 2


@pytest.mark.parametrize(("ahead_us", "is_held"), [(500 * MS, True), (500 * MS + 1, False)])
def test_a_chunk_may_be_as_far_ahead_as_a_group_may_wait(ahead_us: int, is_held: bool) -> None:
    session = Session(POLICY)
    apply(session.state, chunk(SPEECH, 0, ahead_us), POLICY, START_US)
    assert len(session.state.buffer) == is_held


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_a_repeat_does_nothing() -> None:
    streams = arriving(*(stream(one, 50 * MS, 5 * SECOND) for one in Modality))
    twice = Session(POLICY)
    outputs = [found for one in streams for found in twice.tell(one, one)]
    assert outputs + twice.finish() == run(streams, POLICY)
    assert twice.anomalies == [Anomaly.DUPLICATE] * len(streams)


def test_a_repeat_of_what_was_told_late_or_let_go_does_nothing() -> None:
    session = Session(AlignmentPolicy(buffer_chunks=1))
    first, second = chunk(SPEECH, 0, 0), chunk(SPEECH, 1, 20 * MS)
    assert len(session.tell(first, second)) == 1
    assert session.tell(first) == []
    session.wake(SECOND)
    late = chunk(TEXT, 0, 10 * MS)
    assert len(session.tell(late)) == 1
    assert session.tell(late) == []
    assert session.anomalies == [Anomaly.DUPLICATE] * 2


def test_the_same_number_in_another_stream_is_no_repeat() -> None:
    session = Session(POLICY)
    session.tell(*(chunk(one, 7, 0) for one in Modality))
    assert session.anomalies == []


def test_what_can_no_longer_be_told_from_a_repeat_is_late_and_says_so() -> None:
    session = Session(AlignmentPolicy(remembered_holes=2))
    session.tell(*(chunk(SPEECH, number, number * 20 * MS) for number in (10, 12, 14, 16)))
    (late,) = session.tell(chunk(SPEECH, 10, 200 * MS))
    assert isinstance(late, Late)
    assert late.reason is LateReason.FORGOTTEN
    assert session.tell(chunk(SPEECH, 12, 240 * MS)) == []


# --- restart --------------------------------------------------------------------------------------------------------


def test_a_session_that_is_restarted_before_every_chunk_tells_the_same() -> None:
    streams = [clocked(lambda at_us: at_us * 200 // 1_000_000, 30), stream(VISION, 33 * MS, 20 * SECOND)]
    streams[0] = [one for one in streams[0] if one.sequence % 97]
    arrivals = arriving(*streams, lag_us=(0, 300 * MS, 0))
    session = Session(POLICY)
    outputs = []
    for one in arrivals:
        session.restart()
        outputs += session.tell(one)
    expected = run(arrivals, POLICY)
    assert outputs + session.finish() == expected
    assert {type(one) for one in expected} >= {Aligned, Alone, Gap, Drift, Silent}


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        load(b"\x01")
    assert dump(load(dump(Session().state))) == dump(Session().state)


# --- what can't be meant --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence", -1),
        ("sequence", 2**63),
        ("duration_us", -1),
        ("event_time_us", -1),
        ("event_time_us", 2**60),
        ("captured_at_us", 2**60),
        ("offset_us", -(2**60)),
    ],
)
def test_a_chunk_that_cannot_be_meant_is_refused_by_the_name_of_its_field(field: str, value: int) -> None:
    with pytest.raises(ImplausibleChunkError, match=field):
        msgspec.structs.replace(chunk(TEXT, 0, 0), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("match", ""),
        ("tolerance_us", -1),
        ("wait_us", 86_400_000_001),
        ("buffer_chunks", 0),
        ("silent_after_us", 0),
        ("gap_after_us", -1),
        ("drift_bound_ppm", 0),
        ("drift_interval_us", 99_999),
        ("drift_points", 7),
        ("clock_step_us", 0),
        ("remembered_holes", 0),
        ("expected", (TEXT, TEXT)),
    ],
)
def test_a_policy_that_cannot_hold_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidPolicyError, match=field):
        msgspec.structs.replace(POLICY, **{field: value})
