from itertools import permutations

import pytest

from schemas.events import Event
from tests.session_world import chunk, prompt, stamped
from udfs.domain.events.clocks import (
    MAX_COUNTER,
    MAX_REGION_BYTES,
    MAX_REGIONS,
    ClockError,
    Order,
    clock_of,
    compare,
    merge,
    tick,
)
from udfs.domain.events.order import concurrent_pairs, in_total_order, is_stamped, relation
from udfs.domain.events.stamping import (
    MAX_LEAP,
    AlreadyStampedError,
    RegionClock,
    dump,
    load,
    new_clock,
    receive,
    stamp,
)
from udfs.domain.events.stored import UnreadableStoredError, pack


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        ({}, {}, Order.EQUAL),
        ({"eu": 0}, {}, Order.EQUAL),
        ({}, {"eu": 1}, Order.BEFORE),
        ({"eu": 2}, {"eu": 1}, Order.AFTER),
        ({"eu": 1}, {"us": 1}, Order.CONCURRENT),
        ({"eu": 2, "us": 1}, {"eu": 1, "us": 2}, Order.CONCURRENT),
        ({"eu": 1, "us": 2}, {"eu": 1, "us": 3}, Order.BEFORE),
    ],
)
def test_clocks_compare(one: dict[str, int], other: dict[str, int], order: Order) -> None:
    assert compare(clock_of(one), clock_of(other)) is order


def test_a_clock_holds_so_many_regions_and_no_more() -> None:
    full = clock_of({f"region-{number}": 1 for number in range(MAX_REGIONS)})
    assert merge(full, full) == full
    with pytest.raises(ClockError, match="at most 64"):
        tick(full, "one-more")
    with pytest.raises(ClockError, match="at most 64"):
        merge(full, clock_of({"one-more": 1}))


@pytest.mark.parametrize("counter", [-1, MAX_COUNTER + 1, 2**64])
def test_a_counter_out_of_range_is_refused_by_region(counter: int) -> None:
    with pytest.raises(ClockError, match="'eu'"):
        clock_of({"eu": counter})


@pytest.mark.parametrize("region", ["", "x" * (MAX_REGION_BYTES + 1), "ü" * (MAX_REGION_BYTES // 2 + 1)])
def test_a_name_that_is_none_is_refused(region: str) -> None:
    with pytest.raises(ClockError):
        new_clock(region)
    with pytest.raises(ClockError):
        clock_of({region: 1})


def test_a_counter_ends_rather_than_wraps() -> None:
    with pytest.raises(ClockError, match="'eu'"):
        tick(clock_of({"eu": MAX_COUNTER}), "eu")
    with pytest.raises(ClockError, match="used up"):
        stamp(RegionClock("eu", MAX_COUNTER), prompt("p"))


def test_a_stamp_counts_the_event_and_keeps_what_else_is_known_of_it() -> None:
    clock, first = stamp(new_clock("eu"), prompt("p"))
    clock, second = stamp(clock, chunk("c", 1, region="us"))
    assert first.provenance is not None
    assert second.provenance is not None
    assert (first.provenance.lamport, first.provenance.vector_clock) == (1, {"eu": 1})
    assert (second.provenance.lamport, second.provenance.vector_clock) == (2, {"eu": 2})
    assert (first.region, second.region) == ("eu", "us")


def test_an_event_is_stamped_once() -> None:
    clock, event = stamp(new_clock("eu"), prompt("p"))
    with pytest.raises(AlreadyStampedError):
        stamp(clock, event)


def test_what_is_stamped_after_a_receipt_stands_behind_it() -> None:
    theirs = stamped(chunk("c", 1), "us", 7, {"us": 7})
    clock = receive(new_clock("eu"), theirs)
    assert receive(clock, theirs) == clock
    _, mine = stamp(clock, prompt("p"))
    assert relation(theirs, mine) is Order.BEFORE
    assert in_total_order([mine, theirs]) == [theirs, mine]


def test_an_event_without_a_stamp_moves_no_clock() -> None:
    assert receive(new_clock("eu"), prompt("p")) == new_clock("eu")


@pytest.mark.parametrize(
    ("lamport", "clock"),
    [(MAX_LEAP + 1, {"us": 1}), (2**64 - 1, {}), (5, {"us": MAX_LEAP + 1}), (5, {"us": 2**64 - 1}), (5, {"": 1})],
)
def test_a_broken_clock_is_refused_and_spends_nothing(lamport: int, clock: dict[str, int]) -> None:
    with pytest.raises(ClockError):
        receive(new_clock("eu"), stamped(chunk("c", 1), "us", lamport, clock))


def test_concurrent_events_of_two_regions_are_recognised_and_ordered_for_all() -> None:
    start = stamped(prompt("p"), "eu", 1, {"eu": 1})
    in_eu = stamped(chunk("e", 3), "eu", 2, {"eu": 2})
    in_us = stamped(chunk("u", 5), "us", 2, {"eu": 1, "us": 1})
    seen_both = stamped(chunk("b", 9), "us", 3, {"eu": 2, "us": 2})
    events: list[Event] = [start, in_eu, in_us, seen_both]
    assert relation(in_eu, in_us) is Order.CONCURRENT
    for order in permutations(events):
        assert in_total_order(order) == events
        assert list(concurrent_pairs(order, at_most=10)) == [(in_eu, in_us)]
    assert list(concurrent_pairs(events, at_most=0)) == []


def test_of_an_event_without_a_clock_no_order_is_claimed() -> None:
    known = stamped(chunk("a", 1), "eu", 1, {"eu": 1})
    assert relation(known, chunk("b", 2)) is None
    assert relation(known, stamped(chunk("b", 2), "eu", 1, {})) is None
    assert relation(known, stamped(chunk("b", 2), "eu", 1, {"eu": 2**64 - 1})) is None
    assert not is_stamped(chunk("b", 2))


def test_one_clock_given_to_two_events_makes_neither_the_first() -> None:
    one, other = (stamped(chunk(name, 1), "eu", 1, {"eu": 1}) for name in "ab")
    assert relation(one, other) is Order.CONCURRENT
    assert relation(one, one) is Order.EQUAL


def test_a_clock_survives_a_restart() -> None:
    clock, _ = stamp(receive(new_clock("eu"), stamped(chunk("c", 1), "us", 7, {"us": 7})), prompt("p"))
    assert load(dump(clock)) == clock


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x02" + dump(new_clock("eu"))[1:],
        dump(new_clock("eu"))[:-1],
        dump(new_clock("eu")) + b"\x00",
        pack(1, ["", 0, [[]]]),
        pack(1, ["eu", 0, [[["eu", 1]]]]),
        pack(1, ["eu", -1, [[]]]),
        pack(1, ["eu", 2**64 - 1, [[]]]),
        pack(1, ["eu", 5, [[["us", 1], ["eu", 1]]]]),
    ],
)
def test_bytes_that_are_no_clock_are_refused(stored: bytes) -> None:
    with pytest.raises(UnreadableStoredError):
        load(stored)
