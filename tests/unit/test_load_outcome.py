"""What is reported of a load: percentiles, the verdict, the terminal, JSON, and the recording."""

import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from jobs.ops.load.load_view import print_outcome
from jobs.ops.load.outcome import LoadOutcome, Transport, outcome_of, percentiles_of
from jobs.ops.load.recording import DecisionRead, EventSent, LoadBegan, Recording, recorded_line
from jobs.ops.load.tally import Fault
from jobs.wiring.atomic_file import OutputFileError
from schemas.decisions import DecisionKind, DecisionMode
from tests.limiter_world import START_US, chunk, heartbeat
from tests.load_world import World, at, decision, planned


def outcome(world: World, **transport: int) -> LoadOutcome:
    facts = Transport(**transport)
    return outcome_of(
        world.tally, facts, run_id="run", seconds=2.0, open_requests=world.gateway.open_requests, was_stopped=False
    )


def shown(found: LoadOutcome, width: int = 120) -> str:
    out = io.StringIO()
    print_outcome(Console(file=out, width=width), found)
    return out.getvalue()


def played() -> World:
    world = World(planned(0, (1, 10), (2, 20)), planned(0, tenant="b"), planned(0), decision_timeout_us=60_000_000)
    world.advance(0)
    world.decide(DecisionKind.ADMIT, 0.1, 0)
    world.decide(DecisionKind.REJECT, 0.2, 1, tenant="b")
    world.decide(DecisionKind.REJECT, 0.3, 2, mode=DecisionMode.SHADOW)
    world.decide(DecisionKind.ADMIT, 0.3, 2, ordinal=1)
    world.decide(DecisionKind.SETTLE, 0.4, 2)
    world.advance(1.1)
    world.decide(DecisionKind.REVOKE, 1.2, 0, decided_at_us=at(0.5))
    world.decide(DecisionKind.SETTLE, 1.3, 0, overdrawn_tokens=4)
    return world


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_percentiles_are_values_that_were_seen_with_so_many_at_or_below(values: list[int]) -> None:
    found = percentiles_of(values)

    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99), (0.999, found.p999), (1, found.max)):
        assert value in values
        assert sum(other <= value for other in values) >= share * len(values)
        assert sum(other < value for other in values) < share * len(values) + 1e-9
    assert found.count == len(values)


def test_a_load_that_lost_nothing_is_ok_and_tells_what_happened() -> None:
    found = outcome(played(), decisions_read=7)

    assert found.is_ok
    assert found.outcomes == {"settled": 1, "revoked": 1, "rejected": 1}
    assert (found.overshoot.streams_cut, found.overshoot.tokens, found.overshoot.overdrawn_tokens) == (1, 10, 4)
    assert found.latency_from_due_us.max == 300_000
    assert [(of.tenant, of.admitted, of.rejected, of.revoked) for of in found.tenants] == [
        ("acme", 2, 0, 1),
        ("b", 0, 1, 0),
    ]
    text = shown(found)
    assert "Nothing lost: every request has exactly one final decision." in text
    assert "1 streams cut; 10 tokens flowed after their revocation" in text
    assert "In shadow: reject 1." in text


def test_missing_decisions_faults_and_records_that_were_not_taken_are_not_ok() -> None:
    lost = World(planned(0), decision_timeout_us=1)
    lost.advance(0)
    lost.advance(1)
    assert not outcome(lost).is_ok
    assert "NOT RIGHT: 1 requests without a final decision." in shown(outcome(lost))

    twice = played()
    twice.decide(DecisionKind.SETTLE, 2, 0, ordinal=77)
    found = outcome(twice)
    assert not found.is_ok
    assert found.faults == {Fault.SETTLED_TWICE.value: 1}
    assert "settled_twice: acme: run-0-0/0/77" in shown(found)

    assert not outcome(played(), produce_errors=1).is_ok


def test_the_terminal_shows_no_control_characters_of_a_tenant() -> None:
    world = World(planned(0, tenant="evil\x1b[2J"))
    world.advance(0)
    world.decide(DecisionKind.REJECT, 0.1, tenant="evil\x1b[2J")

    assert "\x1b[2J" not in shown(outcome(world))


def test_an_outcome_without_any_request_can_be_shown_and_encoded() -> None:
    found = outcome(World())

    assert found.is_ok
    assert "0 requests" in shown(found)
    assert msgspec.json.decode(msgspec.json.encode(found), type=LoadOutcome) == found


def test_a_recording_has_what_was_sent_and_every_delivery_of_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    began = LoadBegan("run", "events", "decisions", {0: 3}, {0: 0, 1: 9})
    read = DecisionRead(1, 9, 0, START_US, decision(DecisionKind.ADMIT))
    recording = Recording(path)
    recording.began(began)
    recording.sent(chunk("r", at(1), 4, cumulative=4))
    recording.sent(heartbeat(at(2)))
    recording.read(read)
    recording.read(read)
    recording.close()

    first, sent, *reads = (recorded_line(line) for line in path.read_bytes().splitlines())
    assert first == began
    assert isinstance(sent, EventSent)
    assert (sent.request_id, sent.kind, sent.cumulative) == ("r", "tokens_generated", 4)
    assert reads == [read, read]


def test_a_recording_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="no such file or directory"):
        Recording(tmp_path / "nowhere" / "load.jsonl")


def test_decisions_on_requests_of_others_are_counted_apart() -> None:
    assert "2 decisions read, 1/s, and 471 on requests of others." in shown(
        outcome(played(), decisions_read=473, foreign_decisions=471)
    )
    assert "others" not in shown(outcome(played(), decisions_read=7))


def test_a_revocation_of_a_stream_that_had_ended_is_told_where_it_counts() -> None:
    world = World(planned(0, (1, 10)), decision_timeout_us=60_000_000)
    world.advance(0)
    world.decide(DecisionKind.ADMIT, 0.1)
    world.advance(1.2)
    world.decide(DecisionKind.REVOKE, 1.3)
    found = outcome(world)

    assert found.tenants[0].revoked == 1
    text = shown(found)
    assert "0 streams cut" in text
    assert "1 revocations came when their stream had ended; column Revoked counts them too." in text
    assert "column Revoked" not in shown(outcome(played()))
