"""Records of several partitions in the order in which they were sent. No I/O."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

HELD_BYTES: Final = 1 << 20
"""A partition that is so far ahead of the others waits for them."""


class Sent(Protocol):
    """What is put in order. `timestamp_us`: when it was sent."""

    @property
    def partition(self) -> int:
        """Its partition."""

    @property
    def timestamp_us(self) -> int:
        """When it was sent."""

    @property
    def value(self) -> bytes | None:
        """What is in it."""


Record = TypeVar("Record", bound=Sent)


class SendOrder(Generic[Record]):
    """Merges partitions by the timestamps of their records.

    Within a partition the order stays as it is, whatever the timestamps say. Equal ones go by the number of the
    partition, so the same records always come out in the same order, however they came in.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._waiting: dict[int, deque[Record]] = {partition: deque() for partition in partitions}
        self._bytes = dict.fromkeys(self._waiting, 0)
        self._open = set(self._waiting)

    @property
    def ahead(self) -> frozenset[int]:
        """Partitions that hold enough for now: there is something else that has to come first."""
        return frozenset(partition for partition, held in self._bytes.items() if held >= HELD_BYTES)

    def take(self, records: Iterable[Record]) -> None:
        """Take more records, those of a partition in its order."""
        for record in records:
            self._waiting[record.partition].append(record)
            self._bytes[record.partition] += _size(record)

    def end(self, partition: int) -> None:
        """No more comes of that partition."""
        self._open.discard(partition)

    def ready(self) -> Iterator[Record]:
        """Those before which nothing can come any more."""
        waiting, held = self._waiting, self._bytes
        while all(waiting[partition] for partition in self._open):
            heads = [(queue[0].timestamp_us, partition) for partition, queue in waiting.items() if queue]
            if not heads:
                return
            _, partition = min(heads)
            record = waiting[partition].popleft()
            held[partition] -= _size(record)
            yield record


def _size(record: Sent) -> int:
    return len(record.value or b"") + 64
