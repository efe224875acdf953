from collections.abc import Callable

import pytest

from tests.session_world import chunk, envelope
from udfs.domain.events.duplicates import STORED_FORM, DuplicateBounds, SeenIds, Verdict
from udfs.domain.events.stored import UnreadableStoredError, pack

BOUNDS = DuplicateBounds(max_ids=3, horizon_us=100)
NEW, DUPLICATE, UNCHECKED = Verdict.NEW, Verdict.DUPLICATE, Verdict.UNCHECKED


def checked(seen: SeenIds, *events: tuple[str, int, int]) -> list[Verdict]:
    """Verdicts of (id, event time, clock)."""
    return [seen.check(name.encode(), at_us, now_us, BOUNDS) for name, at_us, now_us in events]


def test_an_event_passes_once() -> None:
    assert checked(SeenIds(), ("a", 1, 1), ("b", 1, 1), ("a", 1, 1), ("a", 1, 1)) == [NEW, NEW, DUPLICATE, DUPLICATE]


def test_what_is_older_than_the_horizon_passes_and_is_said_to() -> None:
    seen = SeenIds()
    assert checked(seen, ("a", 10, 10), ("b", 110, 110), ("a", 10, 110)) == [NEW, NEW, DUPLICATE]
    assert checked(seen, ("c", 111, 111), ("a", 10, 111), ("d", 10, 111)) == [NEW, UNCHECKED, UNCHECKED]
    assert (len(seen), seen.floor_us) == (2, 11)


def test_of_more_ids_than_are_remembered_the_oldest_go() -> None:
    seen = SeenIds()
    assert checked(seen, ("b", 2, 2), ("a", 1, 2), ("c", 3, 3), ("d", 4, 4)) == [NEW] * 4
    assert checked(seen, ("b", 2, 4), ("c", 3, 4), ("d", 4, 4), ("a", 1, 4)) == [DUPLICATE] * 3 + [UNCHECKED]


def test_events_of_one_moment_are_forgotten_together() -> None:
    seen = SeenIds()
    assert checked(seen, *((name, 5, 5) for name in "abcd")) == [NEW] * 4
    assert len(seen) == 0
    assert checked(seen, *((name, 5, 5) for name in "abcd")) == [UNCHECKED] * 4
    assert checked(seen, ("e", 6, 6), ("e", 6, 6)) == [NEW, DUPLICATE]


def test_one_event_of_a_wrong_clock_does_not_move_the_floor() -> None:
    seen = SeenIds()
    assert checked(seen, ("a", 1, 1), ("far ahead", 10**15, 1), ("a", 1, 1)) == [NEW, NEW, DUPLICATE]


def test_an_event_without_an_id_passes_and_is_said_to() -> None:
    assert checked(SeenIds(), ("", 1, 1), ("", 1, 1)) == [Verdict.UNNAMED] * 2


def test_long_ids_cost_no_more_than_short_ones() -> None:
    seen = SeenIds()
    assert checked(seen, ("x" * 10**6, 1, 1), ("x" * 10**6, 1, 1), ("x" * 10**6 + "y", 1, 1)) == [NEW, DUPLICATE, NEW]
    assert len(seen.dump()) < 100


def test_narrower_bounds_hold_at_once_and_wider_ones_from_then_on() -> None:
    seen = SeenIds()
    checked(seen, ("a", 1, 1), ("b", 2, 2), ("c", 3, 3))
    narrow, wide = DuplicateBounds(max_ids=1, horizon_us=100), DuplicateBounds(max_ids=100, horizon_us=100)
    assert seen.check(b"d", 4, 4, narrow) is NEW
    assert len(seen) == 1
    assert seen.check(b"c", 3, 4, wide) is UNCHECKED
    assert seen.check(b"e", 4, 4, wide) is NEW


@pytest.mark.parametrize("bounds", [{"max_ids": 0}, {"horizon_us": 0}])
def test_bounds_that_remember_nothing_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bounds))):
        DuplicateBounds(**bounds)


def test_equal_contents_are_equal_bytes_and_come_back() -> None:
    one, other = SeenIds(), SeenIds()
    checked(one, ("a", 1, 1), ("b", 2, 2), ("c", 3, 3))
    checked(other, ("c", 3, 3), ("a", 1, 3), ("b", 2, 3))
    assert one.dump() == other.dump() == SeenIds.load(one.dump()).dump()
    assert one.dump().hex() == "0193009301020393c40161c40162c40163"


@pytest.mark.parametrize(
    "break_it",
    [
        lambda _: b"",
        lambda b: b"\x09" + b[1:],
        lambda b: b[:-1],
        lambda b: b + b"\0",
        lambda _: pack(STORED_FORM, [0, [1, 2], [b"a"]]),
        lambda _: pack(STORED_FORM, [0, [1, 2], [b"a", b"a"]]),
    ],
)
def test_bytes_that_are_no_ids_are_refused(break_it: Callable[[bytes], bytes]) -> None:
    seen = SeenIds()
    checked(seen, ("a", 1, 1))
    with pytest.raises(UnreadableStoredError):
        SeenIds.load(break_it(seen.dump()))


def test_the_envelope_of_the_tests_has_the_fields_of_an_event() -> None:
    assert set(envelope("a")) == set(chunk("a", 1).__struct_fields__) - {"count", "cumulative", "text"}
