"""The loop around gateways: the clock, Kafka, and what goes wrong on the way.

One thread sends and reads in turn, so that a decision that was read is obeyed before anything else is sent. The
schedule waits for nobody: prompts are due when the plan says so, whatever the log does meanwhile, and latency counts
from then on (Tene, "How not to measure latency": a generator that waits for a slow system leaves out the waiting of
everyone who would have come meanwhile).
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from typing_extensions import Self

from jobs.ops.load.batching import ShardBatcher, ShardRecord
from jobs.ops.load.gateway import Gateway
from jobs.ops.load.outcome import LoadOutcome, Transport, outcome_of
from jobs.ops.load.recording import DecisionRead, LoadBegan, Recording
from jobs.ops.load.tally import Tally
from jobs.wiring.event_file_writer import BATCH_AGE_US
from jobs.wiring.kafka_log import CONNECT_MS, TopicMissingError, kafka_error
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.record_keys import partition_of, record_keys
from schemas.codec import NAME_OF_KIND, decode_decisions
from schemas.events import Event, Heartbeat
from udfs.operators.garbage import spared

LONGEST_OUTAGE_MS: Final = 600_000
"""Events are kept and sent again for so long while no broker takes them."""

_TICK_US: Final = 1_000
"""At least so long is waited for decisions before the next events are handed over: it bounds the cost of looking."""
_MAX_WAIT_US: Final = 50_000
_TELL_US: Final = 250_000
_SWITCH_SECONDS: Final = 0.000_5
"""The clients have threads of their own; with Python's 5 ms a decision would wait for them instead of for the log."""
_PRODUCER_BYTES: Final = 256 << 10
_CLOSE_SECONDS: Final = 10


class WallClock:
    """Microseconds since 1970 that never go back, whatever is done to the machine's clock meanwhile."""

    def __init__(self) -> None:
        self._ahead_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        """Now."""
        return (time.monotonic_ns() + self._ahead_ns) // 1000


class LoadTopics(msgspec.Struct, frozen=True):
    """What is written and what is read."""

    events: str
    decisions: str
    shard_count: int


