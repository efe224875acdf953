"""A rollback's steps when commands are killed, or two work at once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from jobs.ops import generation_topic, local_command, rollback
from jobs.ops.cli import app
from jobs.ops.generations import GenerationError, Generations, Phase, propose, to_phase
from jobs.ops.local.layout import Layout, Ports
from jobs.ops.rollback import Rollback
from jobs.ops.snapshots import SnapshotError
from jobs.ops.submission_lock import submission_lock
from jobs.ops.submit import SubmitError, new_job_id, submit
from jobs.wiring.flink_rest import FlinkError, Job, location_of
from jobs.wiring.settings import load_settings
from schemas.codec import DecidedBatch
from schemas.decisions import Decision, DecisionKind, DecisionReason
from tests.rollback_world import World, headrace, patched_world

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return patched_world(tmp_path, monkeypatch)


# --- a promotion that was broken off ------------------------------------------------------------------------------


def broken_promotion(world: World) -> Rollback:
    begun = world.rollback()
    begun.begin(None, None)
    begun.replay()
    world.records.append(to_phase(world.now, Phase.PROMOTING))
    return world.rollback()


@pytest.mark.parametrize("command", [("stop",), ("savepoint",), ("restore", "--from", "latest")])
def test_while_a_promotion_is_open_other_commands_say_what_ends_it(world: World, command: tuple[str, ...]) -> None:
    broken_promotion(world)
    with pytest.raises(GenerationError, match="headrace rollback admission ends it"):
        headrace(command[0], "admission", *command[1:])


def test_a_promotion_ends_without_the_candidates_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = broken_promotion(world)
    world.flink.cancel(str(begun.candidate.job_id))
    mine = world.checkpoint(str(begun.candidate.job_id), 10)
    said: list[str] = []
    monkeypatch.setattr(begun, "_tell", said.append)
    begun.promote()
    assert world.now.lineage == (1, 2)
    assert world.now.candidate is None
    assert world.flink.names() == []
    assert load_settings(world.settings_file).generation == 2
    assert "headrace restore admission --from latest" in said[-1]
    headrace("restore", "admission", "--from", "latest")
    assert world.submitted[-1] == location_of(str(mine))
    assert world.flink.names() == ["headrace-admission-g2"]


def test_a_candidate_that_does_not_run_does_not_begin_to_hold(world: World) -> None:
    begun = world.rollback()
    begun.begin(None, None)
    begun.replay()
    world.flink.cancel(str(begun.candidate.job_id))
    with pytest.raises(FlinkError, match="does not run"):
        begun.promote()
    assert world.now.live == 1


# --- commands that were killed while they submitted ---------------------------------------------------------------

HOLDS = """
import subprocess, sys
from pathlib import Path
from jobs.ops.submission_lock import submission_lock
with submission_lock(Path(sys.argv[1]), print) as lock:
    left = subprocess.Popen([sys.executable, "-c", "print('runs', flush=True); input()"], pass_fds=(lock,))
    left.wait()
