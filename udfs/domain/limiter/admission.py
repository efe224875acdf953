"""May this request run? Reserve for it, or say when it could be asked again."""

from typing import NamedTuple, TypeAlias

from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitUnit,
)
from schemas.events import PromptSubmitted, RequestEvent
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.estimate import expected_completion
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import MAX_WINDOW_US, Limit, LimiterPolicy
from udfs.domain.limiter.state import MeterKey, Phase, Request, RequestKey, TenantState
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS, is_plausible, weighted_prompt_tokens


class Need(NamedTuple):
    """What a request asks for. `is_bound`: the client set the completion's length itself."""

    prompt_tokens: int
    completion_tokens: int
    is_bound: bool


Claim: TypeAlias = tuple[MeterKey, Limit, Meter, int, int]
"""What a request would take from one limit: its meter, the amount, and the room there is."""


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


def subjects_of(state: TenantState, event: PromptSubmitted) -> tuple[str, ...]:
    """Who the request counts as, at each LimitLevel."""
    return "", state.tenant, event.api_key, event.user, event.model


def assess(
    state: TenantState, event: PromptSubmitted, policy: LimiterPolicy, subjects: tuple[str, ...]
) -> tuple[Need, list[Anomaly]]:
    """How much to set aside. An estimate never makes a request impossible: it is cut to what could ever be allowed."""
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
    if prompt + expected > policy.least_capacity:
        expected = max(min(expected, policy.completion_ceiling(prompt, subjects)), 1)
    return Need(prompt, expected, is_bound=False), found


def claim(state: TenantState, limit: Limit, subject: str, need: Need, max_subjects: int, now_us: int) -> Claim:
    """What the request would take from one limit that matches it."""
    key = (limit.name, subject)
    meter = state.meters.get(key)
    if meter is None:
        key = ledger.new_meter(state, limit, subject, max_subjects, now_us)
        meter = state.meters[key]
    amount = 1
    if limit.unit is LimitUnit.TOKENS:
        amount = (need.prompt_tokens if limit.counts_prompt else 0) + (
            need.completion_tokens if limit.counts_completion else 0
        )
    return key, limit, meter, amount, metering.room(meter, limit, now_us)


def _claims(
    state: TenantState, policy: LimiterPolicy, subjects: tuple[str, ...], need: Need, now_us: int
) -> list[Claim]:
    return [
        claim(state, limit, subjects[limit.level], need, policy.max_subjects, now_us)
        for limit in policy.limits
        if not limit.only or subjects[limit.level] in limit.only
    ]


def _is_refused(claims: list[Claim]) -> bool:
    # A shadow limit that is full must change nothing for the others, not even when they are booked.
    return any(amount > room and limit.mode is DecisionMode.ENFORCE for _, limit, _, amount, room in claims)


def refusal(state: TenantState, refused: list[Claim], now_us: int) -> Refusal | None:
    """Why these claims can't all be met now: the one that can never be, or else the one that takes longest."""
    latest: Refusal | None = None
    for key, limit, meter, amount, room in refused:
        bound = bound_limit(limit, key, meter, room, now_us)
        if amount > limit.capacity:
            return Refusal(DecisionKind.REJECT, DecisionReason.NEVER_FITS, bound, 0)
        retry_at_us = metering.earliest_fit(
            meter, limit, amount, now_us, ledger.unbooked(state, key), ledger.lapses(state, key)
        )
        if latest is None or retry_at_us > latest.retry_at_us:
            latest = Refusal(DecisionKind.THROTTLE, DecisionReason.OVER_LIMIT, bound, retry_at_us)
    return latest


def count_in(request: Request, counted: list[Claim]) -> None:
    """Remember which token meters the request is counted in."""
    request.prompt_meters = [
        key for key, limit, *_ in counted if limit.unit is LimitUnit.TOKENS and limit.counts_prompt
    ]
    request.completion_meters = [
        key for key, limit, *_ in counted if limit.unit is LimitUnit.TOKENS and limit.counts_completion
    ]


def take(state: TenantState, request: Request, granted: list[Claim], need: Need, now_us: int) -> BoundLimit | None:
    """Set aside what the request needs in all these limits; returns the one that is tightest then."""
    tightest: Claim | None = None
    least_share = 2.0
    book_every_us = MAX_WINDOW_US
    for taken in granted:
        key, limit, meter, amount, room = taken
        if key not in state.meters:
            # Forgotten as idle while the later claims were made.
            state.meters[key] = meter
            state.subjects[key[0]] += 1
        metering.reserve(meter, limit, amount, now_us)
        if limit.unit is LimitUnit.TOKENS:
            if limit.counts_prompt:
                request.prompt_meters.append(key)
            if limit.counts_completion:
                request.completion_meters.append(key)
                if limit.slot_us < book_every_us:
                    book_every_us = limit.slot_us
        elif limit.unit is LimitUnit.REQUESTS:
            metering.draw(meter, limit, 1, now_us)
        else:
            request.slot_meters.append(key)
        if limit.mode is DecisionMode.ENFORCE:
            share = (room - amount) / limit.limit
            if share < least_share:
                least_share = share
                tightest = taken
    request.holds_slots = True
    request.book_every_us = book_every_us
    request.prompt_left = need.prompt_tokens
    request.completion_left = need.completion_tokens
    request.granted_tokens += need.prompt_tokens + need.completion_tokens
    if tightest is None:
        return None
    key, limit, meter, amount, room = tightest
    return bound_limit(limit, key, meter, room - amount, now_us)


