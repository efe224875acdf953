"""Files as logs: planning, reading, writing, and what damage comes to."""

import gzip
import os
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from jobs.wiring import file_log
from jobs.wiring.atomic_file import OutputFileError
from jobs.wiring.byte_stream import ByteStream, open_stream
from jobs.wiring.event_file_writer import batches
from jobs.wiring.event_files import MAX_RECORD_BYTES, NotALengthError, length_prefix, read_length_prefix
from jobs.wiring.file_log import (
    Block,
    BlockReader,
    EventFileError,
    EventFormat,
    ReadBlock,
    open_event_file,
    plan,
    plan_files,
    write_event_file,
    write_json_lines,
)
from schemas import events as ev
from schemas.codec import MAX_EVENT_BYTES, decode_events, encode_events
from schemas.dead_letters import DeadLetterReason, Position
from schemas.json_lines import encode_line
from schemas.topics import shard_of

FORMATS = ["events.jsonl", "events.jsonl.gz", "events.pb", "events.pb.gz"]


def chunk(number: int, tenant: str = "", source: str = "") -> ev.TokensGenerated:
    """The `number`-th of a stream of chunks, a millisecond apart."""
    name = tenant or f"tenant-{number % 7}"
    at_us = 1_700_000_000_000_000 + number * 1_000
    return ev.TokensGenerated(
        number.to_bytes(16, "big"), name, f"r-{number}", 0, at_us, 0, number, "s", "m", "b", "r", source, None, 16
    )


def heartbeat(at_us: int) -> ev.Heartbeat:
    return ev.Heartbeat(b"\1", "", "", 0, at_us, 0, 0, "", "", "", "", "", None)


def write(path: Path, events: Iterable[ev.Event]) -> None:
    if ".pb" in path.suffixes:
        write_event_file(path, events)
    else:
        write_json_lines(path, events)


def read_all(blocks: Iterable[Block], shard_count: int = 32) -> ReadBlock:
    with BlockReader(shard_count) as reader:
        parts = [reader.read(block) for block in blocks]
    whole = ReadBlock([], [], Counter())
    for part in parts:
        whole.batches.extend(part.batches)
        whole.dead.extend(part.dead)
        whole.unknown_fields.update(part.unknown_fields)
    return whole


def events_by_shard(read: ReadBlock) -> dict[int, list[ev.Event]]:
    found = defaultdict(list)
    for shard, record, offset in read.batches:
        decoded = decode_events(record, Position("", 0, offset))
        assert decoded.shard == shard
        assert not decoded.dead
        found[shard].extend(decoded.events)
    return dict(found)


def expected_by_shard(events: Iterable[ev.Event], shard_count: int = 32) -> dict[int, list[ev.Event]]:
    found = defaultdict(list)
    for event in events:
        for shard in range(shard_count) if isinstance(event, ev.Heartbeat) else [shard_of(event.tenant, shard_count)]:
            found[shard].append(event)
    return dict(found)


# --- names and formats -----------------------------------------------------------------------------------------------


def test_a_file_that_can_not_be_used_gets_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "events.csv").touch()
    (tmp_path / "events.jsonl").touch()
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, file_format, message in (
        ("", None, "the name of an event file is empty"),
        (tmp_path / "none.jsonl", None, "none.jsonl: no such file or directory"),
        (tmp_path, None, ": is a directory, not an event file"),
        (tmp_path / "pipe.jsonl", None, "is not a regular file"),
        (tmp_path / "events.csv", None, "tells no event format; known are .jsonl, .ndjson, .json, .pb, .binpb"),
        (tmp_path / "events.jsonl", "avro", "unknown event format 'avro'; known are json_lines, protobuf"),
        (str(tmp_path / "a\0b.jsonl"), None, "not a name that can be written down"),
        (str(tmp_path / "a\udcffb.jsonl"), None, "not a name that can be written down"),
    ):
        for use in (open_event_file, plan):
            with pytest.raises(EventFileError) as refused:
                use(name, file_format)
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)


def test_the_format_is_told_by_the_name_or_given(tmp_path: Path) -> None:
    for name, expected in (
        ("a.jsonl", EventFormat.JSON_LINES),
        ("a.ndjson.gz", EventFormat.JSON_LINES),
        ("a.JSON", EventFormat.JSON_LINES),
        ("a.pb", EventFormat.PROTOBUF),
        ("a.binpb.GZ", EventFormat.PROTOBUF),
    ):
        path = tmp_path / name
        path.touch()
        assert open_event_file(path).file_format is expected
    assert open_event_file(tmp_path / "a.pb", "json_lines").file_format is EventFormat.JSON_LINES


