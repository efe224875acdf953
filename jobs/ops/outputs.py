"""What a run leaves behind for people: decisions, dead letters, summary and report."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from jobs.ops.report import Origin, render
from jobs.ops.report_run import COUNTER_MEANINGS
from jobs.ops.summary import RunSummary
from jobs.wiring.atomic_file import replacing
from jobs.wiring.decision_files import write_decisions
from jobs.wiring.environment import Folders
from schemas.dead_letters import DeadLetter
from schemas.decision_codec import decode_dead_letter, decode_decisions
from schemas.decisions import Decision
from udfs.domain.anomaly import Anomaly

ODD_COUNTS = frozenset((*(anomaly.value for anomaly in Anomaly), *COUNTER_MEANINGS))
"""Counters that speak of odd input, as opposed to how much there was."""


class Outputs(NamedTuple):
    """Files of a run."""

    decisions: Path
    dead_letters: Path
    summary: Path
    report: Path

    @classmethod
    def below(cls, output: Path, decisions_format: str) -> "Outputs":
        """Where they are in the run's folder."""
        return cls(
            output / f"decisions.{decisions_format}",
            output / "dead-letters.jsonl",
            output / "summary.json",
            output / "report.html",
        )


def decisions_of(folders: Folders) -> Iterator[Decision]:
    """The decisions that the job has committed."""
    from jobs.wiring.file_io import written_records

    for record in written_records(folders.decisions):
        yield from decode_decisions(record)


def dead_letters_of(folders: Folders) -> Iterator[DeadLetter]:
    """What could not be read from the files, and what could not be decided."""
    from jobs.wiring.file_io import written_records

    for folder in (folders.unread, folders.dead_letters):
        yield from map(decode_dead_letter, written_records(folder))


def write_decision_file(folders: Folders, path: Path) -> int:
    """Bring the committed decisions into one file; returns how many."""
    from jobs.wiring.file_io import written_records

    return write_decisions(path, written_records(folders.decisions))


@contextmanager
def dead_letters_to(path: Path) -> Iterator[Callable[[DeadLetter], None]]:
    """Write one JSON object a line for each letter that is given, payload in base64. Without any there is no file."""
    path.unlink(missing_ok=True)
    with ExitStack() as closing:
        out: list[BinaryIO] = []

        def write(letter: DeadLetter) -> None:
            if not out:
                out.append(closing.enter_context(replacing(path)))
            fields = {**msgspec.structs.asdict(letter), "reason": letter.reason.name.lower()}
            out[0].write(msgspec.json.encode(fields) + b"\n")

        yield write


def write_dead_letters(letters: Iterable[DeadLetter], path: Path) -> Counter[str]:
    """Write them all, see `dead_letters_to`; counts them by reason."""
    counts: Counter[str] = Counter()
    with dead_letters_to(path) as write:
        for letter in letters:
            counts[letter.reason.name.lower()] += 1
            write(letter)
    return counts


def write_summary(summary: RunSummary, path: Path) -> None:
    """Write the summary as JSON."""
    with replacing(path) as out:
        out.write(msgspec.json.format(msgspec.json.encode(summary)))


def write_report(summary: RunSummary, origin: Origin, path: Path) -> None:
    """Write the report, one HTML file that needs nothing else."""
    with replacing(path) as out:
        out.write(render(summary, origin).encode())
