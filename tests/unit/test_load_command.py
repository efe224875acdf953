"""What `headrace load` plays, by its options, and what it says meanwhile."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from jobs.ops.cli import app
from jobs.ops.load.plan import PlanError, PlannedRequest
from jobs.ops.load.tally import Tally
from jobs.ops.load_command import MAX_RUN_ID_BYTES, _progress, _requests
from jobs.wiring.event_file_writer import write_event_file, write_json_lines
from jobs.wiring.event_files import EventFileError
from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from schemas.decisions import DecisionKind
from schemas.events import Event
from tests.limiter_world import at, chunk, completed, prompt
from tests.load_world import decision

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


@pytest.mark.parametrize(
    "option", ["--speed", "--rate", "--seconds", "--max-wait", "--decision-timeout", "--warm-up", "--linger"]
)
@pytest.mark.parametrize("value", ["inf", "nan", "1e308", "-inf"])
def test_a_number_that_is_none_is_wrong_use_of_its_option(option: str, value: str) -> None:
    # Nothing answers there, so what is not refused ends with another exit status.
    found = CliRunner().invoke(app, ["load", option, value, "--servers", "127.0.0.1:1"])
    assert found.exit_code == 2
    assert f"Invalid value for '{option}'" in found.output


@pytest.mark.parametrize("run_id", ["", "x" * 401, "ü" * 201, "\udcff"])
def test_a_run_id_that_events_could_not_have_is_refused_before_anything_is_sent(run_id: str) -> None:
    found = CliRunner().invoke(app, ["load", "--run-id", run_id, "--servers", "127.0.0.1:1"])
    assert isinstance(found.exception, PlanError)
    assert "--run-id" in str(found.exception)


def test_the_longest_run_id_makes_ids_that_the_codec_takes() -> None:
    request_id = f"{'x' * MAX_RUN_ID_BYTES}-{2**48:x}-63-{10**12}"
    (frame,) = decode_events(encode_events(0, [prompt(request_id, at(0))]), Position("here", 0, 0)).events
    assert frame.request_id == request_id


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_load_that_nobody_decides_on_says_so_once_and_soon() -> None:
    out, clock, tally = io.StringIO(), Seconds(), Tally()
    tally.requests = 3
    with _progress(Console(file=out, width=200), clock) as tell:
        tell(tally)
        assert "decide" not in out.getvalue()
        for clock.now in (5.0, 6.0):
            tell(tally)
    assert out.getvalue().count("Nobody has decided anything in 5 s") == 1
    assert "headrace status" in out.getvalue()


def test_the_progress_of_a_load_tells_that_nobody_decides_until_somebody_does() -> None:
    out, clock, tally = io.StringIO(), Seconds(), Tally()
    tally.requests = 3
    with _progress(Console(file=out, width=200, force_terminal=True), clock) as tell:
        clock.now = 5.0
        tell(tally)
        assert "0 ended, nobody decides yet, 0 lost" in out.getvalue()
        out.truncate(0)
        tally.decided(decision(DecisionKind.ADMIT))
        tell(tally)
        assert "1 decisions, 0 lost" in out.getvalue()
        assert "nobody" not in out.getvalue()
