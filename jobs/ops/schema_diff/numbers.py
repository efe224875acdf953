"""Sets of field numbers as ranges: `reserved 100 to max` holds half a billion."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Numbers from `start` up to, and without, `end`."""

    start: int
    end: int

    def __str__(self) -> str:
        return str(self.start) if self.end == self.start + 1 else f"{self.start} to {self.end - 1}"


class Numbers:
    """A set of whole numbers.

    >>> kept = Numbers([(1, 5), (9, 10), (5, 7)])
    >>> 6 in kept, 7 in kept
    (True, False)
    >>> [str(span) for span in kept.without(Numbers([(3, 6)]))]
    ['1 to 2', '6', '9']
    """

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """`spans` are starts and ends, the ends not among the numbers; they may overlap."""
        self.spans: list[Span] = []
        for start, end in sorted(spans):
            if self.spans and start <= self.spans[-1].end:
                self.spans[-1] = Span(self.spans[-1].start, max(end, self.spans[-1].end))
            else:
                self.spans.append(Span(start, end))

    def __contains__(self, number: int) -> bool:
        return any(start <= number < end for start, end in self.spans)

    def without(self, other: "Numbers") -> Iterator[Span]:
        """The numbers that are not in `other`, as ranges."""
        for start, end in self.spans:
            at = start
            for taken_from, taken_to in other.spans:
                if taken_to <= at or taken_from >= end:
                    continue
                if taken_from > at:
                    yield Span(at, taken_from)
                at = taken_to
            if at < end:
                yield Span(at, end)
