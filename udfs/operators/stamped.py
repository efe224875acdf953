"""Events that a fold passes on, as a record of the log."""

from collections.abc import Iterable

from schemas.codec import encode_events
from schemas.events import Event


def encode_stamped(shard: int, events: Iterable[Event], at: tuple[int, int]) -> bytes:  # noqa: ARG001 - of the operator
    """One record of the events topic."""
    return encode_events(shard, events)
