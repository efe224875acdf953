"""`make bench`, or `python -m tests.bench [NAME ...]`: what the parts cost, each beside a reference of the same run.

Machines are shared and noisy: read the ratios. Each figure is the best of several rounds, as the least disturbed one.
"""

import argparse
import gc
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from jobs.wiring.java import JavaNotFoundError, java_home, parse_major
from schemas.codec import decode_events, encode_decisions, encode_events
from schemas.dead_letters import Position
from schemas.decisions import Decision
from schemas.events import Event
from schemas.gen.headrace.v1.events_pb2 import EventBatch
from tests.bench import workload
from tests.bench.figure import Figure
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import LimiterFold, LimiterPolicy, TenantState
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold
from udfs.operators.shard_fold import FoldSettings

ROUNDS = 5
NOWHERE = Position("bench", 0, 0)


def best_rate(count: int, work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Things a second in the fastest of `rounds` runs."""
    fastest = float("inf")
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - began)
    return count / fastest


def plain_buckets(events: list[Event]) -> None:
    """The reference: a token bucket in a dict, the least that any limiter in Python does for an event."""
    levels: dict[str, tuple[float, int]] = {}
    for event in events:
        level, last_us = levels.get(event.tenant, (50_000.0, 0))
        now_us = max(event.event_time_us, last_us)
        level = min(50_000.0, level + (now_us - last_us) * 0.005)
        cost = getattr(event, "count", 0)
        levels[event.tenant] = (level - cost if level >= cost else level, now_us)


def fold_alone(events: list[Event]) -> list[Decision]:
    """The limiter without codec, state or Flink, driven as the shard drives it."""
    fold = LimiterFold()
    apply, due = fold.apply, fold.due
    states: dict[str, TenantState] = {}
    clocks: dict[str, int] = {}
    decisions: list[Decision | Anomaly] = []
    for event in events:
        key = event.tenant
        state = states.get(key)
        if state is None:
            state = states[key] = fold.new(key)
            clocks[key] = 0
        clock_us = clocks[key]
        if event.event_time_us > clock_us:
            clock_us = clocks[key] = event.event_time_us
        due_us = due(state)
        if due_us is not None and due_us <= clock_us:
            decisions += fold.wake(state, workload.POLICY, due_us)
        out = apply(state, event, workload.POLICY, clock_us)
        if out:
            decisions += out
    return [decision for decision in decisions if isinstance(decision, Decision)]


def bench_fold() -> list[Figure]:
    """The limiter's own cost an event."""
    figures = []
    for chunk_tokens, rows in ((16, None), (1, 1_500)):
        events = workload.azure_events(chunk_tokens=chunk_tokens, rows=rows)
        figures.append(
            Figure(
                f"fold alone (limiter, 4 limits), {chunk_tokens} token(s) a chunk",
                best_rate(len(events), partial(fold_alone, events)),
                "events/s",
                "bucket in a dict",
                best_rate(len(events), partial(plain_buckets, events)),
                "400,000 a core",
            )
        )
    return figures


def bench_codec() -> list[Figure]:
    """Bytes to events, events to bytes, decisions to bytes."""
    events = workload.azure_events()
    batches = workload.batches(events)
    decisions = fold_alone(events)
    parse = best_rate(len(events), lambda: [EventBatch.FromString(record) for _, record in batches])
    decode = best_rate(len(events), lambda: [decode_events(record, NOWHERE) for _, record in batches])
    encode = best_rate(len(events), lambda: encode_events(0, events), rounds=2)
    out = best_rate(len(decisions), lambda: encode_decisions(0, decisions))
    return [
        Figure("decode event batches", decode, "events/s", "protobuf parse alone", parse),
        Figure("encode event batches", encode, "events/s", "protobuf parse alone", parse),
        Figure("encode decision batches", out, "decisions/s", "protobuf parse alone", parse),
    ]


def in_process_rate(batches: list[tuple[int, bytes]], events: int) -> float:
    """Events a second from event batches to decision batches, in process."""

    def work() -> None:
        fold = InProcessFold(LimiterFold(), PolicyLog([workload.POLICY]))
        for shard, record in batches:
            outputs = fold.process(shard, record, NOWHERE).outputs
            if outputs:
                encode_decisions(shard, outputs)

    return best_rate(events, work, rounds=3)


def bench_minicluster() -> list[Figure]:
    """Files to files on Flink: the trace ten times over, so that the start of the job weighs little."""
    from jobs.admission import build
    from jobs.ops.azure_trace import SPAN_US, shifted
    from jobs.wiring.embedded import run
    from jobs.wiring.file_log import write_event_file
    from jobs.wiring.settings import load_settings

    once = workload.azure_events()
    events = [shifted(event, round_number * SPAN_US, round_number) for round_number in range(10) for event in once]
    batches = workload.batches(events)
    reference = in_process_rate(batches, len(events))
    del batches
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "events.pb"
        write_event_file(log, events, batch_age_us=workload.MINUTE_US)
        one = Path(scratch) / "one.pb"
        write_event_file(one, once[:1])
        policies = Path(scratch) / "policies.yaml"
        policies.write_text(workload.POLICY_YAML)
        for backend in ("hashmap", "rocksdb"):
            settings = load_settings(
                input=(log,), policies=policies, output=Path(scratch) / backend, state_backend=backend
            )
            job = run("bench", build, settings)
            start = run(
                "bench",
                build,
                settings.model_copy(update={"input": (one,), "output": Path(scratch) / f"one-{backend}"}),
            )
            title = f"MiniCluster files to files, {backend}"
            count = job.counts["events"]
            figures += [
                Figure(f"{title}, whole job", count / job.seconds, "events/s", "in process", reference, "120,000"),
                Figure(
                    f"{title}, less a job of one event",
                    count / (job.seconds - start.seconds),
                    "events/s",
                    "in process",
                    reference,
                    "120,000",
                ),
            ]
    return figures


def keep_state(way: str, batches: list[tuple[int, bytes]], changed: list[set[str]]) -> None:
    """Fold batches, and after each make what changed durable in one of three ways."""
    fold = InProcessFold(LimiterFold(), PolicyLog([workload.POLICY]))
    limiter = LimiterFold()
    log: list[bytes] = []
    stored: dict[str, bytes] = {}
    for (shard, record), keys in zip(batches, changed, strict=True):
        fold.process(shard, record, NOWHERE)
        if way == "log the batch":
            continue
        cache = fold._shards[shard]._cache
        states = {key: limiter.dump(cache[key].state) for key in keys}
        if way == "log the states":
            log.append(b"".join(states.values()))
        else:
            stored.update(states)


def bench_state() -> list[Figure]:
    """Three ways to make a batch durable: log the batch (ours), log the changed keys' states, write the changed keys.

    In memory, so only what each costs in Python counts: serialising states, not storing them.
    """
    figures = []
    for tenants, size in ((12, 500), (12, 20), (1_000, 500)):
        events = workload.azure_events(tenants)
        batches = workload.batches(events, size)
        keys = [
            {event.tenant for event in decode_events(record, NOWHERE).events if event.tenant} for _, record in batches
        ]

        ways = ("log the states", "write the states", "log the batch")
        rates = {way: best_rate(len(events), partial(keep_state, way, batches, keys), rounds=2) for way in ways}
        figures += [
            Figure(
                f"{way}, {tenants:,} tenants, batches of {size}",
                rates[way],
                "events/s",
                "write the states",
                rates["write the states"],
            )
            for way in ways
        ]
    return figures


def populate(keys: int) -> InProcessFold[TenantState, LimiterPolicy, Decision]:
    """A fold that has seen one request of each of `keys` tenants."""
    fold = InProcessFold(LimiterFold(), PolicyLog([workload.POLICY]), FoldSettings())
    for first in range(0, keys, 50_000):
        events = [
            event
            for number in range(first, min(first + 50_000, keys))
            for event in workload.life(f"tenant-{number}", number, 1_000_000 + number, chunks=0)
        ]
        for shard, record in workload.batches(events):
            fold.process(shard, record, NOWHERE)
    return fold


def measure_keys(keys: int) -> dict[str, float]:
    """In a process of its own: memory of `keys` tenants, and the cost of traffic over them."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fold = populate(keys)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    # A thousand tenants may find room in what the interpreter holds already.
    found = {"memory_mib": max(grown_kib / 1024, 1.0)}
    start_us = 1_000_000_000
    for name, distribution in (("uniform", workload.uniform), ("zipf", workload.zipf)):
        best = 0.0
        for _ in range(2):
            events = workload.traffic(distribution(keys, random.Random(7)), 20_000, start_us)
            start_us += 600_000_000
            batches = workload.batches(events)
            began = time.perf_counter()
            for shard, record in batches:
                fold.process(shard, record, NOWHERE)
            best = max(best, len(events) / (time.perf_counter() - began))
        found[name] = best
    return found


def bench_keys() -> list[Figure]:
    """Memory and cost an event as tenants grow, in process (states as bytes in a dict, 4,096 keys cached a shard)."""
    found = {}
    for keys in (1_000, 100_000, 1_000_000):
        command = [sys.executable, "-m", "tests.bench", "--measure-keys", str(keys)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[keys] = json.loads(output)
    few = found[1_000]
    figures = [
        Figure(f"memory at {keys:,} tenants", found[keys]["memory_mib"], "MiB", "1,000 tenants", few["memory_mib"])
        for keys in found
    ]
    for name in ("uniform", "zipf"):
        for keys in (100_000, 1_000_000):
            aim = "ratio above 1/1.5 = 0.67" if name == "zipf" and keys == 1_000_000 else ""
            figures.append(
                Figure(f"{name} over {keys:,} tenants", found[keys][name], "events/s", "1,000 tenants", few[name], aim)
            )
    return figures


def bench_kafka(sizes: argparse.Namespace) -> list[Figure]:
    """Events a second from Kafka to Kafka."""
    from tests.bench.kafka.throughput import bench_throughput

    return bench_throughput(sizes.events, sizes.rounds)


def bench_latency(sizes: argparse.Namespace) -> list[Figure]:
    """From a prompt to its decision, by way of Kafka."""
    from tests.bench.kafka.latency import bench_latency

    return bench_latency(tuple(sizes.rate), sizes.seconds)


def bench_savepoint(sizes: argparse.Namespace) -> list[Figure]:
    """Savepoint and restore."""
    from tests.bench.kafka.savepoint import bench_savepoint

    return bench_savepoint(sizes.tenants)


def bench_ingest(sizes: argparse.Namespace) -> list[Figure]:
    """Adapters alone, and the ingest job."""
    from tests.bench.ingest import bench_adapters
    from tests.bench.kafka.ingest import bench_ingest

    return [*bench_adapters(best_rate), *bench_ingest(sizes.payloads)]


BENCHES: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "fold": lambda _: bench_fold(),
    "codec": lambda _: bench_codec(),
    "state": lambda _: bench_state(),
    "keys": lambda _: bench_keys(),
    "minicluster": lambda _: bench_minicluster(),
    "kafka": bench_kafka,
    "latency": bench_latency,
    "savepoint": bench_savepoint,
    "ingest": bench_ingest,
}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; none: all")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    parser.add_argument("--events", type=int, default=2_000_000, help="kafka: events in the log (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="kafka: runs of each way (default %(default)s)")
    parser.add_argument("--rate", type=float, nargs="+", default=[5_000, 20_000], help="latency: events a second")
    parser.add_argument("--seconds", type=float, default=30, help="latency: of each load (default %(default)s)")
    parser.add_argument("--tenants", type=int, default=1_000_000, help="savepoint: tenants (default %(default)s)")
    parser.add_argument("--payloads", type=int, default=100_000, help="ingest: records (default %(default)s)")
    parser.add_argument("--measure-keys", type=int, help=argparse.SUPPRESS)
    found = parser.parse_args()
    unknown = [name for name in found.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    return found


def machine() -> str:
    """What was measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    java = "no Java"
    with suppress(JavaNotFoundError):
        said = subprocess.run([java_home() / "bin" / "java", "-version"], check=True, capture_output=True, text=True)
        java = f"Java {parse_major(said.stderr)}"
    python = f"Python {platform.python_version()}"
    return f"{platform.machine()}, {cores} cores, {memory_gib:.0f} GiB, {python}, {java}"


def rounded(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def main() -> None:
    """Run the named benches, or all."""
    asked = arguments()
    if asked.measure_keys is not None:
        print(json.dumps(measure_keys(asked.measure_keys)))
        return
    figures = []
    if not asked.json:
        print(machine())
        print(f"{'':<58}{'figure':>12} {'unit':<12}{'ratio':>7}  reference")
    for name in asked.names or BENCHES:
        for figure in BENCHES[name](asked):
            figures.append(figure)
            if not asked.json:
                aim = f"  (aim {figure.aim})" if figure.aim else ""
                print(
                    f"{figure.name:<58}{rounded(figure.value):>12} {figure.unit:<12}{figure.ratio:>7.2f}"
                    f"  {figure.reference} {rounded(figure.reference_value)}{aim}",
                    flush=True,
                )
    if asked.json:
        print(json.dumps([{**msgspec.structs.asdict(figure), "ratio": figure.ratio} for figure in figures], indent=2))


if __name__ == "__main__":
    main()
