"""Quantiles of lateness in bounded memory, with the past fading."""

from __future__ import annotations

import msgspec

SUB_BUCKET_BITS = 5
RELATIVE_ERROR = 1 / (1 << SUB_BUCKET_BITS)
"""A quantile read from the histogram is never below the exact one, and above it by less than this share."""

UNIT = 1 << 16
"""Weight of one fresh value. A power of two, so that sixteen halvings are exact in whole numbers."""

_SUB_BUCKETS = 1 << SUB_BUCKET_BITS
_EXACT_BELOW = _SUB_BUCKETS * 2


def bucket_of(value: int) -> int:
    """Bucket of a value >= 0: the value itself below 64, then 32 buckets to each doubling.

    >>> [bucket_of(value) for value in (0, 63, 64, 65, 66, 128)]
    [0, 63, 64, 64, 65, 96]
    """
    if value < _EXACT_BELOW:
        return value
    shift = value.bit_length() - SUB_BUCKET_BITS - 1
    return (shift << SUB_BUCKET_BITS) + (value >> shift)


def highest_in(bucket: int) -> int:
    """The highest value that falls into a bucket.

    >>> [highest_in(bucket) for bucket in (0, 63, 64, 65, 96)]
    [0, 63, 65, 67, 131]
    """
    if bucket < _EXACT_BELOW:
        return bucket
    shift = (bucket >> SUB_BUCKET_BITS) - 1
    mantissa = (bucket & (_SUB_BUCKETS - 1)) + _SUB_BUCKETS
    return ((mantissa + 1) << shift) - 1


class LatenessHistogram(msgspec.Struct):
    """Log-scale histogram of whole numbers >= 0, 32 buckets to each doubling (as in HdrHistogram).

    Error: with x the exact quantile by nearest rank, `quantile` returns y with
    x <= y < x * (1 + RELATIVE_ERROR), that is less than 3.125 % above; values below 64 are exact.

    Size: one entry for each bucket in use, at most 64 + 32 * (b - 6) for values below 2**b: 896 for
    lateness up to an hour in microseconds. Only buckets in use are kept, so the bytes of a quiet source
    are few.

    Decay: `halve` halves all weights; a bucket whose weight comes to zero is dropped, so that a bad
    spell is forgotten.
    """

    weights: dict[int, int] = {}

    def record(self, value: int) -> None:
        """Add one value >= 0 with weight UNIT."""
        bucket = bucket_of(value)
        self.weights[bucket] = self.weights.get(bucket, 0) + UNIT

    def quantile(self, quantile: float) -> int:
        """The smallest bucket's highest value such that at least this share of weight is in or below it.

        0 when empty.
        """
        return self.quantiles((quantile,))[0]

    def quantiles(self, quantiles: tuple[float, ...]) -> tuple[int, ...]:
        """As `quantile` for several at once."""
        if not self.weights:
            return (0,) * len(quantiles)
        descending = sorted(self.weights, reverse=True)
        total = sum(self.weights.values())
        return tuple(highest_in(self._bucket_at(descending, total, quantile)) for quantile in quantiles)

    def _bucket_at(self, descending: list[int], total: int, quantile: float) -> int:
        # From the top: for a high quantile that passes over a few buckets only.
        enough = quantile * total
        below = total
        for bucket in descending:
            below -= self.weights[bucket]
            if below < enough:
                return bucket
        return descending[-1]

    def halve(self) -> None:
        """Halve all weights, rounding down."""
        self.weights = {bucket: weight >> 1 for bucket, weight in self.weights.items() if weight > 1}
