"""May this request run? Reserve for it, or say when it could be asked again."""

from collections.abc import Iterator
from typing import NamedTuple

from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)
from schemas.events import PromptSubmitted
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.estimate import expected_completion
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.state import MeterKey, Phase, Request, TenantState
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS, is_plausible, weighted_prompt_tokens


class Need(NamedTuple):
    """What a request asks for. `is_bound`: the client set the completion's length itself."""

    prompt_tokens: int
    completion_tokens: int
    is_bound: bool


class Claim(NamedTuple):
    """What a request would take from one limit, and what there is."""

    key: MeterKey
    limit: Limit
    meter: Meter
    amount: int
    room: int


class Refusal(NamedTuple):
    """Why not, and by which limit; `retry_at_us` 0: never."""

    kind: DecisionKind
    reason: DecisionReason
    bound: BoundLimit | None
    retry_at_us: int


def bound_limit(limit: Limit, key: MeterKey, meter: Meter, remaining: int, now_us: int) -> BoundLimit:
    """The limit as a decision names it."""
    return BoundLimit(
        name=limit.name,
        level=limit.level,
        subject=key[1],
        unit=limit.unit,
        limit=limit.limit,
        remaining=max(remaining, 0),
        reset_at_us=metering.resets_at(meter, limit, now_us),
    )


def subjects_of(state: TenantState, event: PromptSubmitted) -> dict[LimitLevel, str]:
    """Who the request counts as, at each level."""
    return {
        LimitLevel.TENANT: state.tenant,
        LimitLevel.API_KEY: event.api_key,
        LimitLevel.USER: event.user,
        LimitLevel.MODEL: event.model,
    }


def assess(state: TenantState, event: PromptSubmitted, policy: LimiterPolicy) -> tuple[Need, list[Anomaly]]:
    """How much to set aside. An estimate never makes a request impossible: it is cut to what the limits could ever allow."""
    found: list[Anomaly] = []
    prompt = weighted_prompt_tokens(event.prompt_tokens, event.cached_tokens, policy.cached_weight_permille)
    if event.without_completion:
        return Need(prompt, 0, is_bound=True), found
    choices = max(event.choices, 1)
    if event.max_tokens and not is_plausible(event.max_tokens):
        found.append(Anomaly.IMPLAUSIBLE_COUNT)
    elif event.max_tokens:
        return Need(prompt, min(event.max_tokens * choices, IMPLAUSIBLE_TOKENS), is_bound=True), found
    expected = choices * expected_completion(
        state.lengths,
        event.model,
        policy.estimate_quantile,
        policy.estimate_after,
        policy.default_completion_tokens,
    )
    ceiling = policy.completion_ceiling(prompt, subjects_of(state, event))
    return Need(prompt, max(min(expected, ceiling), 1), is_bound=False), found


def _amount(limit: Limit, need: Need) -> int:
    if limit.unit is not LimitUnit.TOKENS:
        return 1
    prompt = need.prompt_tokens if limit.counts_prompt else 0
    return prompt + need.completion_tokens if limit.counts_completion else prompt


def claims(
    state: TenantState, event: PromptSubmitted, policy: LimiterPolicy, need: Need, now_us: int
) -> Iterator[Claim]:
    """What the request would take from each limit that matches it."""
    subjects = subjects_of(state, event)
    for limit in policy.limits:
        subject = subjects[limit.level]
        if limit.only and subject not in limit.only:
            continue
        key, _, meter = ledger.meter_of(state, limit, subject, policy.max_subjects, now_us)
        yield Claim(key, limit, meter, _amount(limit, need), metering.room(meter, limit, now_us))


def refusal(state: TenantState, refused: list[Claim], now_us: int) -> Refusal | None:
    """Why these claims can't all be met now: the one that can never be, or else the one that takes longest."""
    for claim in refused:
        if claim.amount > claim.limit.capacity:
            bound = bound_limit(claim.limit, claim.key, claim.meter, claim.room, now_us)
            return Refusal(DecisionKind.REJECT, DecisionReason.NEVER_FITS, bound, 0)
    latest: tuple[int, Claim] | None = None
    for claim in refused:
        fits_at_us = metering.earliest_fit(
            claim.meter, claim.limit, claim.amount, now_us, ledger.lapses(state, claim.key)
        )
        if latest is None or fits_at_us > latest[0]:
            latest = (fits_at_us, claim)
    if latest is None:
        return None
    retry_at_us, claim = latest
    bound = bound_limit(claim.limit, claim.key, claim.meter, claim.room, now_us)
    return Refusal(DecisionKind.THROTTLE, DecisionReason.OVER_LIMIT, bound, retry_at_us)


