"""Why a request was decided as it was: the figures are the limiter's own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from jobs.ops.event_sources import FileEvents
from jobs.ops.explain import RequestNotFoundError, Watcher, explain_request, find_request, the_tenant
from jobs.ops.explain_view import print_explanation
from jobs.ops.explain_words import words_of
from jobs.ops.explanation import Explanation, Step
from jobs.ops.replay import Replay, ReplayWindow
from jobs.ops.replay_command import explain
from jobs.wiring.file_log import write_event_file
from schemas.codec import encode_events
from schemas.decisions import DecisionKind, DecisionMode, LimitUnit
from schemas.events import Event
from tests.limiter_world import at, chunk, completed, failed, heartbeat, limit, policy, prompt
from tests.unit.test_replay import POLICY_FILE, SHARDS, world
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog

POLICY = policy(limit(1_000), default_completion_tokens=100, extension_tokens=50)


def source_of(folder: Path, events: Sequence[Event]) -> FileEvents:
    path = folder / "events.pb"
    write_event_file(path, events, shard_count=SHARDS, batch_age_us=2_000_000)
    return FileEvents([path], SHARDS)


def explained(
    folder: Path, events: Sequence[Event], request_id: str, held: LimiterPolicy = POLICY, tenant: str = "acme"
) -> Explanation:
    source = source_of(folder, events)
    found = find_request(source, request_id)
    return explain_request(source, PolicyLog([held]), tenant, request_id, found[tenant], shard_count=SHARDS)


def said(explanation: Explanation) -> str:
    return "\n".join(line for lines in words_of(explanation) for line in lines)


def deciding(explanation: Explanation, kind: DecisionKind) -> Step:
    (step,) = (step for step in explanation.steps if any(decision.kind is kind for decision in step.decisions))
    return step


def test_a_throttled_request_is_told_which_limit_bound_by_how_much_and_until_when(tmp_path: Path) -> None:
    events: list[Event] = [
        prompt("first", at(0), 300, max_tokens=300),
        completed("first", at(10), (300, 300)),
        prompt("running", at(15), 100, max_tokens=200),
        prompt("asked", at(20), 200, max_tokens=150),
    ]
    found = explained(tmp_path, events, "asked")
    step = deciding(found, DecisionKind.THROTTLE)
    (seen,) = step.limits
    # 600 used at 10 s, 300 set aside: room for 100 of the 350 that are asked for.
    assert (seen.used, seen.reserved, seen.debt, seen.left, seen.asked, seen.short) == (600, 300, 0, 100, 350, 250)
    # What was used at 10 s leaves the window a minute later.
    assert seen.fits_at_us == step.decisions[0].retry_at_us == at(70)
    assert seen.leaving == 600
    assert "It needs 350 of tokens of tenant acme, which has room for 100: 250 too many" in said(found)
    assert "600 tokens will have left the window" in said(found)
    assert not found.is_running


def test_room_that_only_silence_would_make_is_told_as_such(tmp_path: Path) -> None:
    held = policy(limit(1_000), silence_timeout_us=5_000_000)
    events: list[Event] = [prompt("running", at(0), 500, max_tokens=400), prompt("asked", at(1), 100, max_tokens=100)]
    found = explained(tmp_path, events, "asked", held)
    (seen,) = deciding(found, DecisionKind.THROTTLE).limits
    assert (seen.lapsing, seen.leaving, seen.fits_at_us) == (900, 0, at(5))
    assert "900 tokens that running requests hold will have lapsed" in said(found)


def test_a_request_that_can_never_fit_is_told_so(tmp_path: Path) -> None:
    found = explained(tmp_path, [prompt("huge", at(0), 5_000, max_tokens=1)], "huge")
    assert "never allows more than 1,000 tokens at once" in said(found)


def test_every_limit_that_is_short_is_named(tmp_path: Path) -> None:
    held = policy(limit(1_000), limit(1, name="one-at-a-time", unit=LimitUnit.STREAMS))
    events: list[Event] = [prompt("running", at(0), 500, max_tokens=400), prompt("asked", at(1), 100, max_tokens=100)]
    text = said(explained(tmp_path, events, "asked", held))
    assert "one-at-a-time of tenant acme" in text
    assert "has too little room as well" in text


def test_a_shadow_limit_that_is_short_binds_nobody(tmp_path: Path) -> None:
    held = policy(limit(1_000), limit(100, name="tried-out", mode=DecisionMode.SHADOW))
    found = explained(tmp_path, [prompt("asked", at(0), 100, max_tokens=100)], "asked", held)
    assert "In shadow, which binds nobody: rejected" in said(found)
    assert "Admitted, 200 tokens set aside" in said(found)


def test_an_estimate_says_what_it_is_taken_from(tmp_path: Path) -> None:
    held = policy(limit(100_000), default_completion_tokens=100, estimate_after=2)
    events: list[Event] = [
        prompt("a", at(0), 1),
        completed("a", at(1), (1, 10)),
        prompt("b", at(2), 1),
        completed("b", at(3), (1, 10)),
        prompt("c", at(4), 1),
    ]
    first = explained(tmp_path, events, "a", held).steps[0].asked
    third = explained(tmp_path, events, "c", held).steps[0].asked
    assert first is not None and (first.basis, first.completion_tokens) == ("default", 100)  # noqa: PT018
    assert third is not None and (third.basis, third.learned_from) == ("learned", 2)  # noqa: PT018


def test_a_stream_is_told_from_admission_to_what_went_back(tmp_path: Path) -> None:
    events: list[Event] = [
        prompt("r", at(0), 200),
        *(chunk("r", at(1 + n), cumulative=20 * (n + 1)) for n in range(7)),
        completed("r", at(10), (200, 140)),
    ]
    found = explained(tmp_path, events, "r")
    assert [step.events for step in found.steps] == [1, 5, 1, 1, 1]
    extended = deciding(found, DecisionKind.EXTEND)
    assert extended.after.granted_tokens - extended.before.granted_tokens == 50
    assert "Settled (completed): of 350 tokens set aside it used 340; 10 tokens given back." in said(found)
    after = found.steps[-1].after
    assert after.granted_tokens + after.overdrawn_tokens == after.used_tokens + after.refunded_tokens


def test_a_revoked_stream_is_told_what_it_lacked(tmp_path: Path) -> None:
    events: list[Event] = [
        prompt("other", at(0), 500, max_tokens=250),
        prompt("r", at(1), 100),
        chunk("r", at(2), cumulative=190),
    ]
    found = explained(tmp_path, events, "r")
    step = deciding(found, DecisionKind.REVOKE)
    (seen,) = step.limits
    # 90 beyond the 100 of its completion, and the tenant has 50 left.
    assert (seen.asked, seen.left, seen.short) == (90, 50, 40)
    assert "needs 90 more, of which tokens of tenant acme has room for 50" in said(found)


def test_a_request_that_fell_silent_is_settled_by_time_alone(tmp_path: Path) -> None:
    found = explained(tmp_path, [prompt("r", at(0), 10, max_tokens=5), heartbeat(at(500))], "r")
    assert [step.kind for step in found.steps] == ["prompt_submitted", "silence"]
    assert "Settled (silent for 120 s)" in said(found)


def test_a_request_that_runs_at_the_end_of_the_log_is_said_to(tmp_path: Path) -> None:
    assert explained(tmp_path, [prompt("r", at(0), 10, max_tokens=5)], "r").is_running


def test_an_event_that_came_late_is_told_to_have(tmp_path: Path) -> None:
    events: list[Event] = [prompt("other", at(5), 1), prompt("r", at(3), 1), failed("r", at(6))]
    assert "It came 2 s after a later event of the tenant" in said(explained(tmp_path, events, "r"))


def test_looking_changes_no_decision(tmp_path: Path) -> None:
    source = source_of(tmp_path, world())
    window = ReplayWindow(frozenset(("acme",)))

    def decided(fold: LimiterFold) -> list[Any]:
        return list(Replay(source, PolicyLog([POLICY]), window, shard_count=SHARDS, fold=fold).decisions())

    plain = decided(LimiterFold())
    for number in range(0, 30, 3):
        watcher = Watcher("acme", f"acme-{number}")
        assert decided(watcher) == plain
        mine = [decision for step in watcher.steps for decision in step.decisions]
        assert mine == [decision for decision in plain if decision.request_id == f"acme-{number}"]


def test_a_request_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RequestNotFoundError, match="nobody: no such request"):
        the_tenant(find_request(source_of(tmp_path, world()), "nobody"), "nobody")


def test_a_request_of_two_tenants_needs_one_of_them_named(tmp_path: Path) -> None:
    source = source_of(tmp_path, [prompt("r", at(0), 1), prompt("r", at(1), 1, tenant="bloom")])
    with pytest.raises(RequestNotFoundError, match="acme, bloom have a request of that id"):
        the_tenant(find_request(source, "r"), "r")
    assert the_tenant(find_request(source, "r", ["bloom"]), "r") == "bloom"


def test_no_text_of_a_completion_is_told(tmp_path: Path) -> None:
    events: list[Event] = [prompt("r", at(0), 10), chunk("r", at(1), cumulative=5, text="my secret")]
    found = explained(tmp_path, events, "r")
    console = Console(record=True, width=120, file=(tmp_path / "shown").open("w"))
    print_explanation(console, found)
    shown = console.export_text()
    assert "5 tokens within what is set aside" in shown
    assert "secret" not in shown


def test_the_command_prints_sentences_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SHARD_COUNT", str(SHARDS))
    (tmp_path / "policies.yaml").write_text(POLICY_FILE)
    source_of(tmp_path, world())
    app = typer.Typer()
    app.command()(explain)
    options = ["acme-8", "-e", str(tmp_path / "events.pb"), "-p", str(tmp_path / "policies.yaml")]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0
    assert "Throttled." in shown.stdout
    found = json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)
    assert found["tenant"] == "acme"
    assert found["steps"][0]["decisions"][0]["kind"] == "throttle"
    assert found["steps"][0]["limits"][0]["short"] > 0


def test_an_empty_id_is_no_request_though_heartbeats_have_it(tmp_path: Path) -> None:
    source = source_of(tmp_path, [prompt("r", at(0), 1), heartbeat(at(1))])
    with pytest.raises(RequestNotFoundError, match="'': no such request"):
        the_tenant(find_request(source, ""), "")
    # What a terminal makes of bytes that are no text.
    assert find_request(source, "\udcff") == {}


def test_a_request_whose_events_were_all_put_aside_is_no_empty_history(tmp_path: Path) -> None:
    def into_another_shard(shard: int, batch: list[Event]) -> bytes:
        return encode_events((shard + 1) % SHARDS, batch)

    path = tmp_path / "events.pb"
    write_event_file(path, [prompt("r", at(0), 1)], shard_count=SHARDS, encode=into_another_shard)
    source = FileEvents([path], SHARDS)
    last = find_request(source, "r")["acme"]
    with pytest.raises(RequestNotFoundError, match=r"no such request among the events that can be read.*dlq list"):
        explain_request(source, PolicyLog([POLICY]), "acme", "r", last, shard_count=SHARDS)
