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


def batches(kafka: KafkaSettings, topic: str) -> Iterator[DecidedBatch]:
    """The batches of a topic of decisions, as it is now. Raises KafkaLogError and its kinds."""
    with TopicReader(kafka, topic) as reader:
        for record in reader.records(reader.slices()):
            if record.value is None:
                continue
            try:
                yield decode_decision_batch(record.value)
            except ValueError as error:
                raise KafkaLogError(
                    f"{topic}: partition {record.partition}, offset {record.offset}: {error}"
                ) from error


def first_decided(found: Iterable[DecidedBatch]) -> dict[Stretch, int]:
    """The offset of the first record of events that was decided, by shard and partition.

    A shard lies in one partition, but for records whose key names none: they are folded as shard 0, wherever they are.
    """
    firsts: dict[Stretch, int] = {}
    for batch in found:
        if batch.offset is not None and batch.partition is not None:
            stretch = (batch.shard, batch.partition)
            firsts[stretch] = min(batch.offset, firsts.get(stretch, batch.offset))
    return firsts


def effective_batches(kafka: KafkaSettings, lineage: Iterable[int]) -> Iterator[DecidedBatch]:
    """The batches that hold, the newest generation's first. `lineage` is in the order of promotion."""
    superseded_from: dict[Stretch, int] = {}
    for generation in reversed(tuple(lineage)):
        topic = decisions_topic(generation)
        for batch in batches(kafka, topic):
            if batch.offset is None or batch.partition is None:
                yield batch
                continue
            until = superseded_from.get((batch.shard, batch.partition))
            if until is None or batch.offset < until:
                yield batch
        firsts = first_decided(batches(kafka, topic))
        for stretch, offset in firsts.items():
            superseded_from[stretch] = min(offset, superseded_from.get(stretch, offset))


def decisions_between(
    found: Iterable[DecidedBatch], starts: Mapping[Stretch, int], ends: Mapping[int, int]
) -> Iterator[Decision]:
    """Decisions of records from `starts` up to `ends` (by partition), without what has no start."""
    for batch in found:
        if batch.offset is None or batch.partition is None:
            continue
        start = starts.get((batch.shard, batch.partition))
        if start is not None and start <= batch.offset < ends.get(batch.partition, 0):
            yield from batch.decisions
