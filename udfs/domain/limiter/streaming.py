"""What a chunk of tokens leads to: nine events in ten, most of which decide nothing."""

from typing import Final

from schemas.decisions import DecisionKind, DecisionMode, DecisionReason
from schemas.events import RequestEvent, TokensGenerated
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import admission, ledger, lifecycle
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.lifecycle import NOTHING, Out, Outputs
from udfs.domain.limiter.policy import LimiterPolicy
from udfs.domain.limiter.state import MeterKey, Phase, Request, TenantState
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS, is_plausible

REMEMBERED_CHUNKS: Final = 63


def _new_tokens(request: Request, event: TokensGenerated) -> int:
    """Tokens this chunk adds: 0 where it was seen before, negative where its count can't be believed."""
    if event.cumulative:
        new = max(event.cumulative - request.streamed_tokens, 0)
        return new if event.cumulative > 0 and new < IMPLAUSIBLE_TOKENS else -1
    if event.sequence and _is_seen(request, event.sequence):
        return 0
    return event.count if is_plausible(event.count) else -1


def _is_seen(request: Request, sequence: int) -> bool:
    """Whether the event came before; one that is far behind the latest is taken for seen."""
    ahead = sequence - request.sequence
    if ahead > 0:
        request.seen = ((request.seen << min(ahead, REMEMBERED_CHUNKS)) | 1) & (2**REMEMBERED_CHUNKS - 1)
        request.sequence = sequence
        return False
    bit = 1 << -ahead if -ahead < REMEMBERED_CHUNKS else 0
    if not bit or request.seen & bit:
        return True
    request.seen |= bit
    return False


