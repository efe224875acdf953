"""What a load counts while it runs: plain numbers, no clock."""

from array import array
from collections import Counter
from enum import Enum
from typing import Final

from schemas.decisions import Decision, DecisionKind, DecisionMode

EXAMPLES: Final = 10
"""So many faults are told by name; all are counted."""


class Outcome(str, Enum):
    """How a request ended for its gateway."""

    SETTLED = "settled"
    REVOKED = "revoked"
    REJECTED = "rejected"
    THROTTLED = "throttled"
    """Its last attempt was throttled, and it was not asked again."""
    LOST = "lost"
    """No answer came in time."""
    UNSETTLED = "unsettled"
    """It ended, and no settlement came in time."""


class Fault(str, Enum):
    """What no log and no job may do to a request."""

    SETTLED_TWICE = "settled_twice"
    """Two settlements of one attempt, the first of which was none for silence."""
    CONTRADICTED = "contradicted"
    """Two different answers to one attempt, or a settlement of one that was refused."""
    CHANGED = "changed"
    """A decision that was read again under the same id, with other content."""


class TenantTally:
    """What was decided for one tenant's attempts."""

    __slots__ = ("admitted", "rejected", "revoked", "throttled")

    def __init__(self) -> None:
        self.admitted = self.throttled = self.rejected = self.revoked = 0


class Tally:
    """Everything that gateways count. One may be shared by several of them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """Events by the name of their kind."""
        self.requests = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.decisions: Counter[str] = Counter()
        self.shadow_decisions: Counter[str] = Counter()
        self.duplicates = 0
        """Decisions read again, the same as before: harmless."""
        self.late_decisions = 0
        """Decisions that came for requests which had been given up."""
        self.unknown_decisions = 0
        """Decisions on attempts of this load that were never made."""
        self.faults: Counter[Fault] = Counter()
        self.examples: list[tuple[Fault, str]] = []
        self.tenants: dict[str, TenantTally] = {}
        self.from_due_us = array("q")
        """Answer read minus the time at which its prompt was due."""
        self.from_sent_us = array("q")
        """Answer read minus the time at which its prompt was handed over to be sent."""
        self.overshoot_tokens = array("q")
        """For each revoked request, tokens that flowed after the decision."""
        self.stop_us = array("q")
        """For each stream that was cut, its stop minus the time of the decision."""
        self.revoked_after_end = 0
        """Streams that had ended when their revocation was read."""
        self.overdrawn_tokens = 0
        """As settlements say: tokens beyond what was reserved."""

    def fault(self, fault: Fault, decision: Decision) -> None:
        """Count a fault, and keep the first ones by the ids of their decisions."""
        self.faults[fault] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append((fault, f"{decision.tenant}: {decision.decision_id}"))

    def decided(self, decision: Decision) -> None:
        """Count a decision that was read for the first time."""
        kind = decision.kind
        if decision.mode is DecisionMode.SHADOW:
            self.shadow_decisions[kind.name.lower()] += 1
            return
        self.decisions[kind.name.lower()] += 1
        tenant = self.tenants.get(decision.tenant)
        if tenant is None:
            tenant = self.tenants[decision.tenant] = TenantTally()
        if kind is DecisionKind.ADMIT:
            tenant.admitted += 1
        elif kind is DecisionKind.THROTTLE:
            tenant.throttled += 1
        elif kind is DecisionKind.REJECT:
            tenant.rejected += 1
        elif kind is DecisionKind.REVOKE:
            tenant.revoked += 1
        elif kind is DecisionKind.SETTLE:
            self.overdrawn_tokens += decision.overdrawn_tokens

    @property
    def has_decisions(self) -> bool:
        """Whether anything at all was decided on requests of this load."""
        return bool(self.decisions or self.shadow_decisions or self.late_decisions or self.unknown_decisions)

    @property
    def missing(self) -> int:
        """Requests without a final decision."""
        return self.outcomes[Outcome.LOST] + self.outcomes[Outcome.UNSETTLED]
