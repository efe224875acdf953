"""Files of foreign records: what is one record in them, and where it stands."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from jobs.wiring.event_files import has_gzip_name
from udfs.domain.ingest.formats import Format
from udfs.domain.ingest.mapped_trace import mapped_adapter, rows_of
from udfs.domain.ingest.mapping import Mapping, MappingError, mapping_of
from udfs.domain.ingest.record import MAX_RECORD_BYTES, Adapter, Foreign

SHIPPED_MAPPINGS: Final = Path(__file__).parents[2] / "data" / "mappings"


_BLOCK_BYTES: Final = 1 << 20


class ForeignFileError(ValueError):
    """A file or a mapping that can't be read; the message names it and the remedy."""


class Placed(NamedTuple):
    """A record, and where in its file it stands: the byte at which it begins (the row, of a trace), and the line."""

    record: Foreign
    offset: int
    line: int


def shipped_mappings() -> tuple[str, ...]:
    """Names of the mappings that come with Headrace."""
    return tuple(sorted(path.stem for path in SHIPPED_MAPPINGS.glob("*.yaml")))


def load_mapping(path: Path) -> Mapping:
    """The mapping in a file. Raises ForeignFileError."""
    try:
        return mapping_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ForeignFileError(f"{path}: {error.strerror}") from error
    except (MappingError, UnicodeDecodeError, RecursionError) as error:
        raise ForeignFileError(f"{path}: {error}") from error


class ForeignFile:
    """One file, read record by record. `read_bytes` tells how far it is, `size_bytes` how large the file is."""

    def __init__(self, path: Path, received_at_us: int = 0) -> None:
        """Raises ForeignFileError where there is no such file."""
        self.path = path
        self._received_at_us = received_at_us
        try:
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise ForeignFileError(f"{path}: {error.strerror}") from error
        if path.is_dir():
            raise ForeignFileError(f"{path}: is a folder; name its files")
        self.read_bytes = 0
        # Packed or not, it is the same file: rows are known by its name.
        self.name = path.stem if has_gzip_name(path) else path.name

    def records(self, format: Format) -> Iterator[Placed]:  # noqa: A002 - what it is
        """The records of the file: all of it, or a line each. Raises ForeignFileError."""
        with self._opened() as lines:
            head = lines.read(MAX_RECORD_BYTES + 1)
            # A document may be one record though its format has one a line, as where it was printed for people.
            is_whole = not format.per_line or (format.or_whole and not head.lstrip(b" ").startswith(_JSON_STARTS))
            if is_whole or (len(head) <= MAX_RECORD_BYTES and _is_one_document(head)):
                if head.strip():
                    yield Placed(self._foreign(head), 0, 1)
                return
            for line, (offset, text) in enumerate(self._lines(lines, head), start=1):
                if text.strip():
                    yield Placed(self._foreign(text), offset, line)

    def rows(self, mapping: Mapping) -> Iterator[Placed]:
        """The rows of a trace. Raises ForeignFileError, before the first one where the columns are not as mapped."""
        with self._opened() as lines:
            texts = (text for _, text in self._lines(lines, b""))
            try:
                for row, record in enumerate(rows_of(mapping, texts, self.name), start=1):
                    yield Placed(record, row, row)
            except MappingError as error:
                raise ForeignFileError(f"{self.path}: {error}") from error

    def _foreign(self, value: bytes) -> Foreign:
        return Foreign(value=value, received_at_us=self._received_at_us)

    def _opened(self) -> "closing[_Reading]":
        return closing(_Reading(self))

    def _lines(self, lines: "_Reading", head: bytes) -> Iterator[tuple[int, bytes]]:
        """Lines with their ends, and where they begin. One longer than a record comes cut, a byte too long."""
        kept, begin, passed, is_overlong = head, 0, 0, False
        while True:
            end = kept.find(b"\n", begin)
            if end < 0:
                rest = kept[begin:]
                if not is_overlong and len(rest) > MAX_RECORD_BYTES:
                    yield passed + begin, rest[: MAX_RECORD_BYTES + 1]
                    is_overlong = True
                more = lines.read(_BLOCK_BYTES)
                if not more:
                    if rest and not is_overlong:
                        yield passed + begin, rest
                    return
                passed += len(kept) if is_overlong else begin
                kept, begin = more if is_overlong else rest + more, 0
                continue
            if is_overlong:
                is_overlong = False
            else:
                yield passed + begin, kept[begin : min(end, begin + MAX_RECORD_BYTES) + 1]
            begin = end + 1


class _Reading:
    """The bytes of a file, unpacked where its name says that it is packed."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        try:
            self._raw: BinaryIO = file.path.open("rb")
        except OSError as error:
            raise ForeignFileError(f"{file.path}: {error.strerror}") from error
        self._bytes = gzip.open(self._raw) if has_gzip_name(file.path) else self._raw  # noqa: SIM115

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        try:
            found = self._bytes.read(size)
        except (OSError, EOFError) as error:
            raise ForeignFileError(f"{self._file.path}: {error}") from error
        self._file.read_bytes = self._raw.tell() if self._raw.seekable() else self._file.read_bytes + len(found)
        return found


_JSON_STARTS: Final = (b"{", b"[", b"\xef\xbb\xbf")


def _is_one_document(head: bytes) -> bool:
    first = head.lstrip()[:1]
    if first not in {b"{", b"["}:
        return False
    try:
        msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class Reader(NamedTuple):
    """How the records of files are found and read."""

    name: str
    adapter: Adapter
    records: Callable[[ForeignFile], Iterator[Placed]]
    refuses_others: bool = False
    names_rows: bool = False
    """Whether a row is known by its file's name and its number, for want of an id."""


def reader_of_format(format: Format) -> Reader:  # noqa: A002 - what it is
    """For files of a format."""
    return Reader(format.name, format.adapter, lambda file: file.records(format), format.refuses_others)


def reader_of_mapping(name: str, mapping: Mapping) -> Reader:
    """For traces, by a mapping."""
    names_rows = not mapping.request_id
    return Reader(name, mapped_adapter(mapping), lambda file: file.rows(mapping), names_rows=names_rows)


def reader_of_shipped(name: str) -> Reader:
    """For traces whose mapping comes with Headrace: one of `shipped_mappings`."""
    return reader_of_mapping(name, load_mapping(SHIPPED_MAPPINGS / f"{name}.yaml"))
