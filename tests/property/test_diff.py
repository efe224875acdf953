"""A comparison of decisions against its definition on multisets, in any order."""

import random
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jobs.ops.diff import COMPARABLE, Window, diff_decisions
from schemas.decisions import Decision, DecisionKind, DecisionReason

# Few values of everything, so that both sides meet in all ways.
_decisions = st.builds(
    Decision,
    decision_id=st.sampled_from(["r/0/0", "r/0/1", "r/0/3-1", "odd"]),
    kind=st.sampled_from([DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.SETTLE]),
    reason=st.just(DecisionReason.WITHIN_LIMITS),
    tenant=st.sampled_from(["acme", "bloom", "corex"]),
    request_id=st.sampled_from(["r", "s"]),
    attempt=st.integers(0, 1),
    decided_at_us=st.integers(1, 4),
    used_tokens=st.integers(0, 1),
)
_sides = st.lists(_decisions, max_size=25)


def _key(decision: Decision) -> tuple[str, str, int, str]:
    return decision.tenant, decision.request_id, decision.attempt, decision.decision_id


def _contents(side: list[Decision]) -> dict[tuple[str, str, int, str], set[tuple[Any, ...]]]:
    """By definition: an id stands for the set of different decisions that carry it."""
    found = defaultdict(set)
    for decision in side:
        found[_key(decision)].add(tuple(getattr(decision, name) for name in COMPARABLE))
    return found


@given(_sides, _sides)
def test_each_id_is_classified_as_its_contents_on_both_sides_say(a: list[Decision], b: list[Decision]) -> None:
    contents_a, contents_b = _contents(a), _contents(b)
    expected: Counter[tuple[str, str]] = Counter()
    for key in contents_a.keys() | contents_b.keys():
        of_a, of_b = contents_a.get(key, set()), contents_b.get(key, set())
        if len(of_a) > 1 or len(of_b) > 1:
            expected[key[0], "conflicts_a"] += len(of_a) > 1
            expected[key[0], "conflicts_b"] += len(of_b) > 1
        elif not of_b:
            expected[key[0], "only_a"] += 1
        elif not of_a:
            expected[key[0], "only_b"] += 1
        else:
            expected[key[0], "same" if of_a == of_b else "changed"] += 1

    found = diff_decisions(a, b)

    classes = ("same", "changed", "only_a", "only_b", "conflicts_a", "conflicts_b")
    for name in classes:
        assert getattr(found.all, name) == sum(number for (_, kind), number in expected.items() if kind == name)
    for tenant in found.tenants:
        assert {name: getattr(tenant, name) for name in classes} == {
            name: expected[tenant.tenant, name] for name in classes
        }
    assert found.is_same == (dict(contents_a) == dict(contents_b) and not found.all.conflicts)
    assert found.repeats_a == len(a) - sum(map(len, contents_a.values()))
    assert found.repeats_b == len(b) - sum(map(len, contents_b.values()))


@given(_sides, _sides, st.randoms(use_true_random=False))
def test_the_order_of_the_sides_does_not_matter(a: list[Decision], b: list[Decision], chance: random.Random) -> None:
    mixed_a, mixed_b = chance.sample(a, len(a)), chance.sample(b, len(b))
    assert diff_decisions(mixed_a, mixed_b) == diff_decisions(a, b)


@given(_sides, _sides)
def test_sides_the_other_way_round_differ_the_other_way_round(a: list[Decision], b: list[Decision]) -> None:
    there, back = diff_decisions(a, b).all, diff_decisions(b, a).all
    assert (there.only_a, there.only_b, there.changed, there.same) == (
        back.only_b,
        back.only_a,
        back.changed,
        back.same,
    )
    assert (there.settled_a, there.settled_b) == (back.settled_b, back.settled_a)


@given(_sides, st.integers(0, 5), st.integers(0, 5))
def test_a_window_compares_what_is_in_it(side: list[Decision], since_us: int, until_us: int) -> None:
    inside = [decision for decision in side if since_us <= decision.decided_at_us < until_us]
    assert diff_decisions(side, inside, window=Window(since_us, until_us)).decisions_a == len(inside)


@given(_sides)
def test_what_is_ignored_is_no_difference(side: list[Decision]) -> None:
    other = [replace(decision, policy_id="another") for decision in side]
    assert diff_decisions(side, other, ignore=["policy_id"]).all.changed == 0
    assert diff_decisions(side, other).all.same == 0
