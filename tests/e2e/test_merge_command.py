"""`headrace merge` as a user types it: an edge site was offline, and no token is counted twice."""

import json
from itertools import permutations
from pathlib import Path

import pytest

from jobs.ops.run_command import EventLog
from jobs.wiring.event_file_writer import write_event_file, write_json_lines
from jobs.wiring.file_log import plan_files
from schemas.events import Event, TokensGenerated
from tests.e2e.test_command_line import headrace, mistake
from tests.limiter_world import at, chunk, completed, prompt

# The cloud saw the beginning, the edge site went on alone, and both had told the middle.
CLOUD: list[Event] = [
    prompt("r", at(0), 5, max_tokens=50),
    chunk("r", at(1), cumulative=3),
    chunk("r", at(2), cumulative=8),
]
EDGE: list[Event] = [chunk("r", at(2), cumulative=8), chunk("r", at(3), cumulative=20), completed("r", at(4), (5, 20))]


def merged(tmp_path: Path, *logs: list[Event]) -> tuple[int, dict[str, object], list[Event]]:
    paths = []
    for number, log in enumerate(logs):
        paths.append(tmp_path / f"{number}.pb")
        write_event_file(paths[-1], log)
    done = headrace("merge", *paths, "--to", tmp_path / "merged.pb", "--json")
    assert "Traceback" not in done.stderr
    facts = json.loads(done.stdout)
    return done.returncode, facts, _events(tmp_path / "merged.pb")


def _events(path: Path) -> list[Event]:
    return list(EventLog(plan_files([path]), 32).events())


def tokens(events: list[Event]) -> int:
    return sum(event.count for event in events if isinstance(event, TokensGenerated))


def test_no_token_is_counted_twice_whatever_was_uploaded_when(tmp_path: Path) -> None:
    found = [merged(tmp_path, *logs) for logs in permutations((CLOUD, EDGE, EDGE))]
    assert {status for status, _, _ in found} == {0}
    assert {tokens(events) for _, _, events in found} == {20}
    assert all(events == found[0][2] for _, _, events in found)
    assert found[0][1]["read"] == len(CLOUD) + 2 * len(EDGE)


def test_what_two_sites_tell_differently_is_told_and_one_stands(tmp_path: Path) -> None:
    status, facts, events = merged(tmp_path, [*CLOUD, completed("r", at(4), (5, 8))], EDGE)
    assert status == 1
    remarks = facts["remarks"]
    assert isinstance(remarks, list)
    assert [(it["what"], it["request_id"]) for it in remarks] == [("contradiction", "r")]
    assert tokens(events) == 20


def test_a_log_is_not_written_over_one_of_the_sites(tmp_path: Path) -> None:
    write_event_file(tmp_path / "cloud.pb", CLOUD)
    assert "is among the files to read" in mistake("merge", tmp_path / "cloud.pb", "--to", tmp_path / "cloud.pb")


@pytest.mark.parametrize("name", ["none.pb", "none.jsonl"])
def test_a_site_without_a_log_is_told(tmp_path: Path, name: str) -> None:
    assert name in mistake("merge", tmp_path / name, "--to", tmp_path / "merged.pb")


def test_dead_letters_of_a_merged_log_are_not_written_over_one_of_the_sites(tmp_path: Path) -> None:
    site = tmp_path / "merged.pb.dead-letters.jsonl"
    write_json_lines(site, CLOUD)
    assert "is among the files to read" in mistake("merge", site, "--to", tmp_path / "merged.pb")
    assert site.exists()
