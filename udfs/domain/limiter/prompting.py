"""What a prompt leads to."""

from schemas.decisions import DecisionReason
from schemas.events import PromptSubmitted
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import admission, ledger, lifecycle
from udfs.domain.limiter.lifecycle import Outputs
from udfs.domain.limiter.policy import LimiterPolicy
from udfs.domain.limiter.state import Phase, Request, TenantState


def on_prompt(
    state: TenantState, request: Request | None, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """A request asks to run."""
    request = request or Request(Phase.UNKNOWN, generation=state.forgotten)
    out = admission.decide(state, request, event, policy, now_us)
    if request.phase is Phase.RUNNING:
        if event.sequence > request.sequence:
            request.sequence, request.seen = event.sequence, 1
        lifecycle.live(state, lifecycle.request_key(event), request, now_us)
    elif policy.traffic_is_recorded:
        lifecycle.remember(state, lifecycle.request_key(event), Request(Phase.VOID), policy)
    else:
        lifecycle.remember(state, lifecycle.request_key(event), request, policy)
    return out


def on_late_prompt(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The prompt of a stream that already runs: what it streamed so far is charged at the levels known only now."""
    charged = request.completion_meters
    request.prompt_meters, request.completion_meters = [], []
    out = list(on_prompt(state, request, event, policy, now_us))
    unpaid = [key for key in request.completion_meters if key not in charged]
    if request.phase is Phase.REFUSED and policy.traffic_is_recorded:
        # It would have been refused before it could stream: that its chunks overtook its prompt is the log's doing.
        reason = DecisionReason.INTERRUPTED
        out += lifecycle.settled(state, request, event, policy, reason, 0, 0, now_us)
        lifecycle.remember(state, lifecycle.request_key(event), Request(Phase.VOID), policy)
        return out
    if unpaid:
        out += ledger.overdraw(state, unpaid, request.streamed_tokens, now_us)
    return out


def on_prompt_of_expired(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """A prompt that was sent twice, or one whose stream fell silent before it came."""
    if request.is_decided:
        return (Anomaly.DUPLICATE,)
    return [*on_late_prompt(state, request, event, policy, now_us), Anomaly.RESUMED]


def on_prompt_of_ended(
    state: TenantState, request: Request | None, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Seen before, or overtaken by its own end: then nobody waits for an answer any more."""
    return (Anomaly.DUPLICATE,) if request is None else (Anomaly.AFTER_END,)
