"""Events of a topic: what the job decided is found, in whichever partition it lies."""

from collections.abc import Iterable, Iterator

from jobs.ops.event_sources import KafkaEvents
from jobs.wiring.kafka_log import LogRecord, Slice
from jobs.wiring.record_keys import partition_of, record_keys
from schemas.topics import shard_of

PARTITIONS = 8
SHARD = shard_of("acme")
OWN_KEY = record_keys(32)[SHARD]


class Topic:
    """As much of a TopicReader as is asked of it."""

    topic = "events"

    def __init__(self, *records: LogRecord) -> None:
        self._records = records

    def slices(self, partitions: Iterable[int] | None = None, **_: int | None) -> list[Slice]:
        numbers = range(PARTITIONS) if partitions is None else partitions
        return [Slice(number, 0, 10, 0) for number in numbers]

    def records_as_sent(self, slices: Iterable[Slice]) -> Iterator[LogRecord]:
        numbers = {one.partition for one in slices}
        return (record for record in self._records if record.partition in numbers)


def record(key: bytes | None, sent: int, partition: int | None = None) -> LogRecord:
    at = partition_of(key or b"", PARTITIONS) if partition is None else partition
    return LogRecord(at, sent, sent, key, b"%d" % sent, ())


def values(source: KafkaEvents) -> list[bytes]:
    return [it.record for it in source.records(["acme"])]


def test_a_record_in_a_partition_that_is_not_its_shards_is_read_with_the_rest() -> None:
    # The bare number names the shard as well, but Kafka's partitioner puts it elsewhere.
    bare = b"%d" % SHARD
    assert partition_of(bare, PARTITIONS) != partition_of(OWN_KEY, PARTITIONS)
    source = KafkaEvents(Topic(record(OWN_KEY, 1), record(bare, 2), record(OWN_KEY, 3)), 32)  # type: ignore[arg-type]
    assert values(source) == [b"1", b"2", b"3"]
    (doubt,) = source.doubts()
    first, second = sorted((partition_of(bare, PARTITIONS), partition_of(OWN_KEY, PARTITIONS)))
    assert f"shard {SHARD} lie in partitions {first}, {second}" in doubt


def test_a_shard_in_one_partition_leaves_no_doubt_wherever_that_is() -> None:
    source = KafkaEvents(Topic(record(OWN_KEY, 1, partition=6), record(OWN_KEY, 2, partition=6)), 32)  # type: ignore[arg-type]
    assert values(source) == [b"1", b"2"]
    assert source.doubts() == []


def test_other_shards_are_left_out() -> None:
    source = KafkaEvents(Topic(record(record_keys(32)[(SHARD + 1) % 32], 1), record(OWN_KEY, 2)), 32)  # type: ignore[arg-type]
    assert values(source) == [b"2"]
