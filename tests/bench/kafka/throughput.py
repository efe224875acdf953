"""Events a second of a log that was filled beforehand, by the job and by others, one after the other on one broker.

What is measured ends when the broker appends the last record of decisions, by its own clock. It begins when a peer has
its first record in hand, or when the broker appends the job's first decisions, which follows within two tenths of a
second: starting a JVM, an interpreter or a job is not in it, warming up is. All must decide the same.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from jobs.wiring.topic_catalog import decisions_topic
from schemas.codec import decode_decisions
from schemas.events import Event
from tests.bench import workload
from tests.bench.figure import Figure
from tests.bench.kafka import peers
from tests.bench.kafka.profile import Profile, started

EVENTS = 2_000_000
ROUNDS = 1
TENANTS = 1_000
BATCH_EVENTS = 100
EVENTS_A_REQUEST = workload.CHUNKS + 2
REQUESTS_AT_ONCE = 30_000
"""Requests are made, ordered by time and batched so many at once, as a log of all of them would not fit memory."""

WHOLE, PART, SINGLE = "bench.whole", "bench.part", "bench.single"
PART_OF = 4
SINGLE_OF = 12
"""The slower ways get the first part of the log: their rate does not depend on its length."""

POLICY = msgspec.structs.replace(workload.POLICY, limits=workload.POLICY.limits[:1])
"""One limit: peers are asked for no more."""
"""One limit, wide enough that most requests run."""

POLICY_YAML = """\
version: 1
policies:
  - id: bench
    tenant: "*"
    limits:
      - {name: tokens-minute, level: tenant, unit: tokens, limit: 2M, window: 60s}
