"""From the moment at which a prompt was due to its decision read by the gateway, under a steady load (`headrace load`).

The load, the broker, the job and its JVMs share this machine. Beside it the echo loop in the same run: the same load on
topics of its own, while the job has nothing to do.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from jobs.ops.load.outcome import LoadOutcome
from jobs.wiring.topic_catalog import decisions_topic
from schemas.topics import Topic
from tests.bench.figure import Figure
from tests.bench.kafka.profile import Profile, started

RATES = (5_000, 20_000)
SECONDS = 30.0
WARM_UP_SECONDS = 40.0
"""So long the JVM compiles what it runs: before, that is what is measured."""
TENANTS = 1_000
STREAM_SPEED = 4.0
"""Streams are over in seconds, so that the rate is soon the one that was asked for."""

ECHO_EVENTS, ECHO_DECISIONS = "bench.echo-events", "bench.echo-decisions"
AIM_MS = 50

POLICIES = """\
version: 1
policies:
  - id: bench
    tenant: "*"
    limits:
      - {name: tokens-minute, level: tenant, unit: tokens, limit: 2000M, window: 60s}
      - {name: key-tokens-minute, level: api_key, unit: tokens, limit: 1000M, window: 60s}
      - {name: requests-minute, level: tenant, unit: requests, limit: 1M, window: 60s}
      - {name: streams, level: tenant, unit: streams, limit: 1M}
"""
"""Four limits at two levels that admit all: a throttled request would send fewer events than were asked for."""


def load(profile: Profile, rate: float, events: str, decisions: str, seconds: float = SECONDS) -> LoadOutcome:
    """Play a steady load. Raises CalledProcessError where a request was lost."""
    command = [sys.executable, "-m", "jobs.ops.cli", "load", "--json", "--servers", profile.servers]
    topics = ["--events-topic", events, "--decisions-topic", decisions]
    steady = ["--rate", str(rate), "--seconds", str(WARM_UP_SECONDS + seconds), "--warm-up", str(WARM_UP_SECONDS)]
    shape = ["--tenants", str(TENANTS), "--speed", str(STREAM_SPEED)]
    done = subprocess.run([*command, *topics, *steady, *shape], check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=LoadOutcome)


@contextmanager
def echo(profile: Profile) -> Iterator[None]:
    """The echo loop, while the block runs."""
    for topic in (ECHO_EVENTS, ECHO_DECISIONS):
        profile.make_topic(topic)
    command = [sys.executable, "-m", "tests.bench.kafka.echo", profile.servers, ECHO_EVENTS, ECHO_DECISIONS]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(
    rates: tuple[float, ...] = RATES,
    seconds: float = SECONDS,
    options: Mapping[str, str] | None = None,
) -> Iterator[tuple[float, LoadOutcome, LoadOutcome]]:
    """Rate, outcome with the job and outcome with the echo loop."""
    with started("latency", POLICIES, options=options) as profile:
        profile.submit()
        for rate in rates:
            job = load(profile, rate, Topic.EVENTS.value, decisions_topic(1), seconds)
            with echo(profile):
                floor = load(profile, rate, ECHO_EVENTS, ECHO_DECISIONS, seconds)
            yield rate, job, floor


def bench_latency(rates: tuple[float, ...] = RATES, seconds: float = SECONDS) -> list[Figure]:
    """Percentiles of the job's latency, beside those of the echo loop."""
    figures = []
    for rate, job, floor in measure(rates, seconds):
        for name in ("p50", "p95", "p99"):
            found, reference = (getattr(outcome.latency_from_due_us, name) / 1_000 for outcome in (job, floor))
            title = f"decision latency {name}, {rate:,.0f} events/s (came: {job.events_per_second:,.0f})"
            aim = f"below {AIM_MS}" if name == "p99" else ""
            figures.append(Figure(title, found, "ms", "echo loop", reference, aim))
    return figures
