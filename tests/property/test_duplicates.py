"""The bounded filter against a plain set that forgets nothing."""

from hypothesis import given
from hypothesis import strategies as st

from udfs.domain.events.duplicates import DuplicateBounds, SeenIds, Verdict

WIDE = DuplicateBounds(max_ids=10_000, horizon_us=10**9)

bounds = st.builds(DuplicateBounds, max_ids=st.integers(1, 12), horizon_us=st.integers(1, 60))
# An id has one event time: it is drawn with the id.
facts = st.lists(
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 100)), max_size=20, unique_by=lambda f: f[0]
)


@st.composite
def told(draw: st.DrawFn) -> list[tuple[bytes, int, int]]:
    """Facts in any order and number, each with a clock that never goes back and is not theirs."""
    known = draw(facts)
    if not known:
        return []
    clock_us, made = 0, []
    for name, at_us in draw(st.lists(st.sampled_from(known), max_size=60)):
        clock_us += draw(st.integers(0, 6))
        made.append((name, at_us, clock_us))
    return made


@given(told())
def test_within_the_bounds_it_is_a_plain_set(events: list[tuple[bytes, int, int]]) -> None:
    filtered, seen = SeenIds(), set[bytes]()
    for name, at_us, now_us in events:
        expected = Verdict.DUPLICATE if name in seen else Verdict.NEW
        seen.add(name)
        assert filtered.check(name, at_us, now_us, WIDE) is expected


@given(told(), bounds)
def test_what_it_says_is_true_and_what_is_within_the_bounds_is_said(
    events: list[tuple[bytes, int, int]], limits: DuplicateBounds
) -> None:
    filtered = SeenIds()
    seen: dict[bytes, int] = {}
    for name, at_us, now_us in events:
        verdict = filtered.check(name, at_us, now_us, limits)
        if verdict is Verdict.NEW:
            assert name not in seen
        if verdict is Verdict.DUPLICATE:
            assert name in seen
        # Of the facts told so far, so many are at least as young: within both bounds it must have been sure.
        seen[name] = at_us
        as_young = sum(1 for other_us in seen.values() if other_us >= at_us)
        if as_young <= limits.max_ids and at_us >= now_us - limits.horizon_us:
            assert verdict is not Verdict.UNCHECKED
        assert len(filtered) <= limits.max_ids


@given(told(), bounds, st.sets(st.integers(0, 60)))
def test_restarts_anywhere_make_no_difference(
    events: list[tuple[bytes, int, int]], limits: DuplicateBounds, restarts: set[int]
) -> None:
    unbroken, restarted = SeenIds(), SeenIds()
    for number, (name, at_us, now_us) in enumerate(events):
        if number in restarts:
            restarted = SeenIds.load(restarted.dump())
        assert restarted.check(name, at_us, now_us, limits) is unbroken.check(name, at_us, now_us, limits)
    assert restarted.dump() == unbroken.dump()


@given(told(), bounds)
def test_no_fact_within_the_bounds_passes_twice(events: list[tuple[bytes, int, int]], limits: DuplicateBounds) -> None:
    filtered = SeenIds()
    passed = [name for name, at, now in events if filtered.check(name, at, now, limits) is Verdict.NEW]
    assert len(set(passed)) == len(passed)
