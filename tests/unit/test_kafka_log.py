"""Reading slices of a topic: where a read ends, and what is said where it can't go on. The broker here is a list."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from kafka import TopicPartition
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from jobs.wiring import kafka_log, send_order
from jobs.wiring.kafka_log import (
    BrokerUnreachableError,
    KafkaLogError,
    LogTruncatedError,
    Slice,
    TopicMissingError,
    TopicReader,
    kafka_error,
    partition_of_tenant,
)
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.record_keys import partition_of, record_keys
from schemas.topics import shard_of

HERE = KafkaSettings(servers="broker:9092")


class Raw(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] | None


class FakeConsumer:
    """Two partitions of ten records; the last two of partition 1 are marks of transactions, which never come out."""

    served = 3

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.at: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.is_closed = False

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {1, 0} if topic == "log" else set()

    def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 2)

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.at = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at[partition] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)

    def position(self, partition: TopicPartition) -> int:
        return self.at[partition]

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Raw]]:  # noqa: ARG002 - as the client's
        found = {}
        for partition, at in self.at.items():
            if partition in self.paused:
                continue
            after = min(at + self.served, 12)
            hidden = {8, 9} if partition.partition == 1 else set()
            found[partition] = [
                Raw(partition.partition, offset, 7, b"k", b"v", None)
                for offset in range(at, after)
                if offset not in hidden
            ]
            self.at[partition] = after
        return found

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicReader]:
    monkeypatch.setattr(kafka_log, "KafkaConsumer", FakeConsumer)
    with TopicReader(HERE, "log") as made:
        yield made


def offsets(reader: TopicReader, slices: list[Slice]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for record in reader.records(slices):
        found.setdefault(record.partition, []).append(record.offset)
    return found


def test_a_slice_is_read_from_the_oldest_record_to_the_end_and_no_further(reader: TopicReader) -> None:
    assert offsets(reader, reader.slices()) == {0: list(range(2, 10)), 1: list(range(2, 8))}


def test_a_reader_reads_again(reader: TopicReader) -> None:
    first = offsets(reader, reader.slices())
    assert offsets(reader, reader.slices()) == first


def test_a_read_that_was_given_up_does_not_disturb_the_next(reader: TopicReader) -> None:
    next(iter(reader.records(reader.slices())))
    assert offsets(reader, reader.slices([0])) == {0: list(range(2, 10))}


def test_an_empty_slice_reads_nothing(reader: TopicReader) -> None:
    assert offsets(reader, [Slice(0, 5, 5, 0)]) == {}


def test_only_partitions_that_are_asked_for_are_read(reader: TopicReader) -> None:
    assert offsets(reader, reader.slices([1])) == {1: list(range(2, 8))}


def test_a_slice_tells_whether_the_log_reaches_back(reader: TopicReader) -> None:
    assert not any(one.reaches_back for one in reader.slices())
    assert Slice(0, 0, 5, 0).reaches_back


def test_a_topic_that_is_missing_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeConsumer] = []

    def consumer(**options: Any) -> FakeConsumer:
        made.append(FakeConsumer(**options))
        return made[-1]

    monkeypatch.setattr(kafka_log, "KafkaConsumer", consumer)
    with pytest.raises(TopicMissingError, match="there is no such topic at broker:9092"):
        TopicReader(HERE, "nowhere")
    assert made[0].is_closed
    assert (made[0].options["isolation_level"], made[0].options["auto_offset_reset"]) == ("read_committed", "none")


def test_a_broker_that_falls_silent_is_given_up(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = reader.slices()
    monkeypatch.setattr(FakeConsumer, "served", 0)
    monkeypatch.setattr(kafka_log, "SILENCE_SECONDS", 0.0)
    with pytest.raises(BrokerUnreachableError, match="broker:9092 have stopped answering"):
        list(reader.records(slices))


def test_records_that_are_gone_are_an_error(reader: TopicReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise OffsetOutOfRangeError

    slices = reader.slices()
    monkeypatch.setattr(FakeConsumer, "poll", gone)
    with pytest.raises(LogTruncatedError, match="retention has deleted"):
        list(reader.records(slices))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (KafkaTimeoutError("Unable to bootstrap"), BrokerUnreachableError, "no broker answers"),
        (SaslAuthenticationFailedError(), KafkaLogError, "sasl_username"),
        (TopicAuthorizationFailedError(), KafkaLogError, "ask for the right"),
        (UnsupportedCodecError("Libraries for lz4 not found"), KafkaLogError, "codec"),
        (KafkaError("odd\nthings"), KafkaLogError, "odd things"),
    ],
)
def test_what_a_client_reports_is_said_in_one_line_with_its_place(
    error: Exception, kind: type[KafkaLogError], words: str
) -> None:
    said = kafka_error(error, "broker:9092", "log")
    assert type(said) is kind
    assert words in str(said)
    assert "\n" not in str(said)
    assert "broker:9092" in str(said) or "log" in str(said)


def test_errors_that_are_not_kafkas_pass() -> None:
    assert kafka_error(ZeroDivisionError(), "broker:9092", "log") is None


@pytest.mark.parametrize("partitions", [1, 2, 8, 32])
def test_a_tenants_partition_is_that_of_its_shards_key(partitions: int) -> None:
    for tenant in ("acme", "bloom", "corex"):
        key = record_keys(32)[shard_of(tenant)]
        assert partition_of_tenant(tenant, 32, partitions) == partition_of(key, partitions)
        assert partition_of_tenant(tenant, 32, partitions) == shard_of(tenant) % partitions


def test_partitions_of_tenants_are_theirs_alone(reader: TopicReader) -> None:
    assert reader.partitions_of(["acme"], 32) == (shard_of("acme") % 2,)
    assert reader.partitions_of([], 32) == (0, 1)


def test_partitions_are_read_in_the_order_in_which_their_records_were_sent(
    reader: TopicReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fake's records are all sent at once, so the partitions' numbers decide.
    monkeypatch.setattr(send_order, "HELD_BYTES", 100)
    found = [(record.partition, record.offset) for record in reader.records_as_sent(reader.slices())]
    assert found == [(0, offset) for offset in range(2, 10)] + [(1, offset) for offset in range(2, 8)]
