"""Files as logs: whatever happens to a file, each of its records is read or told of."""

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.wiring import file_log
from jobs.wiring.byte_stream import open_stream
from jobs.wiring.event_files import length_prefix
from jobs.wiring.file_log import Block, BlockReader, ReadBlock, plan, write_event_file, write_json_lines
from schemas import events as ev
from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from schemas.json_lines import encode_line
from schemas.topics import shard_of
from tests.generated_events import damaged, events

SHARDS = 4
_tenants = st.sampled_from(("acme", "globex", "initech", "umbrella"))
_logs = st.lists(events(tenants=_tenants, with_provenance=True), max_size=12)
_names = st.sampled_from(("events.jsonl", "events.jsonl.gz", "events.pb", "events.pb.gz"))


@contextmanager
def _small_blocks(name: str, content: bytes = b"", *, block_bytes: int = 300, records: int = 3) -> Iterator[Path]:
    """A file in a folder of its own, cut into blocks small enough that a few events make several."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_log, "BLOCK_BYTES", block_bytes)
        patch.setattr(file_log, "BLOCK_RECORDS", records)
        patch.setattr(file_log, "_CHUNK", 64)
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def _write(path: Path, log: list[ev.Event]) -> None:
    if ".pb" in path.suffixes:
        write_event_file(path, log, shard_count=SHARDS, batch_events=2)
    else:
        write_json_lines(path, log)


def _read(blocks: list[Block]) -> list[ReadBlock]:
    with BlockReader(SHARDS) as reader:
        return [reader.read(block) for block in blocks]


def _events_by_shard(parts: list[ReadBlock]) -> dict[int, list[ev.Event]]:
    found: dict[int, list[ev.Event]] = {shard: [] for shard in range(SHARDS)}
    for part in parts:
        for shard, record, offset in part.batches:
            decoded = decode_events(record, Position("", 0, offset), with_provenance=True)
            assert not decoded.dead
            found[shard] += decoded.events
    return found


def _shards(event: ev.Event) -> list[int]:
    return list(range(SHARDS)) if isinstance(event, ev.Heartbeat) else [shard_of(event.tenant, SHARDS)]


def _with_any_provenance(event: ev.Event) -> ev.Event:
    """As an event reads when its provenance is asked for."""
    (read,) = decode_events(encode_events(0, [event]), Position("", 0, 0), with_provenance=True).events
    return read


def _decompressed(path: Path) -> bytes:
    stream = open_stream(path)
    pieces = []
    while piece := stream.read(1_000):
        pieces.append(piece)
    stream.close()
    return b"".join(pieces)


def _require_blocks_cover(blocks: list[Block], whole: bytes) -> None:
    at = 0
    for block in blocks:
        assert block.start == at
        at += block.length
    assert at == len(whole)


@given(_logs, _names)
def test_a_log_reads_as_it_was_written(log: list[ev.Event], name: str) -> None:
    with _small_blocks(name) as path:
        _write(path, log)
        blocks = plan(path)
        parts = _read(blocks)
        _require_blocks_cover(blocks, _decompressed(path))
    read = [_with_any_provenance(event) for event in log]
    assert _events_by_shard(parts) == {
        shard: [event for event in read if shard in _shards(event)] for shard in range(SHARDS)
    }
    assert not any(part.dead or part.unknown_fields for part in parts)


@given(_logs, _names, st.data())
def test_a_block_reads_the_same_in_whatever_order(log: list[ev.Event], name: str, data: st.DataObject) -> None:
    with _small_blocks(name) as path:
        _write(path, log)
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(damaged(path.read_bytes())))
        blocks = plan(path)
        order = data.draw(st.permutations(range(len(blocks))))
        in_order = _read(blocks)
        out_of_order = _read([blocks[index] for index in order])
    assert [in_order[index] for index in order] == out_of_order


@given(_logs, st.data())
def test_each_line_of_a_damaged_file_is_read_or_told_of(log: list[ev.Event], data: st.DataObject) -> None:
    content = data.draw(damaged(b"\n".join(map(encode_line, log))))
    with _small_blocks("events.jsonl", content) as path:
        blocks = plan(path)
        parts = _read(blocks)
    if content[:2] == b"\x1f\x8b":
        return
    _require_blocks_cover(blocks, content)
    lines = [line.strip() for line in content.split(b"\n")]
    events_read = [event for events in _events_by_shard(parts).values() for event in events]
    heartbeats = sum(isinstance(event, ev.Heartbeat) for event in events_read)
    told = sum(len(part.dead) for part in parts)
    assert len(events_read) - heartbeats + heartbeats // SHARDS + told == sum(1 for line in lines if line)


@given(_logs, st.data())
def test_a_file_of_messages_that_is_cut_off_loses_what_is_cut_alone(log: list[ev.Event], data: st.DataObject) -> None:
    records = [encode_events(_shards(event)[0], [event]) for event in log]
    ends = [0]
    for record in records:
        ends.append(ends[-1] + len(length_prefix(len(record))) + len(record))
    content = b"".join(length_prefix(len(record)) + record for record in records)
    cut = data.draw(st.integers(0, len(content)))
    with _small_blocks("events.pb", content[:cut]) as path:
        blocks = plan(path)
        parts = _read(blocks)
    _require_blocks_cover(blocks, content[:cut])
    whole = sum(1 for end in ends[1:] if end <= cut)
    assert [record for part in parts for _, record, _ in part.batches] == records[:whole]
    assert [letter.payload for part in parts for letter in part.dead] == [content[ends[whole] : cut]] * (
        cut > ends[whole]
    )


@given(_logs, st.data())
def test_a_damaged_file_of_messages_is_covered(log: list[ev.Event], data: st.DataObject) -> None:
    records = [encode_events(_shards(event)[0], [event]) for event in log]
    content = data.draw(damaged(b"".join(length_prefix(len(record)) + record for record in records)))
    with _small_blocks("events.pb", content) as path:
        blocks = plan(path)
        parts = _read(blocks)
        whole = _decompressed(path)
    _require_blocks_cover(blocks, whole)
    for block, part in zip(blocks, parts, strict=True):
        assert len(part.batches) + len(part.dead) == max(block.records, 1)


@given(_logs, st.booleans(), st.data())
def test_a_gzip_file_that_is_cut_off_gives_a_run_from_the_start(
    log: list[ev.Event],
    as_lines: bool,
    data: st.DataObject,
) -> None:
    if as_lines:
        pieces = [encode_line(event) + b"\n" for event in log]
    else:
        records = [encode_events(_shards(event)[0], [event]) for event in log]
        pieces = [length_prefix(len(record)) + record for record in records]
    content = gzip.compress(b"".join(pieces))
    cut = data.draw(st.integers(2, len(content) - 1))
    with _small_blocks("events.jsonl" if as_lines else "events.pb", content[:cut]) as path:
        blocks = plan(path)
        parts = _read(blocks)
        whole = _decompressed(path)
    assert b"".join(pieces).startswith(whole)
    _require_blocks_cover(blocks, whole)
    letters = [letter for part in parts for letter in part.dead]
    assert len(letters) == 1
    assert "the gzip data ends in the middle" in letters[0].detail
    assert whole.endswith(letters[0].payload)
    assert sum(block.records for block in blocks) == sum(
        1 for index in range(len(pieces)) if len(b"".join(pieces[: index + 1])) <= len(whole)
    )


@given(_logs, st.data())
def test_a_damaged_gzip_file_is_read_up_to_the_damage(log: list[ev.Event], data: st.DataObject) -> None:
    pieces = [encode_line(event) + b"\n" for event in log]
    content = gzip.compress(b"".join(pieces))
    at = data.draw(st.integers(10, len(content) - 1))
    flipped = bytearray(content)
    flipped[at] ^= data.draw(st.integers(1, 255))
    with _small_blocks("events.jsonl", bytes(flipped)) as path:
        blocks = plan(path)
        parts = _read(blocks)
        whole = _decompressed(path)
    _require_blocks_cover(blocks, whole)
    # A checksum guards every byte; some bits of the compressed form mean nothing.
    assert any(part.dead for part in parts) or whole == b"".join(pieces)


@given(st.binary(max_size=300), _names)
def test_a_file_of_arbitrary_bytes_is_covered(content: bytes, name: str) -> None:
    with _small_blocks(name, content) as path:
        blocks = plan(path)
        _read(blocks)
        whole = _decompressed(path)
    _require_blocks_cover(blocks, whole)
    assert [Block.from_line(block.to_line()) for block in blocks] == blocks
