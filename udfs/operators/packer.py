"""Foreign records, one by one, into batches of canonical events: what a vectorised UDF does with each Arrow batch.

PyFlink's vectorised functions give a value a row, so all that a batch leads to is given at its first row, as an array
of packed records that SQL takes apart. Nothing is kept from one batch to the next: Flink ends one before a checkpoint.

A packed record is a prefix of digits, fixed in width so that SQL can cut it, and then the record itself: an EventBatch
of one shard, or a DeadLetter.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from schemas.codec import encode_dead_letter, wire_event
from schemas.dead_letters import Position, dead_letter
from schemas.events import Heartbeat
from schemas.gen.headrace.v1 import events_pb2
from schemas.topics import shard_of
from udfs.domain.ingest.record import Adapter, Foreign, Origin, Refused, read_foreign

SHARD_DIGITS: Final = 3
SOURCE_DIGITS: Final = 3
PARTITION_DIGITS: Final = 6
OFFSET_DIGITS: Final = 19
PREFIX_BYTES: Final = SHARD_DIGITS + SOURCE_DIGITS + PARTITION_DIGITS + OFFSET_DIGITS
NO_SHARD: Final = 999
"""Stands where the shard would, in front of a dead letter."""

MAX_BATCH_EVENTS: Final = 500
MAX_BATCH_BYTES: Final = 256 << 10
"""Events of one packed record: what producers flush at, with room for one large event."""


MAX_LETTER_BYTES: Final = 512 << 10
"""Of a record that is refused, so much is put aside: the rest is at its place, and a topic has its largest record."""


class ForeignRow(NamedTuple):
    """A record of a foreign topic, and where it stands."""

    value: bytes | None
    received_at_us: int
    partition: int
    offset: int
    headers: dict[str, bytes]


class Place(NamedTuple):
    """The number of a source, and where in its topic a record stands."""

    source: int
    partition: int
    offset: int


def packed(shard: int, place: Place, record: bytes) -> bytes:
    """A record behind its prefix.

    >>> packed(7, Place(2, 1, 42), b"...")
    b'0070020000010000000000000000042...'
    """
    widths = zip((SHARD_DIGITS, SOURCE_DIGITS, PARTITION_DIGITS, OFFSET_DIGITS), (shard, *place), strict=True)
    return b"".join(b"%0*d" % width for width in widths) + record


class Packer:
    """Reads the records of one topic."""

    def __init__(self, topic: str, adapter: Adapter, origin: Origin, shard_count: int, number: int = 0) -> None:
        """`number` is that of the source among those of its job."""
        self._number = number
        self._topic = topic
        self._adapter = adapter
        self._origin = origin
        self._shard_count = shard_count
        self._shards: dict[str, int] = {}

    def pack(self, rows: Iterable[ForeignRow]) -> list[bytes]:
        """Packed records of all rows: events in the order of their rows within each shard, then dead letters."""
        batches: dict[int, _OpenBatch] = {}
        done: list[bytes] = []
        letters: list[bytes] = []
        for row in rows:
            foreign = Foreign(value=row.value or b"", received_at_us=row.received_at_us, headers=row.headers)
            reading = read_foreign(self._adapter, foreign, self._origin)
            for event in reading.events:
                shard = self._shard(event.tenant)
                batch = batches.get(shard)
                if batch is None:
                    batch = batches[shard] = _OpenBatch(Place(self._number, row.partition, row.offset))
                frame = wire_event(event).SerializeToString()
                batch.frames.append(frame)
                batch.encoded_bytes += len(frame)
                if len(batch.frames) >= MAX_BATCH_EVENTS or batch.encoded_bytes >= MAX_BATCH_BYTES:
                    done.append(batches.pop(shard).close(shard))
            letters.extend(self._letter(refused, row, foreign.value) for refused in reading.refused)
        done.extend(batch.close(shard) for shard, batch in batches.items())
        return done + letters

    def _shard(self, tenant: str) -> int:
        shard = self._shards.get(tenant)
        if shard is None:
            # Tenants come from outside: the memory of them is bounded.
            if len(self._shards) > 100_000:
                self._shards.clear()
            shard = self._shards[tenant] = shard_of(tenant, self._shard_count)
        return shard

    def _letter(self, refused: Refused, row: ForeignRow, whole: bytes) -> bytes:
        where = Position(self._topic, row.partition, row.offset)
        payload, detail = refused.payload or whole, refused.detail
        if len(payload) > MAX_LETTER_BYTES:
            detail = f"{detail} (the first {MAX_LETTER_BYTES:,} of {len(payload):,} bytes are kept here)"
            payload = payload[:MAX_LETTER_BYTES]
        letter = dead_letter(where, refused.index, refused.reason, detail, payload)
        return packed(NO_SHARD, Place(self._number, row.partition, row.offset), encode_dead_letter(letter))


class _OpenBatch:
    __slots__ = ("encoded_bytes", "frames", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.frames: list[bytes] = []
        self.encoded_bytes = 0

    def close(self, shard: int) -> bytes:
        # On the wire repeated events and repeated bytes are the same, and so each event is encoded once.
        frames = events_pb2.EventFrames(shard=shard, events=self.frames)
        return packed(shard, self.place, frames.SerializeToString())


def packed_heartbeats(now_us: int, shard_count: int) -> list[bytes]:
    """One heartbeat for each shard: how the clock comes in."""
    beat = Heartbeat(b"", "", "", 0, now_us, 0, 0, "", "", "", "", "", None)
    frame = wire_event(beat).SerializeToString()
    return [
        packed(shard, Place(0, 0, 0), events_pb2.EventFrames(shard=shard, events=[frame]).SerializeToString())
        for shard in range(shard_count)
    ]
