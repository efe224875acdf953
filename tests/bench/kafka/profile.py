"""The local profile for a bench: started without the job, so that the log can be filled first."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from jobs.ops.local.cluster import PARTITIONS, Up, down, read_record
from jobs.ops.local.flink import TASKMANAGER, flink_environment
from jobs.ops.local.layout import Layout
from jobs.ops.submit import submit
from jobs.wiring.flink_rest import Flink
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import admin_of, create_topic
from jobs.wiring.record_keys import record_keys
from jobs.wiring.topic_catalog import decisions_topic
from schemas.topics import SHARD_COUNT
from tests.integration.conftest import free_block

START_TIMEOUT_S = 120
POLL_S = 0.1
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
"""The broker's own clock says when a record was written, whoever wrote it."""


class Profile:
    """A broker and a Flink cluster."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.servers = layout.kafka_servers
        self.kafka = KafkaSettings(servers=self.servers)
        self.flink = Flink(layout.rest_url)

    def taskmanager_cpu_seconds(self) -> float:
        """What all TaskManagers have used so far."""
        record = read_record(self.layout.folder)
        assert record is not None
        processes = [it.process() for it in record.processes if it.name.startswith(TASKMANAGER)]
        families = [[process, *process.children(recursive=True)] for process in processes if process is not None]
        times = [member.cpu_times() for family in families for member in family]
        return float(sum(used.user + used.system for used in times))

    def make_append_time(self, topic: str) -> None:
        """Have a topic of the catalog, which carries the writer's time, carry the broker's."""
        with admin_of(self.kafka) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, APPEND_TIME)])

    def await_finished(self, job: str, timeout_s: float) -> None:
        """Wait for the end of a job that has one. Raises TimeoutError and AssertionError where it fails."""
        deadline = time.monotonic() + timeout_s
        while (state := self.flink.state(job)) != "FINISHED":
            if state in {"FAILED", "CANCELED"}:
                raise AssertionError(f"the job has {state.lower()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job is {state} after {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def make_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        create_topic(self.kafka, name, partitions, APPEND_TIME, 1)

    def fill(self, topic: str, records: Iterator[tuple[int, bytes]]) -> int:
        """Write (shard, record) under the shards' keys; returns how many."""
        keys = record_keys(SHARD_COUNT)
        count = 0
        producer = KafkaProducer(**self.kafka.client_options(), acks="all", linger_ms=20, batch_size=256 << 10)
        try:
            for shard, record in records:
                producer.send(topic, key=keys[shard], value=record)
                count += 1
            producer.flush()
        finally:
            producer.close()
        return count

    def submit(self, restore_from: str | None = None, **settings: object) -> str:
        """Start the admission job with these settings; returns its id once all of its tasks run."""
        path = self.layout.settings
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))
        parallelism = settings.get("parallelism", 1)
        assert isinstance(parallelism, int)
        job = submit("admission", path, flink_environment(self.layout), restore_from, parallelism=parallelism)
        self.flink.await_running(job, START_TIMEOUT_S)
        return job

    @contextmanager
    def consumer(self, topic: str) -> Iterator[tuple[Any, list[TopicPartition]]]:
        """A consumer of all partitions, at their beginning."""
        client = KafkaConsumer(
            **self.kafka.client_options(), enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=50
        )
        try:
            places = [TopicPartition(topic, number) for number in client.partitions_for_topic(topic)]
            client.assign(places)
            yield client, places
        finally:
            client.close()

    def records(self, topic: str) -> Iterator[Any]:
        """All records that are in a topic now."""
        with self.consumer(topic) as (client, places):
            left = sum(client.end_offsets(places).values()) - sum(client.beginning_offsets(places).values())
            while left > 0:
                for found in client.poll(timeout_ms=1_000, max_records=2_000).values():
                    left -= len(found)
                    yield from found

    def count(self, topic: str) -> int:
        """How many records are in a topic now."""
        with self.consumer(topic) as (client, places):
            return int(sum(client.end_offsets(places).values()))

    def await_records(self, topic: str, count: int, timeout_s: float) -> None:
        """Wait until a topic has so many records. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        with self.consumer(topic) as (client, places):
            while (there := sum(client.end_offsets(places).values())) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} has {there:,} of {count:,} records after {timeout_s:.0f} s")
                time.sleep(POLL_S)

    def append_times_ms(self, topic: str) -> tuple[int, int]:
        """When the first record of a topic was appended, and the last, by the broker's clock."""
        with self.consumer(topic) as (client, places):
            ends = client.end_offsets(places)
            filled = [place for place in places if ends[place]]
            client.assign(filled)
            client.seek_to_beginning(*filled)
            first = min(_timestamps(client, filled).values())
            for place in filled:
                client.seek(place, ends[place] - 1)
            last = max(_timestamps(client, filled).values())
        return first, last


def _timestamps(client: Any, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """When the next record of each partition was appended, in ms."""
    found: dict[TopicPartition, int] = {}
    while len(found) < len(places):
        for place, records in client.poll(timeout_ms=1_000).items():
            found.setdefault(place, records[0].timestamp)
    return found


@contextmanager
def started(
    flink_conf: str, policies: str, *, taskmanagers: int = 1, options: Mapping[str, str] | None = None
) -> Iterator[Profile]:
    """The local profile in a folder of its own, gone at the end. `policies` is YAML."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        policy_file = Path(scratch) / "policies.yaml"
        policy_file.write_text(policies)
        folder = Path(scratch) / "local"
        layout = Layout(folder, free_block())
        try:
            Up(layout, flink_conf, _silent, options).run(
                taskmanagers=taskmanagers, policies=policy_file, submits=False, with_postgres=False
            )
            profile = Profile(layout)
            profile.make_append_time(decisions_topic(1))
            yield profile
        finally:
            down(folder, _silent, keep_data=False)


def _silent(_: str) -> None:
    pass
