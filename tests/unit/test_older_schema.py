"""Logs for consumers of an older schema: `headrace convert --schema`."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jobs.ops import run_command
from jobs.ops.older_schema import OlderSchema, OlderSchemaError
from jobs.wiring.event_files import EventFileError
from jobs.wiring.file_log import BlockReader, plan, write_json_lines
from schemas import events as ev
from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from schemas.gen.headrace.v1.events_pb2 import EventBatch
from tests.critical_field import added_as_critical


def prompt(**fields: Any) -> ev.PromptSubmitted:
    given: dict[str, Any] = {"prompt_tokens": 7, "provider": "openai"}
    return ev.PromptSubmitted(
        b"\1" * 16, "acme", "r-1", 0, 1_700_000_000_000_250, 0, 1, "s", "m", "b", "r", "src", None, **(given | fields)
    )


def convert(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(run_command.convert)
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    write_json_lines(path, [prompt(), prompt(provider="")])
    return path


def records(log: Path) -> list[EventBatch]:
    with BlockReader() as reader:
        return [EventBatch.FromString(record) for block in plan(log) for _, record, _ in reader.read(block).batches]


def test_a_log_is_written_in_the_older_version_and_what_is_left_out_is_told(lines: Path, tmp_path: Path) -> None:
    done = convert(lines, tmp_path / "old.pb", "--schema", "1.0", "--json")
    assert done.exit_code == 0
    facts = json.loads(done.stdout)
    assert facts["schema"] == "1.0"
    assert facts["dropped_fields"]["PromptSubmitted.provider"] == 1
    assert "schema 1.0 does not have, left out: Event.event_time_us" in done.stderr
    written = [event for batch in records(tmp_path / "old.pb") for event in batch.events]
    assert {event.schema_version for event in written} == {"1.0.0"}
    prompts = [event for event in written if event.HasField("prompt_submitted")]
    assert [(event.event_time_ms, event.prompt_submitted.provider) for event in prompts] == [
        (1_700_000_000_000, "")
    ] * 2


def test_the_current_version_is_written_as_ever(lines: Path, tmp_path: Path) -> None:
    assert convert(lines, tmp_path / "a.pb", "--json").exit_code == 0
    done = convert(lines, tmp_path / "b.pb", "--schema", "1.2.0", "--json")
    assert (tmp_path / "a.pb").read_bytes() == (tmp_path / "b.pb").read_bytes()
    assert json.loads(done.stdout)["dropped_fields"] == {}


def test_a_prompt_that_goes_on_is_written_without_saying_so(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_json_lines(path, [prompt(), prompt(resumed_at_token=40)])
    done = convert(path, tmp_path / "old.pb", "--schema", "1.1", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["dropped_fields"]["PromptSubmitted.resumed_at_token"] == 1


def test_a_critical_field_leaves_nothing_written_and_names_the_request(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_json_lines(path, [prompt(), prompt(choices=3)])
    with added_as_critical("PromptSubmitted", "choices"):
        done = convert(path, tmp_path / "old.pb", "--schema", "1.1")
    assert isinstance(done.exception, OlderSchemaError)
    assert str(done.exception).startswith("request r-1 of acme, at 1700000000000250 us: schema 1.1 has no ")
    assert not (tmp_path / "old.pb").exists()
    # So that the command line tells it as any other file that can't be used.
    assert isinstance(done.exception, EventFileError)


@pytest.mark.parametrize(("version", "says"), [("1.3", "no schema version 1.3"), ("old", "not a semantic version")])
def test_a_version_that_is_not_there_is_refused(version: str, says: str) -> None:
    with pytest.raises(OlderSchemaError, match=says):
        OlderSchema(version)


def test_an_older_log_is_read_here_with_what_it_has_kept() -> None:
    older = OlderSchema("1.1")
    decoded = decode_events(older.encode(3, [prompt(), prompt(provider="")]), Position("log", 0, 0))
    assert decoded.shard == 3
    assert decoded.events == [prompt(provider="")] * 2
    assert decoded.dead == []
    assert older.dropped == {"PromptSubmitted.provider": 1}
    assert OlderSchema("1.2").encode(3, [prompt()]) == encode_events(3, [prompt()])
