"""The token-rate limiter of a tenant: reserve, enforce while the stream runs, settle once.

`TRANSITIONS` is the whole of it: what happens to a request in each phase on each event. Handlers return what was
decided and what was noticed.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from schemas.decisions import DecisionReason
from schemas.events import (
    Event,
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import ending, ledger, lifecycle, prompting, streaming
from udfs.domain.limiter import state as states
from udfs.domain.limiter.lifecycle import Out, Outputs
from udfs.domain.limiter.policy import LimiterPolicy
from udfs.domain.limiter.state import Phase, Request, TenantState

Handler: TypeAlias = Callable[[TenantState, Any, Any, LimiterPolicy, int], Outputs]
"""(state, request, event, policy, now_us). TRANSITIONS hands each one the request and event types that it declares."""

NO_POLICY: Final = LimiterPolicy(id="none", match="*")
"""What holds where no policy matches: requests are followed and settled, and nothing is limited."""


def _duplicate(
    state: TenantState, request: Request | None, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    return (Anomaly.DUPLICATE,)


def _after_end(
    state: TenantState, request: Request | None, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    return (Anomaly.AFTER_END,)


def _void(
    state: TenantState, request: Request | None, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    return (Anomaly.VOID,)


TRANSITIONS: Final[Mapping[Phase, Mapping[type[Event], Handler]]] = {
    phase: {
        PromptSubmitted: prompt,
        TokensGenerated: tokens,
        StreamInterrupted: end,
        RequestCompleted: end,
        RequestFailed: end,
    }
    for phase, prompt, tokens, end in (
        # phase, then what is done on: a prompt; tokens; interruption, completion or failure
        (Phase.UNKNOWN, prompting.on_prompt, streaming.on_early_tokens, ending.on_end_of_unknown),
        (Phase.EARLY, prompting.on_late_prompt, streaming.on_early_tokens, ending.on_end),
        (Phase.RUNNING, _duplicate, streaming.on_tokens, ending.on_end),
        (Phase.REVOKED, _duplicate, streaming.on_tokens_after_revoke, ending.on_end),
        (Phase.REFUSED, _duplicate, streaming.on_tokens_of_refused, ending.on_end_of_refused),
        (Phase.EXPIRED, prompting.on_prompt_of_expired, streaming.on_tokens_of_expired, ending.on_end),
        (Phase.ENDED, prompting.on_prompt_of_ended, _after_end, _after_end),
        (Phase.VOID, _duplicate, _void, _void),
    )
}
"""phase -> type of event -> what is done. A request known only by its key in `ended` is ENDED."""


_OF_REQUESTS: Final = frozenset(TRANSITIONS[Phase.UNKNOWN])


class LimiterFold:
    """The limiter as a fold over a tenant's events: see udfs.operators.fold.Fold for the contract."""

    name = "limiter"
    version = states.STATE_VERSION
    upgrades: Mapping[int, Callable[[bytes], bytes]] = {}

    def key(self, event: Event) -> str | None:
        """The tenant, for events of requests; others are not for this fold."""
        return event.tenant if type(event) in _OF_REQUESTS else None

    def new(self, key: str) -> TenantState:
        """A tenant that nothing is known of."""
        return TenantState(key)

    def apply(self, state: TenantState, event: Event, policy: LimiterPolicy | None, now_us: int) -> Outputs:
        """Decide one event at the tenant's clock `now_us`, which never goes back."""
        policy = policy or NO_POLICY
        if policy is not state.policy:
            ledger.bind(state, policy, now_us)
        key = (event.request_id, event.attempt)
        request = state.requests.get(key)
        if request is not None:
            phase = request.phase
        elif key in state.ended:
            request = state.ended[key]
            phase = Phase.ENDED if request is None else request.phase
        else:
            phase = Phase.UNKNOWN
        return TRANSITIONS[phase][type(event)](state, request, event, policy, now_us)

    def due(self, state: TenantState) -> int | None:
        """No live request has been silent for too long before then."""
        return state.due_us

    def wake(self, state: TenantState, policy: LimiterPolicy | None, now_us: int) -> Outputs:
        """Settle what has been silent for too long; what it did not use goes back."""
        policy = policy or NO_POLICY
        if policy is not state.policy:
            ledger.bind(state, policy, now_us)
        out: list[Out] = []
        silent_since_us = now_us - state.silence_timeout_us
        while (oldest := ledger.longest_silent(state)) is not None and oldest[0] <= silent_since_us:
            key = oldest[1]
            request = state.requests[key]
            reason = DecisionReason.SILENT if request.is_decided else DecisionReason.NO_PROMPT
            out += ledger.settle(state, request, request.prompt_used, request.completion_spent, now_us)
            request.phase = Phase.EXPIRED
            out.append(lifecycle.settlement(state, key, request, reason, None, now_us))
            lifecycle.remember(state, key, request, policy)
        ledger.schedule(state)
        return out

    def dump(self, state: TenantState) -> bytes:
        """The state as bytes of `version`."""
        return states.dump(state)

    def load(self, stored: bytes) -> TenantState:
        """The state that `dump` wrote."""
        return states.load(stored)
