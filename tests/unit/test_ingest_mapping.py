from __future__ import annotations

import csv
import gzip
import io
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.dead_letters import DeadLetterReason
from schemas.events import Event, PromptSubmitted, RequestCompleted, RequestFailed, UsageSource
from tests.ingest_fuzz import fuzz
from udfs.domain.ingest.mapped_trace import COLUMNS, ROW, mapped_adapter, rows_of
from udfs.domain.ingest.mapping import Mapping, MappingError, mapping_of
from udfs.domain.ingest.record import Foreign, Origin, Refused, UnreadableRecordError, read_foreign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).parents[2]
MAPPINGS = ROOT / "data" / "mappings"
AZURE_2023 = ROOT / "data" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz"
SHARED = ROOT.parent / "shared" / "data"
MOONCAKE = SHARED / "mooncake-fast25" / "conversation_trace.jsonl"
AZURE_2024 = SHARED / "azure-llm-2024-head" / "azure_llm_2024_printed_rows.csv"
BURSTGPT = SHARED / "burstgpt-head" / "burstgpt_1_first5_rows.csv"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not at hand")

ORIGIN = Origin(source="trace", tenant="trace-tenant")
BASE_US = 1_704_067_200_000_000  # 2024-01-01

CSV = """
format: csv
time: {column: at, unit: seconds}
request_id: id
tenant: {column: who}
model: {constant: gpt-4o}
prompt_tokens: in
completion_tokens: out
duration: {column: took, unit: milliseconds}
passed_over: [note]
"""
HEADER = b"at,id,who,in,out,took,note\n"


def shipped(name: str) -> Mapping:
    return mapping_of((MAPPINGS / f"{name}.yaml").read_text(encoding="utf-8"))


def read_lines(mapping: Mapping, lines: Iterable[bytes], file: str = "trace") -> tuple[list[Event], list[Refused]]:
    adapter = mapped_adapter(mapping)
    events, refused = [], []
    for record in rows_of(mapping, lines, file):
        reading = read_foreign(adapter, record, ORIGIN)
        assert bool(reading.events) != bool(reading.refused)
        events += reading.events
        refused += reading.refused
    return events, refused


def read_csv(rows: bytes, mapping: str = CSV, header: bytes = HEADER) -> tuple[list[Event], list[Refused]]:
    return read_lines(mapping_of(mapping), io.BytesIO(header + rows))


def completions(events: Sequence[Event]) -> list[RequestCompleted]:
    return [event for event in events if isinstance(event, RequestCompleted)]


def totals(events: Sequence[Event]) -> tuple[int, int, int]:
    ends = completions(events)
    return len(ends), sum(end.prompt_tokens for end in ends), sum(end.completion_tokens for end in ends)


# --- the traces that mappings are shipped for -----------------------------------------------------------------------


def test_the_azure_trace_of_2023_has_the_totals_of_its_file() -> None:
    with gzip.open(AZURE_2023, "rt", newline="") as text:
        rows = list(csv.DictReader(text))
    with gzip.open(AZURE_2023) as lines:
        events, refused = read_lines(shipped("azure-llm-2023"), lines, "conv")
    assert not refused
    prompt_tokens, output_tokens = (
        sum(int(row[name]) for row in rows) for name in ("ContextTokens", "GeneratedTokens")
    )
    # 19,366 rows, says SOURCE.md beside the file.
    assert totals(events) == (19_366, prompt_tokens, output_tokens) == (19_366, 22_361_870, 4_088_665)
    submitted = [event for event in events if isinstance(event, PromptSubmitted)]
    assert [event.prompt_tokens for event in submitted] == [int(row["ContextTokens"]) for row in rows]
    # Seven digits of a fraction: the last is less than a microsecond.
    exact = [datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=timezone.utc) for row in rows]
    assert [event.event_time_us for event in submitted] == [
        int(when.timestamp()) * 1_000_000 + when.microsecond for when in exact
    ]
    assert len({event.event_id for event in events}) == len(events) == 2 * 19_366
    assert {event.tenant for event in events} == {"trace-tenant"}


@needs_shared
def test_the_mooncake_trace_has_the_totals_of_its_file() -> None:
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    with MOONCAKE.open("rb") as lines:
        events, refused = read_lines(shipped("mooncake"), lines)
    assert not refused
    prompt_tokens, output_tokens = (sum(row[name] for row in rows) for name in ("input_length", "output_length"))
    # 12,031 requests, mean 12,035 in and 343 out, says the page of the traces.
    assert totals(events) == (12_031, prompt_tokens, output_tokens)
    assert (round(prompt_tokens / 12_031), round(output_tokens / 12_031)) == (12_035, 343)
    times = [event.event_time_us for event in events if isinstance(event, PromptSubmitted)]
    assert times == [BASE_US + 1_000 * row["timestamp"] for row in rows]
    # 10,851 of them come with another: only the number of the row tells them apart.
    assert len(set(times)) == 1_180
    assert len({event.request_id for event in events}) == 12_031


