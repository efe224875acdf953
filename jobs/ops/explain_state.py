"""What the limiter's state says of a request and its limits. Asking moves meters on: ask a copy."""

from collections.abc import Sequence

from jobs.ops.explanation import Account, Asked, LimitSeen, Step
from schemas.decisions import Decision, DecisionKind, LimitUnit
from schemas.events import Event, PromptSubmitted, RequestCompleted, RequestFailed, StreamInterrupted, TokensGenerated
from udfs.domain.limiter import LimiterPolicy, Phase, TenantState, admission, ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.estimate import Lengths
from udfs.domain.limiter.ledger import OTHER_SUBJECTS
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import Limit
from udfs.domain.limiter.state import MeterKey, Request


def request_of(state: TenantState, key: tuple[str, int]) -> Request | None:
    """The request, running or remembered."""
    return state.requests.get(key) or state.ended.get(key)


def meters_of(request: Request | None) -> list[MeterKey]:
    """All meters that the request is counted in."""
    if request is None:
        return []
    return list(dict.fromkeys([*request.prompt_meters, *request.completion_meters, *request.slot_meters]))


def account_of(request: Request | None) -> Account:
    """The request's tokens; of one that nothing is known of, none."""
    if request is None:
        return Account()
    return Account(
        phase=request.phase.name.lower(),
        granted_tokens=request.granted_tokens,
        used_tokens=request.used_tokens,
        left_tokens=request.outstanding_tokens,
        refunded_tokens=request.refunded_tokens,
        overdrawn_tokens=request.overdrawn_tokens,
        streamed_tokens=request.streamed_tokens,
    )


def account_after(request: Request | None, decisions: Sequence[Decision], before: Account) -> Account:
    """The account after an event; of a request that is settled and forgotten, what its settlement says."""
    if request is not None and request.phase is not Phase.VOID:
        return account_of(request)
    settled = next((decision for decision in decisions if decision.kind is DecisionKind.SETTLE), None)
    phase = "void" if request is not None else "ended"
    if settled is None:
        return Account(phase=phase)
    return Account(
        phase=phase,
        granted_tokens=settled.reserved_tokens,
        used_tokens=settled.used_tokens,
        refunded_tokens=settled.refunded_tokens,
        overdrawn_tokens=settled.overdrawn_tokens,
        streamed_tokens=before.streamed_tokens,
    )


def facts_of(event: Event) -> dict[str, int | str]:
    """What the event says that limits look at. No text of prompts or completions."""
    facts: dict[str, int | str] = {}
    if isinstance(event, PromptSubmitted):
        facts = {
            "prompt_tokens": event.prompt_tokens,
            "cached_tokens": event.cached_tokens,
            "max_tokens": event.max_tokens,
            "choices": event.choices,
            "model": event.model,
            "api_key": event.api_key,
            "user": event.user,
        }
    elif isinstance(event, TokensGenerated):
        facts = {"count": event.count, "cumulative": event.cumulative}
    elif isinstance(event, StreamInterrupted):
        facts = {"token_offset": event.token_offset, "reason": event.reason.name.lower()}
    elif isinstance(event, RequestCompleted | RequestFailed):
        facts = {
            "prompt_tokens": event.prompt_tokens,
            "completion_tokens": event.completion_tokens,
            "usage_source": event.usage_source.name.lower(),
        }
        if isinstance(event, RequestFailed):
            facts |= {"error_class": event.error_class, "status": event.status}
    return {name: value for name, value in facts.items() if value not in {0, ""}}


def asked_by(event: PromptSubmitted, policy: LimiterPolicy, need: admission.Need, learned: Lengths | None) -> Asked:
    """What the prompt asks for, and why so much. `learned` is what the estimate was taken from."""
    learned_from = learned.total if learned else 0
    if need.is_bound:
        basis, expected = "none" if event.without_completion else "client", need.completion_tokens
    elif learned is not None and learned_from >= policy.estimate_after:
        basis, expected = "learned", max(learned.edge, 1) * max(event.choices, 1)
    else:
        basis, expected = "default", policy.default_completion_tokens * max(event.choices, 1)
    return Asked(
        prompt_tokens=need.prompt_tokens,
        completion_tokens=need.completion_tokens,
        basis=basis,
        quantile=policy.estimate_quantile if basis == "learned" else 0.0,
        learned_from=learned_from,
        is_cut=need.completion_tokens < expected,
    )


def claims_of(
    state: TenantState, policy: LimiterPolicy, subjects: tuple[str, ...], need: admission.Need, now_us: int
) -> list[admission.Claim]:
    """What the request would take from each limit that matches it."""
    return [
        admission.claim(state, limit, subjects[limit.level], need, policy.max_subjects, now_us)
        for limit in policy.limits
        if not limit.only or subjects[limit.level] in limit.only
    ]


def limit_seen(state: TenantState, key: MeterKey, limit: Limit, meter: Meter, now_us: int) -> LimitSeen:
    """One limit as its meter stands now."""
    left = metering.room(meter, limit, now_us)
    burst_left = None
    if limit.burst is not None:
        # The bucket alone: as if nothing else were in the meter.
        bucket = Meter(
            bucket_tokens=meter.bucket_tokens, bucket_fraction=meter.bucket_fraction, bucket_at_us=meter.bucket_at_us
        )
        burst_left = metering.room(bucket, limit, now_us)
    return LimitSeen(
        name=limit.name,
        level=limit.level.name.lower(),
        subject="" if key[1] == OTHER_SUBJECTS else key[1],
        unit=limit.unit.name.lower(),
        mode=limit.mode.name.lower(),
        limit=limit.limit,
        capacity=limit.capacity,
        window_us=limit.window_us,
        burst=limit.burst,
        burst_left=burst_left,
        used=meter.used,
        reserved=meter.outstanding,
        unbooked=sum(amount for _, amount in ledger.unbooked(state, key)),
        debt=meter.debt,
        left=left,
        is_shared=key[1] == OTHER_SUBJECTS,
    )


def tell_what_frees(
    seen: LimitSeen, state: TenantState, key: MeterKey, meter: Meter, limit: Limit, fits_at_us: int
) -> None:
    """When the request would fit, and what makes room for it until then."""
    seen.fits_at_us = fits_at_us
    uses = [*zip(meter.lasts, meter.amounts, strict=True), *ledger.unbooked(state, key)]
    if limit.unit is not LimitUnit.STREAMS:
        seen.leaving = sum(amount for used_at_us, amount in uses if used_at_us + limit.window_us <= fits_at_us)
    seen.lapsing = sum(amount for at_us, amount in ledger.lapses(state, key) if at_us <= fits_at_us)


def prepare_stream(was: TenantState, request: Request, now_us: int) -> None:
    """As the limiter does before it looks for room for a stream that has used up what it had."""
    if request.phase is Phase.RUNNING:
        ledger.book(was, request, now_us)


def ask_for_stream(step: Step, event: TokensGenerated, completion_left: int) -> None:
    """How much more the stream needed: what came beyond its reservation, or what it was given."""
    new = event.cumulative - step.before.streamed_tokens if event.cumulative else event.count
    granted = step.after.granted_tokens - step.before.granted_tokens
    for seen in step.limits:
        if seen.unit == "tokens":
            seen.asked = granted or max(new - completion_left, 0)
            seen.short = max(seen.asked - seen.left, 0)
