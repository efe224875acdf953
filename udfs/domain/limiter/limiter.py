"""The token-rate limiter of a tenant: reserve, enforce while the stream runs, settle once.

`TRANSITIONS` is the whole of it: what happens to a request in each phase on each event. Handlers return what was
decided and what was noticed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.events import (
    Event,
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import admission, ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter import state as states
from udfs.domain.limiter.estimate import lengths_of
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.state import MeterKey, Phase, Request, RequestKey, TenantState
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS, is_plausible, weighted_prompt_tokens

Out: TypeAlias = Decision | Anomaly
Outputs: TypeAlias = Sequence[Out]
Handler: TypeAlias = Callable[[TenantState, Any, Any, LimiterPolicy, int], Outputs]
"""(state, request, event, policy, now_us). TRANSITIONS hands each one the request and event types that it declares."""

NO_POLICY: Final = LimiterPolicy(id="none", match="*")
"""What holds where no policy matches: requests are followed and settled, and nothing is limited."""

NOTHING: Final[Outputs] = ()


def _key(event: RequestEvent) -> RequestKey:
    return (event.request_id, event.attempt)


def _remember(state: TenantState, key: RequestKey, request: Request | None, policy: LimiterPolicy) -> None:
    """Keep what is needed to know the request again, and to charge it if it goes on; the oldest goes first."""
    state.requests.pop(key, None)
    state.ended.pop(key, None)
    state.ended[key] = request
    while len(state.ended) > policy.remember_requests:
        del state.ended[next(iter(state.ended))]


def _live(state: TenantState, key: RequestKey, request: Request, now_us: int) -> None:
    state.ended.pop(key, None)
    state.requests[key] = request
    request.last_us = now_us
    due_us = now_us + state.silence_timeout_us
    if state.due_us is None or due_us < state.due_us:
        state.due_us = due_us


# --- the prompt ---------------------------------------------------------------------------------------------------


def _on_prompt(
    state: TenantState, request: Request | None, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    request = request or Request(Phase.UNKNOWN)
    out = admission.decide(state, request, event, policy, now_us)
    if request.phase is Phase.RUNNING:
        request.sequence = max(request.sequence, event.sequence)
        _live(state, _key(event), request, now_us)
    elif policy.traffic_is_recorded:
        _remember(state, _key(event), Request(Phase.VOID), policy)
    else:
        _remember(state, _key(event), request, policy)
    return out


def _on_late_prompt(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The prompt of a stream that already runs: what it streamed so far is charged at the levels known only now."""
    charged = request.completion_meters
    request.prompt_meters, request.completion_meters = [], []
    out = list(_on_prompt(state, request, event, policy, now_us))
    unpaid = [key for key in request.completion_meters if key not in charged]
    if unpaid:
        out += ledger.overdraw(state, unpaid, request.streamed_tokens, now_us)
    return out


