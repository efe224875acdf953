"""Moving tokens between what is set aside, used and given back: a request on one side, the meters on the other.

Each function keeps `granted + overdrawn = used + left + refunded` on the request, and moves the same amount in every
meter that the request is counted in.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from msgspec.structs import replace

from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.state import BoundAs, MeterKey, Request, RequestKey, TenantState

OTHER_SUBJECTS = "\x00others"
"""Subject of the meter that subjects beyond `max_subjects` share."""


def bound_as(limit: Limit) -> BoundAs:
    """What of a limit its meters depend on."""
    return BoundAs(limit.unit, limit.level, limit.counts_prompt, limit.counts_completion, limit.limit, limit.window_us)


def bind(state: TenantState, policy: LimiterPolicy, now_us: int) -> None:
    """Make `policy` the one in force: limits that are gone take their meters along, the others keep their level.

    A limit that is new counts what is admitted from now on; what runs finishes under the limits that admitted it.
    """
    state.policy = policy
    state.limits = {limit.name: limit for limit in policy.limits}
    if policy.silence_timeout_us != state.silence_timeout_us:
        state.silence_timeout_us = policy.silence_timeout_us
        schedule(state)
    before, now = state.bound_as, {limit.name: bound_as(limit) for limit in policy.limits}
    if now == before:
        return
    state.bound_as = now
    kept = {name for name, known in before.items() if known.is_same_limit(now.get(name))}
    state.meters = {key: meter for key, meter in state.meters.items() if key[0] in kept}
    state.subjects = Counter(name for name, _ in state.meters)
    for (name, _), meter in state.meters.items():
        if before[name] != now[name] and before[name].window_us:
            limit = state.limits[name]
            old = replace(limit, limit=before[name].limit, window_us=before[name].window_us, burst=None)
            metering.rebase(meter, old, limit, now_us)
    for request in [*state.requests.values(), *filter(None, state.ended.values())]:
        request.prompt_meters = [key for key in request.prompt_meters if key[0] in kept]
        request.completion_meters = [key for key in request.completion_meters if key[0] in kept]
        request.slot_meters = [key for key in request.slot_meters if key[0] in kept]


def schedule(state: TenantState) -> None:
    """Set `due_us` to when the live request that has been silent longest has been so for too long."""
    oldest = longest_silent(state)
    state.due_us = None if oldest is None else oldest[0] + state.silence_timeout_us


def longest_silent(state: TenantState) -> tuple[int, RequestKey] | None:
    """The live request whose last event is oldest, and when that was. Cheap: thousands may fall silent at once."""
    heap = state.silence
    if heap is None:
        heap = state.silence = [(request.last_us, key) for key, request in state.requests.items()]
        heapify(heap)
    while heap:
        last_us, key = heap[0]
        request = state.requests.get(key)
        if request is None:
            heappop(heap)
        elif request.last_us != last_us:
            heapreplace(heap, (request.last_us, key))
        else:
            return heap[0]
    return None


def new_meter(state: TenantState, limit: Limit, subject: str, max_subjects: int, now_us: int) -> MeterKey:
    """Make the meter of one limit and subject; the one that all share where the limit has too many subjects."""
    key = (limit.name, subject)
    if key in state.meters:
        return key
    if state.subjects[limit.name] >= max_subjects:
        _sweep(state, limit, now_us)
        if state.subjects[limit.name] >= max_subjects:
            key = (limit.name, OTHER_SUBJECTS)
            if key in state.meters:
                return key
    state.meters[key] = Meter()
    state.subjects[limit.name] += 1
    return key


def _sweep(state: TenantState, limit: Limit, now_us: int) -> None:
    """Forget the idle subjects of a limit; at most once a slot, or rotating subjects would cost a look each."""
    if now_us - state.swept_us.get(limit.name, -limit.slot_us - 1) <= limit.slot_us:
        return
    state.swept_us[limit.name] = now_us
    idle = [
        key for key, meter in state.meters.items() if key[0] == limit.name and metering.is_idle(meter, limit, now_us)
    ]
    for key in idle:
        del state.meters[key]
    state.subjects[limit.name] -= len(idle)


def metered(state: TenantState, keys: list[MeterKey]) -> Iterator[tuple[Meter, Limit]]:
    """Meters and limits of `keys`; one that was idle and forgotten is made anew."""
    for key in keys:
        meter = state.meters.get(key)
        if meter is None:
            meter = state.meters[key] = Meter()
            state.subjects[key[0]] += 1
        yield meter, state.limits[key[0]]


def use_prompt(state: TenantState, request: Request, now_us: int) -> None:
    """The prompt has been processed: all that was set aside for it is used."""
    amount = request.prompt_left
    meters, limits = state.meters, state.limits
    for key in request.prompt_meters:
        metering.draw(meters[key], limits[key[0]], amount, now_us)
    request.prompt_used += amount
    request.prompt_used_at_us = now_us
    request.prompt_refundable = amount
    request.prompt_left = 0


def use_completion(state: TenantState, request: Request, amount: int, now_us: int) -> None:
    """Use `amount` of what is set aside for the completion. The meters are told once a slot."""
    request.completion_left -= amount
    request.unbooked += amount
    if now_us >= request.book_at_us:
        book(state, request, now_us)


def book(state: TenantState, request: Request, now_us: int) -> None:
    """Tell the meters what was used of the completion."""
    amount = request.unbooked
    if amount:
        meters, limits = state.meters, state.limits
        for key in request.completion_meters:
            metering.draw(meters[key], limits[key[0]], amount, now_us)
        request.unbooked = 0
        request.completion_used += amount
        request.completion_used_at_us = now_us
        request.completion_refundable = amount
    request.book_at_us = now_us + request.book_every_us


def book_late(state: TenantState, request: Request, now_us: int) -> None:
    """Tell the meters what was used of the completion up to its last event, as of then."""
    amount = request.unbooked
    for key in request.completion_meters:
        metering.draw_late(state.meters[key], state.limits[key[0]], amount, request.last_us, now_us)
    request.unbooked = 0
    request.completion_used += amount
    request.completion_used_at_us = request.last_us
    request.completion_refundable = amount


def is_stalled(request: Request, now_us: int) -> bool:
    """Whether it holds what it used back for longer than it may: only its own next event would have told the meters."""
    return request.unbooked > 0 and now_us - request.last_us >= request.book_every_us


def book_stalled(state: TenantState, now_us: int) -> bool:
    """Book the streams that have stalled, so that what they used leaves the windows in time; False: there are none."""
    stalled = [request for request in state.requests.values() if is_stalled(request, now_us)]
    for request in stalled:
        book_late(state, request, now_us)
    return bool(stalled)


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
    request.prompt_refundable = 0
    request.overdrawn_tokens += amount
    return overdraw(state, request.prompt_meters, amount, now_us)


def overdraw_completion(state: TenantState, request: Request, amount: int, now_us: int) -> list[Anomaly]:
    """Charge completion tokens beyond what was set aside."""
    request.completion_used += amount
    request.completion_refundable = 0
    request.overdrawn_tokens += amount
    return overdraw(state, request.completion_meters, amount, now_us)


def release_slots(state: TenantState, request: Request, now_us: int) -> None:
    """Give back its place in the concurrency limits, once."""
    if request.holds_slots:
        request.holds_slots = False
        _close(state, request.slot_meters, 0, 1, now_us)


def _close(state: TenantState, keys: list[MeterKey], used: int, unused: int, now_us: int) -> None:
    if used or unused:
        meters, limits = state.meters, state.limits
        for key in keys:
            metering.close(meters[key], limits[key[0]], used, unused, now_us)


def _refund(state: TenantState, keys: list[MeterKey], amount: int, used_at_us: int, now_us: int) -> None:
    if amount:
        for meter, limit in metered(state, keys):
            metering.refund(meter, limit, amount, used_at_us, now_us)


def settle(
    state: TenantState, request: Request, prompt_tokens: int, completion_tokens: int, now_us: int
) -> list[Anomaly]:
    """Bring the charge to what was really used, and give back all the rest.

    What was set aside is used first, and what is left of it goes back before anything is overdrawn, so that a use
    beyond the reservation of one part finds the room that the other part did not need.
    """
    release_slots(state, request, now_us)
    prompt_more = prompt_tokens - request.prompt_used
    if request.prompt_left:
        used = min(max(prompt_more, 0), request.prompt_left)
        unused = request.prompt_left - used
        _close(state, request.prompt_meters, used, unused, now_us)
        request.prompt_left = 0
        request.prompt_used += used
        request.prompt_used_at_us = now_us
        request.prompt_refundable = used
        request.refunded_tokens += unused
        prompt_more -= used

    if is_stalled(request, now_us):
        book_late(state, request, now_us)
    completion_more = completion_tokens - request.completion_spent
    if request.completion_left or request.unbooked:
        used = min(max(completion_more, 0), request.completion_left)
        unused = request.completion_left - used
        booked = request.unbooked + used
        _close(state, request.completion_meters, booked, unused, now_us)
        request.completion_left = request.unbooked = 0
        request.completion_used += booked
        request.completion_used_at_us = now_us
        request.completion_refundable = booked
        request.refunded_tokens += unused
        completion_more -= used

    found: list[Anomaly] = []
    if prompt_more < 0:
        # Only the last use is known apart from those of others: more is not taken back from the windows.
        taken = min(-prompt_more, request.prompt_refundable)
        _refund(state, request.prompt_meters, taken, request.prompt_used_at_us, now_us)
        request.prompt_refundable -= taken
        request.prompt_used += prompt_more
        request.refunded_tokens -= prompt_more
    elif prompt_more > 0:
        found += overdraw_prompt(state, request, prompt_more, now_us)
    if completion_more < 0:
        taken = min(-completion_more, request.completion_refundable)
        _refund(state, request.completion_meters, taken, request.completion_used_at_us, now_us)
        request.completion_refundable -= taken
        request.completion_used += completion_more
        request.refunded_tokens -= completion_more
    elif completion_more > 0:
        found += overdraw_completion(state, request, completion_more, now_us)
    return found


def drop_shadow(state: TenantState, request: Request, key: MeterKey, now_us: int) -> None:
    """A shadow limit would have cut this request: from here on it is not counted there."""
    book(state, request, now_us)
    for keys, left in (
        (request.completion_meters, request.completion_left),
        (request.prompt_meters, request.prompt_left),
    ):
        if key in keys:
            keys.remove(key)
            _close(state, [key], 0, left, now_us)


def unbooked(state: TenantState, key: MeterKey) -> list[tuple[int, int]]:
    """(time, amount): what live requests have used and this meter still counts as set aside."""
    return [
        (request.last_us, request.unbooked)
        for request in state.requests.values()
        if request.unbooked and key in request.completion_meters
    ]


def lapses(state: TenantState, key: MeterKey) -> list[tuple[int, int]]:
    """(time, amount): what live requests hold in this meter, and when silence would settle them, in order of time."""
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
