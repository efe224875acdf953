"""Vector clocks of regions: which of two events could have known of the other.

A region counts its own events and remembers how many of each other region it has seen. One event happened before
another exactly if its clock is before the other's (Fidge 1988, Mattern 1989); where neither is, they are concurrent.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

MAX_REGIONS: Final = 64
"""Regions that one clock can hold: it travels with every event."""

MAX_REGION_BYTES: Final = 128
"""Longest name of a region, in UTF-8."""

MAX_COUNTER: Final = 2**63 - 1
"""Largest counter and Lamport time: what a signed 64-bit integer holds, so that every reader's language can."""


class ClockError(ValueError):
    """A clock that can't be: names the region and what would be right."""


class Order(Enum):
    """How one clock stands to another."""

    BEFORE = "before"
    AFTER = "after"
    EQUAL = "equal"
    CONCURRENT = "concurrent"


class VectorClock(msgspec.Struct, frozen=True, array_like=True):
    """Counters by region, sorted by region, none of them 0: equal clocks are equal values. Make one with `clock_of`."""

    counters: tuple[tuple[str, int], ...] = ()

    def of(self, region: str) -> int:
        """How many events of `region` it has seen; 0: none."""
        return dict(self.counters).get(region, 0)

    def as_dict(self) -> dict[str, int]:
        """As an event's provenance holds it."""
        return dict(self.counters)


def clock_of(counters: Mapping[str, int]) -> VectorClock:
    """The clock of an event's provenance. A counter of 0 is the same as none. Raises ClockError.

    >>> clock_of({"us": 2, "eu": 1, "ap": 0}).counters
    (('eu', 1), ('us', 2))
    """
    known = {region: counter for region, counter in counters.items() if counter}
    if len(known) > MAX_REGIONS:
        raise ClockError(f"a vector clock of {len(known)} regions, at most {MAX_REGIONS} are allowed")
    for region, counter in known.items():
        check_region(region)
        if not 0 < counter <= MAX_COUNTER:
            raise ClockError(f"the counter of region {region!r} is {counter}, it must be from 0 to {MAX_COUNTER}")
    return VectorClock(tuple(sorted(known.items())))


def check_region(region: str) -> None:
    """Raises ClockError where `region` can't be the name of one."""
    if not region:
        raise ClockError("a region without a name: name the region that stamps")
    if len(region.encode("utf-8", "replace")) > MAX_REGION_BYTES:
        raise ClockError(f"the name of a region is longer than {MAX_REGION_BYTES} bytes")


def tick(clock: VectorClock, region: str) -> VectorClock:
    """The clock after one more event of `region`. Raises ClockError at the largest counter or one region too many.

    >>> tick(clock_of({"eu": 1}), "us").as_dict()
    {'eu': 1, 'us': 1}
    """
    counters = clock.as_dict()
    counters[region] = counters.get(region, 0) + 1
    return clock_of(counters)


def merge(one: VectorClock, other: VectorClock) -> VectorClock:
    """What both have seen together: commutative, associative, idempotent. Raises ClockError for too many regions.

    >>> merge(clock_of({"eu": 3, "us": 1}), clock_of({"us": 2})).as_dict()
    {'eu': 3, 'us': 2}
    """
    if one == other:
        return one
    counters = one.as_dict()
    for region, counter in other.counters:
        if counter > counters.get(region, 0):
            counters[region] = counter
    return clock_of(counters)


def compare(one: VectorClock, other: VectorClock) -> Order:
    """How `one` stands to `other`.

    >>> compare(clock_of({"eu": 1}), clock_of({"eu": 1, "us": 1}))
    <Order.BEFORE: 'before'>
    >>> compare(clock_of({"eu": 1}), clock_of({"us": 1}))
    <Order.CONCURRENT: 'concurrent'>
    """
    if one == other:
        return Order.EQUAL
    if _has_seen(other, one):
        return Order.BEFORE
    return Order.AFTER if _has_seen(one, other) else Order.CONCURRENT


def _has_seen(clock: VectorClock, what: VectorClock) -> bool:
    counters = clock.as_dict()
    return all(counter <= counters.get(region, 0) for region, counter in what.counters)
