"""Where a shard's state lives: a map of keys and a log of records, as Flink keeps them."""

from collections.abc import Iterable, Mapping
from typing import Protocol


class ShardStore(Protocol):
    """State of one shard. Everything is bytes under text keys; what a batch costs is one `append`."""

    def get(self, key: str) -> bytes | None:
        """What is stored under `key`."""

    def put_all(self, entries: Mapping[str, bytes]) -> None:
        """Store all of these; each by itself is all or nothing."""

    def append(self, record: bytes) -> None:
        """Add one record to the log."""

    def log(self) -> Iterable[bytes]:
        """The records of the log, oldest first."""

    def clear_log(self) -> None:
        """Empty the log."""


class MemoryStore:
    """A shard's state in dictionaries: for tests, and for replays without Flink."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.records: list[bytes] = []

    def get(self, key: str) -> bytes | None:
        """See ShardStore."""
        return self.entries.get(key)

    def put_all(self, entries: Mapping[str, bytes]) -> None:
        """See ShardStore."""
        self.entries.update(entries)

    def append(self, record: bytes) -> None:
        """See ShardStore."""
        self.records.append(record)

    def log(self) -> Iterable[bytes]:
        """See ShardStore."""
        return list(self.records)

    def clear_log(self) -> None:
        """See ShardStore."""
        self.records.clear()
