"""Steps that transitions share: which requests are live or remembered, how they are counted, cut and settled."""

from collections.abc import Iterator, Sequence
from heapq import heappush
from typing import Final, TypeAlias

from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.events import RequestEvent
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import admission, ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.state import MeterKey, Phase, Request, RequestKey, TenantState

Out: TypeAlias = Decision | Anomaly
Outputs: TypeAlias = Sequence[Out]

NOTHING: Final[Outputs] = ()


def request_key(event: RequestEvent) -> RequestKey:
    """Which attempt of which request the event belongs to."""
    return (event.request_id, event.attempt)


def remember(state: TenantState, key: RequestKey, request: Request | None, policy: LimiterPolicy) -> None:
    """Keep what is needed to know the request again, and to charge it if it goes on; the oldest goes first."""
    state.requests.pop(key, None)
    state.ended.pop(key, None)
    state.ended[key] = request
    while len(state.ended) > policy.remember_requests:
        del state.ended[next(iter(state.ended))]
        state.forgotten += 1


def live(state: TenantState, key: RequestKey, request: Request, now_us: int) -> None:
    """Take the request among those that run, and be woken when it has been silent for too long."""
    state.ended.pop(key, None)
    state.requests[key] = request
    request.last_us = now_us
    if state.silence is not None:
        heappush(state.silence, (now_us, key))
    due_us = now_us + state.silence_timeout_us
    if state.due_us is None or due_us < state.due_us:
        state.due_us = due_us


def without_prompt(state: TenantState, event: RequestEvent, policy: LimiterPolicy, now_us: int) -> Request:
    """A request whose prompt is not in the log: its key and user are not known, its tenant and model are."""
    request = Request(Phase.EARLY, model=event.model, policy_id=policy.id, generation=state.forgotten)
    count_where_known(state, request, event, policy, now_us)
    return request


def count_where_known(
    state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> None:
    """Count the request at the levels that an event without a prompt tells."""
    subjects = {LimitLevel.TENANT: state.tenant, LimitLevel.MODEL: event.model}
    for limit in policy.limits:
        subject = subjects.get(limit.level)
        if subject is None or limit.unit is not LimitUnit.TOKENS or (limit.only and subject not in limit.only):
            continue
        key = ledger.new_meter(state, limit, subject, policy.max_subjects, now_us)
        if limit.counts_prompt:
            request.prompt_meters.append(key)
        if limit.counts_completion:
            request.completion_meters.append(key)


def least_room(state: TenantState, keys: list[MeterKey], now_us: int) -> tuple[int, MeterKey] | None:
    """The enforced limit of these that has least room."""
    rooms = [
        (metering.room(meter, limit, now_us), key)
        for key, (meter, limit) in keyed(state, keys)
        if limit.mode is DecisionMode.ENFORCE
    ]
    return min(rooms, default=None)


def keyed(state: TenantState, keys: list[MeterKey]) -> Iterator[tuple[MeterKey, tuple[metering.Meter, Limit]]]:
    """Each key with its meter and limit."""
    return zip(keys, ledger.metered(state, keys), strict=True)


def cut(
    state: TenantState,
    request: Request,
    event: RequestEvent,
    least: tuple[int, MeterKey] | None,
    mode: DecisionMode,
    now_us: int,
) -> Decision:
    """The decision that a stream must stop; `least` is the room that is left and the limit that has it."""
    bound = None
    if least is not None:
        room, key = least
        meter = state.meters.get(key) or metering.Meter()
        bound = admission.bound_limit(state.limits[key[0]], key, meter, room, now_us)
    return admission.decision_of(
        request,
        (event.request_id, event.attempt),
        state.tenant,
        now_us,
        kind=DecisionKind.REVOKE,
        mode=mode,
        reason=DecisionReason.OVER_LIMIT,
        bound=bound,
        reserved_tokens=request.granted_tokens,
        used_tokens=request.used_tokens,
        overdrawn_tokens=request.overdrawn_tokens,
        event=event,
    )


def settled(
    state: TenantState,
    request: Request,
    event: RequestEvent,
    policy: LimiterPolicy,
    reason: DecisionReason,
    prompt_tokens: int,
    completion_tokens: int,
    now_us: int,
) -> list[Out]:
    """Settle the request for good by what it used."""
    found = ledger.settle(state, request, prompt_tokens, completion_tokens, now_us)
    request.phase = Phase.ENDED
    key = request_key(event)
    decision = settlement(state, key, request, reason, event, now_us)
    # One whose prompt is still to come is kept, so that the prompt is known to come too late.
    remember(state, key, None if request.is_decided else request, policy)
    return [decision, *found]


def settlement(
    state: TenantState,
    key: RequestKey,
    request: Request,
    reason: DecisionReason,
    event: RequestEvent | None,
    now_us: int,
) -> Decision:
    """The decision that says what the request used and what went back."""
    return admission.decision_of(
        request,
        key,
        state.tenant,
        now_us,
        kind=DecisionKind.SETTLE,
        reason=reason,
        reserved_tokens=request.granted_tokens,
        used_tokens=request.used_tokens,
        refunded_tokens=request.refunded_tokens,
        overdrawn_tokens=request.overdrawn_tokens,
        event=event,
    )
