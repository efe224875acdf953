"""What `headrace load` plays, by its options."""

from pathlib import Path

import pytest

from jobs.ops.load.plan import PlanError, PlannedRequest
from jobs.ops.load_command import _requests
from jobs.wiring.event_file_writer import write_event_file, write_json_lines
from jobs.wiring.event_files import EventFileError
from schemas.events import Event
from tests.limiter_world import at, chunk, completed, prompt

EVENTS: list[Event] = [
    prompt("first", at(0), 5),
    chunk("first", at(2), 16, cumulative=16),
    prompt("second", at(3), 7, tenant="b"),
    completed("first", at(4), (5, 16)),
    completed("second", at(5), (7, 0), tenant="b"),
]


def played(
    *files: Path, speed: float = 1.0, rate: float | None = None, seconds: float | None = None
) -> list[PlannedRequest]:
    return list(_requests(list(files), speed=speed, rate=rate, seconds=seconds, tenants=3, seed=1)())


def test_event_files_of_both_formats_play_the_same(tmp_path: Path) -> None:
    lines, log = tmp_path / "events.jsonl.gz", tmp_path / "events.pb"
    write_json_lines(lines, EVENTS)
    write_event_file(log, EVENTS)

    found = played(log, speed=2)

    assert [(request.prompt.request_id, request.due_us) for request in found] == [("first", 0), ("second", 1_500_000)]
    assert [(request.prompt.request_id, request.due_us) for request in played(lines, speed=2)] == [
        ("first", 0),
        ("second", 1_500_000),
    ]
    assert found[0].offsets_us == played(lines, speed=2)[0].offsets_us == (1_000_000,)


def test_seconds_end_a_recording_early(tmp_path: Path) -> None:
    log = tmp_path / "events.pb"
    write_event_file(log, EVENTS)

    assert [request.prompt.request_id for request in played(log, seconds=2)] == ["first"]


def test_what_can_not_be_read_of_a_file_is_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "events.jsonl"
    write_json_lines(lines, EVENTS)
    lines.write_bytes(b"not an event\n" + lines.read_bytes())

    assert len(played(lines)) == 2
    assert "1 events could not be read and are left out" in capsys.readouterr().err


def test_a_rate_needs_its_seconds_and_no_files(tmp_path: Path) -> None:
    assert played(rate=100, seconds=1)
    with pytest.raises(PlanError, match="--seconds"):
        played(rate=100)
    with pytest.raises(PlanError, match="files"):
        played(tmp_path / "events.pb", rate=100, seconds=1)
    with pytest.raises(EventFileError, match="no such file"):
        played(tmp_path / "events.pb")
