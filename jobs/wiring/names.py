"""Uids of operators: contracts, because state in a savepoint is found by them. tests/contract holds them.

Never change one; a new meaning is a new uid.
"""

from enum import Enum
from typing import Final

ADMISSION_JOB: Final = "headrace-admission"


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
