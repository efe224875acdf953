"""Which policy holds for a key at a time.

A policy record carries the event time from which it holds, so that a replay with the whole policy log applies the same
policy to the same event. Of the records that match a key and hold at that time, the most specific match wins, then the
latest `effective_from_us`, then the later record in the log.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

FOREVER_US = 2**63 - 1

ANY_KEY = "*"
"""The match of a policy that holds for every key that has none of its own."""


class PolicyRecord(Protocol):
    """What the policy log needs to know of a policy."""

    @property
    def match(self) -> str:
        """A key, or ANY_KEY."""

    @property
    def effective_from_us(self) -> int:
        """Event time from which it holds."""


P = TypeVar("P", bound=PolicyRecord)


class InForce(NamedTuple, Generic[P]):
    """The policy that holds, and the event time at which another takes over (exclusive)."""

    policy: P | None
    until_us: int


class PolicyLog(Generic[P]):
    """Immutable index over policy records.

    >>> from typing import NamedTuple
    >>> class Rule(NamedTuple):
    ...     match: str
    ...     effective_from_us: int
    >>> log = PolicyLog([Rule("*", 0), Rule("acme", 100)])
    >>> log.at("acme", 99)
    InForce(policy=Rule(match='*', effective_from_us=0), until_us=100)
    >>> log.at("acme", 100).policy
    Rule(match='acme', effective_from_us=100)
    """

    def __init__(self, records: Iterable[P] = ()) -> None:
        """Index `records`, which stand in log order."""
        timelines: dict[str, list[P]] = {}
        for record in records:
            timelines.setdefault(record.match, []).append(record)
        self._timelines = {
            match: sorted(timeline, key=lambda record: record.effective_from_us)
            for match, timeline in timelines.items()
        }
        self._starts = {
            match: [record.effective_from_us for record in timeline] for match, timeline in self._timelines.items()
        }

    def at(self, key: str, now_us: int) -> InForce[P]:
        """The policy that holds for `key` at `now_us`, and until when that answer stays right."""
        until_us = FOREVER_US
        for match in (key, ANY_KEY):
            starts = self._starts.get(match)
            if starts is None:
                continue
            index = bisect_right(starts, now_us)
            if index < len(starts):
                until_us = min(until_us, starts[index])
            if index:
                return InForce(self._timelines[match][index - 1], until_us)
        return InForce(None, until_us)