"""


def test_who_comes_after_a_killed_command_waits_for_the_submission_that_it_left(tmp_path: Path) -> None:
    settings = tmp_path / "headrace.yaml"
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert held.stdin is not None
    assert held.stdout is not None
    assert held.stdout.readline() == "runs\n"
    held.kill()
    held.wait()
    said: list[str] = []
    with pytest.raises(FlinkError, match="under way"), submission_lock(settings, said.append, timeout_s=0):
        pass
    # The process that was left ends as its input does.
    held.stdin.close()
    with submission_lock(settings, said.append, timeout_s=60) as lock:
        assert lock is not None
    held.stdout.close()


def test_flink_run_is_told_the_id_and_inherits_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "flink"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "given = [it for it in sys.argv if it.startswith('-D$internal.pipeline.job-id=')]\n"
        # Fails where the number was not inherited.
        "os.fstat(int(os.environ['LOCK']))\n"
        "print('Job has been submitted with JobID', given[0].partition('=')[2])\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("jobs.ops.submit.flink_home", lambda: tmp_path)
    settings = tmp_path / "headrace.yaml"
    job_id = new_job_id()
    with submission_lock(settings, print) as lock:
        assert submit("admission", settings, {"LOCK": str(lock)}, job_id=job_id, lock=lock) == job_id


def test_a_job_that_a_killed_command_left_is_taken_up_and_not_submitted_again(world: World) -> None:
    begun = world.rollback()
    begun.begin(None, None)
    job_id = world.flink.run(2, begun.candidate.job_id)
    again = world.rollback()
    again.replay()
    assert world.submitted == []
    assert again.candidate.phase is Phase.REPLAYING
    assert again.candidate.job_id == job_id


def test_a_submission_that_is_refused_as_another_was_faster_is_taken_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = world.rollback()
    begun.begin(None, None)

    def refused(*_: object, job_id: str, **__: object) -> str:
        world.flink.run(2, job_id)
        raise SubmitError("Job has already been submitted.")

    monkeypatch.setattr(rollback, "submit", refused)
    begun.replay()
    assert begun.candidate.phase is Phase.REPLAYING


@pytest.mark.parametrize("step", ["replay", "abort"])
def test_a_step_looks_for_jobs_only_when_the_submission_that_was_left_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    begun = world.rollback()
    begun.begin(None, None)

    @contextmanager
    def submission_that_ends(*_: object) -> Iterator[None]:
        world.flink.run(2, begun.candidate.job_id)
        yield

    monkeypatch.setattr(rollback, "submission_lock", submission_that_ends)
    getattr(begun, step)()
    assert world.submitted == []
    assert world.flink.names().count("headrace-admission-g2") == (step == "replay")


def test_abort_ends_every_job_of_the_candidate_and_the_checkpoints_of_each(world: World) -> None:
    begun = world.rollback()
    begun.begin(None, None)
    ids = [world.flink.run(2, begun.candidate.job_id), world.flink.run(2)]
    for job_id in ids:
        world.checkpoint(job_id, 10)
    kept = world.checkpoint(world.flink.known[0].id, 10)
    for step in (begun.replay, begun.promote):
        with pytest.raises(FlinkError, match="--abort ends them all"):
            step()
    begun.abort()
    assert world.flink.names() == ["headrace-admission"]
    assert [path.name for path in (world.folder / "checkpoints").iterdir()] == [kept.parent.name]
    assert world.topics_deleted == ["headrace.decisions.g2"]
    assert world.now.candidate is None


def test_a_replay_ends_jobs_whose_generation_is_out_of_use(world: World) -> None:
    world.flink.run(9)
    world.flink.known.append(Job(new_job_id(), "headrace-ingest", "RUNNING", 0))
    begun = world.rollback()
    begun.begin(None, None)
    assert world.flink.names() == ["headrace-admission", "headrace-ingest"]
    world.flink.run(9)
    begun.replay()
    assert world.flink.names() == ["headrace-admission", "headrace-ingest", "headrace-admission-g2"]


def test_status_names_a_job_whose_generation_is_out_of_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stray = world.flink.run(9)
    facts = dict.fromkeys(
        ("restarts", "last_failure", "checkpoints", "checkpoints_failed", "last_checkpoint_bytes", "last_checkpoint_ms")
    )
    monkeypatch.setattr(local_command, "layout_of", lambda _: Layout(world.folder, Ports()))
    monkeypatch.setattr(local_command, "processes", lambda _: [])
    monkeypatch.setattr(local_command, "Flink", lambda _: world.flink)
    monkeypatch.setattr(local_command, "read_generations", lambda *_: world.now)
    monkeypatch.setattr(
        local_command, "_job_facts", lambda _, job_id, name, state: facts | {"id": job_id, "name": name, "state": state}
    )
    said = headrace("status")
    assert f"headrace-admission-g9 ({stray}): its generation neither holds nor is replayed" in said
    assert said.count("neither holds") == 1


# --- two at once --------------------------------------------------------------------------------------------------


def test_of_two_that_begin_at_once_one_goes_on_and_the_other_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = world.rollback(), world.rollback()
    before = world.now
    one.begin(None, None)
    record = world.now
    # The other has looked before the one wrote.
    looks = iter([before])
    read = generation_topic.read_generations
    monkeypatch.setattr(generation_topic, "read_generations", lambda *at: next(looks, None) or read(*at))
    other.begin(None, None)
    assert world.now != record
    with pytest.raises(GenerationError, match="somebody else"):
        one.replay()
    assert world.submitted == []
    other.replay()
    assert len(world.submitted) == 1


def test_who_is_overtaken_while_writing_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*at: object) -> None:
        world.records += [at[2], propose(Generations(), None, None, new_job_id())]  # type: ignore[list-item]

    monkeypatch.setattr(generation_topic, "write_generations", write)
    with pytest.raises(GenerationError, match="somebody else"):
        world.rollback().begin(None, None)


def test_who_is_overtaken_while_submitting_takes_its_own_job_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(*at: object, **options: object) -> str:
        world.records.append(propose(Generations(), None, None, new_job_id()))
        return world.submit(*at, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rollback, "submit", overtaken)
    begun = world.rollback()
    begun.begin(None, None)
    with pytest.raises(GenerationError, match="somebody else"):
        begun.replay()
    assert world.flink.names() == ["headrace-admission"]


# --- what is wrong is said before anything is on record ------------------------------------------------------------


def test_a_snapshot_that_is_not_there_is_refused_before_anything_is_on_record(world: World) -> None:
    with pytest.raises(SnapshotError, match="_metadata"):
        headrace("rollback", "admission", "--to", str(world.folder / "no-such-savepoint"))
    assert world.now == Generations()


def test_slots_that_are_missing_are_told_before_anything_is_on_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "SLOTS_WAIT_S", 0)
    world.flink.slots = 0
    with pytest.raises(FlinkError, match="needs 1 free slots"):
        headrace("rollback", "admission", "--to", "beginning")
    assert world.now == Generations()


def test_a_submission_that_fails_says_how_to_go_on(world: World) -> None:
    begun = world.rollback()
    begun.begin(None, None)
    world.refusal = "flink run: no such state"
    with pytest.raises(SubmitError, match="--abort, then begin again"):
        begun.replay()


def test_a_field_to_ignore_that_there_is_not_is_refused_before_anything_is_on_record(world: World) -> None:
    result = CliRunner().invoke(app, ["rollback", "admission", "--to", "beginning", "--ignore", "policy"])
    assert result.exit_code == 2
    assert "no such field" in result.output
    assert world.now == Generations()


# --- what is shown ------------------------------------------------------------------------------------------------


def decided(policy_id: str, kind: DecisionKind) -> list[DecidedBatch]:
    decision = Decision(
        decision_id="r/1-1",
        kind=kind,
        reason=DecisionReason.WITHIN_LIMITS,
        tenant="acme",
        request_id="r",
        attempt=0,
        decided_at_us=1,
        policy_id=policy_id,
    )
    return [DecidedBatch(0, 0, 0, [decision])]


@pytest.mark.parametrize(
    ("after", "further", "same"),
    [
        (DecisionKind.ADMIT, (), 1),
        (DecisionKind.THROTTLE, (), 0),
        (DecisionKind.THROTTLE, ("--ignore", "kind"), 1),
    ],
)
def test_a_difference_in_policy_id_alone_is_not_counted(
    world: World, monkeypatch: pytest.MonkeyPatch, after: DecisionKind, further: tuple[str, ...], same: int
) -> None:
    monkeypatch.setattr(rollback, "end_offsets", lambda *_: {0: 1})
    monkeypatch.setattr(rollback, "committed_offsets", lambda *_: {0: 1})
    monkeypatch.setattr(rollback, "effective_batches", lambda *_: decided("wrong", DecisionKind.ADMIT))
    monkeypatch.setattr(rollback, "batches", lambda *_: decided("right", after))
    printed = headrace("rollback", "admission", "--to", "beginning", *further)
    assert "policy_id" in printed
    assert ("They decide the same" in printed) == bool(same)
    shown = msgspec.json.decode(headrace("rollback", "admission", "--json", *further))["diff"]
    assert (shown["same"], shown["changed"]) == (same, 1 - same)
    assert shown["ignored"] == ["policy_id", *further[1:]]
    assert world.now.live == 1
