"""The load against a real broker and the real limiter: what it sends is decided, and what is decided it obeys."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, TopicPartition

from jobs.ops import azure_trace
from jobs.ops.load.gateway import Gateway, GatewayRules
from jobs.ops.load.kafka_load import KafkaLoad, LoadTopics, Switch
from jobs.ops.load.outcome import LoadOutcome
from jobs.ops.load.plan import PlannedRequest, SteadyLoad, at_steady_rate
from jobs.ops.load.recording import DecisionRead, EventSent, Recording, recorded_line
from jobs.ops.load.tally import Tally
from jobs.wiring.kafka_log import BrokerUnreachableError, TopicMissingError
from jobs.wiring.kafka_settings import KafkaSettings
from schemas.decisions import DecisionKind, LimitUnit
from schemas.topics import SHARD_COUNT
from tests.integration.decider import Decider, make_topics
from tests.limiter_world import SECOND, limit, policy

pytestmark = pytest.mark.slow


class Log(NamedTuple):
    servers: str
    events: str
    decisions: str

    @property
    def topics(self) -> LoadTopics:
        return LoadTopics(self.events, self.decisions, SHARD_COUNT)


@pytest.fixture
def log(kafka_servers: str) -> Log:
    name = uuid4().hex[:8]
    found = Log(kafka_servers, f"events.{name}", f"decisions.{name}")
    make_topics(kafka_servers, found.events, found.decisions)
    return found


def steady(seconds: float = 2.0, rate: float = 600, tenants: int = 5) -> Callable[[], Iterator[PlannedRequest]]:
    rows = list(islice(azure_trace.read_trace(azure_trace.TRACE), 1_000))
    load = SteadyLoad(events_per_second=rate, seconds=seconds, tenants=tenants, speed=20)
    return lambda: at_steady_rate(load, rows)


def play(
    log: Log,
    requests: Callable[[], Iterator[PlannedRequest]],
    *,
    gateways: int = 1,
    switch: Switch | None = None,
    record: Recording | None = None,
    linger_us: int = 500_000,
    **rules: Any,
) -> LoadOutcome:
    tally = Tally()
    with KafkaLoad(KafkaSettings(servers=log.servers), log.topics, record) as load:
        start_us = load.clock() + 100_000
        playing = [
            Gateway(f"run-{number}", islice(requests(), number, None, gateways), GatewayRules(**rules), tally, start_us)
            for number in range(gateways)
        ]
        return load.run(playing, tally, "run", switch or Switch(), linger_us)


def test_every_request_of_several_gateways_is_decided_streamed_and_settled_once(log: Log) -> None:
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9))) as decider:
        found = play(log, steady(), gateways=3)

    asked = sum(1 for _ in steady()())
    assert found.is_ok
    assert (found.requests, found.outcomes) == (asked, {"settled": asked})
    assert decider.dead == []
    assert decider.counts()["events"] == found.events_sent + found.sent["heartbeat"] * SHARD_COUNT
    assert not decider.counts().get("duplicate", 0)
    assert found.decisions["settle"] == asked
    assert found.latency_from_due_us.count == asked
    assert found.latency_from_due_us.p50 >= found.latency_from_sent_us.p50 > 0


def test_limits_throttle_and_revoke_and_the_gateway_obeys_both(log: Log) -> None:
    tight = policy(
        limit(6_000, window_us=2 * SECOND),
        limit(3, name="streams", unit=LimitUnit.STREAMS),
        default_completion_tokens=8,
        estimate_after=10_000,
        extension_tokens=8,
    )
    with Decider(log.servers, log.events, log.decisions, tight) as decider:
        found = play(log, steady(), max_attempts=3, max_wait_us=3 * SECOND)

    assert found.is_ok
    assert found.decisions["throttle"] > 0
    assert found.outcomes["revoked"] > 0
    # The retries of a throttled request are its further attempts, and no chunk comes after a gateway's stop.
    assert found.sent["prompt_submitted"] > found.requests
    assert found.overshoot.streams_cut == found.sent["stream_interrupted"]
    assert not decider.counts().get("after_end", 0)
    settles = [one for one in decider.decided if one.kind is DecisionKind.SETTLE]
    assert len({(one.request_id, one.attempt) for one in settles}) == len(settles)


def test_decisions_that_are_delivered_twice_are_counted_and_obeyed_once(log: Log) -> None:
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9)), repeat=True):
        found = play(log, steady(seconds=1))

    assert found.is_ok
    assert found.duplicates == sum(found.decisions.values())
    assert found.sent["request_completed"] == found.requests


def test_requests_without_an_answer_are_lost(log: Log) -> None:
    mute = frozenset(["tenant-02"])
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9)), mute=mute):
        found = play(log, steady(seconds=1), decision_timeout_us=3 * SECOND)

    silent = sum(request.prompt.tenant == "tenant-02" for request in steady(seconds=1)())
    assert not found.is_ok
    assert found.missing == found.outcomes["lost"] == silent
    assert found.outcomes["settled"] == found.requests - silent


def test_what_is_recorded_is_what_the_topic_holds(log: Log, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "load.jsonl")
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9))) as decider:
        found = play(log, steady(seconds=1), record=recording)
    recording.close()

    lines = [recorded_line(line) for line in (tmp_path / "load.jsonl").read_bytes().splitlines()]
    reads = [line for line in lines if isinstance(line, DecisionRead)]
    sent = [line for line in lines if isinstance(line, EventSent)]
    assert len(sent) == found.events_sent
    assert sorted(read.decision.decision_id for read in reads) == sorted(one.decision_id for one in decider.decided)
    consumer = KafkaConsumer(bootstrap_servers=log.servers)
    try:
        ends = consumer.end_offsets([TopicPartition(log.decisions, number) for number in range(4)])
    finally:
        consumer.close()
    assert {(read.partition, read.offset) for read in reads} == {
        (at.partition, offset) for at, end in ends.items() for offset in range(end)
    }


def test_a_load_that_is_asked_to_stop_ends_its_streams_and_reports(log: Log) -> None:
    switch = Switch()
    long = SteadyLoad(events_per_second=200, seconds=600, tenants=5)
    rows = list(islice(azure_trace.read_trace(azure_trace.TRACE), 1_000))
    found: list[LoadOutcome] = []
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9))) as decider:
        player = threading.Thread(
            target=lambda: found.append(play(log, lambda: at_steady_rate(long, rows), switch=switch))
        )
        player.start()
        while not any(one.kind is DecisionKind.ADMIT for one in list(decider.decided)) and player.is_alive():
            time.sleep(0.05)
        switch.ask()
        player.join()

    (outcome,) = found
    assert outcome.was_stopped
    assert outcome.is_ok
    assert outcome.open_requests == 0
    assert outcome.sent["stream_interrupted"] > 0


def test_a_load_that_is_asked_twice_leaves_at_once_and_tells_what_is_open(log: Log) -> None:
    switch = Switch()
    rows = list(islice(azure_trace.read_trace(azure_trace.TRACE), 1_000))
    long = SteadyLoad(events_per_second=200, seconds=600, tenants=5)
    found: list[LoadOutcome] = []
    player = threading.Thread(target=lambda: found.append(play(log, lambda: at_steady_rate(long, rows), switch=switch)))
    with Decider(
        log.servers, log.events, log.decisions, policy(), mute=frozenset(azure_trace.tenant_names(5))
    ) as decider:
        player.start()
        while not decider.records and player.is_alive():
            time.sleep(0.05)
        switch.ask()
        switch.ask()
        player.join()

    (outcome,) = found
    assert outcome.open_requests == outcome.requests > 0
    assert (outcome.missing, outcome.was_stopped) == (0, True)


def test_another_loads_decisions_are_none_of_ours(log: Log) -> None:
    with Decider(log.servers, log.events, log.decisions, policy(limit(10**9))):
        first = play(log, steady(seconds=0.5))
        # The same names again: a decision of the first load that came now would be told as a fault or a repeat.
        assert first.is_ok
        second = play(log, lambda: iter(()), linger_us=200_000)

    assert (second.requests, second.decisions_read, second.is_ok) == (0, 0, True)


def test_a_topic_that_is_missing_and_a_broker_that_is_away_are_told(log: Log) -> None:
    with pytest.raises(TopicMissingError, match="there is no such topic"):
        play(log._replace(decisions="nothing.here"), steady())
    with pytest.raises(TopicMissingError, match="there is no such topic"):
        play(log._replace(events="nothing.here"), steady())
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1"):
        play(log._replace(servers="127.0.0.1:1"), steady())
