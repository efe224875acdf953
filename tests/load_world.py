"""Requests and decisions for tests of the load's gateways, with defaults."""

from __future__ import annotations

from typing import Any

from jobs.ops.load.gateway import Gateway, GatewayRules
from jobs.ops.load.plan import PlannedRequest
from jobs.ops.load.tally import Tally
from schemas.decisions import Decision, DecisionKind, DecisionReason
from schemas.events import Event, Heartbeat
from tests.limiter_world import SECOND, START_US, completed, prompt

NAME = "run-0"


def at(seconds: float) -> int:
    return START_US + round(seconds * SECOND)


def planned(
    due_s: float = 0.0, *chunks: tuple[float, int], tenant: str = "acme", end_s: float | None = None
) -> PlannedRequest:
    """A request due after so many seconds; `chunks`: seconds after admission, and tokens by then."""
    offsets_us = tuple(round(seconds * SECOND) for seconds, _ in chunks)
    total = chunks[-1][1] if chunks else 0
    last_us = offsets_us[-1] if offsets_us else 0
    return PlannedRequest(
        due_us=round(due_s * SECOND),
        prompt=prompt("recorded", START_US, 10, tenant=tenant),
        offsets_us=offsets_us,
        cumulatives=tuple(tokens for _, tokens in chunks),
        ending=completed("recorded", START_US, (10, total), tenant=tenant),
        end_offset_us=last_us if end_s is None else round(end_s * SECOND),
    )


def decision(kind: DecisionKind, number: int = 0, **fields: Any) -> Decision:
    """A decision on attempt `attempt` of the gateway's request `number`; `ordinal` makes its id."""
    request_id = f"{NAME}-{number}"
    attempt = fields.setdefault("attempt", 0)
    ordinal = fields.pop("ordinal", {DecisionKind.SETTLE: 9, DecisionKind.REVOKE: 5}.get(kind, 0))
    reason = DecisionReason.COMPLETED if kind is DecisionKind.SETTLE else DecisionReason.WITHIN_LIMITS
    return Decision(
        **{
            "decision_id": f"{request_id}/{attempt}/{ordinal}",
            "kind": kind,
            "reason": reason,
            "tenant": "acme",
            "request_id": request_id,
            "decided_at_us": START_US,
            **fields,
        }
    )


class World:
    """One gateway and what it counts."""

    def __init__(self, *requests: PlannedRequest, **rules: Any) -> None:
        self.tally = Tally()
        self.gateway = Gateway(NAME, iter(requests), GatewayRules(**rules), self.tally, START_US)

    def advance(self, seconds: float) -> list[Event]:
        """What is sent by then, without heartbeats."""
        return [event for event in self.gateway.advance(at(seconds)) if not isinstance(event, Heartbeat)]

    def decide(self, kind: DecisionKind, seconds: float, number: int = 0, **fields: Any) -> list[Event]:
        return self.gateway.decide(decision(kind, number, **fields), at(seconds))
