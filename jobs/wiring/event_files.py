"""Names and formats of event files, and how protobuf messages stand in a file."""

from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

MAX_RECORD_BYTES: Final = 16 << 20
"""A larger record of a file is a dead letter: producers flush a batch at 64 KiB."""

_GZIP_SUFFIXES: Final = frozenset((".gz", ".gzip"))


class EventFormat(str, Enum):
    """How events stand in a file."""

    JSON_LINES = "json_lines"
    """One event a line, as schemas.json_lines has it."""
    PROTOBUF = "protobuf"
    """EventBatch messages, each after its length as a varint: protobuf's writeDelimitedTo."""


FORMAT_OF_SUFFIX: Final = {
    ".jsonl": EventFormat.JSON_LINES,
    ".ndjson": EventFormat.JSON_LINES,
    ".json": EventFormat.JSON_LINES,
    ".pb": EventFormat.PROTOBUF,
    ".binpb": EventFormat.PROTOBUF,
}


class EventFileError(ValueError):
    """An event file that can't be used; the message is one line and names the file."""


class EventFile(NamedTuple):
    """A file that is there, and its format. Made by `open_event_file`."""

    path: Path
    file_format: EventFormat


def has_gzip_name(path: Path) -> bool:
    """Whether the name asks for compression. What is read is told by its first bytes instead."""
    return path.suffix.lower() in _GZIP_SUFFIXES


def format_of_name(path: Path) -> EventFormat:
    """The format that a name stands for. Raises EventFileError where it stands for none.

    >>> format_of_name(Path("events.jsonl.gz")).value, format_of_name(Path("EVENTS.PB")).value
    ('json_lines', 'protobuf')
    """
    bare = path.with_suffix("") if has_gzip_name(path) else path
    try:
        return FORMAT_OF_SUFFIX[bare.suffix.lower()]
    except KeyError:
        raise EventFileError(
            f"{path}: the name tells no event format; known are {', '.join(FORMAT_OF_SUFFIX)}, each with .gz or without"
        ) from None


def open_event_file(path: str | PathLike[str], file_format: EventFormat | str | None = None) -> EventFile:
    """Make sure that `path` is a file that can be read, in a known format: `file_format` or else that of its name.

    Raises EventFileError for a missing file, a directory, an empty name, a file that may not be read, and an unknown
    format.
    """
    if not str(path):
        raise EventFileError("the name of an event file is empty")
    file = Path(path).absolute()
    if "\0" in str(path) or not _is_text(str(path)):
        raise EventFileError(f"{str(path)!r}: not a name that can be written down")
    try:
        if file.is_dir():
            raise EventFileError(f"{path}: is a directory, not an event file")
        if file.exists() and not file.is_file():
            raise EventFileError(f"{path}: is not a regular file; a restored job has to read it again")
        with file.open("rb"):
            pass
    except OSError as error:
        raise EventFileError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    if file_format is None:
        return EventFile(file, format_of_name(file))
    try:
        return EventFile(file, EventFormat(file_format))
    except ValueError:
        known = ", ".join(known.value for known in EventFormat)
        raise EventFileError(f"{path}: unknown event format {str(file_format)!r}; known are {known}") from None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- messages with their length before them ---------------------------------------------------------------------------

_MAX_VARINT_BYTES: Final = 5
_MAX_MESSAGE_BYTES: Final = (1 << 31) - 1


def length_prefix(length: int) -> bytes:
    """`length` as a varint.

    >>> length_prefix(300).hex()
    'ac02'
    """
    found = bytearray()
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)


class LengthPrefix(NamedTuple):
    """The length of a message, and of the varint that tells it."""

    message_bytes: int
    prefix_bytes: int


class NotALengthError(ValueError):
    """Bytes that no message's length starts with."""


def read_length_prefix(data: bytes, at: int) -> LengthPrefix | None:
    """The varint at `at`; None: it goes on beyond `data`. Raises NotALengthError for a length that protobuf forbids."""
    length = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            return None
        byte = data[at + index]
        length |= (byte & 0x7F) << (7 * index)
        if byte <= 0x7F:
            if length > _MAX_MESSAGE_BYTES:
                raise NotALengthError(f"a message of {length} bytes can't be")
            return LengthPrefix(length, index + 1)
    raise NotALengthError(f"a length of more than {_MAX_VARINT_BYTES} bytes can't be")
