"""Vector clocks against a simulation of regions that write, send and receive; the oracle knows nothing of clocks."""

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Event
from tests.session_world import chunk
from udfs.domain.events.clocks import Order, VectorClock, clock_of, compare, merge
from udfs.domain.events.order import in_total_order, place_of, relation
from udfs.domain.events.stamping import dump, load, new_clock, receive, stamp

REGIONS = ("ap", "eu", "sa", "us")

clocks = st.dictionaries(st.sampled_from(REGIONS), st.integers(0, 4), max_size=4).map(clock_of)


@given(clocks, clocks, clocks)
def test_merge_is_commutative_associative_and_idempotent(a: VectorClock, b: VectorClock, c: VectorClock) -> None:
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, a) == a
    assert merge(a, VectorClock()) == a


@given(clocks, clocks)
def test_merge_is_the_least_clock_that_has_seen_both(a: VectorClock, b: VectorClock) -> None:
    both = merge(a, b)
    assert both.as_dict() == {
        region: max(a.of(region), b.of(region)) for region in REGIONS if a.of(region) or b.of(region)
    }


@given(clocks, clocks)
def test_compare_is_what_the_counters_say(a: VectorClock, b: VectorClock) -> None:
    at_most = all(a.of(region) <= b.of(region) for region in REGIONS)
    at_least = all(a.of(region) >= b.of(region) for region in REGIONS)
    expected = {
        (True, True): Order.EQUAL,
        (True, False): Order.BEFORE,
        (False, True): Order.AFTER,
        (False, False): Order.CONCURRENT,
    }
    assert compare(a, b) is expected[at_most, at_least]


@given(clocks, clocks, clocks)
def test_compare_is_a_partial_order(a: VectorClock, b: VectorClock, c: VectorClock) -> None:
    mirrored = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert compare(b, a) is mirrored.get(compare(a, b), compare(a, b))
    assert (compare(a, b) is Order.EQUAL) == (a == b)
    if compare(a, b) is Order.BEFORE and compare(b, c) is Order.BEFORE:
        assert compare(a, c) is Order.BEFORE


class Step(NamedTuple):
    """A region writes an event (`of` None), or receives one of those written so far, by number modulo."""

    region: int
    of: int | None


steps = st.lists(st.builds(Step, st.integers(0, 3), st.none() | st.integers(0, 200)), max_size=40)


class World:
    """Regions that write and receive. For each event, `past` is the set of events that could have led to it."""

    def __init__(self, region_count: int, restart_at: frozenset[int] = frozenset()) -> None:
        self.events: list[Event] = []
        self.past: list[frozenset[int]] = []
        self._clocks = [new_clock(region) for region in REGIONS[:region_count]]
        self._known: list[set[int]] = [set() for _ in self._clocks]
        self._restart_at = restart_at

    def run(self, inputs: list[Step]) -> "World":
        for number, step in enumerate(inputs):
            region = step.region % len(self._clocks)
            if number in self._restart_at:
                self._clocks[region] = load(dump(self._clocks[region]))
            if step.of is None:
                self._write(region)
            elif self.events:
                self._receive(region, step.of % len(self.events))
        return self

    def _write(self, region: int) -> None:
        number = len(self.events)
        # Ids against the order of writing, so that a total order by id alone would be wrong.
        self._clocks[region], event = stamp(self._clocks[region], chunk(f"{999 - number}", 1))
        self.events.append(event)
        self.past.append(frozenset(self._known[region]))
        self._known[region].add(number)

    def _receive(self, region: int, number: int) -> None:
        self._clocks[region] = receive(self._clocks[region], self.events[number])
        self._known[region] |= {number} | self.past[number]


@given(st.integers(2, 4), steps, st.frozensets(st.integers(0, 39)))
def test_relation_is_happened_before(region_count: int, inputs: list[Step], restarts: frozenset[int]) -> None:
    world = World(region_count, restarts).run(inputs)
    for one, event in enumerate(world.events):
        for other, later in enumerate(world.events):
            if one == other:
                expected = Order.EQUAL
            elif one in world.past[other]:
                expected = Order.BEFORE
            elif other in world.past[one]:
                expected = Order.AFTER
            else:
                expected = Order.CONCURRENT
            assert relation(event, later) is expected


@given(st.integers(2, 4), steps, st.randoms(use_true_random=False))
def test_the_total_order_extends_happened_before(region_count: int, inputs: list[Step], rng: random.Random) -> None:
    world = World(region_count).run(inputs)
    shuffled = list(world.events)
    rng.shuffle(shuffled)
    ordered = in_total_order(shuffled)
    assert ordered == in_total_order(world.events)
    assert len({place_of(event) for event in ordered}) == len(ordered)
    at = {event.event_id: index for index, event in enumerate(ordered)}
    for number, past in enumerate(world.past):
        assert all(at[world.events[before].event_id] < at[world.events[number].event_id] for before in past)


@given(st.integers(2, 4), steps, st.randoms(use_true_random=False))
def test_the_order_of_receipts_and_their_number_makes_no_difference(
    region_count: int, inputs: list[Step], rng: random.Random
) -> None:
    events = World(region_count).run(inputs).events
    straight = other_way = new_clock("new")
    for event in events:
        straight = receive(straight, event)
    doubled = [*events, *events]
    rng.shuffle(doubled)
    for event in doubled:
        other_way = receive(other_way, event)
    assert straight == other_way


def test_the_simulation_has_concurrent_events() -> None:
    world = World(2).run([Step(0, None), Step(1, None)])
    with pytest.raises(AssertionError):
        assert relation(*world.events) is Order.BEFORE
