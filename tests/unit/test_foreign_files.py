"""What is one record of a file, whatever its form, and where it stands."""

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.wiring import foreign_files
from jobs.wiring.foreign_files import ForeignFile, ForeignFileError, Placed, load_mapping, shipped_mappings
from udfs.domain.ingest.formats import FORMATS, Format
from udfs.domain.ingest.record import MAX_RECORD_BYTES

LINES, SCRAPE, OTLP = FORMATS["kong"], FORMATS["prometheus"], FORMATS["otlp"]


def records(path: Path, content: bytes, known: Format = LINES) -> list[tuple[bytes, int, int]]:
    path.write_bytes(content)
    return [_plain(placed) for placed in ForeignFile(path, 7).records(known)]


def _plain(placed: Placed) -> tuple[bytes, int, int]:
    assert placed.record.received_at_us == 7
    return placed.record.value, placed.offset, placed.line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records"


def test_a_line_is_a_record_and_empty_ones_are_none(path: Path) -> None:
    assert records(path, b'{"a":1}\r\n\n{"b":2}\n{"c":3}') == [
        (b'{"a":1}\r\n', 0, 1),
        (b'{"b":2}\n', 10, 3),
        (b'{"c":3}', 18, 4),
    ]


def test_a_document_that_was_printed_for_people_is_one_record(path: Path) -> None:
    content = b'[\n {"a": 1},\n {"b": 2}\n]\n'
    assert records(path, content) == [(content, 0, 1)]


def test_a_broken_line_does_not_make_the_file_one_record(path: Path) -> None:
    assert len(records(path, b'{"a":1}\n{"b":\n{"c":3}\n')) == 3


def test_a_scrape_is_one_record(path: Path) -> None:
    content = b"# TYPE x gauge\nx 1\n"
    assert records(path, content, SCRAPE) == [(content, 0, 1)]


def test_bytes_of_a_binary_format_are_not_cut_at_their_newlines(path: Path) -> None:
    content = b"\n{\n\x10spans\n\x02\n"
    assert records(path, content, OTLP) == [(content, 0, 1)]
    assert len(records(path, b'{"resourceSpans":[]}\n{"resourceSpans":[]}\n', OTLP)) == 2


@pytest.mark.parametrize("content", [b"", b"\n \n", b" "])
def test_an_empty_file_has_no_record(path: Path, content: bytes) -> None:
    assert records(path, content) == records(path, content, SCRAPE) == []


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl.gz"
    file = gzip.compress(b'{"a":1}\n{"b":2}\n')
    assert len(records(path, file)) == 2
    with pytest.raises(ForeignFileError, match=r"lines\.jsonl\.gz"):
        records(path, file[:-9])
    with pytest.raises(ForeignFileError, match=r"lines\.jsonl\.gz"):
        records(path, b"not packed at all")


def test_of_a_line_longer_than_a_record_the_beginning_comes_and_the_rest_is_no_record_of_its_own(path: Path) -> None:
    long = b'{"a":"' + b"x" * (2 * MAX_RECORD_BYTES) + b'"}\n'
    found = records(path, b'{"z":0}\n' + long + b'{"b":2}\n')
    assert [(len(value), offset, line) for value, offset, line in found] == [
        (8, 0, 1),
        (MAX_RECORD_BYTES + 1, 8, 2),
        (8, 8 + len(long), 3),
    ]


@given(
    st.lists(st.sampled_from([b"", b"{", b'{"a":1}', b" ", b"x" * 40]), max_size=30), st.integers(1, 50), st.booleans()
)
def test_lines_are_those_of_the_file_however_it_is_read(lines: list[bytes], block: int, ends: bool) -> None:
    content = b"\n".join([b"no document", *lines]) + (b"\n" if ends else b"")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign_files, "_BLOCK_BYTES", block)
        patch.setattr(foreign_files, "MAX_RECORD_BYTES", 20)
        found = records(Path(folder) / "records", content)
    expected, offset = [], 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if line.strip():
            expected.append((line if len(line) <= 21 else line[:21], offset, number))
        offset += len(line)
    assert found == expected


def test_how_far_it_is_ends_at_the_size_of_the_file(path: Path) -> None:
    path.write_bytes(b'{"a":1}\n' * 1000)
    file = ForeignFile(path)
    list(file.records(LINES))
    assert file.read_bytes == file.size_bytes == 8_000


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ForeignFileError, match=r"is a folder; name its files"):
        ForeignFile(tmp_path)
    with pytest.raises(ForeignFileError, match=r"none: No such file"):
        ForeignFile(tmp_path / "none")


def test_every_mapping_that_is_shipped_can_be_read() -> None:
    assert {"azure-llm-2023", "mooncake"} <= set(shipped_mappings())


def test_a_mapping_that_is_none_is_told_with_its_file(path: Path) -> None:
    path.write_text("format: csv\nno_such_key: 1\n")
    with pytest.raises(ForeignFileError, match=r"records: .*no_such_key"):
        load_mapping(path)
    with pytest.raises(ForeignFileError, match=r"No such file"):
        load_mapping(path.with_name("none"))
