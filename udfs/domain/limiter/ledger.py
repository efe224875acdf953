"""Moving tokens between what is set aside, used and given back: a request on one side, the meters on the other.

Each function keeps `granted + overdrawn = used + left + refunded` on the request, and moves the same amount in every
meter that the request is counted in.
"""

from collections.abc import Iterator
from typing import TypeAlias

from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.state import LimitSignature, MeterKey, Request, TenantState

Metered: TypeAlias = tuple[MeterKey, Limit, Meter]

OTHER_SUBJECTS = "*"
"""Subject of the meter that subjects beyond `max_subjects` share."""


def signature(limit: Limit) -> LimitSignature:
    """What makes it the same limit after a change of policy."""
    return (limit.unit, limit.level, limit.counts_prompt, limit.counts_completion)


def bind(state: TenantState, policy: LimiterPolicy) -> None:
    """Make `policy` the one in force: limits that are gone take their meters along, those that stay keep their level."""
    state.policy = policy
    state.limits = {limit.name: limit for limit in policy.limits}
    if policy.silence_timeout_us != state.silence_timeout_us:
        state.silence_timeout_us = policy.silence_timeout_us
        schedule(state)
    signatures = {limit.name: signature(limit) for limit in policy.limits}
    if signatures == state.signatures:
        return
    kept = {name for name, known in state.signatures.items() if signatures.get(name) == known}
    state.signatures = signatures
    state.meters = {key: meter for key, meter in state.meters.items() if key[0] in kept}
    for request in [*state.requests.values(), *filter(None, state.ended.values())]:
        request.prompt_meters = [key for key in request.prompt_meters if key[0] in kept]
        request.completion_meters = [key for key in request.completion_meters if key[0] in kept]
        request.slot_meters = [key for key in request.slot_meters if key[0] in kept]


def schedule(state: TenantState) -> None:
    """Set `due_us` to when the live request that has been silent longest has been so for too long."""
    oldest_us = min((request.last_us for request in state.requests.values()), default=None)
    state.due_us = None if oldest_us is None else oldest_us + state.silence_timeout_us


def meter_of(state: TenantState, limit: Limit, subject: str, max_subjects: int, now_us: int) -> Metered:
    """The meter of one limit and subject, made if need be; the shared one where there are too many subjects."""
    key = (limit.name, subject)
    meter = state.meters.get(key)
    if meter is None:
        if len(state.meters) >= max_subjects:
            _forget_idle_meters(state, now_us)
            if len(state.meters) >= max_subjects:
                key = (limit.name, OTHER_SUBJECTS)
        meter = state.meters.setdefault(key, Meter())
    return key, limit, meter


def _forget_idle_meters(state: TenantState, now_us: int) -> None:
    idle = [key for key, meter in state.meters.items() if metering.is_idle(meter, state.limits[key[0]], now_us)]
    for key in idle:
        del state.meters[key]


def metered(state: TenantState, keys: list[MeterKey]) -> Iterator[tuple[Meter, Limit]]:
    """Meters and limits of `keys`; one that was idle and forgotten is made anew."""
    for key in keys:
        meter = state.meters.get(key)
        if meter is None:
            meter = state.meters[key] = Meter()
        yield meter, state.limits[key[0]]


def use_prompt(state: TenantState, request: Request, now_us: int) -> None:
    """The prompt has been processed: all that was set aside for it is used."""
    amount = request.prompt_left
    for meter, limit in metered(state, request.prompt_meters):
        metering.draw(meter, limit, amount, now_us)
    request.prompt_used += amount
    request.prompt_used_at_us = now_us
    request.prompt_left = 0


def use_completion(state: TenantState, request: Request, amount: int, now_us: int) -> None:
    """Use `amount` of what is set aside for the completion."""
    for key in request.completion_meters:
        metering.draw(state.meters[key], state.limits[key[0]], amount, now_us)
    request.completion_left -= amount
    request.completion_used += amount
    request.completion_used_at_us = now_us


def overdraw(state: TenantState, keys: list[MeterKey], amount: int, now_us: int) -> list[Anomaly]:
    """Charge tokens that nothing was set aside for to these meters."""
    found = [Anomaly.OVERDRAWN]
    for meter, limit in metered(state, keys):
        if metering.overdraw(meter, limit, amount, now_us):
            found.append(Anomaly.WRITTEN_OFF)
    return found


