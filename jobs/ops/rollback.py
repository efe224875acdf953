"""A rollback: replay the log from a snapshot into a new generation of decisions, compare, then promote or abort.

Every step can be taken again: what is on record in `headrace.generations` says where a crash came in between.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import yaml
from kafka.errors import UnknownTopicOrPartitionError

from jobs.ops.diff import DecisionDiff, diff_decisions
from jobs.ops.effective import batches, decisions_between, effective_batches, first_decided
from jobs.ops.generation_jobs import strays
from jobs.ops.generation_topic import MOVED, move, read_generations
from jobs.ops.generations import (
    Candidate,
    GenerationError,
    Generations,
    Phase,
    finish,
    propose,
    require_candidate,
    to_phase,
)
from jobs.ops.snapshots import delete_checkpoints, require_complete
from jobs.ops.submission_lock import submission_lock
from jobs.ops.submit import SubmitError, new_job_id, submit
from jobs.ops.target import Target, name_of
from jobs.wiring.atomic_file import replacing
from jobs.wiring.flink_rest import Flink, FlinkError, Job, location_of
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.kafka_offsets import committed_offsets, end_offsets
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import admin_of, create_topic
from jobs.wiring.settings import AdmissionSettings, load_settings
from jobs.wiring.topic_catalog import CATALOG, decisions_topic
from schemas.topics import Topic

Tell: TypeAlias = Callable[[str], None]
Share: TypeAlias = Callable[[float], None]
POLL_S: Final = 1.0
SLOTS_WAIT_S: Final = 5.0
"""A job that has just ended gives its slots back a moment later."""


class Rollback:
    """The rollback of one job. `tell` is told of each step that is done."""

    def __init__(self, target: Target, job: str, tell: Tell) -> None:
        self._target = target
        self._job = job
        self._tell = tell
        self._kafka = target.settings.kafka
        self.generations = read_generations(self._kafka, job)

    # --- beginning -----------------------------------------------------------------------------------------------

    def begin(self, snapshot: str | None, policies: str | None) -> None:
        """Propose the next generation, from a snapshot, or from the beginning of the log where it is None.

        `policies`: the text of a policy file; None: those in force. Raises GenerationError; and, before anything is on
        record, SnapshotError where there is no such snapshot, FlinkError where slots are missing.
        """
        if snapshot is not None and self._target.settings.delivery == "exactly-once":
            raise GenerationError(
                "with delivery exactly-once a job that starts from a snapshot aborts the open transactions of the job "
                "that the snapshot is of, which still runs: --to beginning, or delivery at-least-once"
            )
        if policies is None and self._target.settings.policies is not None:
            # What is replayed must not depend on what becomes of the file.
            policies = self._target.settings.policies.read_text(encoding="utf-8")
        restored_from = snapshot and location_of(snapshot)
        proposed = propose(self.generations, restored_from, policies, new_job_id())
        if restored_from is not None:
            require_complete(restored_from)
        with submission_lock(self._target.settings_file, self._tell):
            self._end_strays()
            self._require_slots(self._target.settings)
        self._record(proposed)

    def replay(self) -> None:
        """Have the candidate's topic and job, however far an earlier try came. Raises FlinkError."""
        candidate = self.candidate
        flink = self._target.flink
        with submission_lock(self._target.settings_file, self._tell) as lock:
            self._end_strays()
            running = self._running(candidate)
            if running is None and (candidate.phase is Phase.REPLAYING or _knows(flink, candidate.job_id)):
                # To start it again would write what it decided once more, perhaps otherwise, under the same ids.
                why = (
                    flink.last_failure(str(candidate.job_id)) if _knows(flink, candidate.job_id) else "Flink forgot it"
                )
                name = self._name(candidate)
                raise FlinkError(f"{name} runs no more ({why}): --abort, mend it, and begin the rollback again")
            if candidate.phase is Phase.REPLAYING:
                return
            job_id = self._submit(candidate, lock) if running is None else running.id
        if running is not None:
            self._tell(f"{running.name}: runs already ({job_id})")
        try:
            self._record(to_phase(self.generations, Phase.REPLAYING, job_id))
        except GenerationError:
            # Who wrote the record last has another job: that one replays, and ours would write into the same topic.
            if job_id != _job_on_record(self._kafka, self._job):
                flink.cancel(job_id)
            raise
        flink.await_running(job_id, timeout_s=120)

    def _submit(self, candidate: Candidate, lock: int | None) -> str:
        settings_file = self._write_settings(candidate)
        settings = load_settings(settings_file)
        self._require_slots(settings)
        spec = CATALOG[Topic.DECISIONS]
        topic = decisions_topic(candidate.generation)
        create_topic(self._kafka, topic, len(self._ends()), spec.options, replication=-1)
        # What another has put on record meanwhile is what holds; ours must not be submitted beside it.
        if read_generations(self._kafka, self._job) != self.generations:
            raise GenerationError(MOVED)
        try:
            job_id = submit(
                self._job,
                settings_file,
                self._target.environment,
                candidate.restored_from,
                parallelism=settings.parallelism,
                rest=self._target.rest_options,
                job_id=candidate.job_id,
                lock=lock,
            )
        except SubmitError as error:
            # Another machine was faster: a job of this id is refused where there is one.
            running = self._running(candidate)
            if running is None:
                raise SubmitError(f"{error}\n{self._way_on}") from error
            return running.id
        self._tell(f"{self._name(candidate)}: submitted ({job_id})")
        return job_id

    def catch_up(self, share: Share, timeout_s: float) -> dict[int, int]:
        """Wait until the candidate has decided all that the log holds now; returns its ends by partition."""
        ends = self._ends()
        group = self._target.settings.model_copy(update={"generation": self.candidate.generation}).consumer_group
        deadline = time.monotonic() + timeout_s
        before = -1
        while (left := self._left(group, ends)) > 0:
            # Marks of transactions and what retention took are counted too, and nobody can read them.
            if left == before and not self._is_readable(group, ends):
                break
            before = left
            share(1 - left / max(sum(ends.values()), 1))
            if time.monotonic() > deadline:
                raise FlinkError(
                    f"the replay is {left:,} records behind after {timeout_s:.0f} s; it goes on, ask again"
                )
            state = self._target.flink.state(str(self.candidate.job_id))
            if state not in ("RUNNING", "RESTARTING", "INITIALIZING", "CREATED"):
                why = self._target.flink.last_failure(str(self.candidate.job_id))
                raise FlinkError(f"the replay is {state}: {why}; --abort, mend it, and begin the rollback again")
            time.sleep(POLL_S)
        return ends

    def compare(self, ends: Mapping[int, int], examples: int = 3, ignore: Collection[str] = ()) -> DecisionDiff:
        """What the candidate decides otherwise than what holds, from its snapshot up to `ends`.

        `ignore`: fields that may differ.
        """
        topic = decisions_topic(self.candidate.generation)
        starts = first_decided(batches(self._kafka, topic))
        return diff_decisions(
            decisions_between(effective_batches(self._kafka, self.generations.lineage), starts, ends),
            decisions_between(batches(self._kafka, topic), starts, ends),
            ignore=ignore,
            examples=examples,
        )

    # --- ending --------------------------------------------------------------------------------------------------

    def promote(self) -> None:
        """Let the candidate hold: the record first, then the old job ends, so there is no time without decisions.

        Raises FlinkError, and nothing changes, unless the candidate runs.
        """
        candidate = self.candidate
        flink = self._target.flink
        if candidate.phase is not Phase.PROMOTING:
            running = self._running(candidate)
            if running is None:
                raise FlinkError(f"{self._name(candidate)} does not run at {flink.url}: --abort, and begin again")
            flink.await_running(running.id, timeout_s=60)
            self._record(to_phase(self.generations, Phase.PROMOTING))
        self._tell(f"generation {self.generations.live} holds")
        self._write_settings(candidate).replace(self._target.settings_file)
        with submission_lock(self._target.settings_file, self._tell):
            self._end_strays()
            runs = bool(self._jobs(candidate))
        self._record(finish(self.generations))
        if not runs:
            self._tell(f"{self._name(candidate)} does not run: headrace restore {self._job} --from latest")

    def abort(self) -> None:
        """Leave everything as it was: end the candidate's job and delete its topic."""
        candidate = self.candidate
        self._record(to_phase(self.generations, Phase.ABORTING))
        # A `flink run` whose command was killed has its job running only when it has ended.
        with submission_lock(self._target.settings_file, self._tell):
            self._end_strays()
            ended = self._jobs(candidate)
            for job in ended:
                self._target.flink.cancel(job.id)
                self._tell(f"{job.name}: ended")
        topic = decisions_topic(candidate.generation)
        with admin_of(self._kafka) as admin, suppress(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])
        # Nobody may go on from what was taken back.
        on_record = {job_id for job_id, number in self.generations.jobs.items() if number == candidate.generation}
        delete_checkpoints(
            self._target.snapshot_folders, {*on_record, *(job.id for job in ended), candidate.job_id or ""}
        )
        self._tell(f"{topic}: deleted; generation {self.generations.live} holds as before")
        self._record(finish(self.generations))

    # --- helpers -------------------------------------------------------------------------------------------------

    @property
    def candidate(self) -> Candidate:
        """The candidate. Raises GenerationError where there is none."""
        return require_candidate(self.generations)

    def _record(self, generations: Generations) -> None:
        move(self._kafka, self._job, self.generations, generations)
        self.generations = generations

    def _name(self, candidate: Candidate) -> str:
        return name_of(self._job, candidate.generation)

    def _jobs(self, candidate: Candidate) -> list[Job]:
        """All jobs of the candidate that are not over; there should be one at most."""
        name = self._name(candidate)
        return [job for job in self._target.flink.jobs() if job.name == name and not job.is_over]

    def _running(self, candidate: Candidate) -> Job | None:
        """The candidate's job. Raises FlinkError where there is another one: it writes into the same topic."""
        found = self._jobs(candidate)
        own = candidate.job_id or next((job.id for job in found), None)
        if any(job.id != own for job in found):
            raise FlinkError(
                f"{self._name(candidate)} runs as {', '.join(job.id for job in found)}, and this rollback's job is "
                f"{own}: headrace rollback {self._job} --abort ends them all, then begin again"
            )
        return found[0] if found else None

    def _end_strays(self) -> None:
        """End jobs whose generation is out of use: they take slots, and decide what nobody may go on from."""
        for job in strays(self._target.flink.jobs(), self._job, self.generations):
            self._target.flink.cancel(job.id)
            self._tell(f"{job.name}: ended; its last checkpoint stays")

    @property
    def _way_on(self) -> str:
        return f"headrace rollback {self._job} tries it again; headrace rollback {self._job} --abort, then begin again"

    def _write_settings(self, candidate: Candidate) -> Path:
        """The job's settings as they are now, but for what the candidate has of its own; for its owner alone."""
        settings = yaml.safe_load(self._target.settings_file.read_text(encoding="utf-8")) or {}
        settings["generation"] = candidate.generation
        folder = self._target.settings_file.resolve().parent
        if candidate.policies is not None:
            policies = folder / f"policies-g{candidate.generation}.yaml"
            with replacing(policies) as out:
                out.write(candidate.policies.encode())
            settings["policies"] = str(policies)
        path = folder / f"headrace-g{candidate.generation}.yaml"
        with replacing(path) as out:
            os.fchmod(out.fileno(), 0o600)
            out.write(yaml.safe_dump(settings).encode())
        return path

    def _require_slots(self, settings: AdmissionSettings) -> None:
        deadline = time.monotonic() + SLOTS_WAIT_S
        while (free := self._target.flink.overview()["slots-available"]) < settings.parallelism:
            if time.monotonic() < deadline:
                time.sleep(POLL_S)
                continue
            raise FlinkError(
                f"the replay needs {settings.parallelism} free slots beside the running job, there are {free}: "
                "add TaskManagers (local profile: headrace up --taskmanagers N), then try again"
            )

    def _ends(self) -> dict[int, int]:
        return end_offsets(self._kafka, self._target.settings.events_topic)

    def _left(self, group: str, ends: Mapping[int, int]) -> int:
        done = committed_offsets(self._kafka, group, self._target.settings.events_topic)
        return sum(max(0, end - done.get(partition, 0)) for partition, end in ends.items())

    def _is_readable(self, group: str, ends: Mapping[int, int]) -> bool:
        """Whether any record that a job would see stands between where the group is and these ends."""
        topic = self._target.settings.events_topic
        done = committed_offsets(self._kafka, group, topic)
        with TopicReader(self._kafka, topic) as reader:
            left = [
                it._replace(start=max(it.oldest, done.get(it.partition, 0)), end=ends[it.partition])
                for it in reader.slices()
                if done.get(it.partition, 0) < ends.get(it.partition, 0)
            ]
            return next(iter(reader.records(left)), None) is not None


def _job_on_record(kafka: KafkaSettings, job: str) -> str | None:
    candidate = read_generations(kafka, job).candidate
    return candidate.job_id if candidate is not None else None


def _knows(flink: Flink, job_id: str | None) -> bool:
    return any(job.id == job_id for job in flink.jobs())