def on_tokens(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """A running stream uses what it has reserved, and more where there is room."""
    # The hot path: nine events in ten come here and decide nothing.
    request.last_us = now_us
    new = event.cumulative - request.streamed_tokens
    if not 0 < new < IMPLAUSIBLE_TOKENS:
        new = _new_tokens(request, event)
        if new <= 0:
            return (Anomaly.IMPLAUSIBLE_COUNT,) if new < 0 else (Anomaly.DUPLICATE,)
    if request.prompt_left:
        ledger.use_prompt(state, request, now_us)
    request.streamed_tokens += new
    left = request.completion_left
    if new <= left:
        # As ledger.use_completion, written out.
        request.completion_left = left - new
        request.unbooked += new
        if now_us >= request.book_at_us:
            ledger.book(state, request, now_us)
        return NOTHING
    return _beyond_reservation(state, request, event, policy, new, now_us)


def _beyond_reservation(
    state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, new: int, now_us: int
) -> Outputs:
    """Extend the stream where there is room in every limit, else revoke it."""
    # The new tokens are not in it: what it holds unbooked was used up to now.
    ledger.book(state, request, now_us)
    short = new - request.completion_left
    wanted = max(short, policy.extension_tokens)
    out: list[Out] = []
    least = lifecycle.least_room(state, request.completion_meters, now_us)
    if least is not None and least[0] < short and ledger.book_stalled(state, now_us):
        least = lifecycle.least_room(state, request.completion_meters, now_us)
    if least is not None and least[0] < short:
        return _revoke(state, request, event, policy, short, least, now_us)
    granted = wanted if least is None else min(wanted, least[0])
    shadow = [
        (metering.room(meter, limit, now_us), key)
        for key, (meter, limit) in lifecycle.keyed(state, request.completion_meters)
        if limit.mode is DecisionMode.SHADOW
    ]
    for room, key in shadow:
        if room < granted:
            ledger.drop_shadow(state, request, key, now_us)
            out.append(lifecycle.cut(state, request, event, (room, key), DecisionMode.SHADOW, now_us))
    for meter, limit in ledger.metered(state, request.completion_meters):
        metering.reserve(meter, limit, granted, now_us)
    request.completion_left += granted
    request.granted_tokens += granted
    ledger.use_completion(state, request, new, now_us)
    ledger.book(state, request, now_us)
    bound = None
    if least is not None:
        key = least[1]
        bound = admission.bound_limit(state.limits[key[0]], key, state.meters[key], least[0] - granted, now_us)
    out.append(
        admission.decision_of(
            request,
            (event.request_id, event.attempt),
            state.tenant,
            now_us,
            kind=DecisionKind.EXTEND,
            reason=DecisionReason.WITHIN_LIMITS,
            bound=bound,
            reserved_tokens=request.granted_tokens,
            used_tokens=request.used_tokens,
            event=event,
        )
    )
    return out


def _revoke(
    state: TenantState,
    request: Request,
    event: RequestEvent,
    policy: LimiterPolicy,
    short: int,
    least: tuple[int, MeterKey],
    now_us: int,
) -> Outputs:
    if request.completion_left:
        ledger.use_completion(state, request, request.completion_left, now_us)
        ledger.book(state, request, now_us)
    if policy.traffic_is_recorded:
        # The gateway would have stopped at the end of the reservation: the rest of the recording did not happen.
        out: list[Out] = [lifecycle.cut(state, request, event, least, DecisionMode.ENFORCE, now_us)]
        out += lifecycle.settled(
            state, request, event, policy, DecisionReason.INTERRUPTED,
            request.prompt_used, request.completion_used, now_us,
        )  # fmt: skip
        lifecycle.remember(state, lifecycle.request_key(event), Request(Phase.VOID), policy)
        return out
    found = ledger.overdraw_completion(state, request, short, now_us)
    request.phase = Phase.REVOKED
    request.is_revoked = True
    return [lifecycle.cut(state, request, event, least, DecisionMode.ENFORCE, now_us), *found]


def on_tokens_after_revoke(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The stream goes on all the same: what it generates is charged."""
    request.last_us = now_us
    new = _new_tokens(request, event)
    if new <= 0:
        return (Anomaly.IMPLAUSIBLE_COUNT,) if new < 0 else (Anomaly.DUPLICATE,)
    request.streamed_tokens += new
    return ledger.overdraw_completion(state, request, new, now_us)


def on_early_tokens(
    state: TenantState, request: Request | None, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Tokens before their prompt: charged at the levels that are known, the rest when the prompt comes."""
    if request is None:
        request = lifecycle.without_prompt(state, event, policy, now_us)
        lifecycle.live(state, lifecycle.request_key(event), request, now_us)
    return [*on_tokens_after_revoke(state, request, event, policy, now_us), Anomaly.EARLY_TOKENS]


def on_tokens_of_refused(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """A refused request runs all the same: charge it, prompt included, and say that it must stop."""
    if not (request.prompt_meters or request.completion_meters):
        lifecycle.count_where_known(state, request, event, policy, now_us)
    request.phase = Phase.REVOKED
    request.is_revoked = True
    lifecycle.live(state, lifecycle.request_key(event), request, now_us)
    found: list[Out] = []
    if request.prompt_asked > request.prompt_used:
        found += ledger.overdraw_prompt(state, request, request.prompt_asked - request.prompt_used, now_us)
    found += on_tokens_after_revoke(state, request, event, policy, now_us)
    least = lifecycle.least_room(state, request.completion_meters or request.prompt_meters, now_us)
    return [lifecycle.cut(state, request, event, least, DecisionMode.ENFORCE, now_us), *found]


def on_tokens_of_expired(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """It was only slow: it runs again if its limits still have a place for it, else it must stop."""
    if 0 < event.cumulative <= request.streamed_tokens:
        return (Anomaly.DUPLICATE,)
    lifecycle.live(state, lifecycle.request_key(event), request, now_us)
    full = lifecycle.least_room(state, request.slot_meters, now_us)
    if request.is_revoked or (full is not None and full[0] == 0):
        request.phase = Phase.REVOKED
        request.is_revoked = True
        found = on_tokens_after_revoke(state, request, event, policy, now_us)
        return [lifecycle.cut(state, request, event, full, DecisionMode.ENFORCE, now_us), *found, Anomaly.RESUMED]
    request.phase = Phase.RUNNING if request.is_decided else Phase.EARLY
    out: list[Out] = []
    places: list[MeterKey] = []
    for key, (meter, limit) in lifecycle.keyed(state, request.slot_meters):
        if metering.room(meter, limit, now_us):
            metering.reserve(meter, limit, 1, now_us)
            places.append(key)
        else:
            # A shadow limit, as an enforced one would have stopped it above.
            out.append(lifecycle.cut(state, request, event, (0, key), DecisionMode.SHADOW, now_us))
    request.slot_meters = places
    request.holds_slots = True
    resume = on_tokens if request.is_decided else on_early_tokens
    return [*out, *resume(state, request, event, policy, now_us), Anomaly.RESUMED]
