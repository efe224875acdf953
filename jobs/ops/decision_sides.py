"""The sides of a comparison: a file of decisions, a generation, or a topic."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from jobs.ops.effective import read_batches
from jobs.ops.log_options import LogAccess
from jobs.wiring.decision_files import DecisionFileError
from jobs.wiring.decision_reader import read_decisions
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.topic_catalog import decisions_topic
from schemas.decisions import Decision

_GENERATION = "gen:"
_TOPIC = "topic:"


class SideError(ValueError):
    """A side that names nothing; the message says what can be named."""


class Side(Protocol):
    """Decisions to compare."""

    def decisions(self) -> Iterator[Decision]:
        """All of them."""


def side_of(name: str, access: LogAccess, tenants: tuple[str, ...] = ()) -> AbstractContextManager[Side]:
    """The side called `name`: gen:N, topic:NAME or the path of a file; of a topic only the partitions of `tenants`.

    Raises SideError, DecisionFileError, and KafkaLogError and its kinds.
    """
    if name.startswith(_GENERATION):
        number = name.removeprefix(_GENERATION)
        if not (number.isascii() and number.isdigit() and 0 < int(number) < 1_000_000):
            raise SideError(f"{name}: a generation is a number from 1 on, such as gen:1")
        return _topic(decisions_topic(int(number)), access, tenants)
    if name.startswith(_TOPIC):
        return _topic(name.removeprefix(_TOPIC), access, tenants)
    return _file(Path(name))


@contextmanager
def _file(path: Path) -> Iterator[Side]:
    try:
        read_decisions(path)
    except DecisionFileError as error:
        if not path.exists():
            raise SideError(
                f"{path}: there is no such file; a side is a .jsonl or .parquet file, gen:N or topic:NAME"
            ) from error
        raise
    yield _File(path)


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def decisions(self) -> Iterator[Decision]:
        return read_decisions(self._path)


@contextmanager
def _topic(topic: str, access: LogAccess, tenants: tuple[str, ...]) -> Iterator[Side]:
    with TopicReader(access.kafka, topic) as reader:
        yield _Topic(reader, access.shard_count, tenants)


class _Topic:
    def __init__(self, reader: TopicReader, shard_count: int, tenants: tuple[str, ...]) -> None:
        self._reader = reader
        self._shard_count = shard_count
        self._tenants = tenants

    def decisions(self) -> Iterator[Decision]:
        for batch in read_batches(self._reader, self._reader.partitions_of(self._tenants, self._shard_count)):
            yield from batch.decisions
