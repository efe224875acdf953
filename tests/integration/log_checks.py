"""Sending a log to a job, waiting for it, and comparing what came out with an undisturbed replay of that log."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from kafka import KafkaProducer

from jobs.ops import azure_trace
from jobs.ops.effective import effective_batches
from jobs.ops.generation_topic import read_generations
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.kafka_offsets import committed_offsets, end_offsets
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.policies import load_policies
from jobs.wiring.record_keys import record_keys, shard_of_key
from schemas.codec import encode_events
from schemas.dead_letters import Position
from schemas.topics import SHARD_COUNT, Topic, shard_of
from udfs.domain.limiter import LimiterFold
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from schemas.decisions import Decision

DEMO_POLICIES = Path(__file__).parents[2] / "data" / "policies" / "demo.yaml"
KEYS = record_keys(SHARD_COUNT)


def trace_records(requests: int, batch_events: int = 100) -> list[tuple[int, bytes]]:
    """Shard and record: the first requests of the shipped trace, in batches."""
    rows = list(azure_trace.read_trace(azure_trace.TRACE))[:requests]
    records = []
    waiting = defaultdict(list)
    for event in azure_trace.lives(rows, 12, 1):
        shard = shard_of(event.tenant)
        waiting[shard].append(event)
        if len(waiting[shard]) >= batch_events:
            records.append((shard, encode_events(shard, waiting.pop(shard))))
    return records + [(shard, encode_events(shard, events)) for shard, events in waiting.items()]


def send(servers: str, records: Iterable[tuple[int, bytes]], topic: str = Topic.EVENTS.value) -> None:
    """Put records into the log."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    for shard, record in records:
        producer.send(topic, key=KEYS[shard], value=record)
    producer.flush()
    producer.close()


def await_decided(
    servers: str, group: str = "headrace-admission", topic: str = Topic.EVENTS.value, timeout_s: float = 120
) -> None:
    """Wait until the job has decided, and checkpointed, all that the log holds now."""
    kafka = KafkaSettings(servers=servers)
    ends = end_offsets(kafka, topic)
    deadline = time.monotonic() + timeout_s
    while True:
        done = committed_offsets(kafka, group, topic)
        if all(done.get(at, 0) >= end for at, end in ends.items()):
            return
        assert time.monotonic() < deadline, "the job did not come to the end of the log"
        time.sleep(0.3)


def decided(servers: str) -> dict[str, Decision]:
    """The decisions that hold, by id. Fails where an id stands for two of them."""
    kafka = KafkaSettings(servers=servers)
    found: dict[str, Decision] = {}
    for batch in effective_batches(kafka, read_generations(kafka, "admission").lineage):
        for decision in batch.decisions:
            assert found.setdefault(decision.decision_id, decision) == decision
    return found


def replayed(
    servers: str, policies: Path, topic: str = Topic.EVENTS.value, since: Mapping[int, int] | None = None
) -> dict[str, Decision]:
    """What an undisturbed run decides on the log that is in Kafka; of records from the offsets `since` on, if given."""
    fold = InProcessFold(LimiterFold(), PolicyLog(load_policies(policies).policies))
    found: dict[str, Decision] = {}
    with TopicReader(KafkaSettings(servers=servers), topic) as reader:
        for record in reader.records(reader.slices()):
            where = Position(topic, record.partition, record.offset)
            shard = shard_of_key(record.key, SHARD_COUNT) or 0
            outputs = fold.process(shard, record.value or b"", where).outputs
            if since is None or record.offset >= since[record.partition]:
                found.update((decision.decision_id, decision) for decision in outputs)
    return found
