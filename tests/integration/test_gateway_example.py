"""docs/examples/gateway.py against a broker and the real limiter."""

from uuid import uuid4

import pytest

from tests.integration.decider import Decider, make_topics
from tests.limiter_world import limit, policy
from tests.unit.test_gateway_example import gateway

pytestmark = pytest.mark.slow


def test_the_example_is_admitted_and_settled(kafka_servers: str) -> None:
    name = uuid4().hex[:8]
    events, decisions = f"events.{name}", f"decisions.{name}"
    make_topics(kafka_servers, events, decisions)
    with Decider(kafka_servers, events, decisions, policy(limit(10_000)), repeat=True) as decider:
        assert gateway.main(kafka_servers, events, decisions) == ["ADMIT", "SETTLE"]
    assert decider.dead == []
