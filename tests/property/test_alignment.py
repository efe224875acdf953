"""No chunk is lost or told twice, order holds, and nothing but the log's order shows in what is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.codec import encode_events
from schemas.dead_letters import Position
from tests.alignment_world import (
    MS,
    SECOND,
    SESSION,
    START_US,
    Session,
    chunk,
    chunk_of,
    chunks_in,
    event_of,
    in_place,
    run,
)
from tests.limiter_world import heartbeat, stamped
from udfs.domain.alignment import (
    Aligned,
    AlignmentFold,
    AlignmentPolicy,
    Alone,
    Drift,
    Gap,
    Late,
    LateReason,
    ModalChunk,
    Modality,
    Output,
    Overflow,
    SessionState,
)
from udfs.domain.alignment.sequences import Sequences
from udfs.domain.alignment.state import dump
from udfs.domain.policy_log import PolicyLog
from udfs.operators.fold import Fold
from udfs.operators.shard_fold import CONFIRMATIONS, FoldSettings, ShardFold
from udfs.operators.store import MemoryStore

ANY_AHEAD_US = 2**62
END_US = START_US + 100_000 * SECOND

policies = st.builds(
    AlignmentPolicy,
    tolerance_us=st.sampled_from([0, 1, 30 * MS, 200 * MS]),
    wait_us=st.sampled_from([0, 50 * MS, 500 * MS, 5 * SECOND]),
    buffer_chunks=st.sampled_from([1, 2, 5, 512]),
    expected=st.lists(st.sampled_from(Modality), unique=True).map(tuple),
    silent_after_us=st.sampled_from([1, 100 * MS, 2 * SECOND]),
    gap_after_us=st.sampled_from([0, 100 * MS]),
    drift_interval_us=st.just(100 * MS),
    drift_points=st.just(8),
    drift_bound_ppm=st.just(1),
    remembered_holes=st.sampled_from([1, 3, 256]),
)

wild_chunks = st.builds(
    chunk,
    st.sampled_from(Modality),
    st.integers(0, 30),
    st.integers(0, 3 * SECOND) | st.integers(0, 60).map(lambda frame: frame * 50 * MS),
    duration_us=st.sampled_from([0, 20 * MS, SECOND]),
    ahead_us=st.sampled_from([0, 1, 50, -SECOND]),
)
"""Any numbers at any times: repeats, reordering within a stream, holes, clocks that jump."""

wild_sessions = st.lists(wild_chunks, max_size=60) | st.lists(wild_chunks, max_size=60).map(
    lambda chunks: sorted(chunks, key=lambda one: one.event_time_us)
)


def identity(one: ModalChunk) -> tuple[Modality, int]:
    return one.modality, one.sequence


# --- conservation, order, bounds ------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(policies, wild_sessions)
def test_each_chunk_is_told_exactly_once(policy: AlignmentPolicy, chunks: list[ModalChunk]) -> None:
    outputs = run(chunks, policy)
    told = Counter(one for output in outputs for one in chunks_in(output))
    may_be_repeats = {
        output.chunk for output in outputs if isinstance(output, Late) and output.reason is LateReason.FORGOTTEN
    }
    first: dict[tuple[Modality, int], ModalChunk] = {}
    for one in chunks:
        first.setdefault(identity(one), one)
    surely = {one: count for one, count in told.items() if one not in may_be_repeats}
    assert set(surely.values()) <= {1}
    assert set(first.values()) <= set(told)
    assert set(surely) <= set(first.values())
    if policy.remembered_holes >= len(first):
        assert not may_be_repeats


@settings(max_examples=300)
@given(policies, wild_sessions)
def test_what_is_told_in_its_place_is_in_order_of_media_time(policy: AlignmentPolicy, chunks: list[ModalChunk]) -> None:
    told = list(in_place(run(chunks, policy)))
    order = [(one.event_time_us, one.modality, one.sequence) for output in told for one in chunks_in(output)]
    assert order == sorted(order)
    for output in told:
        if isinstance(output, Aligned):
            assert len({one.modality for one in output.chunks}) > 1
            times_us = [one.event_time_us for one in output.chunks]
            assert (min(times_us), max(times_us) - min(times_us)) == (output.at_us, output.spread_us)
            assert output.spread_us <= policy.tolerance_us
    starts = [output.at_us for output in told if isinstance(output, Aligned)]
    assert all(later - earlier > policy.tolerance_us for earlier, later in pairwise(starts))


@settings(max_examples=300)
@given(policies, wild_sessions)
def test_the_state_is_bounded_and_no_chunk_is_held_longer_than_was_promised(
    policy: AlignmentPolicy, chunks: list[ModalChunk]
) -> None:
    session = Session(policy)
    for one in chunks:
        session.tell(one)
        held = Counter(held.modality for held in session.state.buffer)
        assert max(held.values(), default=0) <= policy.buffer_chunks
        for kept in session.state.buffer:
            assert session.clock_us < kept.event_time_us + policy.tolerance_us + policy.wait_us
            assert kept.event_time_us <= session.clock_us + policy.wait_us
        for stream in session.state.streams:
            assert len(stream.seen.ranges) <= policy.remembered_holes + 1
            assert len(stream.clock.points) <= policy.drift_points
        assert session.state.due_us is None or session.state.due_us > session.clock_us


def test_the_bytes_of_a_session_do_not_grow_with_its_length() -> None:
    session = Session(AlignmentPolicy(drift_interval_us=100 * MS))
    sizes = []
    for number in range(8_000):
        for modality in Modality:
            session.tell(chunk(modality, number, number * 20 * MS, ahead_us=number))
        sizes.append(len(dump(session.state)) if number % 100 < 10 else 0)
    # Numbers take a few bytes more as they grow.
    assert max(sizes[4_000:]) <= max(sizes[1_000:4_000]) + 32
    assert max(sizes) < 8_192


# --- nothing but the order of the log shows -------------------------------------------------------------------------


@settings(max_examples=200)
@given(policies, wild_sessions, st.lists(st.booleans(), max_size=60), st.lists(st.integers(0, SECOND), max_size=60))
def test_restarts_and_early_wake_ups_do_not_show(
    policy: AlignmentPolicy, chunks: list[ModalChunk], restarts: list[bool], naps_us: list[int]
) -> None:
    unbroken, broken = Session(policy), Session(policy)
    expected, found = [], []
    for index, one in enumerate(chunks):
        expected += unbroken.tell(one)
        if index < len(restarts) and restarts[index]:
            broken.restart()
        if index < len(naps_us):
            # Never beyond the time of the next chunk: till then the session's clock may stand anywhere.
            nap_us = min(broken.clock_us + naps_us[index], one.event_time_us) - START_US
            found += broken.wake(nap_us) if nap_us > broken.clock_us - START_US else []
        found += broken.tell(one)
    assert found + broken.finish() == expected + unbroken.finish()
    assert dump(broken.state) == dump(unbroken.state)
    assert broken.anomalies == unbroken.anomalies


def sharded(
    policy: AlignmentPolicy,
    sessions: dict[str, list[ModalChunk]],
    sizes: Iterable[int],
    restarts: Iterable[bool],
    cost: FoldSettings,
    lags_us: Sequence[int],
) -> dict[str, list[Output]]:
    """What the keyed fold makes of sessions whose chunks alternate in the log."""
    fold: Fold[SessionState, AlignmentPolicy, Output] = AlignmentFold(chunk_of)
    store, policy_log = MemoryStore(), PolicyLog([policy])
    shard = ShardFold(fold, policy_log, store, cost)
    events = []
    for turn in range(max(map(len, sessions.values()))):
        events += [event_of(own[turn], session=name) for name, own in sessions.items() if turn < len(own)]
    stamps = stamped(events, [lags_us[index % len(lags_us)] for index in range(len(events))])
    found: dict[str, list[Output]] = {name: [] for name in sessions}
    restart = iter(restarts)
    start = 0
    batches: list[list[object]] = []
    for size in sizes:
        batches.append(list(stamps[start : start + size]))
        start += size
    batches += [list(stamps[start:]), [heartbeat(END_US)] * CONFIRMATIONS]
    for offset, batch in enumerate(batches):
        if next(restart, False):
            shard = ShardFold(fold, policy_log, store, cost)
        result = shard.process(encode_events(0, batch), Position("test", 0, offset))  # type: ignore[arg-type]
        assert result.dead == []
        for output in result.outputs:
            found[output.session].append(output)
    return found


costs = st.builds(
    FoldSettings,
    cache_entries=st.sampled_from([1, 100]),
    compact_events=st.sampled_from([1, 3, 1_000]),
    max_ahead_us=st.just(ANY_AHEAD_US),
    ttl_us=st.just(ANY_AHEAD_US),
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    policies,
    st.tuples(wild_sessions, wild_sessions).filter(any),
    st.lists(st.integers(1, 10), max_size=20),
    st.lists(st.booleans(), max_size=20),
    costs,
    st.lists(st.sampled_from([0, 1, 50 * MS, SECOND, END_US]), min_size=1, max_size=5),
)
def test_neither_batches_nor_restarts_nor_caches_nor_other_sessions_nor_stamps_show(
    policy: AlignmentPolicy,
    both: tuple[list[ModalChunk], list[ModalChunk]],
    sizes: list[int],
    restarts: list[bool],
    cost: FoldSettings,
    lags_us: list[int],
) -> None:
    sessions = {name: [replace(one, session=name) for one in own] for name, own in zip("ab", both, strict=True)}
    found = sharded(policy, sessions, sizes, restarts, cost, lags_us)
    for name, own in sessions.items():
        alone = Session(policy)
        alone.state.session = name
        assert found[name] == alone.tell(*own) + alone.finish()


# --- the oracle: an aligner that knows the whole input --------------------------------------------------------------


def whole_input_aligner(policy: AlignmentPolicy, chunks: Iterable[ModalChunk]) -> list[Output]:
    """By the definition alone: sort, cut where a chunk lies beyond the tolerance of its group's first, find holes."""
    ordered = sorted(set(chunks), key=lambda one: (one.event_time_us, one.modality, one.sequence))
    numbers = {modality: {one.sequence for one in ordered if one.modality is modality} for modality in Modality}
    groups: list[list[ModalChunk]] = []
    for one in ordered:
        if groups and one.event_time_us - groups[-1][0].event_time_us <= policy.tolerance_us:
            groups[-1].append(one)
        else:
            groups.append([one])
    before: dict[Modality, ModalChunk] = {}
    out: list[Output] = []
    for group in groups:
        for one in group:
            if (previous := before.get(one.modality)) is not None:
                out += hole(policy, previous, one, numbers[one.modality])
            before[one.modality] = one
        if len({one.modality for one in group}) > 1:
            at_us, last_us = group[0].event_time_us, group[-1].event_time_us
            out.append(Aligned(session=SESSION, at_us=at_us, spread_us=last_us - at_us, chunks=tuple(group)))
        else:
            out += [Alone(session=SESSION, at_us=one.event_time_us, chunk=one) for one in group]
    return out


