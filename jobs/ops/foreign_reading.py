"""Files of foreign records as events, with an account of everything in them."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from jobs.ops.lateness import LatenessWatch
from jobs.wiring.foreign_files import ForeignFile, Reader
from schemas.dead_letters import DeadLetter, Position, dead_letter
from schemas.events import Event, PromptSubmitted, RequestCompleted, RequestFailed, StreamInterrupted
from udfs.domain.events.duplicates import DuplicateBounds, SeenIds, Verdict
from udfs.domain.ingest.record import Origin, read_foreign

BOUNDS = DuplicateBounds(max_ids=2_000_000)
"""Within one run duplicates are known as far back as memory reaches: 300 MB."""

NO_CLOCK_US = 0
"""Files are read as they are: one record with a wrong time must not make the filter forget all others."""


class Account(msgspec.Struct):
    """What came of all records. Tokens are those of the requests' ends, and of the prompts of interrupted ones."""

    records: int = 0
    events: int = 0
    requests: int = 0
    completed: int = 0
    failed: int = 0
    interrupted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    duplicates: int = 0
    unchecked: int = 0
    late: int = 0
    passed_over: Counter[str] = msgspec.field(default_factory=Counter)
    refused: Counter[str] = msgspec.field(default_factory=Counter)

    def count(self, event: Event, prompt: PromptSubmitted | None) -> None:
        """Count an event that is written; `prompt` is the last one before it."""
        self.events += 1
        if isinstance(event, PromptSubmitted):
            self.requests += 1
        elif isinstance(event, RequestCompleted):
            self.completed += 1
            self.prompt_tokens += event.prompt_tokens
            self.completion_tokens += event.completion_tokens
        elif isinstance(event, RequestFailed):
            self.failed += 1
            self.prompt_tokens += event.prompt_tokens
            self.completion_tokens += event.completion_tokens
        elif isinstance(event, StreamInterrupted):
            self.interrupted += 1
            if prompt is not None and (prompt.tenant, prompt.request_id, prompt.attempt) == (
                event.tenant,
                event.request_id,
                event.attempt,
            ):
                self.prompt_tokens += prompt.prompt_tokens
            self.completion_tokens += event.token_offset


class ForeignReading:
    """Reads files one after the other. The account is complete once `events` has ended."""

    def __init__(self, reader: Reader, origin: Origin, put_aside: Callable[[DeadLetter], None]) -> None:
        """`put_aside` gets each dead letter as it is found."""
        self._put_aside = put_aside
        self._reader = reader
        self._origin = origin
        self._watch = LatenessWatch()
        self._seen = SeenIds()
        self.account = Account()

    def events(self, files: Iterable[ForeignFile], tell: Callable[[int], None] = lambda _: None) -> Iterator[Event]:
        """Events in the order of their records, each once, with watermarks and heartbeats between them.

        `tell` is told how many bytes of the files have been read.
        """
        yield from self._watch.with_heartbeats(self._once(files, tell))
        self.account.late = sum(source.late_events for source in self._watch.statistics())

    def _once(self, files: Iterable[ForeignFile], tell: Callable[[int], None]) -> Iterator[Event]:
        prompt = None
        for event in self._read(files, tell):
            verdict = self._seen.check(event.event_id, event.event_time_us, NO_CLOCK_US, BOUNDS)
            if verdict is Verdict.DUPLICATE:
                self.account.duplicates += 1
                continue
            if verdict is Verdict.UNCHECKED:
                self.account.unchecked += 1
            if isinstance(event, PromptSubmitted):
                prompt = event
            self.account.count(event, prompt)
            yield event

    def _read(self, files: Iterable[ForeignFile], tell: Callable[[int], None]) -> Iterator[Event]:
        before = 0
        for file in files:
            for placed in self._reader.records(file):
                self.account.records += 1
                reading = read_foreign(self._reader.adapter, placed.record, self._origin)
                self.account.passed_over.update(reading.passed_over)
                # A name need not be text.
                where = Position(os.fsencode(file.path).decode("utf-8", "replace"), 0, placed.offset)
                for refused in reading.refused:
                    payload = refused.payload or placed.record.value
                    detail = f"line {placed.line}: {refused.detail}"
                    self.account.refused[refused.reason.name.lower()] += refused.parts
                    self._put_aside(dead_letter(where, refused.index, refused.reason, detail, payload))
                yield from reading.events
                tell(before + file.read_bytes)
            before += file.size_bytes
            tell(before)


def opened(paths: Iterable[Path], received_at_us: int) -> list[ForeignFile]:
    """All files, before the first one is read. Raises ForeignFileError."""
    return [ForeignFile(path, received_at_us) for path in paths]
