"""What a fold noticed and did not decide: a typed output, counted by the operator, never in the log."""

from enum import Enum


class Anomaly(Enum):
    """Kinds of odd input. The values are metric names and thereby contracts."""

    DUPLICATE = "duplicate"
    """An event seen before, or a chunk overtaken by a later one."""
    EARLY_TOKENS = "early_tokens"
    """Tokens of a request whose prompt has not come yet."""
    AFTER_END = "after_end"
    """An event of a request that is settled."""
    VOID = "void"
    """In a recording, an event of a request that these limits would have refused or cut."""
    UNKNOWN_REQUEST = "unknown_request"
    """The end of a request that was never seen."""
    IMPLAUSIBLE_COUNT = "implausible_count"
    """A negative or absurdly large token count."""
    RESUMED = "resumed"
    """A request that was settled for its silence spoke again."""
    OVERDRAWN = "overdrawn"
    """Tokens were generated beyond what was granted."""
    WRITTEN_OFF = "written_off"
    """Overdrawn tokens beyond what a limit carries as debt."""
    SUBJECTS_FULL = "subjects_full"
    """Too many keys, users or models at once: the newest share one meter."""
    LATE = "late"
    """An event behind its source's watermark, stamped and passed on all the same."""
    UNCHECKED = "unchecked"
    """An event older than the ids that are remembered: it may be a duplicate, and passed on."""