def overdraw_prompt(state: TenantState, request: Request, amount: int, now_us: int) -> list[Anomaly]:
    """Charge prompt tokens beyond what was set aside."""
    request.prompt_used += amount
    request.prompt_used_at_us = now_us
    request.overdrawn_tokens += amount
    return overdraw(state, request.prompt_meters, amount, now_us)


def overdraw_completion(state: TenantState, request: Request, amount: int, now_us: int) -> list[Anomaly]:
    """Charge completion tokens beyond what was set aside."""
    request.completion_used += amount
    request.completion_used_at_us = now_us
    request.overdrawn_tokens += amount
    return overdraw(state, request.completion_meters, amount, now_us)


def release_slots(state: TenantState, request: Request, now_us: int) -> None:
    """Give back its place in the concurrency limits, once."""
    if request.holds_slots:
        request.holds_slots = False
        for meter, limit in metered(state, request.slot_meters):
            metering.release(meter, limit, 1, now_us)


def settle(
    state: TenantState, request: Request, prompt_tokens: int, completion_tokens: int, now_us: int
) -> list[Anomaly]:
    """Bring the charge to what was really used, and give back all the rest.

    What was set aside is used first; what is left of it goes back before anything is overdrawn, so that a use beyond the
    reservation of one part finds the room that the other part did not need.
    """
    release_slots(state, request, now_us)
    prompt_more = prompt_tokens - request.prompt_used
    completion_more = completion_tokens - request.completion_used

    drawn = min(max(prompt_more, 0), request.prompt_left)
    if request.prompt_left:
        for meter, limit in metered(state, request.prompt_meters):
            if drawn:
                metering.draw(meter, limit, drawn, now_us)
            metering.release(meter, limit, request.prompt_left - drawn, now_us)
        request.prompt_used += drawn
        request.prompt_used_at_us = now_us
        request.refunded_tokens += request.prompt_left - drawn
        request.prompt_left = 0
    prompt_more -= drawn

    drawn = min(max(completion_more, 0), request.completion_left)
    if request.completion_left:
        if drawn:
            use_completion(state, request, drawn, now_us)
        left = request.completion_left
        for meter, limit in metered(state, request.completion_meters):
            metering.release(meter, limit, left, now_us)
        request.refunded_tokens += left
        request.completion_left = 0
    completion_more -= drawn

    found: list[Anomaly] = []
    if prompt_more < 0:
        for meter, limit in metered(state, request.prompt_meters):
            metering.refund(meter, limit, -prompt_more, request.prompt_used_at_us, now_us)
        request.prompt_used += prompt_more
        request.refunded_tokens -= prompt_more
    elif prompt_more > 0:
        found += overdraw_prompt(state, request, prompt_more, now_us)
    if completion_more < 0:
        for meter, limit in metered(state, request.completion_meters):
            metering.refund(meter, limit, -completion_more, request.completion_used_at_us, now_us)
        request.completion_used += completion_more
        request.refunded_tokens -= completion_more
    elif completion_more > 0:
        found += overdraw_completion(state, request, completion_more, now_us)
    return found


def drop_shadow(state: TenantState, request: Request, key: MeterKey, now_us: int) -> None:
    """A shadow limit would have cut this request: from here on it is not counted there."""
    limit, meter = state.limits[key[0]], state.meters[key]
    if key in request.completion_meters:
        request.completion_meters.remove(key)
        metering.release(meter, limit, request.completion_left, now_us)
    if key in request.prompt_meters:
        request.prompt_meters.remove(key)
        metering.release(meter, limit, request.prompt_left, now_us)


def lapses(state: TenantState, key: MeterKey) -> list[tuple[int, int]]:
    """(time, amount): when what live requests hold in this meter would lapse if all fell silent, in order of time."""
    timeout_us = state.silence_timeout_us
    held: list[tuple[int, int]] = []
    for request in state.requests.values():
        amount = 0
        if key in request.prompt_meters:
            amount += request.prompt_left
        if key in request.completion_meters:
            amount += request.completion_left
        if request.holds_slots and key in request.slot_meters:
            amount += 1
        if amount:
            held.append((request.last_us + timeout_us, amount))
    held.sort()
    return held
