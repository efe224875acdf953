"""The answer of a captured exchange, in whatever form it was kept, read chunk by chunk."""

import json
from collections import Counter
from collections.abc import Callable, Sized
from typing import Any, Final, NamedTuple

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.answer_formats import reader_for, reader_named
from udfs.domain.ingest.attempt import Chunk
from udfs.domain.ingest.fields import json_of, malformed
from udfs.domain.ingest.openai_stream import OpenAiReader
from udfs.domain.ingest.record import MAX_RECORD_BYTES, Refused, UnreadableRecordError
from udfs.domain.ingest.refusals import Refusals
from udfs.domain.ingest.sse import EventStreamParser
from udfs.domain.ingest.stream_reading import AnswerReader, objects_of, payloads_of
from udfs.domain.ingest.tokenizer import count_tokens

MAX_BROKEN_CHUNKS: Final = 100
"""A record with more broken chunks is refused as a whole."""

MAX_CHUNKS: Final = 200_000
"""More chunks in one record are refused: real ones are never so small that ten megabytes hold them."""

_BLOCK_BYTES: Final = 1 << 16

COMMENTS: Final = "comments of the event stream"
UNKNOWN_LINES: Final = "lines of no known field of the event stream"
CUT_OFF: Final = "chunks cut off at the end of the stream"


class Part(NamedTuple):
    """A piece of the answer: the data of an event, or the JSON objects that it has been decoded to; and when."""

    data: str | list[dict[str, Any] | None]
    at: object = None
    is_last_and_unfinished: bool = False


class Captured(NamedTuple):
    """An answer before it is read. What is no stream is whole: no end mark is missed in it."""

    parts: list[Part]
    is_stream: bool


class ReadAnswer(NamedTuple):
    """An answer after it is read. `first_us` and `last_us` are times of its chunks; None where they have none."""

    reader: AnswerReader
    chunks: list[Chunk]
    refused: list[Refused]
    first_us: int | None
    last_us: int | None


def captured_text(value: bytes, passed_over: Counter[str]) -> Captured:
    """An answer kept as its text: JSON, or server-sent events. Raises UnreadableRecordError."""
    start = value.lstrip()[:1]
    if start == b"{":
        return Captured([Part(objects_of(json_of(value)))], is_stream=False)
    if start == b"[":
        return _captured_array(value, passed_over)
    return captured_events(value, passed_over)


def _captured_array(value: bytes, passed_over: Counter[str]) -> Captured:
    """Gemini's stream where server-sent events were not asked for; the elements that came whole, if it was cut off."""
    try:
        found = objects_of(json_of(value))
    except UnreadableRecordError:
        found = _whole_elements(value.decode("utf-8", "replace"))
        if not found:
            raise
        passed_over[CUT_OFF] += 1
    _check_number(found)
    # One element is how Gemini reports an error, or an answer that fit into one chunk.
    return Captured([Part([each]) for each in found], is_stream=True)


def _whole_elements(array: str) -> list[dict[str, Any] | None]:
    decoder = json.JSONDecoder()
    found: list[dict[str, Any] | None] = []
    at = array.index("[") + 1
    while len(found) <= MAX_CHUNKS:
        while at < len(array) and array[at] in " \t\r\n,":
            at += 1
        try:
            element, at = decoder.raw_decode(array, at)
        except (ValueError, RecursionError):
            return found
        if not isinstance(element, dict):
            return found
        found.append(element)
    return found


def _check_number(chunks: Sized) -> None:
    if len(chunks) > MAX_CHUNKS:
        detail = f"the record has more than {MAX_CHUNKS:,} chunks; send fewer in one record"
        raise UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail)


def captured_events(value: bytes, passed_over: Counter[str]) -> Captured:
    """An answer kept as server-sent events. Raises UnreadableRecordError where there is none."""
    parser = EventStreamParser(max_line_bytes=MAX_RECORD_BYTES, max_event_bytes=MAX_RECORD_BYTES)
    parts: list[Part] = []
    for start in range(0, len(value), _BLOCK_BYTES):
        parts += [Part(event.data) for event in parser.feed(value[start : start + _BLOCK_BYTES])]
        _check_number(parts)
    parts += [Part(event.data, is_last_and_unfinished=True) for event in parser.close()]
    if not parts and not parser.comments:
        raise malformed("neither JSON nor an event stream: no line begins with data:")
    if parser.comments:
        passed_over[COMMENTS] += parser.comments
    if parser.unknown_lines:
        passed_over[UNKNOWN_LINES] += parser.unknown_lines
    return Captured(parts, is_stream=True)


