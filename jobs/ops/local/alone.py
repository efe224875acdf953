"""One command at a time in the folder of a local profile: two that start processes would each record only their own."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from jobs.ops.local.layout import LocalError

NOTE: Final = ".held-by"
"""File in the folder that says who holds it. The lock is on the folder itself, so a note without one means nothing."""


@contextmanager
def alone_in(folder: Path, command: str, *, makes: bool = False) -> Iterator[None]:
    """Hold `folder` for `command`, such as "headrace up". `makes`: make it first, and take it away if it stays empty.

    The lock ends with the process, however that ends. Raises LocalError at once where another command holds the
    folder, which it names, and where the folder can't be used.
    """
    made = makes and _make(folder)
    note = folder / NOTE
    handle = _locked(folder, note)
    try:
        # In a folder of something else we may not even be allowed to.
        with suppress(OSError):
            note.write_text(f"{command} (pid {os.getpid()})")
        yield
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                folder.rmdir()
        os.close(handle)


def _make(folder: Path) -> bool:
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"{folder} can't be made: {_why(error)}; choose another folder with --folder") from error
    return is_new


def _locked(folder: Path, note: Path) -> int:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise LocalError(f"{folder} can't be opened: {_why(error)}; choose another folder with --folder") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # `headrace down` may have deleted it after we opened it.
        is_there = folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())
        why = "" if is_there else f"{folder} has just been deleted; start again"
    except BlockingIOError:
        why = f"{folder}: {_holder(note)} is at work there; wait until it has ended"
    except OSError as error:
        why = f"{folder} can't be locked: {_why(error)}; choose a folder on a local disk"
    if why:
        os.close(handle)
        raise LocalError(why)
    return handle


def _holder(note: Path) -> str:
    try:
        return note.read_text(errors="replace") or "another command"
    except OSError:
        return "another command"


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
