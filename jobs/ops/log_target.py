"""Where a log is written, and its dead letters beside it: never over what is read."""

from collections.abc import Iterable
from pathlib import Path

from jobs.wiring.file_log import EventFileError


def log_target(to: Path, inputs: Iterable[Path]) -> Path:
    """Where the dead letters of the log `to` go. Raises EventFileError where either would be written over an input."""
    aside = to.with_name(f"{to.name}.dead-letters.jsonl")
    for target in (to, aside):
        if any(target.exists() and path.exists() and target.samefile(path) for path in inputs):
            what = "" if target is to else f", and dead letters of {to} go there"
            raise EventFileError(f"{target}: is among the files to read{what}; name another log to write")
    return aside