@needs_shared
def test_rows_of_the_azure_trace_of_2024() -> None:
    rows = list(csv.DictReader(AZURE_2024.open()))
    with AZURE_2024.open("rb") as lines:
        events, refused = read_lines(shipped("azure-llm-2024"), lines)
    assert not refused
    assert totals(events) == (20, sum(int(row["ContextTokens"]) for row in rows), 1_036)
    assert events[0].event_time_us == 1_715_299_200_009_930


def test_both_forms_of_time_in_the_azure_trace_of_2024() -> None:
    """A whole second is written without a fraction, as the notebook of the trace warns."""
    lines = [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
        b"2024-05-12 00:00:00.001163+00:00,1452,3\n",
        b"2024-05-12 00:00:00+00:00,584,3\n",
    ]
    events, refused = read_lines(shipped("azure-llm-2024"), lines)
    assert not refused
    assert [event.event_time_us for event in completions(events)] == [1_715_472_000_001_163, 1_715_472_000_000_000]


@needs_shared
def test_the_first_rows_of_burstgpt() -> None:
    with BURSTGPT.open("rb") as lines:
        events, refused = read_lines(shipped("burstgpt"), lines)
    assert not refused
    assert totals(events) == (5, 472 + 1087 + 417 + 1360 + 185, 18 + 230 + 276 + 647 + 215)
    assert [end.model for end in completions(events)] == ["ChatGPT", "ChatGPT", "GPT-4", "ChatGPT", "ChatGPT"]
    assert [end.event_time_us - BASE_US for end in completions(events)] == [
        seconds * 1_000_000 for seconds in (5, 45, 118, 185, 214)
    ]


def test_a_row_of_burstgpt_without_response_tokens_failed() -> None:
    header = b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    events, refused = read_lines(shipped("burstgpt"), [header, b"5.5,,0.1,GPT-4,417,0,417,API log\n"])
    assert not refused
    (first, last) = events
    assert isinstance(last, RequestFailed)
    assert (first.event_time_us, last.prompt_tokens) == (BASE_US + 5_500_000, 417)


