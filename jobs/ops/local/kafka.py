"""The broker: one node that is its own controller (KRaft)."""

import subprocess
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from jobs.ops.local.jars import Jars
from jobs.ops.local.layout import HOST, Layout, LocalError
from jobs.ops.local.processes import Note, Started, forget, start, tail, wait_until
from jobs.wiring.java import java_home

NAME = "kafka"


def start_kafka(layout: Layout, jars: Jars, note: Note = forget) -> Started:
    """Start the broker on the data that it had, or on none. Raises LocalError."""
    properties = layout.kafka / "server.properties"
    layout.kafka.mkdir(parents=True, exist_ok=True)
    properties.write_text(_properties(layout))
    logging = layout.kafka / "log4j2.yaml"
    logging.write_text(_LOGGING)
    java: list[str | Path] = [
        java_home() / "bin" / "java",
        "-Xmx512m",
        "-Xms512m",
        "-XX:+UseG1GC",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        ":".join(map(str, jars.broker)),
    ]
    if not (layout.kafka / "data" / "meta.properties").is_file():
        _format(java, properties, layout.logs / "kafka-format.log")
    started = start(
        NAME,
        [*java, "kafka.Kafka", properties],
        layout.logs / "kafka.log",
        (layout.ports.kafka, layout.ports.kafka_controller),
        note=note,
    )
    wait_until(lambda: _answers(layout), started, timeout_s=60)
    return started


def _format(java: list[str | Path], properties: Path, log: Path) -> None:
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        command = [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", properties]
        done = subprocess.run(list(map(str, command)), stdout=out, stderr=out, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise LocalError(f"kafka's folder could not be made; the end of {log}:\n{tail(log)}")


def _answers(layout: Layout) -> bool:
    try:
        client = KafkaAdminClient(bootstrap_servers=layout.kafka_servers, bootstrap_timeout_ms=2_000)
    except KafkaError:
        return False
    try:
        client.list_topics()
    except KafkaError:
        return False
    finally:
        client.close()
    return True


def _properties(layout: Layout) -> str:
    ports = layout.ports
    return "\n".join(
        (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.bootstrap.servers={HOST}:{ports.kafka_controller}",
            f"listeners=PLAINTEXT://{HOST}:{ports.kafka},CONTROLLER://{HOST}:{ports.kafka_controller}",
            f"advertised.listeners=PLAINTEXT://{HOST}:{ports.kafka}",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={layout.kafka / 'data'}",
            # Topics are made with the partitions that the log needs, never by a slip in a name.
            "auto.create.topics.enable=false",
            # One broker: internal topics can't have three copies.
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=4",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=4",
            "share.coordinator.state.topic.replication.factor=1",
            "share.coordinator.state.topic.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            # Flink's exactly-once sink asks for an hour where the default ceiling is 15 minutes.
            "transaction.max.timeout.ms=3600000",
            "",
        )
    )


_LOGGING = """\
Configuration:
  status: error
  Appenders:
    Console:
      name: out
      PatternLayout: {pattern: "%d{ISO8601} %p %m (%c)%n"}
  Loggers:
    Root:
      level: warn
      AppenderRef: {ref: out}
    Logger:
      - {name: kafka, level: warn}
      - {name: org.apache.kafka, level: warn}
"""
