"""Which Flink jobs and snapshots belong to which generation of decisions."""

from collections.abc import Iterable, Mapping
from typing import Final

from jobs.ops.generations import Generations
from jobs.ops.snapshots import Snapshot
from jobs.wiring.flink_rest import Job
from jobs.wiring.names import job_name

_OF_ANOTHER: Final = 0
"""In place of a generation: the job is not ours."""


def generation_of(name: str, job: str) -> int | None:
    """The generation that a Flink job of this name writes, None for other jobs.

    >>> [generation_of(it, "admission") for it in ("headrace-admission", "headrace-admission-g7", "headrace-ingest")]
    [1, 7, None]
    """
    number = name.rpartition("-g")[2] if name != job_name(job, 1) else "1"
    if not (number.isascii() and number.isdigit()) or name != job_name(job, int(number)):
        return None
    return int(number)


def is_stray(name: str, job: str, generations: Generations) -> bool:
    """Whether a Flink job of this name writes a generation that neither holds nor is being replayed.

    >>> [is_stray(it, "admission", Generations()) for it in ("headrace-admission", "headrace-admission-g7", "other")]
    [False, True, False]
    """
    candidate = generations.candidate
    used = {generations.live, candidate.generation if candidate is not None else generations.live}
    return generation_of(name, job) not in (None, *used)


def strays(jobs: Iterable[Job], job: str, generations: Generations) -> list[Job]:
    """Jobs that run and are strays."""
    return [it for it in jobs if not it.is_over and is_stray(it.name, job, generations)]


def generations_by_job(known: Iterable[Job], job: str, generations: Generations) -> dict[str, int]:
    """The generation that each Flink job writes, by job id: as Flink knows them by name, and as on record."""
    named = {it.id: generation_of(it.name, job) or _OF_ANOTHER for it in known}
    candidate = generations.candidate
    of_candidate = {candidate.job_id: candidate.generation} if candidate is not None and candidate.job_id else {}
    return {**named, **of_candidate, **generations.jobs}


def of_live(found: Iterable[Snapshot], generations: Generations, by_job: Mapping[str, int]) -> list[Snapshot]:
    """Those that the generation that holds has taken itself; in doubt a snapshot is none of them.

    A job of a later generation is on record before it is submitted, so what is of no job that is known is generation 1.
    """
    return [it for it in found if _generation(it, generations, by_job) == generations.live]


def _generation(snapshot: Snapshot, generations: Generations, by_job: Mapping[str, int]) -> int | None:
    prefix = snapshot.job_prefix
    if prefix is None:
        # Somebody gave the folder a name: it can only be told while there was never a second generation.
        return 1 if generations.newest == 1 else None
    owners = {generation for job_id, generation in by_job.items() if job_id.startswith(prefix)}
    if len(owners) > 1:
        return None
    return owners.pop() if owners else 1
