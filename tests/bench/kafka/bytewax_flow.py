"""The same work on Bytewax 0.21, with its recovery on. Runs in the peers' environment, by `python -m bytewax.run`.

KEYED_BY=tenant is how a Bytewax user would write it: a record is taken apart, the state is one of a tenant, and it is
serialised where a snapshot wants it. KEYED_BY=shard gives Bytewax our own way: whole batches to `ShardFold`.
Other settings in the environment: SERVERS, EVENTS, DECISIONS, POLICY.
"""

import os
import time
from collections.abc import Iterable
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found,unused-ignore]
import msgspec
from bytewax.connectors.kafka import (  # type: ignore[import-not-found,unused-ignore]
    KafkaSink,
    KafkaSinkMessage,
    KafkaSource,
)
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found,unused-ignore]
from bytewax.operators import StatefulBatchLogic

from schemas.codec import decode_events, encode_decisions
from schemas.dead_letters import Position
from schemas.decisions import Decision
from schemas.events import Event
from schemas.topics import shard_of
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import LimiterFold, LimiterPolicy
from udfs.domain.policy_log import PolicyLog
from udfs.operators.shard_fold import ShardFold
from udfs.operators.store import MemoryStore

NOWHERE = Position("bench", 0, 0)
POLICY = msgspec.json.decode(os.environ["POLICY"], type=LimiterPolicy)
LIMITER = LimiterFold()
POLICIES = PolicyLog([POLICY])


class TenantLogic(StatefulBatchLogic):  # type: ignore[misc,unused-ignore]
    """The limiter of one tenant."""

    def __init__(self, resumed: tuple[bytes, int] | None) -> None:
        self._state = None if resumed is None else LIMITER.load(resumed[0])
        self._clock_us = 0 if resumed is None else resumed[1]

    def on_batch(self, values: list[Event]) -> tuple[Iterable[Decision], bool]:
        if self._state is None:
            self._state = LIMITER.new(values[0].tenant)
        state, clock_us = self._state, self._clock_us
        outputs: list[Decision | Anomaly] = []
        for event in values:
            clock_us = max(clock_us, event.event_time_us)
            due_us = LIMITER.due(state)
            if due_us is not None and due_us <= clock_us:
                outputs += LIMITER.wake(state, POLICY, due_us)
            outputs += LIMITER.apply(state, event, POLICY, clock_us)
        self._clock_us = clock_us
        return [output for output in outputs if isinstance(output, Decision)], StatefulBatchLogic.RETAIN

    def snapshot(self) -> tuple[bytes, int]:
        assert self._state is not None
        return LIMITER.dump(self._state), self._clock_us


class ShardLogic(StatefulBatchLogic):  # type: ignore[misc,unused-ignore]
    """The limiters of one shard; in their snapshot all that the shard knows."""

    def __init__(self, resumed: dict[str, bytes] | None) -> None:
        self._store = MemoryStore()
        self._store.entries.update(resumed or {})
        self._fold = ShardFold(LIMITER, POLICIES, self._store)

    def on_batch(self, values: list[Any]) -> tuple[Iterable[bytes], bool]:
        found = []
        for message in values:
            result = self._fold.process(message.value, NOWHERE)
            if result.outputs:
                shard = int(message.key.partition(b".")[0])
                found.append(encode_decisions(shard, result.outputs, (message.partition, message.offset)))
        return found, StatefulBatchLogic.RETAIN

    def snapshot(self) -> dict[str, bytes]:
        self._fold.compact()
        return dict(self._store.entries)


def note_the_first(messages: list[Any], said: list[bool] = []) -> list[Any]:  # noqa: B006 - once a process
    if messages and not said:
        said.append(True)
        print(f"reads since {time.time_ns() // 1_000_000}", flush=True)
    return messages


def events_by_tenant(messages: list[Any]) -> list[tuple[str, Event]]:
    return [(event.tenant, event) for message in messages for event in decode_events(message.value, NOWHERE).events]


def decisions_alone(decided: list[tuple[str, Decision]]) -> list[Any]:
    return [
        KafkaSinkMessage(b"%d" % shard, encode_decisions(shard, [decision]))
        for tenant, decision in decided
        for shard in (shard_of(tenant),)
    ]


def build() -> Any:
    flow = Dataflow("bench")
    servers = [os.environ["SERVERS"]]
    read = op.input("events", flow, KafkaSource(servers, [os.environ["EVENTS"]], tail=False))
    messages = op.flat_map_batch("first", read, note_the_first)
    if os.environ["KEYED_BY"] == "tenant":
        by_tenant = op.flat_map_batch("tenants", messages, events_by_tenant)
        decided = op.stateful_batch("limiter", by_tenant, TenantLogic)
        out = op.flat_map_batch("records", decided, decisions_alone)
    else:
        by_shard = op.key_on("shards", messages, lambda message: message.key.decode())
        decided = op.stateful_batch("limiter", by_shard, ShardLogic)
        out = op.map("records", decided, lambda found: KafkaSinkMessage(found[0].encode(), found[1]))
    op.output("decisions", out, KafkaSink(servers, os.environ["DECISIONS"]))
    return flow


# Imported, it is a dataflow: bytewax.run looks for one of this name.
flow = build()
