"""Files as streams of bytes, decompressed on the way, that end where the damage begins instead of raising."""

import zlib
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from jobs.wiring.event_files import EventFileError

GZIP_MAGIC: Final = b"\x1f\x8b"

_COMPRESSED_CHUNK: Final = 1 << 16
_INFLATED_CHUNK: Final = 1 << 18
_GZIP_CONTAINER: Final = 31


class ByteStream(Protocol):
    """Bytes of one file in order. Offsets are those of the decompressed bytes."""

    position: int
    """Where the next byte stands."""
    damage: str
    """Why there is nothing behind `position`, although the file goes on or should; empty: the file is sound."""

    def read(self, most: int) -> bytes:
        """From one to `most` bytes; none at the end."""

    def seek(self, offset: int) -> None:
        """Go to `offset`, or to the end where that comes before."""

    def close(self) -> None:
        """Give the file back."""


def open_stream(path: Path) -> ByteStream:
    """The bytes of `path`, decompressed if its first two say so. Raises EventFileError where it can't be opened."""
    try:
        file = path.open("rb")
        magic = file.read(len(GZIP_MAGIC))
    except OSError as error:
        raise EventFileError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    file.seek(0)
    return GzipStream(file) if magic == GZIP_MAGIC else PlainStream(file)


def read_fully(stream: ByteStream, length: int) -> bytes:
    """`length` bytes, fewer only at the end."""
    pieces: list[bytes] = []
    while length > 0 and (piece := stream.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


class PlainStream:
    """A file as it is."""

    def __init__(self, file: BinaryIO) -> None:
        """Reads `file` from its start."""
        self._file = file
        self.position = 0
        self.damage = ""

    def read(self, most: int) -> bytes:
        """As ByteStream has it."""
        found = self._file.read(most)
        self.position += len(found)
        return found

    def seek(self, offset: int) -> None:
        """As ByteStream has it."""
        end = self._file.seek(0, 2)
        self.position = self._file.seek(min(offset, end))

    def close(self) -> None:
        """As ByteStream has it."""
        self._file.close()


class GzipStream:
    """A gzip file, of one member or several (RFC 1952), read in bounded memory.

    What can be decompressed before the damage is given, byte for byte the same however it is asked for: `gzip` of the
    standard library raises, and what it had in its buffers is lost.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Reads `file` from its start."""
        self._file = file
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self.position = 0
        self.damage = ""
        self._ended = False
        self._compressed = b""
        self._ready = b""
        self._ready_at = 0
        self._inflater = _new_inflater()
        self._in_member = True

    def read(self, most: int) -> bytes:
        """As ByteStream has it."""
        while self._ready_at >= len(self._ready):
            if self._ended:
                return b""
            self._ready = self._inflate()
            self._ready_at = 0
        found = self._ready[self._ready_at : self._ready_at + most]
        self._ready_at += len(found)
        self.position += len(found)
        return found

    def seek(self, offset: int) -> None:
        """As ByteStream has it. Going back starts over from the beginning of the file."""
        if offset < self.position:
            self._restart()
        while self.position < offset and self.read(offset - self.position):
            pass

    def close(self) -> None:
        """As ByteStream has it."""
        self._file.close()

    def _inflate(self) -> bytes:
        """Some more decompressed bytes, or none: then try again, or the stream has ended."""
        if not self._compressed:
            self._compressed = self._file.read(_COMPRESSED_CHUNK)
            if not self._compressed:
                return self._end("the gzip data ends in the middle" if self._in_member else "")
        if not self._in_member:
            self._begin_member()
            if not self._in_member:
                return b""
        before = self._inflater.copy()
        try:
            found = self._inflater.decompress(self._compressed, _INFLATED_CHUNK)
        except zlib.error as error:
            self._end(f"the gzip data is damaged ({error})")
            return self._up_to_damage(before)
        if self._inflater.eof:
            self._compressed = self._inflater.unused_data
            self._in_member = False
        else:
            self._compressed = self._inflater.unconsumed_tail
        return found

    def _begin_member(self) -> None:
        # Zeros may pad a member to the block size of a tape.
        self._compressed = self._compressed.lstrip(b"\0")
        if not self._compressed:
            return
        if len(self._compressed) < len(GZIP_MAGIC):
            self._compressed += self._file.read(_COMPRESSED_CHUNK)
        if self._compressed.startswith(GZIP_MAGIC):
            self._inflater = _new_inflater()
            self._in_member = True
        else:
            self._end("what follows the gzip data is not gzip data")

    def _up_to_damage(self, inflater: "zlib._Decompress") -> bytes:
        found = bytearray()
        try:
            for byte in self._compressed:
                found += inflater.decompress(bytes((byte,)))
        except zlib.error:
            pass
        return bytes(found)

    def _end(self, damage: str) -> bytes:
        self._ended = True
        self.damage = damage
        return b""


def _new_inflater() -> "zlib._Decompress":
    return zlib.decompressobj(_GZIP_CONTAINER)