def take(state: TenantState, request: Request, granted: list[Claim], need: Need, now_us: int) -> BoundLimit | None:
    """Set aside what the request needs in all these limits; returns the one that is tightest then."""
    tightest: tuple[float, Claim] | None = None
    for claim in granted:
        key, limit, meter, amount, room = claim
        metering.reserve(meter, limit, amount, now_us)
        if limit.unit is LimitUnit.TOKENS:
            if limit.counts_prompt:
                request.prompt_meters.append(key)
            if limit.counts_completion:
                request.completion_meters.append(key)
        elif limit.unit is LimitUnit.REQUESTS:
            metering.draw(meter, limit, 1, now_us)
        else:
            request.slot_meters.append(key)
        if limit.mode is DecisionMode.ENFORCE:
            share = (room - amount) / limit.limit
            if tightest is None or share < tightest[0]:
                tightest = (share, claim)
    request.holds_slots = True
    request.prompt_left = request.prompt_asked = need.prompt_tokens
    request.completion_left = need.completion_tokens
    request.granted_tokens += need.prompt_tokens + need.completion_tokens
    if tightest is None:
        return None
    _, (key, limit, meter, amount, room) = tightest
    return bound_limit(limit, key, meter, room - amount, now_us)


def decide(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> list[Decision | Anomaly]:
    """Admit, throttle or reject. On ADMIT the request is RUNNING and holds its reservation, else it is REFUSED."""
    request.policy_id = policy.id
    request.model = event.model
    request.choices = event.choices
    if not (is_plausible(event.prompt_tokens) and is_plausible(event.cached_tokens)):
        request.phase = Phase.REFUSED
        implausible = Refusal(DecisionKind.REJECT, DecisionReason.IMPLAUSIBLE_COUNT, None, 0)
        return [
            _refused(request, event, implausible, DecisionMode.ENFORCE, now_us),
            Anomaly.IMPLAUSIBLE_COUNT,
        ]
    need, found = assess(state, event, policy)
    out: list[Decision | Anomaly] = [*found]
    granted: list[Claim] = []
    refused: list[Claim] = []
    shadow_refused: list[Claim] = []
    for claim in claims(state, event, policy, need, now_us):
        if claim.amount <= claim.room:
            granted.append(claim)
        elif claim.limit.mode is DecisionMode.SHADOW:
            shadow_refused.append(claim)
        else:
            refused.append(claim)
    no = refusal(state, refused, now_us)
    if no is not None:
        request.phase = Phase.REFUSED
        out.append(_refused(request, event, no, DecisionMode.ENFORCE, now_us))
        return out
    in_shadow = refusal(state, shadow_refused, now_us)
    if in_shadow is not None:
        out.append(_refused(request, event, in_shadow, DecisionMode.SHADOW, now_us))
    request.phase = Phase.RUNNING
    tightest = take(state, request, granted, need, now_us)
    out.append(
        Decision(
            decision_id=next_id(request, event.request_id, event.attempt),
            kind=DecisionKind.ADMIT,
            reason=DecisionReason.WITHIN_LIMITS if policy.limits else DecisionReason.NO_POLICY,
            tenant=event.tenant,
            request_id=event.request_id,
            attempt=event.attempt,
            decided_at_us=now_us,
            bound=tightest,
            reserved_tokens=request.granted_tokens,
            policy_id=policy.id,
            caused_by=event.event_id,
        )
    )
    return out


def next_id(request: Request, request_id: str, attempt: int) -> str:
    """The id of the request's next decision: a pure function of its history."""
    ordinal = request.ordinal
    request.ordinal = ordinal + 1
    return f"{request_id}/{attempt}/{ordinal}"


def _refused(request: Request, event: PromptSubmitted, why: Refusal, mode: DecisionMode, now_us: int) -> Decision:
    return Decision(
        decision_id=next_id(request, event.request_id, event.attempt),
        kind=why.kind,
        mode=mode,
        reason=why.reason,
        tenant=event.tenant,
        request_id=event.request_id,
        attempt=event.attempt,
        decided_at_us=now_us,
        bound=why.bound,
        retry_at_us=why.retry_at_us,
        policy_id=request.policy_id,
        caused_by=event.event_id,
    )
