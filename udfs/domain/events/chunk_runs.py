"""Tokens of chunks that do not say `cumulative`, each counted once by its sequence number.

Sequences that follow on each other are one run, so an ordered stream is one run however long it is. At most MAX_RUNS
are held: beyond that the gap between the two lowest is closed, and a chunk that still comes for it is not counted.
"""

from bisect import bisect_right
from typing import Final

import msgspec

MAX_RUNS: Final = 256


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Sequences `first` to `last`, and the tokens of the chunks that came for them."""

    first: int
    last: int
    tokens: int


class ChunkRuns(msgspec.Struct, frozen=True, array_like=True):
    """Runs in order, with at least one sequence between any two."""

    runs: tuple[Run, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(run.tokens for run in self.runs)

    def with_chunk(self, sequence: int, count: int) -> "ChunkRuns":
        """The runs with one chunk more; the same where it was there before.

        >>> ChunkRuns().with_chunk(2, 10).with_chunk(4, 1).with_chunk(3, 5).with_chunk(3, 5)
        ChunkRuns(runs=(Run(first=2, last=4, tokens=16),))
        """
        runs = self.runs
        at = bisect_right(runs, sequence, key=lambda run: run.first)
        before = runs[at - 1] if at else None
        after = runs[at] if at < len(runs) else None
        if before is not None and sequence <= before.last:
            return self
        first = last = sequence
        low = high = at
        if before is not None and before.last + 1 == sequence:
            first, count, low = before.first, count + before.tokens, at - 1
        if after is not None and sequence + 1 == after.first:
            last, count, high = after.last, count + after.tokens, at + 1
        joined = (*runs[:low], Run(first, last, count), *runs[high:])
        if len(joined) > MAX_RUNS:
            lowest, second = joined[:2]
            joined = (Run(lowest.first, second.last, lowest.tokens + second.tokens), *joined[2:])
        return ChunkRuns(joined)
