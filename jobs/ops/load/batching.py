"""Events into records, as ingest batches them: one EventBatch a shard, closed by age, size or count."""

from typing import Final, NamedTuple

from jobs.wiring.event_file_writer import BATCH_AGE_US, BATCH_EVENTS, shards_of
from schemas.codec import wire_event
from schemas.events import Event
from schemas.gen.headrace.v1 import events_pb2
from schemas.topics import SHARD_COUNT

BATCH_BYTES: Final = 64 << 10
NEVER_US: Final = 2**63 - 1


class ShardRecord(NamedTuple):
    """One record of the events topic."""

    shard: int
    record: bytes
    events: int


class _Batch:
    __slots__ = ("encoded_bytes", "frames", "since_us")

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us
        self.frames: list[bytes] = []
        self.encoded_bytes = 0


class ShardBatcher:
    """The open batches of one gateway. Events of a shard leave in the order in which they came.

    A batch leaves at the latest `max_age_us` after its first event, with `max_events`, and before it would have more
    than `max_bytes` (an event that is larger leaves alone).
    """

    def __init__(
        self,
        shard_count: int = SHARD_COUNT,
        *,
        max_age_us: int = BATCH_AGE_US,
        max_events: int = BATCH_EVENTS,
        max_bytes: int = BATCH_BYTES,
    ) -> None:
        self._shard_count = shard_count
        self._max_age_us = max_age_us
        self._max_events = max_events
        self._max_bytes = max_bytes
        # In the order in which they were opened: the first is the oldest.
        self._batches: dict[int, _Batch] = {}
        self._shards: dict[str, int] = {}

    @property
    def due_us(self) -> int:
        """When the oldest batch must leave; NEVER_US where there is none."""
        for batch in self._batches.values():
            return batch.since_us + self._max_age_us
        return NEVER_US

    def add(self, event: Event, now_us: int) -> list[ShardRecord]:
        """Take an event in; returns the records that are full by it. A heartbeat goes into every shard."""
        frame = wire_event(event).SerializeToString()
        full: list[ShardRecord] = []
        for shard in self._shards_of(event):
            batch = self._batches.get(shard)
            if batch is not None and batch.encoded_bytes + len(frame) > self._max_bytes:
                full.append(self._close(shard))
                batch = None
            if batch is None:
                batch = self._batches[shard] = _Batch(now_us)
            batch.frames.append(frame)
            batch.encoded_bytes += len(frame)
            if len(batch.frames) >= self._max_events or batch.encoded_bytes >= self._max_bytes:
                full.append(self._close(shard))
        return full

    def take(self, now_us: int) -> list[ShardRecord]:
        """What must leave by now: once the oldest batch is due all of them leave, as one request to the brokers."""
        return [self._close(shard) for shard in tuple(self._batches)] if self.due_us <= now_us else []

    def _shards_of(self, event: Event) -> tuple[int, ...]:
        if not event.tenant:
            return tuple(shards_of(event, self._shard_count))
        shard = self._shards.get(event.tenant)
        if shard is None:
            (shard,) = shards_of(event, self._shard_count)
            self._shards[event.tenant] = shard
        return (shard,)

    def _close(self, shard: int) -> ShardRecord:
        batch = self._batches.pop(shard)
        # On the wire repeated events and repeated bytes are the same, and so each event is encoded once.
        frames = events_pb2.EventFrames(shard=shard, events=batch.frames)
        return ShardRecord(shard, frames.SerializeToString(), len(batch.frames))
