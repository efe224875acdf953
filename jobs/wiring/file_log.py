"""Files as logs: planned in blocks that a Flink source hands out one by one, each read by itself.

A block is a run of whole records. The blocks of a file cover every byte of it (decompressed), in order, so what can't
be read has its block too and comes out as a dead letter: a file that is cut off or damaged loses nothing in silence.
Reading a block depends on the file and the block alone, so that a job restored in the middle reads what it read before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, NamedTuple

import msgspec
from typing_extensions import Self

from jobs.wiring.byte_stream import ByteStream, open_stream, read_fully
from jobs.wiring.event_file_writer import shards_of, write_event_file, write_json_lines
from jobs.wiring.event_files import (
    MAX_RECORD_BYTES,
    EventFile,
    EventFileError,
    EventFormat,
    NotALengthError,
    open_event_file,
    read_length_prefix,
)
from schemas.codec import MAX_EVENT_BYTES, encode_events, shard_in
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position, dead_letter
from schemas.events import Event
from schemas.json_lines import decode_line
from schemas.topics import SHARD_COUNT

__all__ = [
    "Block",
    "BlockReader",
    "EventFile",
    "EventFileError",
    "EventFormat",
    "ReadBlock",
    "Refusal",
    "open_event_file",
    "plan",
    "plan_files",
    "write_event_file",
    "write_json_lines",
]

BLOCK_BYTES: Final = 256 << 10
BLOCK_RECORDS: Final = 2_000
"""A block ends with the record that reaches one of the two."""

BATCH_EVENTS: Final = 500
"""Most events in a record that is made of lines."""

MAX_PAYLOAD_BYTES: Final = 64 << 10
"""Most of a damaged stretch of a file that its dead letter holds; the rest is found by position and length."""

_CHUNK: Final = 256 << 10

_Offset = Annotated[int, msgspec.Meta(ge=0)]


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why nothing can be read from a block."""

    reason: DeadLetterReason
    detail: str


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A stretch of a file: `records` whole records, or something that can't be read (`refusal`).

    `start` and `length` are bytes of the decompressed file.
    """

    path: str
    file_format: EventFormat
    start: _Offset
    length: _Offset
    records: _Offset
    refusal: Refusal | None = None

    def to_line(self) -> str:
        """One line of JSON, without its end."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_line(cls, line: str | bytes) -> "Block":
        """Read what `to_line` wrote. Raises ValueError where it is something else."""
        return msgspec.json.decode(line, type=cls)


# --- planning --------------------------------------------------------------------------------------------------------


class _Span(NamedTuple):
    start: int
    end: int
    refusal: Refusal | None = None


def plan(path: str | PathLike[str], file_format: EventFormat | str | None = None) -> list[Block]:
    """The blocks of a file, in order; together they cover it. Reads the file once, in bounded memory.

    Raises EventFileError where the file can't be opened (see `open_event_file`), never for what is in it.
    """
    file = open_event_file(path, file_format)
    stream = open_stream(file.path)
    try:
        spans = _lines(stream) if file.file_format is EventFormat.JSON_LINES else _messages(stream)
        return list(_blocks(file, spans))
    finally:
        stream.close()


def plan_files(paths: Iterable[str | PathLike[str]], file_format: EventFormat | str | None = None) -> list[Block]:
    """The blocks of several files, one file after the other."""
    return [block for path in paths for block in plan(path, file_format)]


def _blocks(file: EventFile, spans: Iterable[_Span]) -> Iterator[Block]:
    path = str(file.path)
    start = end = records = 0
    for span in spans:
        if records and (span.refusal or records >= BLOCK_RECORDS or end - start >= BLOCK_BYTES):
            yield Block(path, file.file_format, start, end - start, records)
            records = 0
        if span.refusal:
            yield Block(path, file.file_format, span.start, span.end - span.start, 0, span.refusal)
            continue
        if not records:
            start = span.start
        end = span.end
        records += 1
    if records:
        yield Block(path, file.file_format, start, end - start, records)


def _lines(stream: ByteStream) -> Iterator[_Span]:
    start = 0
    while chunk := stream.read(_CHUNK):
        base = stream.position - len(chunk)
        at = 0
        while (found := chunk.find(b"\n", at)) >= 0:
            at = found + 1
            yield _line(start, base + at)
            start = base + at
    if stream.damage:
        yield _Span(start, stream.position, Refusal(DeadLetterReason.MALFORMED, stream.damage))
    elif start < stream.position:
        yield _line(start, stream.position)


def _line(start: int, end: int) -> _Span:
    # With its end, which may be two bytes.
    if end - start <= MAX_EVENT_BYTES + 2:
        return _Span(start, end)
    detail = f"the line has {end - start} bytes, at most {MAX_EVENT_BYTES} are allowed"
    return _Span(start, end, Refusal(DeadLetterReason.TOO_LARGE, detail))


def _messages(stream: ByteStream) -> Iterator[_Span]:
    chunk = b""
    at = 0
    while True:
        start = stream.position - len(chunk) + at
        try:
            while (prefix := read_length_prefix(chunk, at)) is None and (more := stream.read(_CHUNK)):
                chunk, at = chunk[at:] + more, 0
        except NotALengthError as error:
            yield _rest(stream, start, str(error))
            return
        if prefix is None:
            if start < stream.position or stream.damage:
                yield _rest(stream, start, "the file ends inside a record")
            return
        end = start + prefix.prefix_bytes + prefix.message_bytes
        at += end - start
        if at > len(chunk):
            _skip(stream, end)
            chunk, at = b"", 0
            if stream.position < end:
                yield _rest(stream, start, "the file ends inside a record")
                return
        if prefix.message_bytes <= MAX_RECORD_BYTES:
            yield _Span(start, end)
        else:
            detail = f"the record has {prefix.message_bytes} bytes, at most {MAX_RECORD_BYTES} are allowed"
            yield _Span(start, end, Refusal(DeadLetterReason.TOO_LARGE, detail))


