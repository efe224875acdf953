"""A rollback: replay the log from a snapshot into a new generation of decisions, compare, then promote or abort.

Every step can be taken again: what is on record in `headrace.generations` says where a crash came in between.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import yaml
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    CoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorError,
    UnknownTopicOrPartitionError,
)

from jobs.ops.diff import DecisionDiff, diff_decisions
from jobs.ops.effective import batches, decisions_between, effective_batches, first_decided
from jobs.ops.generation_topic import read_generations, write_generations
from jobs.ops.generations import Candidate, Generations, Phase, finish, propose, require_candidate, to_phase
from jobs.ops.snapshots import Snapshot
from jobs.ops.submit import submit
from jobs.ops.target import Target, name_of
from jobs.wiring.atomic_file import replacing
from jobs.wiring.flink_rest import FlinkError, location_of
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import KafkaUnavailableError, admin_of, create_topic
from jobs.wiring.settings import AdmissionSettings, load_settings
from jobs.wiring.topic_catalog import CATALOG, decisions_topic
from schemas.topics import Topic

Tell: TypeAlias = Callable[[str], None]
Share: TypeAlias = Callable[[float], None]
POLL_S: Final = 1.0


class Rollback:
    """The rollback of one job. `tell` is told of each step that is done."""

    def __init__(self, target: Target, job: str, tell: Tell) -> None:
        self._target = target
        self._job = job
        self._tell = tell
        self._kafka = target.settings.kafka
        self.generations = read_generations(self._kafka, job)

    # --- beginning -----------------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot | str | None, policies: Path | None) -> None:
        """Propose the next generation, from a snapshot, or from the beginning of the log where it is None."""
        path = snapshot.path.as_uri() if isinstance(snapshot, Snapshot) else snapshot
        number = self.generations.newest + 1
        settings = yaml.safe_load(self._target.settings_file.read_text(encoding="utf-8"))
        settings |= {"generation": number, "start": "earliest-offset"}
        if policies is not None:
            # A copy: the replay and whoever looks at it later must read what was meant now.
            kept = self._target.work.resolve() / f"policies-g{number}.yaml"
            with replacing(kept) as out:
                out.write(policies.read_bytes())
            settings["policies"] = str(kept)
        taken_ms = snapshot.taken_ms if isinstance(snapshot, Snapshot) else None
        location = None if path is None else location_of(path.removeprefix("file://"))
        self._record(propose(self.generations, location, taken_ms, yaml.safe_dump(settings)))

    def replay(self) -> None:
        """Have the candidate's topic and job, however far an earlier try came. Raises FlinkError."""
        candidate = self.candidate
        if candidate.phase not in (Phase.PREPARED, Phase.REPLAYING):
            return
        flink = self._target.flink
        spec = CATALOG[Topic.DECISIONS]
        topic = decisions_topic(candidate.generation)
        create_topic(self._kafka, topic, self._partitions(), spec.options, replication=-1)
        name = name_of(self._job, candidate.generation)
        running = flink.running(name)
        if running is None:
            settings_file = self._settings_file(candidate)
            settings = load_settings(settings_file)
            self._require_slots(settings)
            job_id = submit(
                self._job,
                settings_file,
                self._target.environment,
                candidate.restored_from,
                parallelism=settings.parallelism,
            )
            self._tell(f"{name}: submitted ({job_id})")
        else:
            job_id = running.id
            self._tell(f"{name}: runs already ({job_id})")
        self._record(to_phase(self.generations, Phase.REPLAYING, job_id))
        flink.await_running(job_id, timeout_s=120)

    def catch_up(self, share: Share, timeout_s: float) -> dict[int, int]:
        """Wait until the candidate has decided all that the log holds now; returns its ends by partition."""
        ends = self._ends()
        group = load_settings(self._settings_file(self.candidate)).generation_group
        deadline = time.monotonic() + timeout_s
        while (left := self._left(group, ends)) > 0:
            share(1 - left / max(sum(ends.values()), 1))
            if time.monotonic() > deadline:
                raise FlinkError(
                    f"the replay is {left:,} records behind after {timeout_s:.0f} s; it goes on, ask again"
                )
            state = self._target.flink.state(str(self.candidate.job_id))
            if state not in ("RUNNING", "RESTARTING", "INITIALIZING", "CREATED"):
                why = self._target.flink.last_failure(str(self.candidate.job_id))
                raise FlinkError(f"the replay is {state}: {why}; mend it, then again, or --abort")
            time.sleep(POLL_S)
        return ends

    def compare(self, ends: Mapping[int, int], examples: int = 3) -> DecisionDiff:
        """What the candidate decides otherwise than what holds, from its snapshot up to `ends`."""
        topic = decisions_topic(self.candidate.generation)
        starts = first_decided(batches(self._kafka, topic))
        return diff_decisions(
            decisions_between(effective_batches(self._kafka, self.generations.lineage), starts, ends),
            decisions_between(batches(self._kafka, topic), starts, ends),
            examples=examples,
        )

    # --- ending --------------------------------------------------------------------------------------------------

    def promote(self) -> None:
        """Let the candidate hold: the record first, then the old job ends, so there is no time without decisions."""
        if self.candidate.phase is not Phase.PROMOTING:
            self._record(to_phase(self.generations, Phase.PROMOTING))
        self._tell(f"generation {self.generations.live} holds")
        flink = self._target.flink
        for generation in range(1, self.generations.newest + 1):
            old = flink.running(name_of(self._job, generation)) if generation != self.generations.live else None
            if old is not None:
                flink.cancel(old.id)
                self._tell(f"{old.name}: ended; its last checkpoint stays")
        with replacing(self._target.settings_file) as out:
            out.write(self.candidate.settings.encode())
        self._record(finish(self.generations))

    def abort(self) -> None:
        """Leave everything as it was: end the candidate's job and delete its topic."""
        candidate = self.candidate
        self._record(to_phase(self.generations, Phase.ABORTING))
        name = name_of(self._job, candidate.generation)
        running = self._target.flink.running(name)
        if running is not None:
            self._target.flink.cancel(running.id)
            self._tell(f"{name}: ended")
        topic = decisions_topic(candidate.generation)
        with admin_of(self._kafka) as admin, suppress(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])
        self._tell(f"{topic}: deleted; generation {self.generations.live} holds as before")
        self._record(finish(self.generations))

    # --- helpers -------------------------------------------------------------------------------------------------

    @property
    def candidate(self) -> Candidate:
        """The candidate. Raises GenerationError where there is none."""
        return require_candidate(self.generations)

    def _record(self, generations: Generations) -> None:
        write_generations(self._kafka, self._job, generations)
        self.generations = generations

    def _settings_file(self, candidate: Candidate) -> Path:
        path = self._target.work / f"headrace-g{candidate.generation}.yaml"
        with replacing(path) as out:
            out.write(candidate.settings.encode())
        return path

    def _require_slots(self, settings: AdmissionSettings) -> None:
        free = self._target.flink.overview()["slots-available"]
        if free < settings.parallelism:
            raise FlinkError(
                f"the replay needs {settings.parallelism} free slots beside the running job, there are {free}: "
                "add TaskManagers (local profile: headrace up --taskmanagers N)"
            )

    def _partitions(self) -> int:
        return len(self._ends())

    def _ends(self) -> dict[int, int]:
        return end_offsets(self._kafka, self._target.settings.events_topic)

    def _left(self, group: str, ends: Mapping[int, int]) -> int:
        done = committed_offsets(self._kafka, group, self._target.settings.events_topic)
        return sum(max(0, end - done.get(partition, 0)) for partition, end in ends.items())


def end_offsets(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """Where each partition of a topic ends now. Raises KafkaUnavailableError."""
    try:
        consumer = KafkaConsumer(**kafka.client_options(), bootstrap_timeout_ms=10_000)
        try:
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            return {at.partition: end for at, end in consumer.end_offsets(partitions).items()}
        finally:
            consumer.close()
    except KafkaError as error:
        raise KafkaUnavailableError(f"{topic} at {kafka.servers}: {error}") from error


def committed_offsets(kafka: KafkaSettings, group: str, topic: str) -> dict[int, int]:
    """How far a consumer group has come in each partition of a topic: a job's, as of its last checkpoint."""
    with admin_of(kafka) as admin:
        try:
            found = admin.list_group_offsets({group: None})[group]
        except (CoordinatorNotAvailableError, NotCoordinatorError):
            # The broker has just begun to keep offsets, or moves them: nobody has committed here yet.
            return {}
    return {at.partition: offset.offset for at, offset in found.items() if at.topic == topic and offset.offset >= 0}