def _on_prompt_of_expired(
    state: TenantState, request: Request, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    return (Anomaly.DUPLICATE,) if request.is_decided else _on_late_prompt(state, request, event, policy, now_us)


def _on_prompt_of_ended(
    state: TenantState, request: Request | None, event: PromptSubmitted, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Seen before, or overtaken by its own end: then nobody waits for an answer any more."""
    return (Anomaly.DUPLICATE,) if request is None else (Anomaly.AFTER_END,)


# --- the stream ---------------------------------------------------------------------------------------------------


def _new_tokens(request: Request, event: TokensGenerated) -> int:
    """Tokens this chunk adds: 0 where it was seen before, negative where its count can't be believed."""
    if event.cumulative:
        new = max(event.cumulative - request.streamed_tokens, 0)
        return new if event.cumulative > 0 and new < IMPLAUSIBLE_TOKENS else -1
    if event.sequence:
        if event.sequence <= request.sequence:
            return 0
        request.sequence = event.sequence
    return event.count if is_plausible(event.count) else -1


def _on_tokens(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
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
    least = _least_room(state, request.completion_meters, now_us)
    if least is not None and least[0] < short and ledger.book_stalled(state, now_us):
        least = _least_room(state, request.completion_meters, now_us)
    if least is not None and least[0] < short:
        return _revoke(state, request, event, policy, short, least, now_us)
    granted = wanted if least is None else min(wanted, least[0])
    shadow = [
        (metering.room(meter, limit, now_us), key)
        for key, (meter, limit) in _keyed(state, request.completion_meters)
        if limit.mode is DecisionMode.SHADOW
    ]
    for room, key in shadow:
        if room < granted:
            ledger.drop_shadow(state, request, key, now_us)
            out.append(_cut(state, request, event, (room, key), DecisionMode.SHADOW, now_us))
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
        Decision(
            decision_id=admission.next_id(request, event.request_id, event.attempt),
            kind=DecisionKind.EXTEND,
            reason=DecisionReason.WITHIN_LIMITS,
            tenant=state.tenant,
            request_id=event.request_id,
            attempt=event.attempt,
            decided_at_us=now_us,
            bound=bound,
            reserved_tokens=request.granted_tokens,
            used_tokens=request.used_tokens,
            policy_id=request.policy_id,
            caused_by=event.event_id,
        )
    )
    return out


def _cut(
    state: TenantState,
    request: Request,
    event: RequestEvent,
    least: tuple[int, MeterKey] | None,
    mode: DecisionMode,
    now_us: int,
) -> Decision:
    bound = None
    if least is not None:
        room, key = least
        meter = state.meters.get(key) or metering.Meter()
        bound = admission.bound_limit(state.limits[key[0]], key, meter, room, now_us)
    return Decision(
        decision_id=admission.next_id(request, event.request_id, event.attempt),
        kind=DecisionKind.REVOKE,
        mode=mode,
        reason=DecisionReason.OVER_LIMIT,
        tenant=state.tenant,
        request_id=event.request_id,
        attempt=event.attempt,
        decided_at_us=now_us,
        bound=bound,
        reserved_tokens=request.granted_tokens,
        used_tokens=request.used_tokens,
        overdrawn_tokens=request.overdrawn_tokens,
        policy_id=request.policy_id,
        caused_by=event.event_id,
    )


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
        out: list[Out] = [_cut(state, request, event, least, DecisionMode.ENFORCE, now_us)]
        out += _settled(
            state, request, event, policy, DecisionReason.INTERRUPTED,
            request.prompt_used, request.completion_used, now_us,
        )  # fmt: skip
        _remember(state, _key(event), Request(Phase.VOID), policy)
        return out
    found = ledger.overdraw_completion(state, request, short, now_us)
    request.phase = Phase.REVOKED
    return [_cut(state, request, event, least, DecisionMode.ENFORCE, now_us), *found]


def _on_tokens_after_revoke(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The stream goes on all the same: what it generates is charged."""
    request.last_us = now_us
    new = _new_tokens(request, event)
    if new <= 0:
        return (Anomaly.IMPLAUSIBLE_COUNT,) if new < 0 else (Anomaly.DUPLICATE,)
    request.streamed_tokens += new
    return ledger.overdraw_completion(state, request, new, now_us)


def _on_early_tokens(
    state: TenantState, request: Request | None, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Tokens before their prompt: charged at the levels that are known, the rest when the prompt comes."""
    if request is None:
        request = _without_prompt(state, event, policy, now_us)
        _live(state, _key(event), request, now_us)
    return [*_on_tokens_after_revoke(state, request, event, policy, now_us), Anomaly.EARLY_TOKENS]


def _without_prompt(state: TenantState, event: RequestEvent, policy: LimiterPolicy, now_us: int) -> Request:
    """A request whose prompt is not in the log: its key and user are not known, its tenant and model are."""
    # Its decisions are numbered from the clock on: what it had before it was forgotten was numbered from 0.
    request = Request(Phase.EARLY, model=event.model, policy_id=policy.id, ordinal=now_us)
    _count_where_known(state, request, event, policy, now_us)
    return request


def _count_where_known(
    state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> None:
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


def _on_tokens_of_refused(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """A refused request runs all the same: charge it, prompt included, and say that it must stop."""
    if not (request.prompt_meters or request.completion_meters):
        _count_where_known(state, request, event, policy, now_us)
    request.phase = Phase.REVOKED
    _live(state, _key(event), request, now_us)
    found: list[Out] = []
    if request.prompt_asked > request.prompt_used:
        found += ledger.overdraw_prompt(state, request, request.prompt_asked - request.prompt_used, now_us)
    found += _on_tokens_after_revoke(state, request, event, policy, now_us)
    least = _least_room(state, request.completion_meters or request.prompt_meters, now_us)
    return [_cut(state, request, event, least, DecisionMode.ENFORCE, now_us), *found]


def _least_room(state: TenantState, keys: list[MeterKey], now_us: int) -> tuple[int, MeterKey] | None:
    """The enforced limit of these that has least room."""
    rooms = [
        (metering.room(meter, limit, now_us), key)
        for key, (meter, limit) in _keyed(state, keys)
        if limit.mode is DecisionMode.ENFORCE
    ]
    return min(rooms, default=None)


def _keyed(state: TenantState, keys: list[MeterKey]) -> Iterator[tuple[MeterKey, tuple[metering.Meter, Limit]]]:
    return zip(keys, ledger.metered(state, keys), strict=True)


def _on_tokens_of_expired(
    state: TenantState, request: Request, event: TokensGenerated, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """It was only slow: it runs again if its limits still have a place for it, else it must stop."""
    if 0 < event.cumulative <= request.streamed_tokens:
        return (Anomaly.DUPLICATE,)
    _live(state, _key(event), request, now_us)
    full = _least_room(state, request.slot_meters, now_us)
    if full is not None and full[0] == 0:
        request.phase = Phase.REVOKED
        found = _on_tokens_after_revoke(state, request, event, policy, now_us)
        return [_cut(state, request, event, full, DecisionMode.ENFORCE, now_us), *found, Anomaly.RESUMED]
    request.phase = Phase.RUNNING if request.is_decided else Phase.EARLY
    places = [key for key, (meter, limit) in _keyed(state, request.slot_meters) if metering.room(meter, limit, now_us)]
    # A shadow limit that is full does not count it any more.
    request.slot_meters = places
    request.holds_slots = True
    for meter, limit in ledger.metered(state, places):
        metering.reserve(meter, limit, 1, now_us)
    resume = _on_tokens if request.is_decided else _on_early_tokens
    return [*resume(state, request, event, policy, now_us), Anomaly.RESUMED]


# --- the end ------------------------------------------------------------------------------------------------------


def _usage(request: Request, event: RequestEvent, policy: LimiterPolicy) -> tuple[int, int, bool]:
    """Prompt and completion tokens to charge at the end, and whether a reported count could not be believed."""
    streamed = request.streamed_tokens
    is_odd = False
    if isinstance(event, StreamInterrupted):
        is_odd = not is_plausible(event.token_offset)
        completion = streamed if is_odd else max(streamed, event.token_offset)
        return request.prompt_used or request.prompt_asked, completion, is_odd
    if isinstance(event, RequestCompleted | RequestFailed) and event.usage_source is not UsageSource.ABSENT:
        cached = event.cached_tokens if isinstance(event, RequestCompleted) else request.cached_asked
        if is_plausible(event.prompt_tokens) and is_plausible(event.completion_tokens) and is_plausible(cached):
            weight = policy.cached_weight_permille
            prompt = weighted_prompt_tokens(event.prompt_tokens, cached, weight) if cached else event.prompt_tokens
            return prompt, event.completion_tokens, False
        is_odd = True
    # A request that never got as far as a token costs its prompt only where the gateway says that it was cut.
    prompt = (request.prompt_used or request.prompt_asked) if streamed else request.prompt_used
    return prompt, streamed, is_odd


def _settled(
    state: TenantState,
    request: Request,
    event: RequestEvent,
    policy: LimiterPolicy,
    reason: DecisionReason,
    prompt_tokens: int,
    completion_tokens: int,
    now_us: int,
) -> list[Out]:
    found = ledger.settle(state, request, prompt_tokens, completion_tokens, now_us)
    request.phase = Phase.ENDED
    key = _key(event)
    settled = _settlement(state, key, request, reason, event.event_id, now_us)
    _remember(state, key, None, policy)
    return [settled, *found]


def _settlement(
    state: TenantState,
    key: RequestKey,
    request: Request,
    reason: DecisionReason,
    caused_by: bytes,
    now_us: int,
) -> Decision:
    return Decision(
        decision_id=admission.next_id(request, *key),
        kind=DecisionKind.SETTLE,
        reason=reason,
        tenant=state.tenant,
        request_id=key[0],
        attempt=key[1],
        decided_at_us=now_us,
        reserved_tokens=request.granted_tokens,
        used_tokens=request.used_tokens,
        refunded_tokens=request.refunded_tokens,
        overdrawn_tokens=request.overdrawn_tokens,
        policy_id=request.policy_id,
        caused_by=caused_by,
    )


_REASON_OF_END: Final[Mapping[type[RequestEvent], DecisionReason]] = {
    RequestCompleted: DecisionReason.COMPLETED,
    RequestFailed: DecisionReason.FAILED,
    StreamInterrupted: DecisionReason.INTERRUPTED,
}


def _on_end(state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int) -> Outputs:
    prompt, completion, is_odd = _usage(request, event, policy)
    reason = _REASON_OF_END[type(event)]
    if request.phase is Phase.EARLY:
        reason = DecisionReason.NO_PROMPT
    is_again = request.phase is Phase.EXPIRED
    out = _settled(state, request, event, policy, reason, prompt, completion, now_us)
    if is_again:
        out.append(Anomaly.RESUMED)
    if reason is DecisionReason.COMPLETED and completion and not is_odd:
        lengths_of(state.lengths, request.model).learn(-(-completion // max(request.choices, 1)))
    if is_odd:
        out.append(Anomaly.IMPLAUSIBLE_COUNT)
    return out


def _on_end_of_unknown(
    state: TenantState, request: Request | None, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """The end of a request whose beginning is not in the log: what it says it used is charged where it is known."""
    request = _without_prompt(state, event, policy, now_us)
    out = [*_on_end(state, request, event, policy, now_us), Anomaly.UNKNOWN_REQUEST]
    state.ended[_key(event)] = request
    return out


def _on_end_of_refused(
    state: TenantState, request: Request, event: RequestEvent, policy: LimiterPolicy, now_us: int
) -> Outputs:
    """Gateways close a refused request as failed; only one that reports tokens did run after all."""
    prompt, completion, is_odd = _usage(request, event, policy)
    is_reported = isinstance(event, RequestCompleted | RequestFailed) and event.usage_source is not UsageSource.ABSENT
    if is_odd or not (completion > request.completion_spent or (is_reported and prompt > request.prompt_used)):
        _remember(state, _key(event), None, policy)
        return (Anomaly.IMPLAUSIBLE_COUNT,) if is_odd else NOTHING
    if not (request.prompt_meters or request.completion_meters):
        _count_where_known(state, request, event, policy, now_us)
    return _on_end(state, request, event, policy, now_us)


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
        # phase          prompt           tokens                   interrupted, completed, failed
        (Phase.UNKNOWN, _on_prompt, _on_early_tokens, _on_end_of_unknown),
        (Phase.EARLY, _on_late_prompt, _on_early_tokens, _on_end),
        (Phase.RUNNING, _duplicate, _on_tokens, _on_end),
        (Phase.REVOKED, _duplicate, _on_tokens_after_revoke, _on_end),
        (Phase.REFUSED, _duplicate, _on_tokens_of_refused, _on_end_of_refused),
        (Phase.EXPIRED, _on_prompt_of_expired, _on_tokens_of_expired, _on_end),
        (Phase.ENDED, _on_prompt_of_ended, _after_end, _after_end),
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
            ledger.bind(state, policy)
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
            ledger.bind(state, policy)
        out: list[Out] = []
        silent_since_us = now_us - state.silence_timeout_us
        for key, request in list(state.requests.items()):
            if request.last_us > silent_since_us:
                continue
            reason = DecisionReason.NO_PROMPT if request.phase is Phase.EARLY else DecisionReason.SILENT
            out += ledger.settle(state, request, request.prompt_used, request.completion_spent, now_us)
            request.phase = Phase.EXPIRED
            out.append(_settlement(state, key, request, reason, b"", now_us))
            _remember(state, key, request, policy)
        ledger.schedule(state)
        return out

    def dump(self, state: TenantState) -> bytes:
        """The state as bytes of `version`."""
        return states.dump(state)

    def load(self, stored: bytes) -> TenantState:
        """The state that `dump` wrote."""
        return states.load(stored)
