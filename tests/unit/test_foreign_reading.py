"""The account of foreign files: what is counted is what would be billed, whatever is odd about the records."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.ops.foreign_reading import Account, ForeignReading
from jobs.wiring.foreign_files import ForeignFile, reader_of_format
from jobs.wiring.settings import IngestSettings, SettingsError, load_job_settings
from schemas.dead_letters import DeadLetter
from schemas.events import Event
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.record import Origin

PAYLOAD: dict[str, Any] = {
    "id": "call-1",
    "call_type": "acompletion",
    "status": "success",
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "startTime": 1767225600.0,
    "endTime": 1767225602.0,
    "model": "gpt-4o-mini",
    "metadata": {"user_api_key_team_id": "acme"},
}
CUT = {"tenant": "acme", "request_id": "cut", "started_at": 1767225600, "error": "client_disconnected"}
ANSWER = {"id": "c", "model": "gpt-4o", "choices": [{"index": 0, "delta": {"content": "It left"}}]}


def read(path: Path, known: str, *records: dict[str, Any]) -> tuple[Account, list[Event], list[DeadLetter]]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    letters: list[DeadLetter] = []
    reading = ForeignReading(reader_of_format(FORMATS[known]), Origin(source="s"), letters.append)
    events = list(reading.events([ForeignFile(path)]))
    return reading.account, events, letters


def test_one_record_with_a_wrong_time_does_not_make_the_others_count_twice(tmp_path: Path) -> None:
    ahead = {**PAYLOAD, "id": "ahead", "startTime": 4_986_000_000.0, "endTime": 4_986_000_001.0}
    account, _, _ = read(tmp_path / "log", "litellm", ahead, PAYLOAD, PAYLOAD, PAYLOAD)
    assert (account.requests, account.prompt_tokens, account.completion_tokens) == (2, 20, 8)
    assert (account.duplicates, account.unchecked) == (4, 0)


def test_the_prompt_of_an_interrupted_request_is_counted(tmp_path: Path) -> None:
    prompt = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Where is my parcel?"}]}
    capture = {**CUT, "request": prompt, "chunks": [{"at": 1767225601, "data": f"data: {json.dumps(ANSWER)}"}]}
    account, _, letters = read(tmp_path / "log", "transcript", capture)
    assert not letters
    assert (account.interrupted, account.prompt_tokens, account.completion_tokens) == (1, 12, 2)


def test_each_letter_is_put_aside_as_it_is_found_and_counted(tmp_path: Path) -> None:
    account, events, letters = read(tmp_path / "log", "litellm", {**PAYLOAD, "prompt_tokens": -1}, PAYLOAD, {"id": 3})
    assert len(letters) == sum(account.refused.values()) == 2
    assert [letter.detail.split(":")[0] for letter in letters] == ["line 1", "line 3"]
    assert account.events == sum(1 for event in events if event.tenant)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"topic": "headrace.events", "format": "otlp"}, "headrace.events is what this job writes"),
        ({"topic": "headrace.dlq", "format": "otlp"}, "headrace.dlq is what this job writes"),
        ({"topic": "spans", "format": "otlp", "tenant": "t" * 200}, "at most 128 characters"),
        ({"topic": "spans", "format": "otlp", "tennant": "t"}, "tennant"),
    ],
)
def test_a_source_that_can_not_be_meant_is_refused(source: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_job_settings(IngestSettings, sources=(source,))


def test_two_sources_of_one_name_are_refused() -> None:
    twice = ({"topic": "spans", "format": "otlp"}, {"topic": "spans", "format": "otlp"})
    with pytest.raises(SettingsError, match="spans stands there twice"):
        load_job_settings(IngestSettings, sources=twice)
