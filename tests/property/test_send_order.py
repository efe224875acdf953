"""Merging partitions by when their records were sent, against a sort."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from jobs.wiring.send_order import HELD_BYTES, SendOrder


class Record(NamedTuple):
    partition: int
    timestamp_us: int
    value: bytes | None = b""


def merged(parts: Sequence[Sequence[Record]], cuts: Sequence[int]) -> list[Record]:
    """What comes out where partitions arrive in turn, `cuts` records at a time."""
    order: SendOrder[Record] = SendOrder(range(len(parts)))
    left = {number: list(part) for number, part in enumerate(parts)}
    out: list[Record] = []
    turn = 0
    while left:
        number = sorted(left)[turn % len(left)]
        many = cuts[turn % len(cuts)]
        turn += 1
        order.take(left[number][:many])
        del left[number][:many]
        if not left[number]:
            del left[number]
            order.end(number)
        out += order.ready()
    return out


records = st.lists(st.integers(0, 20), max_size=12)


@given(st.lists(records, min_size=1, max_size=4), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_what_was_sent_in_order_comes_out_sorted_however_it_came_in(times: list[list[int]], cuts: list[int]) -> None:
    parts = [[Record(number, at) for at in sorted(part)] for number, part in enumerate(times)]
    assert merged(parts, cuts) == sorted((it for part in parts for it in part), key=lambda it: (it[1], it[0]))


@given(st.lists(records, min_size=1, max_size=4), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_the_order_of_a_partition_stands_above_its_timestamps(times: list[list[int]], cuts: list[int]) -> None:
    parts = [[Record(number, at) for at in part] for number, part in enumerate(times)]
    out = merged(parts, cuts)
    assert [[it for it in out if it.partition == number] for number in range(len(parts))] == parts
    assert out == merged(parts, [100])


def test_a_partition_that_is_far_ahead_is_told_until_the_others_have_come() -> None:
    order: SendOrder[Record] = SendOrder((0, 1))
    order.take([Record(0, at, bytes(HELD_BYTES // 2)) for at in range(2)])
    assert list(order.ready()) == []
    assert order.ahead == {0}
    order.end(1)
    assert len(list(order.ready())) == 2
    assert order.ahead == frozenset()
