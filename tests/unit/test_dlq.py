"""Dead letters: which can go back and as what, and what is shown of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from jobs.ops.dlq import DlqError, Letter, Place, Selection, check_sources, prepare, to_replay
from jobs.ops.dlq_command import dlq_app
from jobs.ops.dlq_look import fields_of, look
from jobs.ops.dlq_view import print_letter
from schemas.codec import decode_events, encode_events, wire_event
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position
from schemas.topics import shard_of
from tests.generated_events import damaged, events
from tests.limiter_world import at, chunk, heartbeat, prompt

SHARDS = 4
PROMPT = prompt("r", at(0), 10)
TEXTED = chunk("r", at(1), cumulative=3, text="my secret")


def letter(
    payload: bytes, index: int = WHOLE_RECORD, reason: DeadLetterReason = DeadLetterReason.FOLD_FAILED
) -> Letter:
    return Letter(Place(0, 5), at(9), DeadLetter("log", 1, 7, index, reason, "why", payload))


def test_a_whole_record_goes_back_as_it_was() -> None:
    record = encode_events(shard_of("acme", SHARDS), [PROMPT, TEXTED])
    found = prepare(letter(record), SHARDS)
    assert (found.record, found.shard, found.problem) == (record, shard_of("acme", SHARDS), "")


def test_an_event_goes_back_in_a_batch_of_its_tenants_shard() -> None:
    found = prepare(letter(wire_event(PROMPT).SerializeToString(), 3, DeadLetterReason.WRONG_SHARD), SHARDS)
    assert (found.shard, found.problem) == (shard_of("acme", SHARDS), "")
    decoded = decode_events(found.record, Position("log", 0, 0))
    assert (decoded.shard, decoded.events) == (shard_of("acme", SHARDS), [PROMPT])


@pytest.mark.parametrize(
    ("payload", "index", "problem"),
    [
        (b"\xff\xff", WHOLE_RECORD, "malformed: not an EventBatch"),
        (b"\xff\xff", 0, "malformed: not an Event"),
        (encode_events(SHARDS, [PROMPT]), WHOLE_RECORD, f"it is of shard {SHARDS}, the log has {SHARDS}"),
        (encode_events(shard_of("acme", SHARDS) ^ 1, [PROMPT]), WHOLE_RECORD, "wrong_shard: tenant 'acme'"),
        (encode_events(0, []), WHOLE_RECORD, "there is no event in it"),
        (wire_event(heartbeat(at(1))).SerializeToString(), 0, "its event has no tenant"),
    ],
)
def test_a_letter_that_would_fail_again_says_why(payload: bytes, index: int, problem: str) -> None:
    assert prepare(letter(payload, index), SHARDS).problem.startswith(problem)


def test_repaired_bytes_take_the_place_of_the_letters() -> None:
    repaired = encode_events(shard_of("acme", SHARDS), [PROMPT])
    found = prepare(letter(b"\xff\xff"), SHARDS, repaired)
    assert (found.record, found.problem) == (repaired, "")


@given(st.data())
def test_what_is_said_to_go_back_can_be_read_whatever_the_bytes_are(data: st.DataObject) -> None:
    whole = wire_event(data.draw(events(heartbeats=False))).SerializeToString()
    found = prepare(letter(data.draw(damaged(whole)), data.draw(st.sampled_from([WHOLE_RECORD, 0]))), SHARDS)
    if not found.problem:
        decoded = decode_events(found.record, Position("log", 0, 0))
        assert decoded.events
        assert not decoded.dead
        assert {shard_of(event.tenant, SHARDS) for event in decoded.events if event.tenant} <= {found.shard}


def test_letters_that_went_back_are_left_out_unless_they_go_again() -> None:
    letters = [letter(b""), Letter(Place(0, 6), 0, letter(b"").letter)]
    assert to_replay(letters, {Place(0, 5)}, again=False) == (letters[1:], letters[:1])
    assert to_replay(letters, {Place(0, 5)}, again=True) == (letters, [])


def test_letters_of_another_source_are_refused() -> None:
    check_sources([letter(b"")], "log")
    with pytest.raises(DlqError, match="comes from log, not from other"):
        check_sources([letter(b"")], "other")


@pytest.mark.parametrize(
    ("selection", "is_held"),
    [
        (Selection(), True),
        (Selection(places=frozenset((Place(0, 5),))), True),
        (Selection(places=frozenset((Place(1, 5),))), False),
        (Selection(reasons=frozenset((DeadLetterReason.MALFORMED,))), False),
        (Selection(source="log"), True),
        (Selection(source="other"), False),
        (Selection(since_us=at(9)), True),
        (Selection(since_us=at(10)), False),
    ],
)
def test_a_selection_holds_what_matches_all_of_it(selection: Selection, is_held: bool) -> None:
    assert selection.holds(letter(b"")) is is_held


@pytest.mark.parametrize("text", ["", "5", "0:", ":5", "a:b", "-1:5", "0:5:6"])
def test_a_place_is_partition_and_offset(text: str) -> None:
    with pytest.raises(DlqError, match="PARTITION:OFFSET"):
        Place.parse(text)


# --- looking ------------------------------------------------------------------------------------------------------


def shown(view: Any, folder: Path) -> str:
    console = Console(record=True, width=100, file=(folder / "shown").open("w"))
    print_letter(console, view)
    return console.export_text()


def test_an_event_is_decoded(tmp_path: Path) -> None:
    view = look(letter(wire_event(PROMPT).SerializeToString(), 3))
    assert view.decoded["event"]["request_id"] == "r"
    assert view.payload_hex == wire_event(PROMPT).SerializeToString().hex()
    assert '"tenant": "acme"' in shown(view, tmp_path)


@pytest.mark.parametrize("index", [WHOLE_RECORD, 2])
@pytest.mark.parametrize("is_cut", [False, True])
def test_text_is_hidden_wherever_it_may_stand(index: int, is_cut: bool, tmp_path: Path) -> None:
    payload = wire_event(TEXTED).SerializeToString() if index >= 0 else encode_events(1, [TEXTED])
    # Cut off behind the text: what can't be decoded may hold it all the same.
    payload = payload[:-3] if is_cut else payload
    view = look(letter(payload, index))
    assert (view.payload_hex, view.payload_base64) == (None, None)
    told = json.dumps(view.decoded) + shown(view, tmp_path)
    assert "secret" not in told
    assert b"secret".hex() not in told
    assert look(letter(payload, index), show_text=True).payload_hex == payload.hex()


def test_text_in_a_field_that_is_not_known_here_is_hidden_too() -> None:
    unknown = bytes.fromhex("fa0f06") + b"secret"
    view = look(letter(wire_event(PROMPT).SerializeToString() + unknown, 0))
    assert view.payload_hex is None
    assert view.decoded["bytes_not_shown"] == len(unknown)


def test_a_batch_tells_which_of_its_events_can_be_read() -> None:
    batch = look(letter(encode_events(1, [PROMPT, prompt("", at(1))]))).decoded["batch"]
    assert (batch["shard"], batch["events"], batch["readable"]) == (1, 2, 1)
    assert batch["first"][0]["request_id"] == "r"
    assert (batch["unreadable"][0]["index"], batch["unreadable"][0]["reason"]) == (1, "missing_field")


def test_the_fields_of_a_damaged_event_are_told_up_to_the_damage() -> None:
    payload = wire_event(PROMPT).SerializeToString()
    told = list(fields_of(payload[:-2]))
    assert "tenant (2): acme" in told
    assert "cut off" in told[-1]


@given(st.binary(max_size=60))
def test_fields_of_any_bytes_can_be_told(payload: bytes) -> None:
    assert all(isinstance(line, str) for line in fields_of(payload))


# --- the command --------------------------------------------------------------------------------------------------


def test_a_replay_needs_a_choice_of_letters() -> None:
    found = CliRunner().invoke(dlq_app, ["replay", "--yes"])
    assert found.exit_code == 2
    assert "--all" in found.output
