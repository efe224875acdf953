"""The decisions that hold, over all generations that were promoted.

A generation holds, in each shard, from the first record of events that it decided; its first batch tells which one that
is, even where nothing was decided. What earlier generations decided of that record and later ones is superseded.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from jobs.wiring.kafka_log import KafkaLogError, TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.topic_catalog import decisions_topic
from schemas.codec import DecidedBatch, decode_decision_batch
from schemas.decisions import Decision

Stretch: TypeAlias = tuple[int, int]
"""A shard, and the partition of events in which its records stand."""


def read_batches(reader: TopicReader, partitions: Iterable[int] | None = None) -> Iterator[DecidedBatch]:
    """The batches that a topic of decisions holds now, in these partitions. Raises KafkaLogError and its kinds."""
    for record in reader.records(reader.slices(partitions)):
        if record.value is None:
            continue
        try:
            yield decode_decision_batch(record.value)
        except ValueError as error:
            raise KafkaLogError(
                f"{reader.topic}: partition {record.partition}, offset {record.offset}: {error}; is it a topic of "
                "decisions?"
            ) from error


def batches(kafka: KafkaSettings, topic: str) -> Iterator[DecidedBatch]:
    """The batches of a topic of decisions, as it is now. Raises KafkaLogError and its kinds."""
    with TopicReader(kafka, topic) as reader:
        yield from read_batches(reader)


def first_decided(found: Iterable[DecidedBatch]) -> dict[Stretch, int]:
    """The offset of the first record of events that was decided, by shard and partition.

    A shard lies in one partition, but for records whose key names none: they are folded as shard 0, wherever they are.
    """
    firsts: dict[Stretch, int] = {}
    for batch in found:
        _note(firsts, batch)
    return firsts


def _note(firsts: dict[Stretch, int], batch: DecidedBatch) -> None:
    if batch.offset is not None and batch.partition is not None:
        stretch = (batch.shard, batch.partition)
        firsts[stretch] = min(batch.offset, firsts.get(stretch, batch.offset))


def effective_batches(kafka: KafkaSettings, lineage: Iterable[int]) -> Iterator[DecidedBatch]:
    """The batches that hold, the newest generation's first. `lineage` is in the order of promotion."""
    superseded_from: dict[Stretch, int] = {}
    for generation in reversed(tuple(lineage)):
        # Of one generation no batch supersedes another, so what begins here counts for the older ones alone.
        from_here_on = dict(superseded_from)
        for batch in batches(kafka, decisions_topic(generation)):
            _note(from_here_on, batch)
            if batch.offset is None or batch.partition is None:
                yield batch
                continue
            until = superseded_from.get((batch.shard, batch.partition))
            if until is None or batch.offset < until:
                yield batch
        superseded_from = from_here_on


def decisions_between(
    found: Iterable[DecidedBatch], starts: Mapping[Stretch, int], ends: Mapping[int, int]
) -> Iterator[Decision]:
    """Decisions of records from `starts` up to `ends` (by partition), without what has no start."""
    return decisions_from((it for it in found if _is_before(it, ends)), starts)


def _is_before(batch: DecidedBatch, ends: Mapping[int, int]) -> bool:
    return batch.offset is not None and batch.partition is not None and batch.offset < ends.get(batch.partition, 0)


def decisions_from(found: Iterable[DecidedBatch], starts: Mapping[Stretch, int]) -> Iterator[Decision]:
    """Decisions of records from `starts` on, without what has no start."""
    for batch in found:
        if batch.offset is None or batch.partition is None:
            continue
        start = starts.get((batch.shard, batch.partition))
        if start is not None and start <= batch.offset:
            yield from batch.decisions