"""
"""The same as a file, for the job."""

BARE = "bare loop"
TASKMANAGERS = 2
AIM = "120,000"
TIMEOUT_S = 600
# More than the local profile gives: what the throughput profile of flink-conf asks for.
FLINK = {"taskmanager.memory.process.size": "4g"}


class Log(NamedTuple):
    """What was filled: events in each topic."""

    whole: int
    part: int
    single: int

    def of(self, topic: str) -> int:
        return {WHOLE: self.whole, PART: self.part, SINGLE: self.single}[topic]


def requests(count: int) -> Iterator[list[Event]]:
    """Lives of requests of all tenants in turn, 10 ms apart, ordered by event time within each list."""
    for first in range(0, count, REQUESTS_AT_ONCE):
        # A pause between the lists longer than a life keeps each tenant's time in order.
        start_us = 1_000_000_000 + first * 10_000 + first // REQUESTS_AT_ONCE * 10_000_000
        events = [
            event
            for number in range(first, min(first + REQUESTS_AT_ONCE, count))
            for event in workload.life(
                f"tenant-{number * 7919 % TENANTS}", number, start_us + (number - first) * 10_000
            )
        ]
        events.sort(key=lambda event: event.event_time_us)
        yield events


def batches(count: int) -> Iterator[tuple[int, bytes]]:
    """The events of `count` requests as records."""
    for events in requests(count):
        yield from workload.batches(events, BATCH_EVENTS)


def singles(count: int) -> Iterator[tuple[int, bytes]]:
    """The events of `count` requests, each a record of its own."""
    for events in requests(count):
        for event in events:
            yield from workload.batches([event])


def fill(profile: Profile, events: int) -> Log:
    """Write the log, its first part, and the beginning of it with a record an event."""
    counts = []
    for topic, share, records in ((WHOLE, 1, batches), (PART, PART_OF, batches), (SINGLE, SINGLE_OF, singles)):
        count = events // EVENTS_A_REQUEST // share
        profile.make_topic(topic)
        profile.fill(topic, records(count))
        counts.append(count * EVENTS_A_REQUEST)
    return Log(*counts)


class Run(NamedTuple):
    """Events a second, and events for each second of a core that its own processes took, starting included."""

    rate: float
    per_core: float


class Runs:
    """Runs that decide the log, each into a topic of its own."""

    def __init__(self, profile: Profile, log: Log) -> None:
        self._profile = profile
        self._log = log
        self._environment = {"SERVERS": profile.servers, "POLICY": msgspec.json.encode(POLICY).decode()}
        self._expected: dict[str, int] = {}
        self._runs = 0
        self._records = 0

    def bare(self) -> Run:
        """The first of all: what it decides is what the others must decide."""
        out = self._out("bare")
        arguments = [self._profile.servers, WHOLE, out]
        said, cpu_s = peers.run("tests.bench.kafka.bare_loop", arguments, self._environment, TIMEOUT_S)
        self._records = self._profile.count(out)
        return self._run(WHOLE, out, cpu_s, _began_ms(said))

    def bytewax(self, keyed_by: str, topic: str) -> Run:
        out = self._out(f"bytewax-{keyed_by}")
        environment = {**self._environment, "KEYED_BY": keyed_by, "EVENTS": topic, "DECISIONS": out}
        with tempfile.TemporaryDirectory() as recovery:
            peers.run("bytewax.recovery", [recovery, "1"], {}, TIMEOUT_S)
            flow = ["tests.bench.kafka.bytewax_flow", "-r", recovery, "-s", "5", "-b", "0"]
            said, cpu_s = peers.run("bytewax.run", flow, environment, TIMEOUT_S)
        return self._run(topic, out, cpu_s, _began_ms(said))

    def job(self, parallelism: int) -> Run:
        """The real job, in a generation of its own: it starts at the beginning of the log."""
        generation = 2 + self._runs
        out = decisions_topic(generation)
        self._out("job", out)
        before_s = self._profile.taskmanager_cpu_seconds()
        job = self._profile.submit(events_topic=WHOLE, generation=generation, parallelism=parallelism)
        self._profile.await_records(out, self._records, TIMEOUT_S)
        cpu_s = self._profile.taskmanager_cpu_seconds() - before_s
        self._profile.flink.cancel(job)
        return self._run(WHOLE, out, cpu_s)

    def _out(self, name: str, topic: str | None = None) -> str:
        topic = topic or f"bench.{name}-{self._runs}"
        self._runs += 1
        self._profile.make_topic(topic)
        return topic

    def _run(self, topic: str, out: str, cpu_s: float, began_ms: int | None = None) -> Run:
        decided = {
            f"{decision.tenant}/{decision.decision_id}": hash(decision)
            for record in self._profile.records(out)
            for decision in decode_decisions(record.value)
        }
        expected = self._expected = self._expected or decided
        requests_of_topic = self._log.of(topic) // EVENTS_A_REQUEST
        missing = requests_of_topic * 2 - len(decided)
        other = sum(1 for name, found in decided.items() if expected.get(name) != found)
        if missing or other:
            raise AssertionError(f"{out}: {missing:,} decisions are missing, {other:,} are others than the loop's")
        first_ms, last_ms = self._profile.append_times_ms(out)
        events = self._log.of(topic)
        return Run(events / (last_ms - (began_ms or first_ms)) * 1_000, events / cpu_s)


def _began_ms(said: str) -> int:
    found = re.search(r"^reads since (\d+)$", said, re.MULTILINE)
    assert found is not None, said
    return int(found[1])


def bench_throughput(events: int = EVENTS, rounds: int = ROUNDS) -> list[Figure]:
    """The job against the bare loop, and against Bytewax."""
    with started("throughput", POLICY_YAML, taskmanagers=TASKMANAGERS, options=FLINK) as profile:
        runs = Runs(profile, fill(profile, events))
        ways: dict[str, Callable[[], Run]] = {
            BARE: runs.bare,
            "admission job, 1 TaskManager": lambda: runs.job(1),
            f"admission job, {TASKMANAGERS} TaskManagers": lambda: runs.job(TASKMANAGERS),
            "Bytewax, our fold on whole batches": lambda: runs.bytewax("shard", WHOLE),
            "Bytewax, batches by tenant": lambda: runs.bytewax("tenant", PART),
            "Bytewax, a record an event": lambda: runs.bytewax("tenant", SINGLE),
        }
        found: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, run in ways.items():
                found[name].append(run())
    rates = {name: max(run.rate for run in of_name) for name, of_name in found.items()}
    per_core = {name: max(run.per_core for run in of_name) for name, of_name in found.items()}
    figures = [
        Figure(f"Kafka to Kafka, {name}", rates[name], "events/s", BARE, rates[BARE], AIM if "job" in name else "")
        for name in ways
    ]
    job = max((name for name in ways if "job" in name), key=lambda name: rates[name])
    figures += [
        Figure(f"Kafka to Kafka, {job}", rates[job], "events/s", name, rates[name], "twice")
        for name in ways
        if name.startswith("Bytewax")
    ]
    return figures + [
        Figure(f"for each core-second, {name}", per_core[name], "events", BARE, per_core[BARE]) for name in ways
    ]
