"""docs/examples/gateway.py and the page about it: what they say is what the job reads."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.wiring.record_keys import record_keys, shard_of_key
from schemas.dead_letters import Position
from schemas.decisions import Decision, DecisionKind, DecisionReason
from schemas.events import SCHEMA_VERSION
from schemas.gen.headrace.v1.events_pb2 import EventBatch
from schemas.topics import SHARD_COUNT
from schemas.versions import minor_of
from tests.limiter_world import at, limit, policy
from udfs.domain.limiter import LimiterFold
from udfs.domain.policy_log import PolicyLog
from udfs.operators.in_process import InProcessFold

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "gateway.py"
PAGE = (DOCS / "gateways.md").read_text(encoding="utf-8")
PROMPT = {"prompt_tokens": 120, "max_tokens": 256}


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("gateway_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gateway = loaded()


class Job:
    """The fold as the job drives it: the shard from a record's key."""

    def __init__(self) -> None:
        self.fold = InProcessFold(LimiterFold(), PolicyLog([policy(limit(1_000))]))
        self.offset = 0

    def read(self, *records: tuple[bytes, bytes]) -> list[Decision]:
        out: list[Decision] = []
        for key, value in records:
            shard = shard_of_key(key, SHARD_COUNT)
            assert shard is not None
            self.offset += 1
            result = self.fold.process(shard, value, Position("events", 0, self.offset))
            assert result.dead == []
            out += result.outputs
        return out


def test_what_the_example_sends_is_decided_from_prompt_to_settlement() -> None:
    job = Job()
    usage = {"prompt_tokens": 120, "completion_tokens": 64, "usage_source": 1}
    found = [
        *job.read(gateway.of_request("acme", "r1", 1, at(0), prompt_submitted=PROMPT)),
        *job.read(gateway.of_request("acme", "r1", 2, at(1), tokens_generated={"count": 64, "cumulative": 64})),
        *job.read(gateway.of_request("acme", "r1", 3, at(2), request_completed=usage)),
    ]
    assert [it.kind for it in found] == [DecisionKind.ADMIT, DecisionKind.SETTLE]
    assert (found[-1].used_tokens, found[-1].refunded_tokens) == (184, 192)


def test_its_heartbeats_settle_a_request_that_fell_silent() -> None:
    job = Job()
    job.read(gateway.of_request("acme", "r1", 1, at(0), prompt_submitted=PROMPT))
    found = [it for second in range(1, 200) for it in job.read(*gateway.heartbeats(at(second)))]
    assert [it.reason for it in found] == [DecisionReason.SILENT]


def test_it_writes_the_schema_of_today() -> None:
    _, value = gateway.of_request("acme", "r1", 1, at(0), prompt_submitted=PROMPT)
    (event,) = EventBatch.FromString(value).events
    assert minor_of(event.schema_version) == minor_of(SCHEMA_VERSION)
    assert len(event.event_id) == 16


def test_the_page_has_the_keys_of_all_shards() -> None:
    table = PAGE.partition("## Keys")[2].partition("\n## ")[0]
    keys = re.findall(r"\b(\d+(?:\.\d+)?)\b", table.partition("```")[2].partition("```")[0])
    assert [key.encode() for key in keys] == list(record_keys(SHARD_COUNT))


@pytest.mark.parametrize("name", re.findall(r"^\| `(\w+)`", PAGE.partition("## Keys")[0], re.MULTILINE))
def test_a_field_that_the_page_names_is_one_of_an_event(name: str) -> None:
    assert name in EventBatch.DESCRIPTOR.fields_by_name["events"].message_type.fields_by_name
