"""Which sequence numbers of a stream have come, in memory that is bounded by its holes and not by its length."""

from bisect import bisect_right
from operator import itemgetter

import msgspec

_first = itemgetter(0)


class Sequences(msgspec.Struct, array_like=True):
    """Numbers that have come, as ranges with both ends included, apart from each other and in order.

    Of the numbers below `floor` it is no longer known which have come.

    >>> seen = Sequences()
    >>> for number in (7, 8, 10):
    ...     seen.add(number, remembered_holes=4)
    >>> 8 in seen, 9 in seen, seen.missing_between(5, 12)
    (True, False, [(5, 6), (9, 9), (11, 12)])
    """

    ranges: list[tuple[int, int]] = []
    floor: int = 0

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.ranges, number, key=_first) - 1
        return index >= 0 and number <= self.ranges[index][1]

    def add(self, number: int, remembered_holes: int) -> None:
        """Note a number that had not come. The oldest range is forgotten where there are too many holes."""
        ranges = self.ranges
        index = bisect_right(ranges, number, key=_first)
        low = high = number
        start, stop = index, index
        if index and ranges[index - 1][1] == number - 1:
            low = ranges[index - 1][0]
            start = index - 1
        if index < len(ranges) and ranges[index][0] == number + 1:
            high = ranges[index][1]
            stop = index + 1
        ranges[start:stop] = [(low, high)]
        while len(ranges) > remembered_holes + 1:
            self.floor = ranges.pop(0)[1] + 1

    def end_of_run(self, number: int) -> int:
        """The last of the numbers that have come without a hole from `number` on; `number` is one of them."""
        return self.ranges[bisect_right(self.ranges, number, key=_first) - 1][1]

    def missing_between(self, low: int, high: int) -> list[tuple[int, int]]:
        """What has not come from `low` to `high`, both included, as ranges."""
        missing: list[tuple[int, int]] = []
        at = low
        for first, last in self.ranges[max(0, bisect_right(self.ranges, low, key=_first) - 1) :]:
            if first > high:
                break
            if first > at:
                missing.append((at, first - 1))
            at = max(at, last + 1)
        if at <= high:
            missing.append((at, high))
        return missing
