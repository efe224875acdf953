"""Each fact once, whatever its producer sends again: a bounded filter by event id.

What is remembered is bounded twice, in event time (`horizon_us` behind the clock) and in number (`max_ids`, the oldest
go first). Together they give a floor in event time. An id at or above the floor is exact: NEW was never seen,
DUPLICATE was. Below it nothing is remembered, the event passes as UNCHECKED, and is said to.
This rests on one thing: an id has one event time, which is so where ids and times are functions of what happened.

The clock is an argument, not the largest time seen: one event of a wrong clock must not move the floor.
"""

from enum import Enum
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from schemas.identity import EVENT_ID_BYTES
from udfs.domain.events.stored import UnreadableStoredError, unpack
from udfs.domain.events.stored import pack as _pack

STORED_FORM: Final = 1


class Verdict(Enum):
    """What is known of an event's id. All but DUPLICATE pass."""

    NEW = "new"
    DUPLICATE = "duplicate"
    UNCHECKED = "unchecked"
    """Older than what is remembered: whether it is the first one nobody can say."""
    UNNAMED = "unnamed"
    """It has no id."""


class DuplicateBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much is remembered of one key. An id costs about 150 bytes in memory and 27 stored."""

    max_ids: int = 50_000
    horizon_us: int = 3_600_000_000

    def __post_init__(self) -> None:
        for name in ("max_ids", "horizon_us"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")


class _Stored(msgspec.Struct, array_like=True):
    """The serialised form: event times in order, and the ids in the same order."""

    floor_us: int
    times_us: list[int]
    ids: list[bytes]


class SeenIds:
    """The ids of one key. `floor_us`: ids of events before it are not remembered, all others are."""

    __slots__ = ("_by_age", "_ids", "floor_us")

    def __init__(self) -> None:
        self.floor_us = 0
        self._ids: set[bytes] = set()
        self._by_age: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def check(self, event_id: bytes, event_time_us: int, now_us: int, bounds: DuplicateBounds) -> Verdict:
        """What is known of an id, and remember it. `now_us` is a clock that is believed; it may stand, not go back."""
        if not event_id:
            return Verdict.UNNAMED
        if len(event_id) > EVENT_ID_BYTES:
            # Ids of foreign make: memory is bounded in bytes too.
            event_id = blake2b(event_id, digest_size=EVENT_ID_BYTES).digest()
        if event_id in self._ids:
            return Verdict.DUPLICATE
        if now_us - bounds.horizon_us > self.floor_us:
            self._forget_before(now_us - bounds.horizon_us)
        if event_time_us < self.floor_us:
            return Verdict.UNCHECKED
        self._ids.add(event_id)
        heappush(self._by_age, (event_time_us, event_id))
        while len(self._ids) > bounds.max_ids:
            # Whole moments: of two events of one microsecond, either both are remembered or both are below the floor.
            self._forget_before(self._by_age[0][0] + 1)
        return Verdict.NEW

    def _forget_before(self, floor_us: int) -> None:
        by_age, ids = self._by_age, self._ids
        self.floor_us = floor_us
        while by_age and by_age[0][0] < floor_us:
            ids.remove(heappop(by_age)[1])

    def dump(self) -> bytes:
        """All that is remembered, as bytes; equal for equal contents."""
        entries = sorted(self._by_age)
        return _pack(STORED_FORM, _Stored(self.floor_us, [at for at, _ in entries], [name for _, name in entries]))

    @classmethod
    def load(cls, stored: bytes) -> "SeenIds":
        """What `dump` wrote. Raises UnreadableStoredError for other bytes."""
        read = unpack(STORED_FORM, stored, _Stored, "ids seen")
        state = cls()
        state.floor_us = read.floor_us
        state._by_age = list(zip(read.times_us, read.ids, strict=False))
        state._ids = set(read.ids)
        if not len(read.times_us) == len(read.ids) == len(state._ids):
            raise UnreadableStoredError("ids seen: times and ids are not as many")
        heapify(state._by_age)
        return state
