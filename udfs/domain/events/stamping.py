"""Logical time, given to events by the region where they are first written.

`stamp` for what the region writes itself, `receive` for what it gets from others. A region keeps its clock over
restarts (`dump`, `load`): one that starts from nothing gives clocks twice.
"""

from typing import Final

import msgspec

from schemas.events import Event, Provenance
from udfs.domain.events.clocks import MAX_COUNTER, ClockError, VectorClock, check_region, clock_of, merge, tick
from udfs.domain.events.order import is_stamped
from udfs.domain.events.stored import UnreadableStoredError, pack, unpack

MAX_LEAP: Final = 2**48
"""By how much a received event may be ahead of a clock: one million events a second for nine years. More is a broken
clock (times in microseconds are larger), and taking it over would spend the 64 bits of all who hear of it."""

_FORM: Final = 1
_NO_PROVENANCE: Final = Provenance()


class RegionClock(msgspec.Struct, frozen=True, array_like=True):
    """Logical time of one region: its Lamport time, and what it has seen of each region. Start with `new_clock`."""

    region: str
    lamport: int = 0
    seen: VectorClock = VectorClock()


class AlreadyStampedError(ClockError):
    """An event that has a stamp: it is another region's, or stamped already; `receive` it."""


def new_clock(region: str) -> RegionClock:
    """The clock of a region that has neither written nor seen an event. Raises ClockError for a name that can't be."""
    check_region(region)
    return RegionClock(region)


def stamp(state: RegionClock, event: Event) -> tuple[RegionClock, Event]:
    """Count one event of this region and give it the time. An event without a region gets this one's name.

    Raises AlreadyStampedError for an event that has a stamp, since a second one would make another fact of it, and
    ClockError where a counter is used up.
    """
    if is_stamped(event):
        raise AlreadyStampedError(f"the event has Lamport time already, stamped in region {event.region!r}")
    if state.lamport >= MAX_COUNTER:
        raise ClockError(f"the Lamport time of region {state.region!r} is used up: give the region a new name")
    after = RegionClock(state.region, state.lamport + 1, tick(state.seen, state.region))
    provenance = msgspec.structs.replace(
        event.provenance or _NO_PROVENANCE, lamport=after.lamport, vector_clock=after.seen.as_dict()
    )
    return after, msgspec.structs.replace(event, provenance=provenance, region=event.region or state.region)


def receive(state: RegionClock, event: Event) -> RegionClock:
    """The clock after having seen `event`: what is stamped from here on stands behind it.

    The order in which events are received, and how often, makes no difference. An event without a stamp changes
    nothing. Raises ClockError for a stamp out of bounds; the clock stays as it was.
    """
    provenance = event.provenance
    if provenance is None or not is_stamped(event):
        return state
    _check_leap("Lamport time", provenance.lamport, state.lamport)
    theirs = clock_of(provenance.vector_clock)
    for region, counter in theirs.counters:
        _check_leap(f"counter of region {region!r}", counter, state.seen.of(region))
    return RegionClock(state.region, max(state.lamport, provenance.lamport), merge(state.seen, theirs))


def _check_leap(what: str, theirs: int, ours: int) -> None:
    if theirs > ours + MAX_LEAP or theirs > MAX_COUNTER:
        raise ClockError(f"the {what} of the event is {theirs}, more than {MAX_LEAP} ahead of {ours}: a broken clock")


def dump(state: RegionClock) -> bytes:
    """The clock as bytes."""
    return pack(_FORM, state)


def load(stored: bytes) -> RegionClock:
    """The clock that `dump` wrote. Raises UnreadableStoredError for other bytes."""
    read = unpack(_FORM, stored, RegionClock, "clock of a region")
    try:
        check_region(read.region)
        if clock_of(read.seen.as_dict()) == read.seen and read.seen.of(read.region) <= read.lamport <= MAX_COUNTER:
            return read
    except ClockError as error:
        raise UnreadableStoredError(f"clock of a region: {error}") from None
    raise UnreadableStoredError("clock of a region: its counters contradict each other")