def hole(policy: AlignmentPolicy, previous: ModalChunk, one: ModalChunk, numbers: set[int]) -> list[Output]:
    missing = [number for number in range(previous.sequence + 1, one.sequence) if number not in numbers]
    ranges = [(number, number) for number in missing]
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and joined[-1][1] == low - 1:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    end_us, end_offset_us = previous.event_time_us + previous.duration_us, previous.offset_us + previous.duration_us
    if not missing and max(one.event_time_us - end_us, one.offset_us - end_offset_us) <= policy.gap_after_us:
        return []
    return [
        Gap(
            session=SESSION,
            modality=one.modality,
            from_us=end_us,
            to_us=one.event_time_us,
            from_offset_us=end_offset_us,
            to_offset_us=one.offset_us,
            missing=tuple(joined),
        )
    ]


@st.composite
def well_behaved(draw: st.DrawFn) -> tuple[AlignmentPolicy, list[ModalChunk]]:
    """Streams with holes, whose chunks come repeated, overtaken and late, but by less than the wait.

    A stream's first chunk comes before its others, or nobody could know that something is still to come.
    """
    policy = AlignmentPolicy(
        tolerance_us=draw(st.sampled_from([0, 1, 30 * MS, 200 * MS])),
        wait_us=draw(st.sampled_from([1, 100 * MS, SECOND])),
        silent_after_us=3600 * SECOND,
        gap_after_us=draw(st.sampled_from([0, 100 * MS])),
    )
    arrivals: list[tuple[int, int, ModalChunk]] = []
    for modality in Modality:
        at_us, sequence = draw(st.integers(0, SECOND)), draw(st.integers(0, 5))
        for index in range(draw(st.integers(0, 25))):
            if index:
                at_us += draw(st.sampled_from([0, 1, 20 * MS, 33 * MS, 20 * MS, 300 * MS]))
                sequence += draw(st.sampled_from([1, 1, 1, 2, 5]))
            one = chunk(modality, sequence, at_us, duration_us=draw(st.sampled_from([0, 20 * MS])))
            lag_us = draw(st.integers(0, policy.wait_us - 1)) if index else 0
            for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
                arrivals.append((at_us + lag_us, draw(st.integers(0, 9)) if index else -1, one))
                lag_us = draw(st.integers(lag_us, policy.wait_us - 1))
    arrivals.sort(key=lambda arrival: arrival[:2])
    return policy, [one for *_, one in arrivals]


