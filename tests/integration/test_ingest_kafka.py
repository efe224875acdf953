"""Foreign records on Kafka become the log that admission decides: each event once by its id, whatever is sent again and
whatever dies, and what can't be read is put aside with its place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from kafka import KafkaProducer

from jobs.ops.local.flink import flink_environment
from jobs.ops.submit import submit
from jobs.wiring.flink_rest import Flink
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import create_topic
from schemas.codec import decode_dead_letter, decode_events
from schemas.dead_letters import DeadLetterReason, Position
from schemas.decisions import DecisionKind
from schemas.events import Heartbeat
from schemas.topics import Topic
from tests.integration.conftest import Cluster, cluster
from tests.integration.log_checks import decided
from tests.integration.test_faults import LIVE_POLICIES, host_of_the_fold
from udfs.domain.ingest.litellm import read_litellm
from udfs.domain.ingest.record import Adapter, Foreign, Origin, read_foreign
from udfs.domain.ingest.transcript import read_transcript

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemas.events import Event

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE_HEADER = [("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())]
WAIT_S = 120


def litellm_payload(number: int) -> bytes:
    started_s = time.time()
    return msgspec.json.encode(
        {
            "id": f"call-{number}",
            "call_type": "acompletion",
            "stream": True,
            "status": "success",
            "custom_llm_provider": "openai",
            "prompt_tokens": 100 + number % 7,
            "completion_tokens": 20,
            "total_tokens": 120 + number % 7,
            "startTime": started_s,
            "completionStartTime": started_s + 0.1,
            "endTime": started_s + 0.5,
            "model": "gpt-4o-mini",
            "metadata": {"user_api_key_team_id": f"team-{number % 9}"},
        }
    )


def transcript(number: int) -> bytes:
    piece = {"id": f"chatcmpl-{number}", "model": "gpt-4o", "created": int(time.time())}
    chunks = (
        {**piece, "choices": [{"index": 0, "delta": {"content": "It left"}, "finish_reason": None}]},
        {**piece, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**piece, "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}},
    )
    lines = [f"data: {msgspec.json.encode(chunk).decode()}\n\n" for chunk in chunks]
    return msgspec.json.encode({"tenant": "chat", "sse": "".join([*lines, "data: [DONE]\n\n"])})


def expected(adapter: Adapter, values: list[bytes], origin: Origin) -> dict[bytes, Event]:
    """The events by their ids, read without Flink."""
    readings = [read_foreign(adapter, Foreign(value=value), origin) for value in values]
    return {event.event_id: event for reading in readings for event in reading.events}


def events_in_log(servers: str) -> list[Event]:
    with TopicReader(KafkaSettings(servers=servers), Topic.EVENTS.value) as reader:
        records = [it.value or b"" for it in reader.records(reader.slices())]
    nowhere = Position("", 0, 0)
    return [event for record in records for event in decode_events(record, nowhere, with_provenance=True).events]


def await_true(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.5)


def start_ingest(running: Cluster) -> str:
    layout = running.layout
    for topic in ("litellm-logs", "transcripts"):
        create_topic(KafkaSettings(servers=layout.kafka_servers), topic, 2, {}, 1)
    settings = layout.folder / "ingest.yaml"
    sources = [
        {"topic": "litellm-logs", "format": "litellm", "name": "litellm"},
        {"topic": "transcripts", "format": "transcript", "region": "eu"},
    ]
    settings.write_text(yaml.safe_dump({"kafka": {"servers": layout.kafka_servers}, "sources": sources}))
    job = submit("ingest", settings, flink_environment(layout))
    Flink(layout.rest_url).await_running(job, WAIT_S)
    return job


@pytest.mark.slow
def test_foreign_records_become_the_log_that_is_decided_each_event_once(tmp_path: Path) -> None:
    options = {"execution.checkpointing.interval": "2 s", "execution.checkpointing.min-pause": "0"}
    payloads = [litellm_payload(number) for number in range(300)]
    texts = [transcript(number) for number in range(100)]
    wanted = expected(read_litellm, payloads, Origin(source="litellm"))
    wanted |= expected(read_transcript, texts, Origin(source="transcripts", region="eu"))
    with cluster(tmp_path / "local", LIVE_POLICIES, taskmanagers=3, options=options) as running:
        servers = running.layout.kafka_servers
        flink = Flink(running.layout.rest_url)
        job = start_ingest(running)
        producer = KafkaProducer(bootstrap_servers=servers, acks="all")

        def ids() -> set[bytes]:
            return {event.event_id for event in events_in_log(servers) if not isinstance(event, Heartbeat)}

        for value in payloads[:150]:
            producer.send("litellm-logs", value=value)
        broken = producer.send("litellm-logs", value=b'{"id": 7').get(30)
        producer.send("litellm-logs", key=b"a tombstone", value=None)
        for value in texts:
            producer.send("transcripts", value=value, headers=TRACE_HEADER)
        producer.flush()
        await_true(lambda: len(ids()) > len(wanted) / 3, "nothing is read")

        # Its producers send again what they are not sure of, and the worker that has seen it dies.
        running.kill(host_of_the_fold(flink, job, "stamping"))
        running.repair(submits=False)
        for value in (*payloads, *texts[:50]):
            topic, headers = ("transcripts", TRACE_HEADER) if value in texts else ("litellm-logs", None)
            producer.send(topic, value=value, headers=headers)
        producer.flush()
        producer.close()
        await_true(lambda: ids() == set(wanted), "events are missing")

        found = {event.event_id: event for event in events_in_log(servers)}
        for event_id, event in wanted.items():
            same = msgspec.structs.replace(found[event_id], watermark_us=0, provenance=event.provenance)
            assert same == event
        in_trace = [it for it in found.values() if it.provenance and it.provenance.trace_id.hex() == TRACE]
        assert {it.source for it in in_trace} == {"transcripts"}
        assert len(in_trace) == 100 * 3

        with TopicReader(KafkaSettings(servers=servers), Topic.DEAD_LETTERS.value) as reader:
            letters = [decode_dead_letter(it.value) for it in reader.records(reader.slices()) if it.value]
        places = {(it.source, it.partition, it.offset): it for it in letters}
        assert places["litellm-logs", broken.partition, broken.offset].payload == b'{"id": 7'
        assert {it.reason for it in letters} == {DeadLetterReason.MALFORMED}
        assert len(places) == 2

        def settled() -> int:
            return sum(it.kind is DecisionKind.SETTLE for it in decided(servers).values())

        await_true(lambda: settled() == 400, "requests are not settled")
