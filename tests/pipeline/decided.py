"""What was decided of a log, in process and by a job, in a form that can be compared."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from jobs.ops.outputs import decisions_of
from jobs.wiring.environment import Folders
from jobs.wiring.file_log import BlockReader, plan_files
from schemas.dead_letters import DeadLetter, Position
from schemas.decisions import Decision
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold


def in_process(paths: Iterable[Path], policies: Iterable[LimiterPolicy]) -> tuple[list[Decision], list[DeadLetter]]:
    """Decisions, and dead letters of reading and deciding, without Flink."""
    fold = InProcessFold(LimiterFold(), PolicyLog(policies))
    decisions: list[Decision] = []
    dead: list[DeadLetter] = []
    with BlockReader() as reader:
        for block in plan_files(paths):
            read = reader.read(block)
            dead += read.dead
            for shard, record, offset in read.batches:
                result = fold.process(shard, record, Position(str(block.path), 0, offset))
                decisions += result.outputs
                dead += result.dead
    return decisions, dead


def by_job(output: Path) -> list[Decision]:
    """Decisions that a job has committed below `output`."""
    return list(decisions_of(Folders.below(output)))


def as_set(decisions: Iterable[Decision]) -> Counter[Decision]:
    """Decisions without their order; one that was written twice counts twice."""
    return Counter(decisions)