@pytest.mark.parametrize("path", sorted(MAPPINGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_mapping_is_one(path: Path) -> None:
    assert mapping_of(path.read_text(encoding="utf-8")).prompt_tokens


# --- rows -----------------------------------------------------------------------------------------------------------


def test_a_row_says_what_its_mapping_says() -> None:
    events, _ = read_csv(b'1767225600.25,r1,acme,100,20,1500,"a note, quoted"\n')
    first, last = events
    assert isinstance(last, RequestCompleted)
    assert (last.tenant, last.request_id, last.model) == ("acme", "r1", "gpt-4o")
    assert (first.event_time_us, last.event_time_us) == (1_767_225_600_250_000, 1_767_225_601_750_000)
    assert (last.prompt_tokens, last.completion_tokens, last.usage_source) == (100, 20, UsageSource.REPORTED)


def test_lines_may_end_in_any_way_and_begin_with_a_mark() -> None:
    plain = b"1,a,t,1,2,3,\n2,b,t,1,2,3,\n"
    expected, _ = read_csv(plain)
    assert len(expected) == 4
    windows = io.BytesIO(b"\xef\xbb\xbf" + (HEADER + b"\n" + plain).replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert read_lines(mapping_of(CSV), windows)[0] == expected
    assert read_csv(plain.rstrip(b"\n"))[0] == expected


def test_a_quoted_cell_may_hold_line_ends_and_quotes() -> None:
    events, refused = read_csv(b'1,a,t,1,2,3,"one\r\ntwo ""three""\n"\n2,b,t,1,2,3,\n')
    assert ([end.request_id for end in completions(events)], refused) == (["a", "b"], [])


def test_a_quote_that_is_never_closed_costs_its_row_alone() -> None:
    rows = b'1,a,t,1,2,3,"open\n' + b"".join(b"%d,r%d,t,1,2,3,\n" % (n, n) for n in range(2, 200))
    events, refused = read_csv(rows)
    assert len(completions(events)) == 198
    assert [one.reason for one in refused] == [DeadLetterReason.MALFORMED]
    assert "row trace:1" in refused[0].detail


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (b"1,a,t,1,2,3", "6 cells, the header has 7"),
        (b"1,a,t,1,2,3,,", "8 cells, the header has 7"),
        (b"1,a,t,,2,3,", "without in"),
        (b"1,a,t,1,,3,", "without out"),
        (b",a,t,1,2,3,", "without at"),
        (b"1,a,t,1,2,,", "without took"),
        (b"1,,t,1,2,3,", "request id"),
        (b"1,a,t,-1,2,3,", "in is '-1'"),
        (b"1,a,t,1.5,2,3,", "in is '1.5'"),
        (b"1,a,t,1,2,-3,", "took"),
        (b"-1,a,t,1,2,3,", "at is '-1'"),
        (b"nan,a,t,1,2,3,", "at is 'nan'"),
        (b"1,a,t\xff,1,2,3,", "not UTF-8"),
        (b'1,a,"t"x,1,2,3,', "not CSV"),
    ],
)
def test_a_row_that_cant_be_meant_is_refused_with_its_number_and_column(row: bytes, named: str) -> None:
    events, refused = read_csv(b"9,good,t,1,2,3,\n" + row + b"\n9,fine,t,1,2,3,\n")
    assert [end.request_id for end in completions(events)] == ["good", "fine"]
    (one,) = refused
    assert named in one.detail
    assert "row trace:2: " in one.detail


def test_without_ids_the_file_and_the_row_make_them() -> None:
    mapping = mapping_of(CSV.replace("request_id: id\n", "").replace("[note]", "[note, id]"))
    rows = HEADER + b"1,,t,1,2,3,\n\n1,,t,1,2,3,\n"
    one = read_lines(mapping, io.BytesIO(rows), "one")[0]
    two = read_lines(mapping, io.BytesIO(rows), "two")[0]
    assert [event.request_id for event in completions(one + two)] == ["one:1", "one:2", "two:1", "two:2"]
    assert read_lines(mapping, io.BytesIO(rows), "one")[0] == one


def test_tenants_are_those_of_the_column_then_of_the_command() -> None:
    events, _ = read_csv(b"1,a,acme,1,2,3,\n1,b,,1,2,3,\n")
    assert [end.tenant for end in completions(events)] == ["acme", "trace-tenant"]


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("seconds", "1767225600.5", 1_767_225_600_500_000),
        ("milliseconds", "1767225600500", 1_767_225_600_500_000),
        ("microseconds", "1767225600500001", 1_767_225_600_500_001),
        ("nanoseconds", "1767225600500001999", 1_767_225_600_500_001),
        ("iso", "2026-01-01T01:00:00.5+01:00", 1_767_225_600_500_000),
    ],
)
def test_units_of_time(unit: str, value: str, expected: int) -> None:
    events, _ = read_csv(f"{value},a,t,1,2,3,\n".encode(), CSV.replace("unit: seconds", f"unit: {unit}"))
    assert events[0].event_time_us == expected


def test_an_end_time_ends_the_request() -> None:
    mapping = CSV.replace("duration: {column: took, unit: milliseconds}", "end_time: {column: took, unit: seconds}")
    events, refused = read_csv(b"5,a,t,1,2,7.5,\n5,b,t,1,2,4,\n", mapping)
    assert [event.event_time_us for event in events] == [5_000_000, 7_500_000]
    assert "before it starts" in refused[0].detail


def test_other_delimiters() -> None:
    mapping = CSV + 'delimiter: ";"\n'
    events, _ = read_csv(b"1;a;t;1;2;3;x,y\n", mapping, HEADER.replace(b",", b";"))
    assert totals(events) == (1, 1, 2)


def test_a_row_of_csv_needs_its_header() -> None:
    with pytest.raises(UnreadableRecordError, match="header"):
        mapped_adapter(mapping_of(CSV))(Foreign(value=b"1,a,t,1,2,3,\n"), ORIGIN)


def test_json_objects_need_no_file() -> None:
    mapping = mapping_of(CSV.replace("format: csv", "format: jsonl"))
    value = b'{"at": 1, "id": "a", "who": null, "in": 1, "out": 2, "took": 3}'
    (_, last) = mapped_adapter(mapping)(Foreign(value=value), ORIGIN).events
    assert (last.tenant, last.request_id) == ("trace-tenant", "a")


def test_a_quoted_cell_that_is_too_long_is_refused_by_its_length() -> None:
    events, refused = read_csv(b'1,a,t,1,2,3,"' + b"x" * 200_000 + b'"\n')
    assert (events, [one.reason for one in refused]) == ([], [DeadLetterReason.TOO_LARGE])
    assert "a quoted cell has more than" in refused[0].detail


