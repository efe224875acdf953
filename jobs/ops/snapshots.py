"""Savepoints and retained checkpoints that a job can go on from, on a file system that this machine sees."""

import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobs.wiring.flink_rest import local_path

METADATA: Final = "_metadata"
_JOB_ID: Final = re.compile("[0-9a-f]{32}")
_SAVEPOINT: Final = re.compile("savepoint-([0-9a-f]{6})-[0-9a-f]{12}")


class SnapshotError(RuntimeError):
    """No such snapshot, or none in time."""


class Snapshot(NamedTuple):
    """A complete one. `taken_ms`: when it was complete, in milliseconds since 1970."""

    path: Path
    taken_ms: int

    @property
    def job_prefix(self) -> str | None:
        """The id of the job that took it, or how that begins; None where its folder has not the name Flink gave it."""
        savepoint = _SAVEPOINT.fullmatch(self.path.name)
        if savepoint is not None:
            return savepoint[1]
        return self.path.parent.name if _JOB_ID.fullmatch(self.path.parent.name) else None


def snapshots(*folders: str, without_jobs: Collection[str] = ()) -> list[Snapshot]:
    """All complete snapshots in these folders, the newest first, without checkpoints of the jobs with these ids.

    Raises SnapshotError where a folder can't be listed.
    """
    found = [it for folder in folders for it in _below(folder) if it.path.parent.name not in without_jobs]
    return sorted(found, key=lambda snapshot: -snapshot.taken_ms)


def require_complete(location: str) -> None:
    """Raise SnapshotError where this machine sees that there is no complete snapshot."""
    path = local_path(location)
    if path is not None and not (path / METADATA).is_file():
        raise SnapshotError(f"{path}: there is no complete savepoint or checkpoint, it would have a file {METADATA}")


def delete_checkpoints(folders: Collection[str], job_ids: Collection[str]) -> None:
    """Delete the checkpoints that these jobs left, where this machine sees them."""
    for folder in filter(None, map(local_path, folders)):
        for job_id in filter(_JOB_ID.fullmatch, job_ids):
            shutil.rmtree(folder / job_id, ignore_errors=True)


def _below(folder: str) -> Iterator[Snapshot]:
    path = local_path(folder)
    if path is None:
        raise SnapshotError(f"{folder} can't be listed from here: name the savepoint itself, as Flink printed it")
    # savepoints/savepoint-xy/_metadata and checkpoints/<job>/chk-n/_metadata: Flink writes this file last.
    for metadata in (*path.glob(f"*/{METADATA}"), *path.glob(f"*/chk-*/{METADATA}")):
        yield Snapshot(metadata.parent, metadata.stat().st_mtime_ns // 1_000_000)


def newest(found: list[Snapshot], before_ms: int | None = None) -> Snapshot | None:
    """The newest one, or the newest that was complete before a time; None: there is none."""
    return next((it for it in found if before_ms is None or it.taken_ms < before_ms), None)