def test_a_file_that_is_gone_when_its_block_is_read_gets_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, [chunk(1)])
    blocks = plan(path)
    path.unlink()
    with pytest.raises(EventFileError, match=r"events\.jsonl: no such file or directory"):
        read_all(blocks)


def test_length_prefixes() -> None:
    for length in (0, 1, 127, 128, 300, 16_383, 16_384, 2**31 - 1):
        prefix = length_prefix(length)
        assert read_length_prefix(b"\xff" + prefix + b"\x01", 1) == (length, len(prefix))
        assert read_length_prefix(prefix[:-1], 0) is None
    for bad in (length_prefix(2**31), b"\x80" * 5 + b"\x00"):
        with pytest.raises(NotALengthError):
            read_length_prefix(bad, 0)


# --- whole files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_events_come_back_in_order_within_their_shard(name: str, tmp_path: Path) -> None:
    events: list[ev.Event] = [chunk(number) for number in range(5_000)]
    events.insert(2_500, heartbeat(1_700_000_002_500_000))
    path = tmp_path / name
    write(path, events)
    blocks = plan(path)
    assert len(blocks) > 1
    read = read_all(blocks)
    assert events_by_shard(read) == expected_by_shard(events)
    assert not read.dead
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_file_has_no_blocks(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, [])
    assert plan(path) == []
    path.write_bytes(b"")
    assert plan(path) == []


def test_compression_is_told_by_the_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(gzip.compress(encode_line(chunk(1))))
    assert events_by_shard(read_all(plan(path))) == expected_by_shard([chunk(1)])


def test_a_gzip_file_of_several_members_is_one_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    events = [chunk(number) for number in range(4)]
    line = b"\n".join(map(encode_line, events))
    path.write_bytes(gzip.compress(line[:100]) + gzip.compress(b"") + gzip.compress(line[100:]) + b"\0" * 600)
    read = read_all(plan(path))
    assert events_by_shard(read) == expected_by_shard(events)
    assert not read.dead


def test_blocks_keep_their_bounds(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_json_lines(path, [chunk(number) for number in range(4_100)])
    sizes = [(block.records, block.length) for block in plan(path)]
    assert sum(records for records, _ in sizes) == 4_100
    assert sum(length for _, length in sizes) == path.stat().st_size
    assert all(records <= file_log.BLOCK_RECORDS and length < file_log.BLOCK_BYTES + 1_000 for records, length in sizes)
    path.write_bytes(b"\n" * 4_100)
    assert [block.records for block in plan(path)] == [2_000, 2_000, 100]


def test_several_files_are_planned_one_after_the_other(tmp_path: Path) -> None:
    first, second = tmp_path / "b.jsonl", tmp_path / "a.pb"
    write(first, [chunk(1)])
    write(second, [chunk(2)])
    assert [Path(block.path).name for block in plan_files([first, second])] == ["b.jsonl", "a.pb"]


def test_a_block_is_one_line_of_text(tmp_path: Path) -> None:
    path = tmp_path / "events \n ü.jsonl"
    path.write_bytes(b"x" * (MAX_EVENT_BYTES + 10) + b"\n" + encode_line(chunk(1)))
    blocks = plan(path)
    assert [block.refusal is None for block in blocks] == [False, True]
    for block in blocks:
        assert "\n" not in block.to_line()
        assert Block.from_line(block.to_line()) == block


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"path":"a","file_format":"pb","start":0,"length":0,"records":0}'])
def test_a_line_that_is_no_block_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Block.from_line(line)


