"""The ingest job from Kafka to Kafka: LiteLLM payloads, one a record, to the log of events."""

import yaml
from kafka import KafkaProducer

from jobs.ops.local.flink import flink_environment
from jobs.ops.submit import submit
from jobs.wiring.kafka_topics import create_topic
from schemas.topics import Topic
from tests.bench.figure import Figure
from tests.bench.ingest import ORIGIN, litellm_payload
from tests.bench.kafka.profile import APPEND_TIME, START_TIMEOUT_S, Profile, started
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Foreign, read_foreign

TOPIC = "bench.litellm"
PARTITIONS = 8
TIMEOUT_S = 300


def _fill(profile: Profile, payloads: int) -> float:
    """Write the payloads; returns how many a second a Python producer wrote: what it is measured against."""
    create_topic(profile.kafka, TOPIC, PARTITIONS, APPEND_TIME, 1)
    producer = KafkaProducer(**profile.kafka.client_options(), acks="all", linger_ms=20, batch_size=256 << 10)
    for number in range(payloads):
        producer.send(TOPIC, key=b"%d" % number, value=litellm_payload(number))
    producer.flush()
    producer.close()
    first, last = profile.append_times_ms(TOPIC)
    return payloads / max((last - first) / 1_000, 0.001)


def bench_ingest(payloads: int) -> list[Figure]:
    """Payloads and events a second, start of the job not included."""
    reading = read_foreign(FORMATS["litellm"].adapter, Foreign(value=litellm_payload(1)), ORIGIN)
    events_each = len(reading.events)
    with started("throughput", "version: 1\npolicies: []\n", taskmanagers=1) as profile:
        produced = _fill(profile, payloads)
        sources = [{"topic": TOPIC, "format": "litellm", "name": "litellm"}]
        # No heartbeats: it ends when all has been read, and so the last record is the last of the payloads.
        settings = {"kafka": {"servers": profile.servers}, "sources": sources, "until_end": True}
        path = profile.layout.folder / "ingest.yaml"
        path.write_text(yaml.safe_dump(settings))
        profile.make_append_time(Topic.EVENTS.value)
        job = submit("ingest", path, flink_environment(profile.layout))
        profile.flink.await_running(job, START_TIMEOUT_S)
        profile.await_finished(job, TIMEOUT_S)
        first, last = profile.append_times_ms(Topic.EVENTS.value)
    seconds = max((last - first) / 1_000, 0.001)
    rate = payloads / seconds
    reference = "a Python producer writing them"
    return [
        Figure("ingest job, Kafka to Kafka", rate, "payloads/s", reference, produced),
        Figure(
            "ingest job, Kafka to Kafka", rate * events_each, "events/s", "a Python producer writing them", produced
        ),
    ]