def assert_as_if_all_had_been_known(world: tuple[AlignmentPolicy, list[ModalChunk]]) -> None:
    policy, chunks = world
    found = [one for one in run(chunks, policy) if isinstance(one, (Aligned, Alone, Late, Overflow, Gap))]
    assert found == whole_input_aligner(policy, chunks)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(well_behaved())
def test_within_the_wait_the_groups_and_gaps_are_those_of_an_aligner_that_knows_the_whole_input(
    world: tuple[AlignmentPolicy, list[ModalChunk]],
) -> None:
    assert_as_if_all_had_been_known(world)


@pytest.mark.slow
@settings(max_examples=2_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(well_behaved())
def test_the_same_in_many_worlds(world: tuple[AlignmentPolicy, list[ModalChunk]]) -> None:
    assert_as_if_all_had_been_known(world)


@settings(max_examples=200)
@given(policies, wild_sessions)
def test_in_any_world_what_is_told_in_its_place_is_grouped_as_if_only_that_had_come(
    policy: AlignmentPolicy, chunks: list[ModalChunk]
) -> None:
    told = list(in_place(run(chunks, policy)))
    kept = [one for output in told for one in chunks_in(output)]
    groups = [one for one in whole_input_aligner(policy, kept) if isinstance(one, (Aligned, Alone))]
    assert told == groups


# --- the parts ------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(st.integers(0, 40), unique=True), st.integers(0, 45), st.integers(0, 45))
def test_numbers_that_have_come_are_those_of_a_set(numbers: list[int], low: int, high: int) -> None:
    seen = Sequences()
    for number in numbers:
        assert number not in seen
        seen.add(number, remembered_holes=100)
    came = set(numbers)
    assert {number for number in range(50) if number in seen} == came
    found = [number for first, last in seen.missing_between(low, high) for number in range(first, last + 1)]
    assert found == [number for number in range(low, high + 1) if number not in came]
    for number in came:
        run_of = number
        while run_of + 1 in came:
            run_of += 1
        assert seen.end_of_run(number) == run_of


@settings(max_examples=300)
@given(st.lists(st.integers(0, 60), unique=True), st.integers(1, 4))
def test_of_numbers_that_are_forgotten_nothing_is_claimed(numbers: list[int], remembered: int) -> None:
    seen = Sequences()
    added = set()
    for number in numbers:
        if number >= seen.floor:
            seen.add(number, remembered_holes=remembered)
            added.add(number)
        assert len(seen.ranges) <= remembered + 1
        assert {number for number in range(seen.floor, 70) if number in seen} == {n for n in added if n >= seen.floor}


@settings(max_examples=60, deadline=None)
@given(st.integers(-2_000, 2_000), st.lists(st.integers(0, 400), min_size=100, max_size=100), st.integers(0, 60))
def test_a_rate_that_is_told_is_the_clocks_within_what_the_delays_allow(
    ppm: int, delays_us: list[int], from_second: int
) -> None:
    """The least squares line through the same minima is the yardstick; it has no outliers to fear here."""
    times_us = [from_second * SECOND + index * SECOND for index in range(100)]
    chunks = [
        chunk(Modality.SPEECH, index, at_us, ahead_us=at_us * ppm // 1_000_000 - delay_us)
        for index, (at_us, delay_us) in enumerate(zip(times_us, delays_us, strict=True))
    ]
    told = [one for one in run(chunks, AlignmentPolicy()) if isinstance(one, Drift)]
    for one in told:
        assert abs(one.rate_ppm - ppm) <= 60
        assert one.is_beyond == (abs(one.rate_ppm) > 100)
    assert bool(told) or abs(ppm) <= 160
