"""Events into files, in log order, whole files or none."""

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

from jobs.wiring.atomic_file import replacing
from jobs.wiring.event_files import has_gzip_name, length_prefix
from schemas.codec import encode_events
from schemas.events import Event, Heartbeat
from schemas.json_lines import encode_line
from schemas.topics import SHARD_COUNT, shard_of

BATCH_EVENTS: Final = 500
BATCH_AGE_US: Final = 5_000


BATCH_TEXT_BYTES: Final = 1 << 20
"""A batch with more text than this is closed: a record of the log has its limits."""


class Written(NamedTuple):
    """How much a file holds. A heartbeat counts once for each shard."""

    records: int
    events: int


def shards_of(event: Event, shard_count: int) -> Iterable[int]:
    """The shards that an event belongs to: its tenant's; a heartbeat, which moves the clock of each, to all.

    An event of no tenant (a backend's health) goes where the empty tenant would.
    """
    return range(shard_count) if isinstance(event, Heartbeat) else (shard_of(event.tenant, shard_count),)


def write_event_file(
    path: str | PathLike[str],
    events: Iterable[Event],
    *,
    shard_count: int = SHARD_COUNT,
    batch_events: int = BATCH_EVENTS,
    batch_age_us: int = BATCH_AGE_US,
    gzip: bool | None = None,
    encode: Callable[[int, list[Event]], bytes] = encode_events,
) -> Written:
    """Write EventBatch records, as producers would have sent them: each shard's events in order.

    A batch is closed when it holds `batch_events`, and when the event time of the stream has gone `batch_age_us` past
    its first event. `gzip` None: as the name says. `encode` makes a record of a shard and its events. Raises
    OutputFileError where the file can't be written, ValueError for a number that does not fit its field; then `path` is
    as it was.
    """
    file = Path(path)
    records = written = 0
    with replacing(file, gzip=has_gzip_name(file) if gzip is None else gzip) as out:
        for shard, batch in batches(
            events, shard_count=shard_count, batch_events=batch_events, batch_age_us=batch_age_us
        ):
            record = encode(shard, batch)
            out.write(length_prefix(len(record)))
            out.write(record)
            records += 1
            written += len(batch)
    return Written(records, written)


def batches(
    events: Iterable[Event], *, shard_count: int, batch_events: int, batch_age_us: int
) -> Iterator[tuple[int, list[Event]]]:
    """Events grouped by shard, in the order in which the batches are closed. See `write_event_file`."""
    # In the order in which they were opened: the first is the oldest.
    opened: dict[int, tuple[int, list[Event]]] = {}
    text_bytes: dict[int, int] = {}
    now_us = 0
    for event in events:
        now_us = max(now_us, event.event_time_us)
        while opened:
            shard, (since_us, batch) = next(iter(opened.items()))
            if now_us - since_us < batch_age_us:
                break
            del opened[shard], text_bytes[shard]
            yield shard, batch
        for shard in shards_of(event, shard_count):
            _, batch = opened.setdefault(shard, (now_us, []))
            batch.append(event)
            # Only text makes an event large.
            text_bytes[shard] = text_bytes.get(shard, 0) + len(getattr(event, "text", "")) * 4
            if len(batch) >= batch_events or text_bytes[shard] > BATCH_TEXT_BYTES:
                del opened[shard], text_bytes[shard]
                yield shard, batch
    for shard, (_, batch) in opened.items():
        yield shard, batch


def write_json_lines(path: str | PathLike[str], events: Iterable[Event], *, gzip: bool | None = None) -> int:
    """Write one event a line, and return how many. `gzip` and errors as in `write_event_file`."""
    file = Path(path)
    written = 0
    with replacing(file, gzip=has_gzip_name(file) if gzip is None else gzip) as out:
        for event in events:
            out.write(encode_line(event) + b"\n")
            written += 1
    return written
