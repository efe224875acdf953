"""Which generation of decisions holds, and how the next one comes to hold. No I/O.

A rollback proposes a candidate, replays the log into it, and then it is promoted or aborted. Each step is one record
of the topic `headrace.generations`, so a crash at any point leaves the last step on record, and the same command goes
on from there.

    (none) -> PREPARED -> REPLAYING -> PROMOTING -> (none): the candidate holds
              PREPARED or REPLAYING -> ABORTING  -> (none): all is as it was before
"""

from enum import Enum
from typing import Final

import msgspec


class Phase(str, Enum):
    """Where a candidate stands."""

    PREPARED = "prepared"
    REPLAYING = "replaying"
    PROMOTING = "promoting"
    ABORTING = "aborting"


class GenerationError(RuntimeError):
    """A step that can't be taken from where the generations stand."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that is being replayed. No `restored_from`: from nothing; `policies`: the text of its policy file.

    Nothing else of its settings: gateways read this record, and settings may hold a password. `job_id`: of its Flink
    job, chosen before that is submitted, so Flink refuses a second one, and no other rollback has an equal record.
    """

    generation: int
    phase: Phase
    restored_from: str | None
    policies: str | None
    job_id: str | None = None


class Generations(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one job's generations.

    `lineage`: those that were promoted, in order; each holds from the first record that it decided, shard by shard, and
    the one before it up to there. `newest`: the highest number that was ever used. `jobs`: the generation that each
    Flink job writes, by job id, aborted ones too: snapshots lie below that id. Those of generation 1 are not on record.
    """

    lineage: tuple[int, ...] = (1,)
    newest: int = 1
    candidate: Candidate | None = None
    jobs: dict[str, int] = {}

    @property
    def live(self) -> int:
        """The generation that holds now."""
        return self.lineage[-1]

    @property
    def is_promoting(self) -> bool:
        """Whether a promotion was begun and is not at its end: the old job may still run, and settings name it."""
        return self.candidate is not None and self.candidate.phase is Phase.PROMOTING


_FROM: Final = {
    Phase.REPLAYING: (Phase.PREPARED, Phase.REPLAYING),
    Phase.PROMOTING: (Phase.REPLAYING, Phase.PROMOTING),
    Phase.ABORTING: (Phase.PREPARED, Phase.REPLAYING, Phase.ABORTING),
}
"""From which phases each one is reached; again from itself, as a crash may have come in between."""


def propose(now: Generations, restored_from: str | None, policies: str | None, job_id: str) -> Generations:
    """Begin a rollback. Raises GenerationError while another one is on its way.

    >>> begun = propose(Generations(), "file:///savepoints/1", "version: 1", "6f1c")
    >>> begun.candidate.generation, begun.live, begun.jobs
    (2, 1, {'6f1c': 2})
    """
    if now.candidate is not None:
        raise GenerationError(
            f"a rollback to generation {now.candidate.generation} is on its way ({now.candidate.phase.value}): "
            "go on with it without --to, or promote or abort it first"
        )
    number = now.newest + 1
    candidate = Candidate(
        generation=number, phase=Phase.PREPARED, restored_from=restored_from, policies=policies, job_id=job_id
    )
    proposed = msgspec.structs.replace(now, newest=number, candidate=candidate)
    return with_job(proposed, number, job_id)


def with_job(now: Generations, generation: int, job_id: str) -> Generations:
    """Put the id of a job that will write a generation on record, before it is submitted."""
    return msgspec.structs.replace(now, jobs={**now.jobs, job_id: generation})


def to_phase(now: Generations, phase: Phase, job_id: str | None = None) -> Generations:
    """Take the candidate to a phase. Raises GenerationError where there is none, or it can't go there."""
    candidate = require_candidate(now)
    if candidate.phase not in _FROM[phase]:
        raise GenerationError(
            f"generation {candidate.generation} is {candidate.phase.value}, it can't be {phase.value}"
        )
    if job_id is not None:
        now = with_job(now, candidate.generation, job_id)
    moved = msgspec.structs.replace(candidate, phase=phase, job_id=job_id or candidate.job_id)
    lineage = now.lineage
    if phase is Phase.PROMOTING and now.live != candidate.generation:
        lineage = (*lineage, candidate.generation)
    return msgspec.structs.replace(now, candidate=moved, lineage=lineage)


def finish(now: Generations) -> Generations:
    """The candidate was promoted or aborted for good. Raises GenerationError."""
    candidate = require_candidate(now)
    if candidate.phase not in (Phase.PROMOTING, Phase.ABORTING):
        raise GenerationError(f"generation {candidate.generation} is {candidate.phase.value}, that is not its end")
    return msgspec.structs.replace(now, candidate=None)


def require_candidate(now: Generations) -> Candidate:
    """The candidate. Raises GenerationError where there is none."""
    if now.candidate is None:
        raise GenerationError(f"no rollback is on its way; generation {now.live} holds")
    return now.candidate