class Switch:
    """Asks a load to stop. The second time it is asked, it leaves at once."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self) -> None:
        """Ask once more."""
        self.asked += 1


def _close(producer: Any) -> None:
    # What is left unsent by now has been counted, and must not cost the report.
    with suppress(KafkaError):
        producer.close(timeout=_CLOSE_SECONDS)


class _Link:
    """One gateway, its batches and its way into the log."""

    def __init__(self, gateway: Gateway, topics: LoadTopics, producer: Any) -> None:
        self.gateway = gateway
        self.batcher = ShardBatcher(topics.shard_count)
        self.producer = producer
        self.sent_records = 0
        # The producer's thread counts these, and nobody else.
        self.acknowledged_records = 0
        self.failed_records = 0
        self._topic = topics.events
        partitions = len(producer.partitions_for(topics.events))
        self._places = [(key, partition_of(key, partitions)) for key in record_keys(topics.shard_count)]

    def send(self, records: Iterable[ShardRecord]) -> None:
        for shard, record, _ in records:
            key, partition = self._places[shard]
            self.sent_records += 1
            future = self.producer.send(self._topic, value=record, key=key, partition=partition)
            future.add_callback(self._acknowledged)
            future.add_errback(self._failed)

    def _acknowledged(self, _: object) -> None:
        self.acknowledged_records += 1

    def _failed(self, _: object) -> None:
        self.failed_records += 1


class KafkaLoad:
    """Gateways on a log. Use it in a `with` statement, which connects and checks that the topics are there.

    Raises BrokerUnreachableError and TopicMissingError, and KafkaLogError where the brokers refuse us.
    """

    def __init__(self, kafka: KafkaSettings, topics: LoadTopics, record: Recording | None = None) -> None:
        self._kafka = kafka
        self._topics = topics
        self._recording = record
        self._transport = Transport()
        self._consumer: Any = None
        self._closing = ExitStack()
        self.clock = WallClock()

    def __enter__(self) -> Self:
        try:
            self._consumer = KafkaConsumer(
                **self._kafka.client_options(),
                bootstrap_timeout_ms=CONNECT_MS,
                isolation_level="read_committed",
                auto_offset_reset="latest",
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                fetch_max_wait_ms=100,
                max_poll_records=10_000,
                reconnect_backoff_max_ms=1_000,
                metrics_enabled=False,
            )
            self._closing.callback(self._consumer.close)
            self._decisions_from = self._go_to_end()
            self._events_from = self._ends_of(self._topics.events)
        except Exception as error:
            self._closing.close()
            raise self._in_our_words(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _in_our_words(self, error: Exception) -> Exception:
        return kafka_error(error, self._kafka.servers, self._topics.events) or error

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        found = self._consumer.partitions_for_topic(topic)
        if not found:
            raise TopicMissingError(f"{topic}: there is no such topic at {self._kafka.servers}; check name and servers")
        return [TopicPartition(topic, number) for number in sorted(found)]

    def _ends_of(self, topic: str) -> dict[int, int]:
        ends = self._consumer.end_offsets(self._partitions_of(topic))
        return {at.partition: offset for at, offset in ends.items()}

    def _go_to_end(self) -> dict[int, int]:
        ends = self._ends_of(self._topics.decisions)
        self._consumer.assign([TopicPartition(self._topics.decisions, number) for number in ends])
        for number, offset in ends.items():
            self._consumer.seek(TopicPartition(self._topics.decisions, number), offset)
        return ends

    def _producer(self) -> Any:
        producer = KafkaProducer(
            **self._kafka.client_options(),
            bootstrap_timeout_ms=CONNECT_MS,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            compression_type=None,
            batch_size=_PRODUCER_BYTES,
            delivery_timeout_ms=LONGEST_OUTAGE_MS,
            reconnect_backoff_max_ms=1_000,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        self._closing.callback(_close, producer)
        return producer

    def run(
        self,
        gateways: Sequence[Gateway],
        tally: Tally,
        run_id: str,
        switch: Switch,
        linger_us: int,
        progress: Callable[[Tally], None] = lambda _: None,
    ) -> LoadOutcome:
        """Play the gateways to their end; `linger_us` longer, repeats and contradictions are still looked for."""
        try:
            links = [_Link(gateway, self._topics, self._producer()) for gateway in gateways]
        except Exception as error:
            raise self._in_our_words(error) from error
        if self._recording:
            topics = self._topics
            self._recording.began(
                LoadBegan(run_id, topics.events, topics.decisions, self._events_from, self._decisions_from)
            )
        began_us = self.clock()
        switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            # A pause of this process would be measured as one of the log.
            with spared():
                last_sent_us = self._loop(links, tally, switch, linger_us, progress)
        finally:
            sys.setswitchinterval(switch_seconds)
        for link in links:
            with suppress(KafkaError):
                link.producer.flush(timeout=_CLOSE_SECONDS)
        transport = self._transport
        transport.records_sent = sum(link.sent_records for link in links)
        transport.produce_errors = transport.records_sent - sum(link.acknowledged_records for link in links)
        return outcome_of(
            tally,
            transport,
            run_id=run_id,
            seconds=(last_sent_us - began_us) / 1e6,
            open_requests=sum(link.gateway.open_requests for link in links),
            was_stopped=switch.asked > 0,
        )

    def _loop(
        self,
        links: list[_Link],
        tally: Tally,
        switch: Switch,
        linger_us: int,
        progress: Callable[[Tally], None],
    ) -> int:
        """Until all is over; returns when the last event of a request was sent."""
        by_name = {link.gateway.name: link for link in links}
        over_us = last_sent_us = told_us = self.clock()
        is_stopping = False
        while True:
            now_us = self.clock()
            if switch.asked > 1:
                return last_sent_us
            if switch.asked and not is_stopping:
                is_stopping = True
                for link in links:
                    self._emit(link, link.gateway.stop(now_us), tally, now_us)
            for link in links:
                if link.gateway.due_us <= now_us and self._emit(link, link.gateway.advance(now_us), tally, now_us):
                    last_sent_us = now_us
                link.send(link.batcher.take(now_us))
            if not all(link.gateway.is_over for link in links):
                over_us = now_us
            elif now_us - over_us >= max(linger_us, BATCH_AGE_US):
                return last_sent_us
            if now_us - told_us >= _TELL_US:
                told_us = now_us
                progress(tally)
            due_us = min(min(link.gateway.due_us, link.batcher.due_us) for link in links)
            wait_us = min(max(due_us - self.clock(), _TICK_US), _MAX_WAIT_US)
            if self._read(wait_us, by_name, tally):
                last_sent_us = self.clock()

    def _emit(self, link: _Link, events: list[Event], tally: Tally, now_us: int) -> bool:
        """Hand events over; returns whether one of them was a request's."""
        for event in events:
            tally.sent[NAME_OF_KIND[type(event)]] += 1
            if self._recording:
                self._recording.sent(event)
            link.send(link.batcher.add(event, now_us))
        return any(not isinstance(event, Heartbeat) for event in events)

    def _read(self, wait_us: int, by_name: dict[str, _Link], tally: Tally) -> bool:
        """Wait for decisions and obey them; returns whether something was sent on that."""
        try:
            found = self._consumer.poll(timeout_ms=wait_us / 1000)
        except KafkaError:
            self._transport.read_errors += 1
            time.sleep(wait_us / 1e6)
            return False
        has_sent = False
        for at, records in found.items():
            for record in records:
                try:
                    decisions = decode_decisions(record.value or b"")
                except ValueError:
                    self._transport.unreadable_records += 1
                    continue
                read_us = self.clock()
                self._transport.decisions_read += len(decisions)
                for index, decision in enumerate(decisions):
                    link = by_name.get(decision.request_id.rpartition("-")[0])
                    if link is None:
                        self._transport.foreign_decisions += 1
                        continue
                    if self._recording:
                        self._recording.read(DecisionRead(at.partition, record.offset, index, read_us, decision))
                    events = link.gateway.decide(decision, read_us)
                    if events:
                        has_sent |= self._emit(link, events, tally, read_us)
        return has_sent