def test_lines_of_an_open_quote_are_put_together_up_to_a_record() -> None:
    line = b'1,a,t,1,2,3,"' + b"x" * 6_000_000 + b"\n"
    rows = list(rows_of(mapping_of(CSV), [HEADER, line, *[b"y" * 6_000_000 + b"\n"] * 3], "trace"))
    assert [len(row.value) for row in rows] == [len(line), *[6_000_001] * 3]


def test_columns_that_nobody_spoke_of_are_refused() -> None:
    mapping = mapping_of(CSV.replace("format: csv", "format: jsonl"))
    value = b'{"at": 1, "id": "a", "in": 1, "out": 2, "took": 3, "status": "failed"}'
    with pytest.raises(UnreadableRecordError, match=r"does not know status; .* passed_over"):
        mapped_adapter(mapping)(Foreign(value=value), ORIGIN)
    every = mapping_of(CSV.replace("format: csv", "format: jsonl").replace("[note]", '["*"]'))
    assert mapped_adapter(every)(Foreign(value=value), ORIGIN).events


# --- mappings that don't fit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (b"at,id,who,in,out,note\n", "no column took"),
        (b"at,id,who,in,out,took,note,status\n", "status"),
        (b"at,id,who,in,out,took,note,note\n", "two columns"),
        (b"", "no column at"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_a_header_that_does_not_fit_is_said_before_the_first_row(header: bytes, named: str) -> None:
    with pytest.raises(MappingError, match=named):
        read_csv(b"", header=header)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("format: csv", "format: xml"), "format"),
        (("unit: seconds", "unit: hours"), "time.unit"),
        (("unit: seconds", "unit: iso, base: 2024-01-01T00:00:00Z"), "leave it out"),
        (("prompt_tokens: in\n", ""), "prompt_tokens"),
        (("prompt_tokens: in\n", "promt_tokens: in\n"), "promt_tokens"),
        (("{column: who}", "{column: who, constant: acme}"), "tenant"),
        (("{column: who}", "{}"), "either a column or a constant"),
        (("[note]", "[note, in]"), "take it out of passed_over"),
        (("[note]", "[note]\nend_time: {column: end, unit: iso}"), "leave one of them out"),
        (("[note]", "[note]\ndelimiter: ab"), "one character"),
        (("[note]", "[note"), "not YAML"),
        (("[note]", "2024-13-77"), "YAML"),
        ((CSV, "- a\n"), "object"),
        ((CSV, ""), "object"),
    ],
)
def test_a_mapping_that_is_none_names_the_key(change: tuple[str, str], named: str) -> None:
    with pytest.raises(MappingError, match=named):
        mapping_of(CSV.replace(*change))


# --- whatever comes -------------------------------------------------------------------------------------------------

_cell = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


@given(rows=st.lists(st.tuples(st.integers(1, 10**9), _cell, st.integers(0, 10**6), st.integers(0, 10**6), _cell)))
def test_what_a_csv_writer_writes_is_read(rows: list[tuple[int, str, int, int, str]]) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(["at", "id", "who", "in", "out", "took", "note"])
    for number, (at, who, given_tokens, out, note) in enumerate(rows):
        writer.writerow([at, f"r{number}", who, given_tokens, out, 0, note])
    events, refused = read_lines(mapping_of(CSV), io.BytesIO(written.getvalue().encode()))
    assert not refused
    assert [(end.event_time_us, end.prompt_tokens, end.completion_tokens) for end in completions(events)] == [
        (at * 1_000_000, given_tokens, out) for at, _, given_tokens, out, _ in rows
    ]
    assert [end.tenant for end in completions(events)] == [who.strip() or "trace-tenant" for _, who, *_ in rows]


CSV_ROWS = [b"1767225600.25,r1,acme,100,20,1500,note\n", b'1,"r,2",acme,1,0,3,"a ""quoted"" one"\r\n']
JSON_ROWS = [
    b'{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}',
    b'{"timestamp": 0, "input_length": 1, "output_length": 0}',
]


def _fuzz_all(count: int, seed: int) -> None:
    adapters: list[tuple[Any, list[bytes]]] = [(mapping_of(CSV), CSV_ROWS), (shipped("mooncake"), JSON_ROWS)]
    for mapping, rows in adapters:
        seen = fuzz(mapped_adapter(mapping), rows, count, seed, headers={ROW: b"trace:1", COLUMNS: HEADER})
        assert min(seen["read"], seen["refused"]) > count // 20


def test_whatever_comes_is_read_or_refused() -> None:
    _fuzz_all(2_000, seed=5)


@pytest.mark.slow
def test_whatever_comes_is_read_or_refused_at_length() -> None:
    _fuzz_all(100_000, seed=6)
