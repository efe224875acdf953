"""Batches of a gateway hold every event once, in order, within their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.ops.load.batching import NEVER_US, ShardBatcher, ShardRecord
from schemas.codec import decode_events
from schemas.dead_letters import Position
from schemas.events import Event, Heartbeat
from schemas.topics import shard_of
from tests.limiter_world import START_US, chunk, heartbeat, prompt

SHARDS = 4
AGE_US, EVENTS, BYTES = 50, 5, 400
_tenants = st.sampled_from(["acme", "b", "tenant-7", "c"])
events = st.one_of(
    st.builds(prompt, st.just("r"), st.just(START_US), st.integers(0, 10), tenant=_tenants),
    st.builds(chunk, st.just("r"), st.just(START_US), st.integers(0, 10), tenant=_tenants, text=st.text(max_size=300)),
    st.builds(heartbeat, st.just(START_US)),
)
# What comes in, and how long after the one before.
arrivals = st.lists(st.tuples(st.integers(0, 30), events), max_size=60)


def _decoded(record: ShardRecord) -> list[Event]:
    batch = decode_events(record.record, Position("test", 0, 0))
    assert (batch.shard, batch.dead, len(batch.events)) == (record.shard, [], record.events)
    return batch.events


@given(arrivals)
def test_every_event_leaves_once_in_order_in_time_and_within_the_bounds(taken: list[tuple[int, Event]]) -> None:
    batcher = ShardBatcher(SHARDS, max_age_us=AGE_US, max_events=EVENTS, max_bytes=BYTES)
    now_us = 0
    out: list[ShardRecord] = []
    came: list[list[Event]] = [[] for _ in range(SHARDS)]
    waiting_since: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}

    def leave(records: list[ShardRecord]) -> None:
        for record in records:
            out.append(record)
            del waiting_since[record.shard][: record.events]

    for wait_us, event in taken:
        now_us += wait_us
        leave(batcher.take(now_us))
        assert all(now_us - since_us < AGE_US for ages in waiting_since.values() for since_us in ages)
        for shard in range(SHARDS) if isinstance(event, Heartbeat) else [shard_of(event.tenant, SHARDS)]:
            came[shard].append(event)
            waiting_since[shard].append(now_us)
        leave(batcher.add(event, now_us))
    leave(batcher.take(now_us + AGE_US))

    assert batcher.due_us == NEVER_US
    for shard in range(SHARDS):
        left = [event for record in out if record.shard == shard for event in _decoded(record)]
        assert left == came[shard]
    assert all(record.events <= EVENTS for record in out)
    # The shard's number and each event's length are not counted.
    assert all(record.events == 1 or len(record.record) <= BYTES + 4 * (record.events + 1) for record in out)
