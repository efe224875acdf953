"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, cast


class OutputFileError(ValueError):
    """A file that can't be written; the message is one line and names the file."""


@contextmanager
def replacing(path: Path, *, gzip: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once all is written, and leaves no trace if anything is raised before.

    `gzip` compresses; the same content gives the same bytes, because no time is stamped.
    Raises OutputFileError where the folder is missing or can't be written to.
    """
    if path.is_dir():
        raise OutputFileError(f"{path}: is a directory")
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise OutputFileError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        with file:
            if gzip:
                with GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
