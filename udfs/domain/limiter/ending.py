"""What the end of a request leads to: it is settled once, by what it used."""

from collections.abc import Mapping
from typing import Final

from schemas.decisions import DecisionReason
from schemas.events import (
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    has_usage,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import lifecycle
from udfs.domain.limiter.estimate import lengths_of
from udfs.domain.limiter.lifecycle import NOTHING, Outputs
from udfs.domain.limiter.policy import LimiterPolicy
from udfs.domain.limiter.state import Phase, Request, TenantState
from udfs.domain.limiter.tokens import is_plausible, weighted_prompt_tokens


def _usage(request: Request, event: RequestEvent, policy: LimiterPolicy) -> tuple[int, int, bool]:
    """Prompt and completion tokens to charge at the end, and whether a reported count could not be believed."""
    streamed = request.streamed_tokens
    is_odd = False
    if isinstance(event, StreamInterrupted):
        is_odd = not is_plausible(event.token_offset)
        completion = streamed if is_odd else max(streamed, event.token_offset)
        return request.prompt_used or request.prompt_asked, completion, is_odd
    if isinstance(event, RequestCompleted | RequestFailed) and has_usage(event):
        cached = event.cached_tokens if isinstance(event, RequestCompleted) else request.cached_asked
        if is_plausible(event.prompt_tokens) and is_plausible(event.completion_tokens) and is_plausible(cached):
            weight = policy.cached_weight_permille
            prompt = weighted_prompt_tokens(event.prompt_tokens, cached, weight) if cached else event.prompt_tokens
            return prompt, event.completion_tokens, False
        is_odd = True
    # A request that never got as far as a token costs its prompt only where the gateway says that it was cut.
    prompt = (request.prompt_used or request.prompt_asked) if streamed else request.prompt_used
    return prompt, streamed, is_odd


_REASON_OF_END: Final[Mapping[type[RequestEvent], DecisionReason]] = {
    RequestCompleted: DecisionReason.COMPLETED,
    RequestFailed: DecisionReason.FAILED,
    StreamInterrupted: DecisionReason.INTERRUPTED,
}


def on_end(state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int) -> Outputs:
    """The request ends: its charge is brought to what it used, and the rest goes back."""
    prompt, completion, is_odd = _usage(request, event, policy)
    reason = _REASON_OF_END[type(event)] if request.is_decided else DecisionReason.NO_PROMPT
    is_again = request.phase is Phase.EXPIRED
    out = lifecycle.settled(state, request, event, policy, reason, prompt, completion, now_us)
    if is_again:
        out.append(Anomaly.RESUMED)
    if reason is DecisionReason.COMPLETED and completion and not is_odd:
        lengths_of(state.lengths, request.model).learn(-(-completion // max(request.choices, 1)))
    if is_odd:
        out.append(Anomaly.IMPLAUSIBLE_COUNT)
    return out


def on_end_of_unknown(
    state: TenantState, request: Request | None, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The end of a request whose beginning is not in the log: what it says it used is charged where it is known."""
    request = lifecycle.without_prompt(state, event, policy, now_us)
    return [*on_end(state, request, event, policy, now_us), Anomaly.UNKNOWN_REQUEST]


def on_end_of_refused(
    state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Gateways close a refused request as failed; only one that reports tokens did run after all."""
    prompt, completion, is_odd = _usage(request, event, policy)
    is_reported = isinstance(event, RequestCompleted | RequestFailed) and has_usage(event)
    if is_odd or not (completion > request.completion_spent or (is_reported and prompt > request.prompt_used)):
        lifecycle.remember(state, lifecycle.request_key(event), None, policy)
        return (Anomaly.IMPLAUSIBLE_COUNT,) if is_odd else NOTHING
    if not (request.prompt_meters or request.completion_meters):
        lifecycle.count_where_known(state, request, event, policy, now_us)
    return on_end(state, request, event, policy, now_us)
