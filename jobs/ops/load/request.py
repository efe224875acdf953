"""What a gateway knows of one request."""

from bisect import bisect_right
from enum import Enum

from jobs.ops.load.plan import PlannedRequest
from jobs.ops.load.tally import Outcome
from schemas.decisions import DecisionKind, DecisionReason


class Phase(Enum):
    """Where a request is."""

    WAITING = "waiting for an answer"
    STREAMING = "streaming"
    BACKING_OFF = "backing off"
    SETTLING = "waiting for its settlement"
    DONE = "done"


class GatewayRequest:
    """One request. What an ended one keeps tells a decision that comes again from one that must not come."""

    __slots__ = (
        "admitted_us",
        "answers",
        "attempt",
        "chunk_times_us",
        "due_us",
        "end_id",
        "ends_as",
        "id",
        "is_revoked",
        "phase",
        "plan",
        "seen",
        "sent_us",
        "sequence",
        "settled",
        "timer",
    )

    def __init__(self, request_id: str, plan: PlannedRequest) -> None:
        self.id = request_id
        self.plan = plan
        self.phase = Phase.WAITING
        self.attempt = -1
        self.sequence = 0
        self.due_us = 0
        self.sent_us = 0
        self.admitted_us = 0
        self.chunk_times_us: list[int] = []
        # The one timer that counts; those set before it are stale. 0: none.
        self.timer = 0
        self.end_id = b""
        self.is_revoked = False
        self.ends_as = Outcome.SETTLED
        # By attempt.
        self.answers: list[DecisionKind | None] = []
        self.settled: list[DecisionReason | None] = []
        # Decision id -> hash of the decision.
        self.seen: dict[str, int] = {}

    @property
    def streamed_tokens(self) -> int:
        """Tokens that have flowed."""
        sent = len(self.chunk_times_us)
        return self.plan.cumulatives[sent - 1] if sent else 0

    def streamed_after(self, at_us: int) -> int:
        """Tokens that flowed later than `at_us`."""
        sent = bisect_right(self.chunk_times_us, at_us)
        return self.streamed_tokens - (self.plan.cumulatives[sent - 1] if sent else 0)

    def end(self, outcome: Outcome) -> None:
        """Be done, and let go of what only a running request needs."""
        self.phase = Phase.DONE
        self.ends_as = outcome
        self.timer = 0
        del self.plan, self.chunk_times_us
