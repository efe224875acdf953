"""The sides of a comparison: a file of decisions, a generation, or a topic."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from jobs.ops.effective import Stretch, decisions_from, first_decided, read_batches
from jobs.ops.log_options import LogAccess
from jobs.wiring.decision_files import DecisionFileError
from jobs.wiring.decision_reader import read_decisions
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.topic_catalog import decisions_topic
from schemas.codec import DecidedBatch
from schemas.decisions import Decision

_GENERATION = "gen:"
_TOPIC = "topic:"


class SideError(ValueError):
    """A side that names nothing; the message says what can be named."""


class Side(Protocol):
    """Decisions to compare."""

    def decisions(self, starts: Mapping[Stretch, int] | None = None) -> Iterator[Decision]:
        """All of them; with `starts`, of a generation only those of records from there on."""

    def starts(self) -> dict[Stretch, int] | None:
        """The first record of events that a generation decided, by shard and partition; None: it is not known."""


def common_starts(a: Side, b: Side) -> dict[Stretch, int] | None:
    """The first records that both decided, where the sides are generations and begin at different ones; else None.

    A generation that a rollback made begins at its snapshot: what came before is no difference.
    """
    of_a, of_b = a.starts(), b.starts()
    if of_a is None or of_b is None or of_a == of_b:
        return None
    return {stretch: max(start, of_b[stretch]) for stretch, start in of_a.items() if stretch in of_b}


def side_of(name: str, access: LogAccess, tenants: tuple[str, ...] = ()) -> AbstractContextManager[Side]:
    """The side called `name`: gen:N, topic:NAME or the path of a file; of a topic only the partitions of `tenants`.

    Raises SideError, DecisionFileError, and KafkaLogError and its kinds.
    """
    if name.startswith(_GENERATION):
        number = name.removeprefix(_GENERATION)
        if not (number.isascii() and number.isdigit() and 0 < int(number) < 1_000_000):
            raise SideError(f"{name}: a generation is a number from 1 on, such as gen:1")
        return _topic(decisions_topic(int(number)), access, tenants, is_generation=True)
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

    def decisions(self, starts: Mapping[Stretch, int] | None = None) -> Iterator[Decision]:  # noqa: ARG002 - no places
        return read_decisions(self._path)

    def starts(self) -> None:
        return None


@contextmanager
def _topic(topic: str, access: LogAccess, tenants: tuple[str, ...], *, is_generation: bool = False) -> Iterator[Side]:
    with TopicReader(access.kafka, topic) as reader:
        yield (_Generation if is_generation else _Topic)(reader, access.shard_count, tenants)


class _Topic:
    def __init__(self, reader: TopicReader, shard_count: int, tenants: tuple[str, ...]) -> None:
        self._reader = reader
        self._shard_count = shard_count
        self._tenants = tenants

    def batches(self) -> Iterator[DecidedBatch]:
        return read_batches(self._reader, self._reader.partitions_of(self._tenants, self._shard_count))

    def decisions(self, starts: Mapping[Stretch, int] | None = None) -> Iterator[Decision]:  # noqa: ARG002 - takes all
        for batch in self.batches():
            yield from batch.decisions

    def starts(self) -> dict[Stretch, int] | None:
        return None


class _Generation(_Topic):
    def decisions(self, starts: Mapping[Stretch, int] | None = None) -> Iterator[Decision]:
        return super().decisions() if starts is None else decisions_from(self.batches(), starts)

    def starts(self) -> dict[Stretch, int] | None:
        # Without any there is nothing to cut at, and a comparison of nothing would call the sides the same.
        return first_decided(self.batches()) or None
