"""Making and looking at topics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.topic_catalog import CATALOG, TopicSpec


class KafkaUnavailableError(RuntimeError):
    """The cluster does not answer, or refuses; the message names it."""


@contextmanager
def admin_of(kafka: KafkaSettings) -> Iterator[Any]:
    """An admin client. Raises KafkaUnavailableError, for what goes wrong meanwhile too."""
    client = None
    try:
        client = KafkaAdminClient(**kafka.client_options(), client_id="headrace-admin")
        yield client
    except KafkaError as error:
        raise KafkaUnavailableError(
            f"kafka.servers: {kafka.servers} does not answer or refuses: {type(error).__name__} {error}".rstrip()
        ) from error
    finally:
        if client is not None:
            client.close()


def create_topic(kafka: KafkaSettings, name: str, partitions: int, options: dict[str, str], replication: int) -> bool:
    """Make a topic; False: it is there already."""
    with admin_of(kafka) as admin:
        try:
            admin.create_topics([NewTopic(name, partitions, replication, topic_configs=options)])
        except TopicAlreadyExistsError:
            return False
        return True


def create_catalog(kafka: KafkaSettings, partitions: int, replication: int = 1) -> list[str]:
    """Make the topics of the catalog that are not there; returns their names."""
    with admin_of(kafka) as admin:
        there = set(admin.list_topics())
    return [
        topic.value
        for topic, spec in CATALOG.items()
        if topic.value not in there
        and create_topic(kafka, topic.value, _partitions(spec, partitions), spec.options, replication)
    ]


def _partitions(spec: TopicSpec, partitions: int) -> int:
    return partitions if spec.per_shard else 1