def _rest(stream: ByteStream, start: int, why: str) -> _Span:
    while stream.read(_CHUNK):
        pass
    detail = "; ".join(filter(None, (why if start < stream.position else "", stream.damage)))
    return _Span(start, stream.position, Refusal(DeadLetterReason.MALFORMED, detail))


def _skip(stream: ByteStream, offset: int) -> None:
    while stream.position < offset and stream.read(min(_CHUNK, offset - stream.position)):
        pass


# --- reading ---------------------------------------------------------------------------------------------------------


class ReadBlock(NamedTuple):
    """What stands in a block: EventBatch records as (shard, record, offset), and what could not be read.

    Of lines, `offset` is where the record's first event stands, and `unknown_fields` counts the lines that have a field
    that this version does not know.
    """

    batches: list[tuple[int, bytes, int]]
    dead: list[DeadLetter]
    unknown_fields: "Counter[str]"


class BlockReader:
    """Reads blocks, in any order. Blocks of one file read in order cost one pass over it, compressed or not.

    Nothing but an open file is remembered from one block to the next, and no more than a block is held in memory.
    """

    def __init__(self, shard_count: int = SHARD_COUNT) -> None:
        """`shard_count` is that of the log: lines are spread over it, records of other shards are refused."""
        self._shard_count = shard_count
        self._path = ""
        self._stream: ByteStream | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the open file back. The reader can go on reading."""
        if self._stream is not None:
            self._stream.close()
        self._path, self._stream = "", None

    def read(self, block: Block) -> ReadBlock:
        """The records of one block. Raises EventFileError where the file is gone, never for what is in it."""
        read = ReadBlock([], [], Counter())
        stream = self._stream_of(block.path)
        stream.seek(block.start)
        if block.refusal is not None:
            payload = read_fully(stream, min(block.length, MAX_PAYLOAD_BYTES))
            detail = f"{block.refusal.detail} ({block.length} bytes from {block.start})"
            where = Position(block.path, 0, block.start)
            read.dead.append(dead_letter(where, WHOLE_RECORD, block.refusal.reason, detail, payload))
            return read
        data = read_fully(stream, block.length)
        if block.file_format is EventFormat.JSON_LINES:
            self._read_lines(block, data, read)
        else:
            self._read_messages(block, data, read)
        if len(data) < block.length:
            detail = f"{block.length - len(data)} bytes that stood here when the file was planned are gone"
            read.dead.append(_malformed(block, len(data), detail, b""))
        return read

    def _stream_of(self, path: str) -> ByteStream:
        if self._stream is None or self._path != path:
            self.close()
            self._path, self._stream = path, open_stream(Path(path))
        return self._stream

    def _read_messages(self, block: Block, data: bytes, read: ReadBlock) -> None:
        at = 0
        while at < len(data):
            try:
                prefix = read_length_prefix(data, at)
            except NotALengthError:
                prefix = None
            if prefix is None or at + prefix.prefix_bytes + prefix.message_bytes > len(data):
                read.dead.append(_malformed(block, at, "the file has changed since it was planned", data[at:]))
                return
            begin = at + prefix.prefix_bytes
            end = begin + prefix.message_bytes
            self._read_message(block, at, data[begin:end], read)
            at = end

    def _read_message(self, block: Block, at: int, record: bytes, read: ReadBlock) -> None:
        shard = shard_in(record)
        if shard is None:
            read.dead.append(_malformed(block, at, "not an EventBatch of headrace.v1", record))
        elif shard >= self._shard_count:
            where = Position(block.path, 0, block.start + at)
            detail = f"shard {shard} of a log that has {self._shard_count}"
            read.dead.append(dead_letter(where, WHOLE_RECORD, DeadLetterReason.WRONG_SHARD, detail, record))
        else:
            read.batches.append((shard, record, block.start + at))

    def _read_lines(self, block: Block, data: bytes, read: ReadBlock) -> None:
        open_batches: dict[int, _LineBatch] = {}
        offset = block.start
        for whole_line in data.split(b"\n"):
            line = whole_line.rstrip()
            if line:
                decoded = decode_line(line, Position(block.path, 0, offset))
                if isinstance(decoded.result, DeadLetter):
                    read.dead.append(decoded.result)
                else:
                    read.unknown_fields.update(decoded.unknown_fields)
                    self._add(decoded.result, offset, open_batches, read)
            offset += len(whole_line) + 1
        for shard, batch in open_batches.items():
            read.batches.append((shard, encode_events(shard, batch.events), batch.offset))

    def _add(self, event: Event, offset: int, open_batches: "dict[int, _LineBatch]", read: ReadBlock) -> None:
        for shard in shards_of(event, self._shard_count):
            batch = open_batches.get(shard)
            if batch is None:
                batch = open_batches[shard] = _LineBatch(offset, [])
            batch.events.append(event)
            if len(batch.events) >= BATCH_EVENTS:
                read.batches.append((shard, encode_events(shard, batch.events), batch.offset))
                del open_batches[shard]


class _LineBatch(NamedTuple):
    offset: int
    events: list[Event]


def _malformed(block: Block, at: int, detail: str, payload: bytes) -> DeadLetter:
    where = Position(block.path, 0, block.start + at)
    return dead_letter(where, WHOLE_RECORD, DeadLetterReason.MALFORMED, detail, payload[:MAX_PAYLOAD_BYTES])
