"""The one total order of events, and whether one of two happened before the other.

Events stand by Lamport time, then region, then event id. Each stamp is larger than all that its region had seen, so an
event stands behind every event that could have led to it (Lamport 1978); between concurrent ones region and id decide,
the same way for every reader. An event without a stamp has Lamport time 0 and stands before all that have one: what
is known of its order is nothing.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from typing import NamedTuple

from schemas.events import Event
from udfs.domain.events.clocks import ClockError, Order, clock_of, compare


class Place(NamedTuple):
    """Where an event stands in the total order."""

    lamport: int
    region: str
    event_id: bytes


def place_of(event: Event) -> Place:
    """The key to sort events by."""
    provenance = event.provenance
    return Place(0 if provenance is None else provenance.lamport, event.region, event.event_id)


def in_total_order(events: Iterable[Event]) -> list[Event]:
    """Events as every reader orders them, in whatever order they come."""
    return sorted(events, key=place_of)


def is_stamped(event: Event) -> bool:
    """Whether a region has given it logical time."""
    return event.provenance is not None and event.provenance.lamport > 0


def relation(one: Event, other: Event) -> Order | None:
    """How `one` stands to `other` by vector clock; the same event twice is EQUAL. None: one has no clock, or a bad one.

    Two events of equal clocks are CONCURRENT: a region counts on with each event, so one clock for two was given twice.
    """
    if one.event_id and one.event_id == other.event_id:
        return Order.EQUAL
    if one.provenance is None or other.provenance is None:
        return None
    try:
        clocks = clock_of(one.provenance.vector_clock), clock_of(other.provenance.vector_clock)
    except ClockError:
        return None
    if not clocks[0].counters or not clocks[1].counters:
        return None
    found = compare(*clocks)
    return Order.CONCURRENT if found is Order.EQUAL else found


def concurrent_pairs(events: Iterable[Event], at_most: int) -> Iterator[tuple[Event, Event]]:
    """Pairs of events of which neither could have known of the other, each in total order, `at_most` pairs.

    Compares all with all: for the few events of one request, not for a log.
    """
    pairs = combinations(in_total_order(events), 2)
    return islice((pair for pair in pairs if relation(*pair) is Order.CONCURRENT), at_most)
