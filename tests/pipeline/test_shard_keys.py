"""Shards spread evenly over subtasks, by Flink's own arithmetic."""

from collections import Counter

import pytest

from udfs.operators.shard_keys import MAX_PARALLELISM, key_group, routing_keys


@pytest.mark.slow
@pytest.mark.usefixtures("started_java")
def test_key_groups_are_those_that_flink_assigns() -> None:
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    assignment = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
    for key in (0, 1, 31, 54, 281, 999, 123_456, -1, -(2**31) + 5):
        row = jvm.org.apache.flink.types.Row(1)
        row.setField(0, key)
        assert key_group(key) == assignment.assignToKeyGroup(row, MAX_PARALLELISM)


@pytest.mark.parametrize("shard_count", [1, 2, 3, 7, 16, 32, 100, 128])
def test_shards_spread_evenly_whatever_the_parallelism(shard_count: int) -> None:
    keys = routing_keys(shard_count)
    assert len(set(keys)) == shard_count
    most = shard_count if MAX_PARALLELISM % shard_count == 0 else min(shard_count, MAX_PARALLELISM // shard_count)
    for parallelism in range(1, most + 1):
        subtasks = Counter(key_group(key) * parallelism // MAX_PARALLELISM for key in keys)
        assert len(subtasks) == parallelism
        assert max(subtasks.values()) - min(subtasks.values()) <= 1


def test_routing_keys_are_contracts() -> None:
    assert routing_keys(32)[:8] == (250, 39, 295, 23, 299, 230, 95, 40)


def test_more_shards_than_key_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="129 shards do not fit into 128 key groups"):
        routing_keys(129)