def decide(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> list[Decision | Anomaly]:
    """Admit, throttle or reject. On ADMIT the request is RUNNING and holds its reservation, else it is REFUSED."""
    request.policy_id = policy.id
    request.model = event.model
    request.choices = event.choices
    request.is_decided = True
    if not (is_plausible(event.prompt_tokens) and is_plausible(event.cached_tokens)):
        request.phase = Phase.REFUSED
        implausible = Refusal(DecisionKind.REJECT, DecisionReason.IMPLAUSIBLE_COUNT, None, 0)
        return [
            _refused(request, event, implausible, DecisionMode.ENFORCE, now_us),
            Anomaly.IMPLAUSIBLE_COUNT,
        ]
    subjects = subjects_of(state, event)
    need, found = assess(state, event, policy, subjects)
    out: list[Decision | Anomaly] = [*found]
    claims = _claims(state, policy, subjects, need, now_us)
    if _is_refused(claims) and ledger.book_stalled(state, now_us):
        claims = _claims(state, policy, subjects, need, now_us)
    granted: list[Claim] = []
    refused: list[Claim] = []
    shadow_refused: list[Claim] = []
    for asked in claims:
        key, limit, _, amount, room = asked
        if key[1] != subjects[limit.level]:
            out.append(Anomaly.SUBJECTS_FULL)
        if amount <= room:
            granted.append(asked)
        elif limit.mode is DecisionMode.SHADOW:
            shadow_refused.append(asked)
        else:
            refused.append(asked)
    request.prompt_asked = need.prompt_tokens
    request.cached_asked = event.cached_tokens
    no = refusal(state, refused, now_us) if refused else None
    if no is not None:
        request.phase = Phase.REFUSED
        count_in(request, granted + refused)
        out.append(_refused(request, event, no, DecisionMode.ENFORCE, now_us))
        return out
    in_shadow = refusal(state, shadow_refused, now_us) if shadow_refused else None
    if in_shadow is not None:
        out.append(_refused(request, event, in_shadow, DecisionMode.SHADOW, now_us))
    request.phase = Phase.RUNNING
    tightest = take(state, request, granted, need, now_us)
    out.append(
        decision_of(
            request,
            (event.request_id, event.attempt),
            event.tenant,
            now_us,
            kind=DecisionKind.ADMIT,
            reason=DecisionReason.WITHIN_LIMITS if policy.limits else DecisionReason.NO_POLICY,
            bound=tightest,
            reserved_tokens=request.granted_tokens,
            event=event,
        )
    )
    return out


def next_id(request: Request, request_id: str, attempt: int) -> str:
    """The id of the request's next decision, a pure function of the tenant's history, and never given twice.

    Ordinals count up within a request. One that comes when the tenant has forgotten requests, and so may have been
    known before, has the number of those before its ordinals.
    """
    ordinal = request.ordinal
    request.ordinal = ordinal + 1
    number = f"{request.generation}-{ordinal}" if request.generation else str(ordinal)
    return f"{request_id}/{attempt}/{number}"


def decision_of(
    request: Request,
    key: RequestKey,
    tenant: str,
    now_us: int,
    *,
    kind: DecisionKind,
    reason: DecisionReason,
    mode: DecisionMode = DecisionMode.ENFORCE,
    bound: BoundLimit | None = None,
    reserved_tokens: int = 0,
    used_tokens: int = 0,
    refunded_tokens: int = 0,
    overdrawn_tokens: int = 0,
    retry_at_us: int = 0,
    event: RequestEvent | None = None,
) -> Decision:
    """The request's next decision, under the policy that it is decided by. `event` led to it; None: time alone did."""
    provenance = event.provenance if event is not None else None
    return Decision(
        decision_id=next_id(request, *key),
        kind=kind,
        mode=mode,
        reason=reason,
        tenant=tenant,
        request_id=key[0],
        attempt=key[1],
        decided_at_us=now_us,
        bound=bound,
        reserved_tokens=reserved_tokens,
        used_tokens=used_tokens,
        refunded_tokens=refunded_tokens,
        overdrawn_tokens=overdrawn_tokens,
        retry_at_us=retry_at_us,
        policy_id=request.policy_id,
        caused_by=event.event_id if event is not None else b"",
        trace_id=provenance.trace_id if provenance is not None else b"",
    )


def _refused(request: Request, event: PromptSubmitted, why: Refusal, mode: DecisionMode, now_us: int) -> Decision:
    return decision_of(
        request,
        (event.request_id, event.attempt),
        event.tenant,
        now_us,
        kind=why.kind,
        mode=mode,
        reason=why.reason,
        bound=why.bound,
        retry_at_us=why.retry_at_us,
        event=event,
    )
