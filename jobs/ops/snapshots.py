"""Savepoints and retained checkpoints that a job can go on from, on a file system that this machine sees."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from jobs.wiring.flink_rest import local_path


class SnapshotError(RuntimeError):
    """No such snapshot, or none in time."""


class Snapshot(NamedTuple):
    """A complete one. `taken_ms`: when it was complete, in milliseconds since 1970."""

    path: Path
    taken_ms: int


def snapshots(*folders: str, without_jobs: Collection[str] = ()) -> list[Snapshot]:
    """All complete snapshots in these folders, the newest first, without checkpoints of the jobs with these ids.

    Raises SnapshotError where a folder can't be listed.
    """
    found = [it for folder in folders for it in _below(folder) if it.path.parent.name not in without_jobs]
    return sorted(found, key=lambda snapshot: -snapshot.taken_ms)


def _below(folder: str) -> Iterator[Snapshot]:
    path = local_path(folder)
    if path is None:
        raise SnapshotError(f"{folder} can't be listed from here: name the savepoint itself, as Flink printed it")
    # savepoints/savepoint-xy/_metadata and checkpoints/<job>/chk-n/_metadata: Flink writes this file last.
    for metadata in (*path.glob("*/_metadata"), *path.glob("*/chk-*/_metadata")):
        yield Snapshot(metadata.parent, metadata.stat().st_mtime_ns // 1_000_000)


def newest(found: list[Snapshot], before_ms: int | None = None) -> Snapshot | None:
    """The newest one, or the newest that was complete before a time; None: there is none."""
    return next((it for it in found if before_ms is None or it.taken_ms < before_ms), None)
