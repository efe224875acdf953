"""How long a completion will be, learned per tenant and model in bounded memory.

A histogram over completion lengths with four buckets an octave (so a quantile is at most 25 % above the true one, never
below it), whose counts are halved every `HALVE_AFTER` completions: the last few hundred decide. Integers only, so a
replay learns the same.
"""

import msgspec

HALVE_AFTER = 512
REFRESH_AFTER = 8
MAX_MODELS = 64
OTHER_MODELS = "\x00others"
"""Where models beyond MAX_MODELS are learned together."""


def bucket_of(tokens: int) -> int:
    """Index of the bucket that holds `tokens`.

    >>> [bucket_of(tokens) for tokens in (0, 1, 2, 3, 4, 7, 8, 9, 10, 100)]
    [0, 1, 2, 3, 4, 7, 8, 8, 9, 22]
    """
    if tokens < 4:
        return max(tokens, 0)
    octave = tokens.bit_length() - 3
    return (octave << 2) + (tokens >> octave)


def upper_edge(bucket: int) -> int:
    """The largest count that falls into `bucket`.

    >>> all(bucket_of(upper_edge(b)) == b and bucket_of(upper_edge(b) + 1) == b + 1 for b in range(90))
    True
    """
    if bucket < 4:
        return bucket
    octave = (bucket >> 2) - 1
    return ((4 + (bucket & 3) + 1) << octave) - 1


class Lengths(msgspec.Struct, array_like=True):
    """Completion lengths of one tenant and model: bucket -> count, and the quantile last asked for."""

    counts: dict[int, int] = {}
    total: int = 0
    fresh: int = 0
    asked: float = 0.0
    edge: int = 0

    def learn(self, tokens: int) -> None:
        """Count one completion."""
        bucket = bucket_of(tokens)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += 1
        self.fresh += 1
        if self.total >= HALVE_AFTER:
            self.counts = {index: count >> 1 for index, count in self.counts.items() if count > 1}
            self.total = sum(self.counts.values())

    def quantile(self, quantile: float) -> int:
        """The smallest bucket edge that at least this share of completions does not exceed.

        It is had anew when `REFRESH_AFTER` completions have been learned since, so it depends on their sequence alone.
        """
        if quantile == self.asked and self.fresh < REFRESH_AFTER:
            return self.edge
        wanted = quantile * self.total
        seen = 0
        edge = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            edge = upper_edge(bucket)
            if seen >= wanted:
                break
        self.fresh, self.asked, self.edge = 0, quantile, edge
        return edge


def lengths_of(models: dict[str, Lengths], model: str) -> Lengths:
    """The histogram to learn `model` in."""
    lengths = models.get(model)
    if lengths is None:
        name = model if len(models) < MAX_MODELS else OTHER_MODELS
        lengths = models.setdefault(name, Lengths())
    return lengths


def expected_completion(
    models: dict[str, Lengths], model: str, quantile: float, after: int, default_tokens: int
) -> int:
    """What to reserve for a completion whose length the client does not bound."""
    lengths = models.get(model) or models.get(OTHER_MODELS)
    if lengths is None or lengths.total < after:
        return default_tokens
    return max(lengths.quantile(quantile), 1)
