"""Uids of operators: contracts, because state in a savepoint is found by them. tests/contract holds them.

Never change one; a new meaning is a new uid.
"""

from enum import Enum
from typing import Final

ADMISSION_JOB: Final = "headrace-admission"
INGEST_JOB: Final = "headrace-ingest"


def job_name(job: str, generation: int) -> str:
    """Flink's name of a job that writes a generation.

    >>> job_name("admission", 1), job_name("admission", 2)
    ('headrace-admission', 'headrace-admission-g2')
    """
    return f"headrace-{job}" if generation == 1 else f"headrace-{job}-g{generation}"


class Uid(str, Enum):
    """One for each operator of every job."""

    EVENTS_SOURCE = "events-source"
    BLOCKS = "file-blocks"
    READ_BLOCKS = "read-blocks"
    LIMITER = "limiter"
    DECISIONS = "decisions-sink"
    DEAD_LETTERS = "dead-letters-sink"
    COUNTS = "counts-sink"
    UNREAD = "unread-sink"
    FOREIGN_SOURCE = "foreign-source"
    """Followed by the name of the source."""
    HEARTBEATS = "heartbeats-source"
    STAMPING = "stamping"
    EVENTS = "events-sink"
    FOREIGN_DEAD_LETTERS = "foreign-dead-letters-sink"
