"""What a file is, and what is wrong with it: each format is tried, and the one that reads most of it wins."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from jobs.wiring.foreign_files import (
    ForeignFile,
    ForeignFileError,
    Reader,
    reader_of_format,
    reader_of_shipped,
    shipped_mappings,
)
from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Origin, read_foreign

TRIED_RECORDS: Final = 200
"""So many tell what a file is; then all of it is read."""

MOST_TRIED_RECORDS: Final = 5_000
"""Where the first ones lead to no event; a log may begin with what is none."""

MAX_FINDINGS: Final = 20
NO_TENANT: Final = "\N{NULL}"
"""Stands in for the tenant of records that name none, and is no tenant of anybody's."""

_SHOWN_NAMES: Final = 12


class Finding(msgspec.Struct, frozen=True):
    """One kind of fault: how often, where first, and what the adapter says of it."""

    count: int
    line: int
    reason: str
    detail: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `format` is empty where no format reads the file; then `looks_like` says what it looks like."""

    file: str
    format: str = ""
    looks_like: str = ""
    records: int = 0
    readable: int = 0
    events: int = 0
    without_tenant: int = 0
    passed_over: dict[str, int] = {}
    findings: tuple[Finding, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether all of the file can be read, given a tenant."""
        return bool(self.format) and not self.findings


def readers() -> Iterator[Reader]:
    """Of every format and every mapping that is shipped."""
    for known in FORMATS.values():
        yield reader_of_format(known)
    yield from map(reader_of_shipped, shipped_mappings())


def diagnose(path: Path) -> Diagnosis:
    """Find out what a file is, and read all of it. Raises ForeignFileError where it can't be opened."""
    best, best_score = None, (0, 0)
    for reader in readers():
        score = _tried(reader, path)
        if score > best_score:
            best, best_score = reader, score
    if best is None:
        return Diagnosis(file=str(path), looks_like=_look_of(path))
    return _examined(best, path)


def _tried(reader: Reader, path: Path) -> tuple[int, int]:
    """How many of the first records lead to events, less those that are refused; and how many events."""
    readable = refused = events = 0
    try:
        # Where a time is missing, that is one fault among others, and not the reason that nothing is read.
        for number, placed in enumerate(reader.records(ForeignFile(path, received_at_us=1)), start=1):
            reading = read_foreign(reader.adapter, placed.record, _TRIED)
            readable += bool(reading.events or (reader.refuses_others and reading.passed_over))
            refused += bool(reading.refused)
            events += len(reading.events)
            if number >= TRIED_RECORDS and (events or number >= MOST_TRIED_RECORDS):
                break
    except ForeignFileError:
        # The columns are not those of the mapping.
        return 0, 0
    return max(readable - refused, int(readable > 0)), events


_TRIED: Final = Origin(source="doctor", tenant=NO_TENANT, backend=NO_TENANT)
"""All that a record may leave to the command line is given, so that its form alone is judged."""

_ORIGIN: Final = Origin(source="doctor", tenant=NO_TENANT)


def _examined(reader: Reader, path: Path) -> Diagnosis:
    records = readable = events = without_tenant = 0
    passed_over: Counter[str] = Counter()
    kinds: dict[tuple[str, str], list[int]] = {}
    details: dict[tuple[str, str], str] = {}
    for placed in reader.records(ForeignFile(path)):
        records += 1
        reading = read_foreign(reader.adapter, placed.record, _ORIGIN)
        readable += not reading.refused
        events += len(reading.events)
        without_tenant += any(event.tenant == NO_TENANT for event in reading.events)
        passed_over.update(reading.passed_over)
        for refused in reading.refused:
            kind = (refused.reason.name.lower(), _without_values(refused.detail))
            if kind in kinds:
                kinds[kind][0] += refused.parts
            elif len(kinds) < MAX_FINDINGS:
                kinds[kind] = [refused.parts, placed.line]
                details[kind] = refused.detail
            else:
                other = kinds.setdefault(_OTHERS, [0, placed.line])
                other[0] += refused.parts
    details[_OTHERS] = "other faults"
    found = [Finding(number, line, kind[0], details[kind]) for kind, (number, line) in kinds.items()]
    return Diagnosis(
        file=str(path),
        format=reader.name,
        records=records,
        readable=readable,
        events=events,
        without_tenant=without_tenant,
        passed_over=dict(passed_over),
        findings=tuple(sorted(found, key=lambda it: -it.count)),
    )


_OTHERS: Final = (DeadLetterReason.MALFORMED.name.lower(), "others")


def _without_values(detail: str) -> str:
    """What a detail says without the value that it quotes, so that a thousand bad counts are one finding."""
    return " ".join(word for word in detail.split() if not any(letter.isdigit() or letter in "'\"" for letter in word))


def _look_of(path: Path) -> str:
    """What somebody who opens the file would say."""
    lines = list(islice(_first_lines(path), 3))
    if not lines:
        return "it is empty"
    try:
        found = msgspec.json.decode(lines[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _look_of_text(lines)
    if isinstance(found, list):
        found = next((it for it in found if isinstance(it, dict)), None)
    if isinstance(found, dict):
        return f"JSON, objects with {_names(found)}"
    return "JSON, and no objects in it"


def _look_of_text(lines: list[bytes]) -> str:
    try:
        header = lines[0].decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return "it is neither text nor a format known here"
    for delimiter in (",", "\t", ";"):
        if delimiter in header and all(line.count(delimiter.encode()) for line in lines):
            return f"CSV with the columns {_names(header.split(delimiter))}"
    return "text of no format known here"


def _first_lines(path: Path) -> Iterator[bytes]:
    per_line = next(known for known in FORMATS.values() if known.per_line)
    return (placed.record.value for placed in ForeignFile(path).records(per_line))


def _names(found: Iterable[str]) -> str:
    names = list(found)
    shown = ", ".join(name.strip()[:40] for name in names[:_SHOWN_NAMES])
    return f"{shown} and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown
