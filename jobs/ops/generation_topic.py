"""The generations' record in Kafka: one key a job in a compacted topic, which gateways follow to what holds."""

from typing import Final

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError

from jobs.ops.generations import GenerationError, Generations
from jobs.wiring.kafka_log import KafkaLogError, TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import KafkaUnavailableError
from schemas.topics import Topic

MOVED: Final = "somebody else has moved this rollback on meanwhile: look at it again, then decide"


def read_generations(kafka: KafkaSettings, job: str) -> Generations:
    """How the generations of a job stand. Raises KafkaLogError and its kinds."""
    found = Generations()
    with TopicReader(kafka, Topic.GENERATIONS.value) as reader:
        for record in reader.records(reader.slices()):
            if record.key == job.encode() and record.value:
                try:
                    found = msgspec.json.decode(record.value, type=Generations)
                except msgspec.DecodeError as error:
                    where = f"{Topic.GENERATIONS.value}: partition {record.partition}, offset {record.offset}"
                    raise KafkaLogError(f"{where}: not a record of this release: {error}") from error
    return found


def write_generations(kafka: KafkaSettings, job: str, generations: Generations) -> None:
    """Put a step on record; returns when it is safe. Raises KafkaUnavailableError."""
    try:
        producer = KafkaProducer(**kafka.client_options(), acks="all", bootstrap_timeout_ms=10_000)
        try:
            sent = producer.send(Topic.GENERATIONS.value, key=job.encode(), value=msgspec.json.encode(generations))
            sent.get(timeout=30)
        finally:
            producer.close()
    except KafkaError as error:
        raise KafkaUnavailableError(f"{Topic.GENERATIONS.value} at {kafka.servers}: {error}") from error


def move(kafka: KafkaSettings, job: str, before: Generations, after: Generations) -> None:
    """Put a step from `before` on record, and see that it is the last one.

    Raises GenerationError where somebody else takes a step at the same time: then what they wrote last is on record.
    """
    if read_generations(kafka, job) != before:
        raise GenerationError(MOVED)
    write_generations(kafka, job, after)
    # Another may have read the same `before`, and have written since.
    if read_generations(kafka, job) != after:
        raise GenerationError(MOVED)