def test_a_record_of_lines_holds_no_more_than_a_producer_would_send(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [chunk(number, "acme") for number in range(1_100)]
    write_json_lines(path, events)
    read = read_all(plan(path))
    sizes = [len(decode_events(record, Position("", 0, 0)).events) for _, record, _ in read.batches]
    assert max(sizes) == 500
    assert events_by_shard(read) == expected_by_shard(events)
    offsets = [offset for _, _, offset in read.batches]
    assert sorted(set(offsets)) == offsets


def test_unknown_fields_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = encode_line(chunk(1))
    path.write_bytes(line[:-1] + b',"colour":1}\r\n\n' + line[:-1] + b',"colour":1,"taste":2}\r\n' + line)
    read = read_all(plan(path))
    assert read.unknown_fields == {"colour": 2, "taste": 1}
    assert len(events_by_shard(read)[shard_of("tenant-1")]) == 3


def test_a_line_that_can_not_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = encode_line(chunk(1)) + b"\r\n"
    path.write_bytes(good + b"oops\r\n" + good)
    read = read_all(plan(path))
    (letter,) = read.dead
    assert (letter.source, letter.offset, letter.payload) == (str(path), len(good), b"oops")
    assert len(events_by_shard(read)[shard_of("tenant-1")]) == 2


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_line_that_is_too_large_is_told_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    good = encode_line(chunk(1)) + b"\n"
    huge = 64 << 20
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(good)
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + good)
    tracemalloc.start()
    read = read_all(plan(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (letter,) = read.dead
    assert letter.reason is DeadLetterReason.TOO_LARGE
    assert letter.detail == (
        f"the line has {huge + 1} bytes, at most {MAX_EVENT_BYTES} are allowed ({huge + 1} bytes from {len(good)})"
    )
    assert letter.payload == b"x" * file_log.MAX_PAYLOAD_BYTES
    assert events_by_shard(read) == expected_by_shard([chunk(1), chunk(1)])
    assert peak < 8 << 20


def test_a_record_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.pb"
    good = encode_events(3, [])
    path.write_bytes(
        length_prefix(len(good))
        + good
        + length_prefix(MAX_RECORD_BYTES + 1)
        + b"\0" * (MAX_RECORD_BYTES + 1)
        + length_prefix(len(good))
        + good
    )
    read = read_all(plan(path))
    assert [(shard, record) for shard, record, _ in read.batches] == [(3, good), (3, good)]
    assert [letter.reason for letter in read.dead] == [DeadLetterReason.TOO_LARGE]


@pytest.mark.parametrize(
    ("tail", "detail"),
    [
        (b"\x05\x08\x03", "the file ends inside a record (3 bytes from 3)"),
        (b"\xff", "the file ends inside a record (1 bytes from 3)"),
        (b"\xff" * 9, "a length of more than 5 bytes can't be (9 bytes from 3)"),
        (length_prefix(2**31) + b"rest", "a message of 2147483648 bytes can't be (9 bytes from 3)"),
    ],
)
def test_a_tail_that_is_no_record_is_told(tail: bytes, detail: str, tmp_path: Path) -> None:
    path = tmp_path / "events.pb"
    path.write_bytes(b"\x02\x08\x03" + tail)
    read = read_all(plan(path))
    assert read.batches == [(3, b"\x08\x03", 0)]
    (letter,) = read.dead
    assert (letter.reason, letter.offset, letter.payload) == (DeadLetterReason.MALFORMED, 3, tail)
    assert letter.detail == detail


def test_a_record_that_is_no_batch_or_of_no_shard_of_the_log_is_told(tmp_path: Path) -> None:
    path = tmp_path / "events.pb"
    records = [b"\xff\xff", encode_events(32, []), encode_events(31, [])]
    path.write_bytes(b"".join(length_prefix(len(record)) + record for record in records))
    read = read_all(plan(path))
    assert read.batches == [(31, records[2], 6)]
    assert [(letter.reason, letter.offset, letter.payload) for letter in read.dead] == [
        (DeadLetterReason.MALFORMED, 0, records[0]),
        (DeadLetterReason.WRONG_SHARD, 3, records[1]),
    ]


def test_a_gzip_file_that_is_cut_off_gives_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    events = [chunk(number) for number in range(3_000)]
    write_json_lines(path, events)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    read = read_all(plan(path))
    found = events_by_shard(read)
    assert 500 < sum(map(len, found.values())) < 3_000
    assert all(found[shard] == expected[: len(found[shard])] for shard, expected in expected_by_shard(events).items())
    (letter,) = read.dead
    assert letter.detail.startswith("the gzip data ends in the middle (")


def test_a_wrong_checksum_is_told_although_all_was_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    events = [chunk(number) for number in range(300)]
    write_json_lines(path, events)
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 0x10
    path.write_bytes(whole)
    read = read_all(plan(path))
    assert events_by_shard(read) == expected_by_shard(events)
    (letter,) = read.dead
    assert letter.reason is DeadLetterReason.MALFORMED
    assert "incorrect data check" in letter.detail or "incorrect length check" in letter.detail


def test_bytes_after_the_gzip_data_are_told(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress(encode_line(chunk(1)) + b"\n") + b"more")
    read = read_all(plan(path))
    assert events_by_shard(read) == expected_by_shard([chunk(1)])
    assert [letter.detail for letter in read.dead] == [
        f"what follows the gzip data is not gzip data (0 bytes from {len(encode_line(chunk(1))) + 1})"
    ]


def test_damage_in_the_middle_of_gzip_data_gives_all_that_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    lines = [encode_line(chunk(number)) + b"\n" for number in range(2_000)]
    sound = gzip.compress(b"".join(lines[:1_000]))
    path.write_bytes(sound + gzip.compress(b"".join(lines[1_000:]))[:10] + b"\xff" * 100)
    read = read_all(plan(path))
    assert sum(map(len, events_by_shard(read).values())) == 1_000
    (letter,) = read.dead
    assert letter.detail.startswith("the gzip data is damaged (")


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_got_shorter_after_it_was_planned_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, [chunk(number) for number in range(100)])
    blocks = plan(path)
    path.write_bytes(b"")
    read = read_all(blocks)
    assert not read.batches
    assert ["that stood here when the file was planned are gone" in letter.detail for letter in read.dead] == [True]


def test_a_file_that_holds_something_else_after_it_was_planned_is_told(tmp_path: Path) -> None:
    path = tmp_path / "events.pb"
    write(path, [chunk(1)])
    blocks = plan(path)
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert [letter.detail for letter in read_all(blocks).dead] == ["the file has changed since it was planned"]


# --- reading from the middle -----------------------------------------------------------------------------------------


def test_blocks_in_order_read_a_gzip_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl.gz"
    write_json_lines(path, [chunk(number) for number in range(5_000)])
    blocks = plan(path)
    opened: list[Path] = []

    def counting(path: Path) -> ByteStream:
        opened.append(path)
        return open_stream(path)

    monkeypatch.setattr(file_log, "open_stream", counting)
    in_order = read_all(blocks)
    assert opened == [path]
    assert len(blocks) > 3
    assert read_all(blocks[2:]).batches == [batch for block in blocks[2:] for batch in read_all([block]).batches]
    assert [batch for batch in in_order.batches if batch[2] >= blocks[2].start] == read_all(blocks[2:]).batches


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_closed_when_full_and_when_old() -> None:
    events = [chunk(number, "acme") for number in range(7)]
    by_age = batches(events, shard_count=4, batch_events=500, batch_age_us=3_000)
    assert [[event.sequence for event in batch] for _, batch in by_age] == [[0, 1, 2], [3, 4, 5], [6]]
    by_size = batches(events, shard_count=4, batch_events=2, batch_age_us=10**9)
    assert [[event.sequence for event in batch] for _, batch in by_size] == [[0, 1], [2, 3], [4, 5], [6]]


def test_an_event_that_is_late_makes_no_batch_old() -> None:
    tenants = ["tenant-1", "tenant-2"]
    events = [chunk(10, tenants[0]), chunk(10, tenants[0]), chunk(0, tenants[1]), chunk(6, tenants[1])]
    found = [batch for _, batch in batches(events, shard_count=32, batch_events=2, batch_age_us=5_000)]
    assert found == [events[:2], events[2:]]


def test_an_old_batch_is_closed_by_the_events_of_another_shard() -> None:
    tenants = ["tenant-1", "tenant-2"]
    assert shard_of(tenants[0], 32) != shard_of(tenants[1], 32)
    events = [chunk(0, tenants[0]), chunk(1, tenants[1]), chunk(9, tenants[1])]
    found = [batch for _, batch in batches(events, shard_count=32, batch_events=500, batch_age_us=5_000)]
    assert found == [[events[0]], [events[1]], [events[2]]]


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_events_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / name, map(chunk, range(50)))
        written.append((tmp_path / folder / name).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_written_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, [chunk(1)])
    before = path.read_bytes()

    def broken() -> Iterable[ev.Event]:
        yield chunk(1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write(path, broken())
    assert path.read_bytes() == before
    assert [left.name for left in tmp_path.iterdir()] == [name]


def test_a_place_that_can_not_be_written_to_gets_one_clear_line(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is a directory"), (tmp_path / "none" / "a.pb", "no such file or directory")):
        with pytest.raises(OutputFileError, match=message):
            write_event_file(path, [chunk(1)])
