"""Where a topic ends, and how far a consumer group has come in it."""

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError, KafkaError, NotCoordinatorError

from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import KafkaUnavailableError, admin_of


def end_offsets(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """Where each partition of a topic ends now. Raises KafkaUnavailableError."""
    try:
        consumer = KafkaConsumer(**kafka.client_options(), bootstrap_timeout_ms=10_000)
        try:
            numbers = consumer.partitions_for_topic(topic)
            if not numbers:
                raise KafkaUnavailableError(f"{topic}: there is no such topic at {kafka.servers}")
            partitions = [TopicPartition(topic, number) for number in numbers]
            return {at.partition: end for at, end in consumer.end_offsets(partitions).items()}
        finally:
            consumer.close()
    except KafkaError as error:
        raise KafkaUnavailableError(f"{topic} at {kafka.servers}: {error}") from error


def committed_offsets(kafka: KafkaSettings, group: str, topic: str) -> dict[int, int]:
    """How far a consumer group has come in each partition of a topic: a job's, as of its last checkpoint."""
    with admin_of(kafka) as admin:
        try:
            found = admin.list_group_offsets({group: None})[group]
        except (CoordinatorNotAvailableError, NotCoordinatorError):
            # The broker has just begun to keep offsets, or moves them: nobody has committed here yet.
            return {}
    return {at.partition: offset.offset for at, offset in found.items() if at.topic == topic and offset.offset >= 0}
