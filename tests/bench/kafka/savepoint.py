"""Savepoint and restore of the job with many tenants, each with a request that runs. RocksDB, as the profiles have it.

A restore takes from the moment the JobManager has accepted the job to the first decision in the broker, for an event
that waited in the log. Beside it a job without state, restarted in the same cluster.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.wiring.flink_rest import local_path
from jobs.wiring.topic_catalog import decisions_topic
from schemas.topics import Topic
from tests.bench import workload
from tests.bench.figure import Figure
from tests.bench.kafka.profile import Profile, started

TENANTS = 1_000_000
BATCH_EVENTS = 500
TENANTS_AT_ONCE = 100_000
TIMEOUT_S = 900
MIB = 1 << 20
FLINK = {"taskmanager.memory.process.size": "4g"}
FRESH = "bench.fresh"
FRESH_GENERATION = 2


def prompts(first: int, tenants: int) -> Iterator[tuple[int, bytes]]:
    """One prompt of each tenant, as records; tenants are numbered from `first`."""
    for begin in range(first, first + tenants, TENANTS_AT_ONCE):
        numbers = range(begin, min(begin + TENANTS_AT_ONCE, first + tenants))
        yield from workload.batches(
            (next(workload.life(f"tenant-{number}", number, 1_000_000_000 + number)) for number in numbers),
            BATCH_EVENTS,
        )


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def copy_durably(folder: Path) -> None:
    """The least that keeping these bytes costs on this disk: write them, and wait until they are there."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=folder.parent) as scratch:
        to = Path(scratch) / "copy"
        shutil.copytree(folder, to)
        for file in to.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())


class SavepointBench:
    """A cluster with a job that knows `tenants`."""

    def __init__(self, profile: Profile, tenants: int) -> None:
        self._profile = profile
        self._log, self._decisions = Topic.EVENTS.value, decisions_topic(1)
        self.log_bytes = 0
        records = profile.fill(self._log, self._counted(prompts(0, tenants)))
        self.job = profile.submit()
        profile.await_records(self._decisions, records, TIMEOUT_S)

    def _counted(self, records: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for shard, record in records:
            self.log_bytes += len(record)
            yield shard, record

    def savepoint(self) -> tuple[float, Path]:
        """Seconds that it took, and where it is."""
        began = time.perf_counter()
        path = local_path(self._profile.flink.savepoint(self.job, None, TIMEOUT_S))
        assert path is not None
        return time.perf_counter() - began, path

    def restore(self, savepoint: Path, tenants: int) -> float:
        """End the job, start it from the savepoint; seconds until it decides."""
        self._profile.flink.cancel(self.job)
        before = self._profile.count(self._decisions)
        self._profile.fill(self._log, prompts(tenants, 64))
        return self._until_it_decides(self._decisions, before, str(savepoint), generation=1, events_topic=self._log)

    def start_without_state(self) -> float:
        """Seconds until a job that begins anew decides its first event."""
        decisions = decisions_topic(FRESH_GENERATION)
        for topic in (FRESH, decisions):
            self._profile.make_topic(topic)
        self._profile.fill(FRESH, prompts(0, 64))
        return self._until_it_decides(decisions, 0, None, generation=FRESH_GENERATION, events_topic=FRESH)

    def _until_it_decides(self, topic: str, before: int, restore_from: str | None, **settings: object) -> float:
        profile = self._profile
        self.job = profile.submit(restore_from, **settings)
        profile.await_records(topic, before + 1, TIMEOUT_S)
        started_ms = next(job.started_ms for job in profile.flink.jobs() if job.id == self.job)
        decided_ms = min(
            record.timestamp for record in profile.records(topic) if before == 0 or record.timestamp >= started_ms
        )
        return float(decided_ms - started_ms) / 1_000


def bench_savepoint(tenants: int = TENANTS) -> list[Figure]:
    """Time and size of a savepoint, and time of a restore."""
    with started("throughput", workload.POLICY_YAML, options=FLINK) as profile:
        bench = SavepointBench(profile, tenants)
        took_s, path = bench.savepoint()
        copy_s = seconds_of(lambda: copy_durably(path))
        size = size_of(path)
        restored_s = bench.restore(path, tenants)
        profile.flink.cancel(bench.job)
        fresh_s = bench.start_without_state()
    few = f"{tenants:,} tenants"
    return [
        Figure(f"savepoint, {few}", took_s, "s", "copy of its files", copy_s),
        Figure(f"savepoint, {few}, size", size / MIB, "MiB", "its events in the log", bench.log_bytes / MIB),
        Figure(f"restore to the first decision, {few}", restored_s, "s", "job without state", fresh_s),
    ]