def captured_chunks(chunks: list[Any], passed_over: Counter[str]) -> Captured:
    """An answer kept in pieces with their times. Raises UnreadableRecordError."""
    _check_number(chunks)
    parts: list[Part] = []
    for chunk in chunks:
        at, data = (chunk.get("at"), chunk.get("data")) if isinstance(chunk, dict) else (None, chunk)
        if isinstance(data, dict):
            parts.append(Part([data], at))
        elif not isinstance(data, str):
            raise malformed("the data of a chunk is neither a string nor an object")
        elif data.startswith(("data:", "event:", ":")):
            parts += [part._replace(at=at) for part in captured_events(_bytes(data), passed_over).parts]
        elif data:
            parts.append(Part(data, at))
    if parts:
        parts[-1] = parts[-1]._replace(is_last_and_unfinished=True)
    return Captured(parts, is_stream=True)


def captured_lines(lines: list[Any], passed_over: Counter[str]) -> Captured:
    """An answer kept as a list of the lines of its stream, blank ones with or without. Raises UnreadableRecordError."""
    if not all(isinstance(line, str) for line in lines):
        raise malformed("a line of sse is no string")
    return captured_events(_bytes("\n".join(lines)), passed_over)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class Said(NamedTuple):
    """What a capture says of its answer. `model` is what was asked for; an answer names its own as a rule.

    `has_cumulative_deltas`: each delta repeats the text before it. It has to be said: guessing it would corrupt texts
    that repeat themselves.
    """

    format_name: str = ""
    model: str = ""
    has_cumulative_deltas: bool = False


def read_answer(
    captured: Captured, said: Said, moment: Callable[[object], int], passed_over: Counter[str]
) -> ReadAnswer:
    """Read all parts. `moment` turns a chunk's time into microseconds. Raises UnreadableRecordError.

    A chunk that is no JSON is refused by itself; the last one of a stream that was cut off is passed over. A chunk with
    a value that can't be meant refuses the record: what remains of it would be a wrong bill.
    """
    reader = reader_named(said.format_name) if said.format_name else None
    refusals = Refusals("chunk")
    tally = _Tally(said, moment)
    for index, part in enumerate(captured.parts):
        try:
            payloads = part.data if isinstance(part.data, list) else payloads_of(part.data)
        except UnreadableRecordError as unreadable:
            payloads = _before_the_cut(part)
            if payloads or (part.is_last_and_unfinished and index):
                passed_over[CUT_OFF] += 1
            elif refusals.count == MAX_BROKEN_CHUNKS or len(captured.parts) == 1:
                raise
            else:
                refusals.add(unreadable, index, _bytes(str(part.data)))
        _check_number(payloads)
        for payload in payloads:
            if reader is None:
                reader = reader_for(payload)
            reader.deltas_are_cumulative = said.has_cumulative_deltas
            reader.read_payload(payload)
            tally.add(reader, part.at)
    refused = refusals.refused()
    if reader is None:
        if refused:
            raise UnreadableRecordError(refused[0].reason, refused[0].detail)
        reader = OpenAiReader()
    tally.close()
    chunks = tally.chunks if captured.is_stream else []
    return ReadAnswer(reader, chunks, refused, tally.first_us, tally.last_us)


def _before_the_cut(part: Part) -> list[dict[str, Any] | None]:
    """What came whole where a stream without blank lines, which is one event, was cut off in its last line."""
    if not part.is_last_and_unfinished or isinstance(part.data, list):
        return []
    try:
        return payloads_of(part.data.rpartition("\n")[0])
    except UnreadableRecordError:
        return []


class _Tally:
    """Counts tokens by the moments at which they came: with one chunk a moment, however many events there were."""

    def __init__(self, said: Said, moment: Callable[[object], int]) -> None:
        self.chunks: list[Chunk] = []
        self.first_us: int | None = None
        self.last_us: int | None = None
        self._model = said.model
        self._moment = moment
        self._told: object = None
        self._waiting: list[str] = []
        self._reported: int | None = None
        self._cumulative = 0

    def add(self, reader: AnswerReader, at: object) -> None:
        told = reader.created if at is None else at
        if told is not None and told != self._told:
            at_us = self._moment(told)
            self._told = told
            if at_us != self.last_us:
                self.close()
                self.last_us = at_us
                if self.first_us is None:
                    self.first_us = at_us
        if reader.fresh:
            self._model = reader.model or self._model
            self._waiting += reader.fresh
            self._reported = reader.reported_tokens

    def close(self) -> None:
        if self._waiting:
            if self._reported is None:
                self._cumulative += count_tokens("".join(self._waiting), self._model)
            else:
                self._cumulative = max(self._cumulative, self._reported)
            # Without a time of their own the chunks get the answer's, which is known only later.
            self.chunks.append(Chunk(self.last_us or 0, self._cumulative))
            self._waiting = []
