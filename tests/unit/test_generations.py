from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ops.effective import decisions_between, first_decided
from jobs.ops.generation_jobs import generations_by_job
from jobs.ops.generations import GenerationError, Generations, Phase, finish, propose, to_phase
from schemas.codec import DecidedBatch
from schemas.decisions import Decision, DecisionKind, DecisionReason

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: dict[str, Callable[[Generations], Generations]] = {
    "propose": lambda now: propose(now, "file:///savepoints/1", "version: 1", f"job-{now.newest + 1}"),
    "replay": lambda now: to_phase(now, Phase.REPLAYING, f"job-{now.newest}"),
    "promote": lambda now: to_phase(now, Phase.PROMOTING),
    "abort": lambda now: to_phase(now, Phase.ABORTING),
    "finish": finish,
}


def taken(now: Generations, *steps: str) -> Generations:
    for step in steps:
        now = STEPS[step](now)
    return now


def test_a_promoted_candidate_holds_from_then_on() -> None:
    after = taken(Generations(), "propose", "replay", "promote", "finish")
    assert after == Generations(lineage=(1, 2), newest=2, jobs={"job-2": 2})
    assert after.live == 2


def test_an_aborted_candidate_changes_nothing_but_its_number_is_not_used_again() -> None:
    after = taken(Generations(), "propose", "replay", "abort", "finish")
    assert after == Generations(lineage=(1,), newest=2, jobs={"job-2": 2})
    assert taken(after, "propose").candidate is not None
    assert taken(after, "propose", "replay", "promote", "finish").lineage == (1, 3)


@pytest.mark.parametrize("step", ["replay", "promote", "abort"])
def test_a_step_that_was_taken_before_a_crash_may_be_taken_again(step: str) -> None:
    before = taken(Generations(), "propose", "replay")
    assert taken(before, step, step) == taken(before, step)


@pytest.mark.parametrize(
    "steps",
    [
        ("replay",),
        ("finish",),
        ("propose", "propose"),
        ("propose", "promote"),
        ("propose", "replay", "finish"),
        ("propose", "replay", "promote", "abort"),
        ("propose", "abort", "promote"),
        ("propose", "replay", "promote", "finish", "abort"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(steps: tuple[str, ...]) -> None:
    before = taken(Generations(), *steps[:-1])
    with pytest.raises(GenerationError):
        STEPS[steps[-1]](before)


def test_a_record_of_before_jobs_were_on_record_is_read() -> None:
    candidate = {"generation": 4, "phase": "replaying", "restored_from": None, "policies": None, "job_id": "j"}
    found = msgspec.convert({"lineage": [1, 3], "newest": 4, "candidate": candidate}, type=Generations)
    assert (found.live, found.jobs) == (3, {})
    assert generations_by_job([], "admission", found) == {"j": 4}


def test_two_proposals_with_the_same_arguments_differ() -> None:
    one, other = (propose(Generations(), None, None, job_id) for job_id in ("one", "other"))
    assert one != other


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=30))
def test_whatever_is_tried_what_holds_is_what_was_promoted_last(steps: list[str]) -> None:
    now = Generations()
    promoted = [1]
    for step in steps:
        try:
            now = STEPS[step](now)
        except GenerationError:
            continue
        if step == "promote" and now.live != promoted[-1]:
            promoted.append(now.live)
        assert list(now.lineage) == promoted
        assert sorted(set(promoted)) == promoted
        assert now.newest >= now.live
        assert now.jobs == {f"job-{number}": number for number in range(2, now.newest + 1)}


def batch(shard: int, partition: int | None, offset: int | None, *ids: str) -> DecidedBatch:
    return DecidedBatch(shard, partition, offset, [decision(name) for name in ids])


def decision(name: str, **further: Any) -> Decision:
    return Decision(
        decision_id=name,
        kind=DecisionKind.ADMIT,
        reason=DecisionReason.WITHIN_LIMITS,
        tenant="acme",
        request_id=name,
        attempt=0,
        decided_at_us=1,
        **further,
    )


def test_a_generation_holds_from_the_first_record_of_each_shard_in_whatever_order_it_is_read() -> None:
    found = [batch(1, 0, 9, "b"), batch(1, 0, 7), batch(2, 0, 8, "c"), batch(3, None, None, "from a file")]
    # A record whose key names no shard is folded as one of shard 0, in whatever partition it stands.
    found += [batch(0, 5, 120), batch(0, 0, 1_000_000)]
    assert first_decided(found) == {(1, 0): 7, (2, 0): 8, (0, 5): 120, (0, 0): 1_000_000}


def test_a_comparison_is_cut_at_the_same_records_on_both_sides() -> None:
    found = [
        batch(1, 0, 6, "before the snapshot"),
        batch(1, 0, 7, "first"),
        batch(1, 0, 11, "last"),
        batch(1, 0, 12, "after the end"),
        batch(2, 1, 7, "of a shard that was not replayed"),
    ]
    kept = [it.decision_id for it in decisions_between(found, {(1, 0): 7}, {0: 12, 1: 50})]
    assert kept == ["first", "last"]
