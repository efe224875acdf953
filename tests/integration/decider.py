"""The other side of a load: a thread that folds the events topic with the real limiter and writes decisions.

It stands in for Flink alone: the fold, the codec and the broker are those of production.
"""

import threading
import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from typing_extensions import Self

from jobs.wiring.record_keys import record_keys
from schemas.codec import encode_decisions
from schemas.dead_letters import DeadLetter, Position
from schemas.decisions import Decision
from schemas.topics import SHARD_COUNT
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold


def make_topics(servers: str, *names: str, partitions: int = 4) -> None:
    """Returns when clients see them: a broker tells of a topic a moment after it has made it."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(name, partitions, 1) for name in names])
        while not set(names) <= _led(admin, names, partitions):
            time.sleep(0.05)
    finally:
        admin.close()


def _led(admin: Any, names: tuple[str, ...], partitions: int) -> set[str]:
    """Those of the topics all partitions of which have a leader."""
    return {
        topic["name"]
        for topic in admin.describe_topics(list(names))
        if len(topic["partitions"]) == partitions and all(one["leader_id"] >= 0 for one in topic["partitions"])
    }


class Decider:
    """Reads `events` from its beginning, decides, and writes `decisions`.

    `repeat` writes every batch of decisions twice, as an at-least-once sink does after a restart. `mute`: tenants whose
    decisions are thrown away.
    """

    def __init__(
        self,
        servers: str,
        events: str,
        decisions: str,
        *policies: LimiterPolicy,
        repeat: bool = False,
        mute: frozenset[str] = frozenset(),
    ) -> None:
        self._servers = servers
        self._events = events
        self._decisions = decisions
        self._fold = InProcessFold(LimiterFold(), PolicyLog(policies))
        self._repeat = repeat
        self._mute = mute
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decider")
        self.dead: list[DeadLetter] = []
        self.records: list[tuple[int, bytes, Position]] = []
        self.decided: list[Decision] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def counts(self) -> dict[str, int]:
        return self._fold.counts()

    def _run(self) -> None:
        try:
            self._decide()
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            self.error = error

    def _decide(self) -> None:
        keys = record_keys(SHARD_COUNT)
        shards = {key: shard for shard, key in enumerate(keys)}
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        producer = KafkaProducer(bootstrap_servers=self._servers, linger_ms=0, acks="all")
        try:
            numbers = consumer.partitions_for_topic(self._events)
            consumer.assign([TopicPartition(self._events, number) for number in numbers])
            while not self._stopping.is_set():
                for records in consumer.poll(timeout_ms=20).values():
                    for record in records:
                        shard = shards[record.key]
                        where = Position(record.topic, record.partition, record.offset)
                        self.records.append((shard, record.value, where))
                        result = self._fold.process(shard, record.value, where)
                        self.dead += result.dead
                        decided = [one for one in result.outputs if one.tenant not in self._mute]
                        self.decided += decided
                        if decided:
                            batch = encode_decisions(shard, decided)
                            for _ in range(2 if self._repeat else 1):
                                producer.send(self._decisions, key=keys[shard], value=batch)
        finally:
            consumer.close()
            producer.close(timeout=30)
