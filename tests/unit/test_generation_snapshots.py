"""Whose a snapshot is: a job goes on from what its own generation took, and from nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from jobs.ops import rollback_command
from jobs.ops.generation_jobs import of_live
from jobs.ops.generations import Generations, Phase, finish, propose, to_phase
from jobs.ops.snapshots import Snapshot, SnapshotError
from jobs.ops.submit import new_job_id
from jobs.wiring.flink_rest import Job, location_of
from tests.rollback_world import World, headrace, patched_world

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return patched_world(tmp_path, monkeypatch)


def promoted(now: Generations, job_id: str) -> Generations:
    return finish(to_phase(to_phase(propose(now, None, None, job_id), Phase.REPLAYING, job_id), Phase.PROMOTING))


def test_latest_is_never_of_an_aborted_generation(world: World) -> None:
    own = world.flink.known[0].id
    mine = world.checkpoint(own, 10)
    begun = world.rollback()
    begun.begin(None, None)
    # The command is killed while `flink run` is under way: nobody puts on record that the job runs.
    job_id = world.flink.run(2, begun.candidate.job_id)
    world.checkpoint(job_id, 20)
    headrace("rollback", "admission", "--abort")
    assert world.flink.names() == ["headrace-admission"]
    assert not (world.folder / "checkpoints" / job_id).exists()

    # Even where its checkpoints could not be deleted, and Flink has forgotten every job.
    world.checkpoint(job_id, 30)
    world.snapshot(f"savepoints/savepoint-{job_id[:6]}-0123456789ab", 40)
    world.flink.known.clear()
    headrace("restore", "admission", "--from", "latest")
    assert world.submitted == [location_of(str(mine))]


def test_latest_is_of_the_generation_that_was_promoted_and_not_of_the_one_before(world: World) -> None:
    old, new = world.flink.known[0].id, new_job_id()
    world.records.append(promoted(Generations(), new))
    world.settings_file.write_text(world.settings_file.read_text() + "generation: 2\n")
    world.flink.known.clear()
    world.checkpoint(old, 50)
    world.snapshot(f"savepoints/savepoint-{old[:6]}-0123456789ab", 60)
    world.snapshot("savepoints/by-hand", 70)
    with pytest.raises(SnapshotError, match="no snapshot of generation 2"):
        headrace("restore", "admission", "--from", "latest")
    assert world.submitted == []
    mine = world.checkpoint(new, 40)
    headrace("restore", "admission", "--from", "latest")
    assert world.submitted == [location_of(str(mine))]

    # What the restored job has taken is this generation's too, whatever Flink still knows.
    restored = world.flink.known[0].id
    assert world.now.jobs == {new: 2, restored: 2}
    world.flink.known.clear()
    later = world.checkpoint(restored, 45)
    headrace("restore", "admission", "--from", "latest")
    assert world.submitted[-1] == location_of(str(later))


def test_latest_is_not_of_a_job_that_flink_knows_as_another(world: World) -> None:
    mine = world.checkpoint(world.flink.known[0].id, 10)
    world.flink.cancel(world.flink.known[0].id)
    by_hand = world.flink.run(9, state="CANCELED")
    world.checkpoint(by_hand, 20)
    ingest = new_job_id()
    world.flink.known.append(Job(ingest, "headrace-ingest", "RUNNING", 0))
    world.checkpoint(ingest, 30)
    headrace("restore", "admission", "--from", "latest")
    assert world.submitted == [location_of(str(mine))]


def test_a_rollback_to_a_time_begins_from_a_snapshot_of_what_holds(world: World) -> None:
    world.flink.cancel(world.flink.known[0].id)
    mine = world.checkpoint(world.flink.known[0].id, 10)
    aborted = new_job_id()
    begun = to_phase(propose(Generations(), None, None, aborted), Phase.ABORTING)
    world.records.append(finish(begun))
    world.checkpoint(aborted, 20)
    found = rollback_command._snapshot(world.target, "admission", "2026-01-01T00:00:00Z", world.rollback())
    assert found == str(mine)


def test_a_savepoint_whose_name_fits_jobs_of_two_generations_is_nobodys(tmp_path: Path) -> None:
    jobs = {"abcdef" + "0" * 26: 2, "abcdef" + "1" * 26: 3, "123456" + "0" * 26: 3}
    generations = Generations(lineage=(1, 3), newest=3, jobs=jobs)
    found = [Snapshot(tmp_path / f"savepoint-{prefix}-0123456789ab", 1) for prefix in ("abcdef", "123456", "fedcba")]
    assert of_live(found, generations, jobs) == found[1:2]
    swapped = msgspec.structs.replace(generations, lineage=(1, 2))
    assert of_live(found, swapped, jobs) == []
    assert of_live(found, msgspec.structs.replace(generations, lineage=(1,)), jobs) == found[2:]
