"""Where a replay reads events: event files, or the events topic in Kafka. Both give records of shards in log order."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from jobs.wiring.file_log import Block, BlockReader, plan_files
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.record_keys import shard_of_key
from schemas.codec import decode_events
from schemas.dead_letters import Position
from schemas.topics import shard_of

_MOST_DOUBTS = 3


class EventRecord(NamedTuple):
    """One EventBatch of a shard. `share`: how much of the log has been read with it, 0 to 1."""

    shard: int
    record: bytes
    where: Position
    share: float


class Reach(NamedTuple):
    """How far back a log reaches. `is_whole`: from its very first record; `missing` says what is not there."""

    is_whole: bool
    missing: str = ""


class EventSource(Protocol):
    """A log of events."""

    def reach(self, tenants: Collection[str]) -> Reach:
        """How far back the log of these tenants reaches; none named: of all."""

    def records(self, tenants: Collection[str], since_us: int | None = None) -> Iterator[EventRecord]:
        """The records of the shards of these tenants (none named: of all), within a shard in log order.

        `since_us` leaves out the beginning of the log, up to about that time.
        """

    def doubts(self) -> list[str]:
        """Why the order of what was read so far may not be that in which it was decided."""


class FileEvents:
    """Event files, read one after the other."""

    def __init__(self, files: list[Path], shard_count: int) -> None:
        """Plan the files. Raises EventFileError."""
        self._blocks: list[Block] = plan_files(files)
        self._shard_count = shard_count

    def reach(self, tenants: Collection[str]) -> Reach:  # noqa: ARG002 - files hold what they hold
        """See EventSource: files are taken for the whole log."""
        return Reach(is_whole=True)

    def records(self, tenants: Collection[str], since_us: int | None = None) -> Iterator[EventRecord]:
        """See EventSource. A record all of whose events are older than `since_us` is left out."""
        shards = shards_of_tenants(tenants, self._shard_count)
        total = sum(block.length for block in self._blocks) or 1
        read = 0
        with BlockReader(self._shard_count) as reader:
            for block in self._blocks:
                read += block.length
                for shard, record, offset in reader.read(block).batches:
                    if shards and shard not in shards:
                        continue
                    where = Position(block.path, 0, offset)
                    if since_us is not None and _ends_before(record, where, since_us):
                        continue
                    yield EventRecord(shard, record, where, read / total)

    def doubts(self) -> list[str]:
        """See EventSource: files have one order."""
        return []


def _ends_before(record: bytes, where: Position, since_us: int) -> bool:
    return all(event.event_time_us < since_us for event in decode_events(record, where).events)


class KafkaEvents:
    """The events topic, as far as it reaches when the reading starts.

    All partitions are read, of one tenant too: the job takes a record's shard from its key, wherever it lies, so one
    that a producer put into another partition was decided with the rest.
    """

    def __init__(self, reader: TopicReader, shard_count: int) -> None:
        """`reader` stays the caller's to close."""
        self._reader = reader
        self._shard_count = shard_count
        self._seen: dict[int, set[int]] = {}

    def reach(self, tenants: Collection[str]) -> Reach:  # noqa: ARG002 - any partition may hold them
        """See EventSource."""
        slices = self._reader.slices()
        cut = [f"{one.partition} before offset {one.oldest:,}" for one in slices if not one.reaches_back]
        if not cut:
            return Reach(is_whole=True)
        shown = ", ".join(cut[:3]) + (f" and {len(cut) - 3} more" if len(cut) > 3 else "")
        return Reach(is_whole=False, missing=f"retention has deleted {self._reader.topic}, partition {shown}")

    def records(self, tenants: Collection[str], since_us: int | None = None) -> Iterator[EventRecord]:
        """See EventSource. `since_us` is compared with the records' timestamps, found by the broker.

        A shard's records of several partitions come in the order in which they were sent: the nearest to the one in
        which the job read them, which is not known. Raises KafkaLogError and its kinds.
        """
        shards = shards_of_tenants(tenants, self._shard_count)
        slices = self._reader.slices(from_us=since_us)
        total = sum(one.end - one.start for one in slices) or 1
        for read, record in enumerate(self._reader.records_as_sent(slices), 1):
            if record.value is None:
                continue
            # As the job routes it: a key that names no shard goes to the first, which puts aside what is not its own.
            shard = shard_of_key(record.key, self._shard_count) or 0
            if shards and shard not in shards:
                continue
            if shard_of_key(record.key, self._shard_count) is not None:
                self._seen.setdefault(shard, set()).add(record.partition)
            where = Position(self._reader.topic, record.partition, record.offset)
            yield EventRecord(shard, record.value, where, min(read / total, 1.0))

    def doubts(self) -> list[str]:
        """See EventSource."""
        return [
            f"records of shard {shard} lie in partitions {', '.join(map(str, sorted(partitions)))}: they are taken "
            "in the order in which they were sent, which may not be the one in which the job read them; let producers "
            "use the shard's key and Kafka's default partitioner"
            for shard, partitions in sorted(self._seen.items())
            if len(partitions) > 1
        ][:_MOST_DOUBTS]


def shards_of_tenants(tenants: Collection[str], shard_count: int) -> frozenset[int]:
    """The shards of these tenants."""
    return frozenset(shard_of(tenant, shard_count) for tenant in tenants)
