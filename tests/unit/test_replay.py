"""A slice of a log decided again: the job's decisions, no more and no fewer."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from jobs.ops.event_sources import FileEvents, Reach
from jobs.ops.replay import Replay, ReplayWindow
from jobs.ops.replay_command import replay
from jobs.wiring.decision_reader import read_decisions
from jobs.wiring.file_log import write_event_file
from schemas.decisions import Decision, DecisionKind
from schemas.events import Event
from schemas.topics import shard_of
from tests.limiter_world import Direct, at, chunk, completed, heartbeat, limit, policy, prompt
from udfs.domain.limiter import LimiterPolicy
from udfs.domain.policy_log import PolicyLog

SHARDS = 4
POLICY = policy(limit(1_000), traffic_is_recorded=True)
POLICY_FILE = """
version: 1
policies:
  - id: p1
    tenant: "*"
    traffic: recorded
    limits:
      - {name: tokens, level: tenant, unit: tokens, limit: 1k, window: 60s}
"""


def life(request_id: str, start: float, tokens: int, tenant: str) -> list[Event]:
    return [
        prompt(request_id, at(start), tokens, tenant=tenant, max_tokens=tokens),
        chunk(request_id, at(start + 1), cumulative=tokens // 2, tenant=tenant),
        completed(request_id, at(start + 2), (tokens, tokens // 2), tenant=tenant),
    ]


def world() -> list[Event]:
    """Three tenants; acme is throttled in the second minute because of the first, and again later."""
    lives = [life(f"{tenant}-{n}", 7.0 * n, 150, tenant) for n in range(30) for tenant in ("acme", "bloom", "corex")]
    return sorted((event for one in lives for event in one), key=lambda event: event.event_time_us)


def written(folder: Path, events: Iterable[Event] | None = None) -> Path:
    path = folder / "events.pb"
    write_event_file(path, world() if events is None else events, shard_count=SHARDS, batch_age_us=2_000_000)
    return path


def expected(tenant: str, from_us: int = 0, to_us: int = 2**63) -> list[Decision]:
    """Without any operator: the fold itself, event by event."""
    direct = Direct(POLICY, tenant)
    decisions = direct.tell(*(event for event in world() if event.tenant == tenant))  # type: ignore[arg-type]
    return [decision for decision in decisions if from_us <= decision.decided_at_us < to_us]


def replayed(
    source: Any, window: ReplayWindow, policies: Sequence[LimiterPolicy] = (POLICY,)
) -> tuple[list[Decision], Replay]:
    run = Replay(source, PolicyLog(policies), window, shard_count=SHARDS)
    return list(run.decisions()), run


def test_a_slice_is_decided_with_what_was_before_it(tmp_path: Path) -> None:
    window = ReplayWindow(frozenset(("acme",)), at(60), at(120))
    found, run = replayed(FileEvents([written(tmp_path)], SHARDS), window)
    assert found == expected("acme", at(60), at(120))
    assert DecisionKind.THROTTLE in {decision.kind for decision in found}
    assert run.summary().warnings == []


def test_the_end_of_a_slice_ends_the_reading(tmp_path: Path) -> None:
    source = FileEvents([written(tmp_path)], SHARDS)
    _, part = replayed(source, ReplayWindow(frozenset(("acme",)), None, at(60)))
    _, whole = replayed(source, ReplayWindow(frozenset(("acme",))))
    assert part.summary().events < whole.summary().events


@pytest.mark.parametrize("tenants", [("acme",), ("acme", "corex"), ("acme", "bloom", "corex")])
@pytest.mark.parametrize(("start", "end"), [(0, 30), (31, 90), (100, 101), (150, 400)])
def test_tenants_that_share_a_shard_are_each_replayed_to_the_end_of_the_slice(
    tmp_path: Path, tenants: tuple[str, ...], start: int, end: int
) -> None:
    path = tmp_path / "one.pb"
    write_event_file(path, world(), shard_count=1, batch_age_us=1)
    window = ReplayWindow(frozenset(tenants), at(start), at(end))
    run = Replay(FileEvents([path], 1), PolicyLog([POLICY]), window, shard_count=1)
    found = list(run.decisions())
    for tenant in ("acme", "bloom", "corex"):
        wanted = expected(tenant, at(start), at(end)) if tenant in tenants else []
        assert [decision for decision in found if decision.tenant == tenant] == wanted


def test_all_tenants_are_replayed_where_none_is_named(tmp_path: Path) -> None:
    found, run = replayed(FileEvents([written(tmp_path)], SHARDS), ReplayWindow())
    for tenant in ("acme", "bloom", "corex"):
        assert [decision for decision in found if decision.tenant == tenant] == expected(tenant)
    assert [tenant.tenant for tenant in run.summary().tenants] == ["acme", "bloom", "corex"]


def test_the_summary_counts_what_was_decided(tmp_path: Path) -> None:
    found, run = replayed(FileEvents([written(tmp_path)], SHARDS), ReplayWindow(frozenset(("acme",))))
    (acme,) = run.summary().tenants
    assert acme.decisions["throttle"] == sum(one.kind is DecisionKind.THROTTLE for one in found)
    assert acme.bound == {"tokens": acme.decisions["throttle"] + acme.decisions["revoke"]}
    settled = [one for one in found if one.kind is DecisionKind.SETTLE]
    assert acme.used_tokens == sum(one.used_tokens for one in settled) > 0


def test_a_warm_up_knows_nothing_of_what_was_before_and_says_so(tmp_path: Path) -> None:
    window = ReplayWindow(frozenset(("acme",)), at(60), at(70), warm_up_us=at(60))
    found, run = replayed(FileEvents([written(tmp_path)], SHARDS), window)
    assert found != expected("acme", at(60), at(70))
    assert any("warm-up" in warning for warning in run.summary().warnings)


def test_a_long_enough_warm_up_decides_as_the_whole_log_does(tmp_path: Path) -> None:
    window = ReplayWindow(frozenset(("acme",)), at(180), None, warm_up_us=at(60))
    found, _ = replayed(FileEvents([written(tmp_path)], SHARDS), window)
    assert found == expected("acme", at(180))


def test_a_silent_request_is_settled_by_its_shards_watermark(tmp_path: Path) -> None:
    events: list[Event] = [prompt("r", at(0), 10, max_tokens=5), heartbeat(at(500))]
    found, _ = replayed(FileEvents([written(tmp_path, events)], SHARDS), ReplayWindow(frozenset(("acme",))))
    assert [decision.kind for decision in found] == [DecisionKind.ADMIT, DecisionKind.SETTLE]


class Cut(FileEvents):
    def reach(self, tenants: Iterable[str]) -> Reach:  # noqa: ARG002 - as the source's
        return Reach(is_whole=False, missing="partition 1 before offset 7")


def test_a_log_that_no_longer_reaches_back_is_said_to(tmp_path: Path) -> None:
    _, run = replayed(Cut([written(tmp_path)], SHARDS), ReplayWindow(frozenset(("acme",)), at(60)))
    assert any("partition 1 before offset 7" in warning for warning in run.summary().warnings)


def test_what_it_is_compared_with_may_begin_later_in_the_log(tmp_path: Path) -> None:
    source = FileEvents([written(tmp_path)], SHARDS)
    whole, _ = replayed(source, ReplayWindow())
    shard = shard_of("acme", SHARDS)
    offsets = [it.where.offset for it in source.records(["acme"])]
    run = Replay(source, PolicyLog([POLICY]), ReplayWindow(), shard_count=SHARDS)
    run.starts = {(shard, 0): offsets[3]}
    found = list(run.decisions())
    assert 0 < len(found) < len([it for it in whole if shard_of(it.tenant, SHARDS) == shard])
    assert found == [it for it in whole if shard_of(it.tenant, SHARDS) == shard][-len(found) :]
    (warning,) = run.summary().warnings
    assert f"{len(whole) - len(found):,} decisions are left out" in warning


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setenv("HEADRACE_SHARD_COUNT", str(SHARDS))
    (tmp_path / "policies.yaml").write_text(POLICY_FILE)
    written(tmp_path)
    made = typer.Typer()
    made.command()(replay)
    return made


def command(app: typer.Typer, folder: Path, *options: str) -> Any:
    files = ["-e", str(folder / "events.pb"), "-p", str(folder / "policies.yaml"), "-t", "acme"]
    return CliRunner().invoke(app, [*files, *options])


@pytest.mark.parametrize("name", ["d.jsonl", "d.parquet"])
def test_the_command_writes_the_decisions_and_finds_them_again(app: typer.Typer, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    assert command(app, tmp_path, "--from", str(at(60)), "--to", str(at(120)), "-o", str(output)).exit_code == 0
    assert list(read_decisions(output)) == expected("acme", at(60), at(120))
    again = command(app, tmp_path, "--from", str(at(60)), "--to", str(at(120)), "--against", str(output), "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["diff"]["all"]["same"] == len(expected("acme", at(60), at(120)))


def test_the_command_tells_what_another_policy_would_have_decided(app: typer.Typer, tmp_path: Path) -> None:
    output = tmp_path / "d.jsonl"
    assert command(app, tmp_path, "-o", str(output)).exit_code == 0
    (tmp_path / "policies.yaml").write_text(POLICY_FILE.replace("1k", "10k"))
    other = tmp_path / "other.jsonl"
    found = command(app, tmp_path, "--against", str(output), "-o", str(other), "--json")
    assert found.exit_code == 1
    transitions = json.loads(found.stdout)["diff"]["all"]["transitions"]
    assert transitions["throttle -> admit"] > 0
    assert len(list(read_decisions(other))) > 0


def test_a_time_without_a_zone_is_refused(app: typer.Typer, tmp_path: Path) -> None:
    found = command(app, tmp_path, "--from", "2023-11-16T18:45:00")
    assert found.exit_code == 2
    assert "zone" in found.output


def test_a_slice_that_ends_before_it_begins_is_refused(app: typer.Typer, tmp_path: Path) -> None:
    for end in (at(60), at(30)):
        found = command(app, tmp_path, "--from", str(at(60)), "--to", str(end))
        assert found.exit_code == 2
        assert f"--from {at(60)} must be before --to {end}" in found.output
