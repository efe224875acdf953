"""One limit's level for one subject: a rolling window with an optional burst bucket.

What counts against the limit at a time t is everything used in (t - window, t], everything reserved and not used yet,
and debt. A reservation is counted until it is used or given back, however long the request runs, so no rolling window
is overspent even if every running request uses all it was granted at the worst moment.

**Error bound.** Uses less than `slot_us` (window / 120) after the first one of an entry are kept in that entry, and an
entry leaves the window when its *latest* use does; and a running stream books its tokens once a slot, counting as set
aside until then. So a use is held for less than two slots longer than the exact window would hold it, and never
shorter: the limit is never exceeded, and at most 1/61 of the throughput is given up for keeping no more than 122
entries. Uses at least a slot apart are held exactly.

**Debt.** Tokens that were generated although they did not fit (a chunk that overran its grant) are booked as soon as
there is room for them again, at that very time; until then they keep others out. More than `MAX_DEBT_LIMITS` times the
limit is written off, so that one wild producer can't lock a tenant out for good.

**Burst.** The bucket is a leaky bucket as a meter (the generic cell rate algorithm of ITU-T I.371): what was taken and
has not drained yet, at limit / window, is kept exactly, as whole tokens and a fraction of window_us-ths. No floats, no
drift.

Every function brings the meter to `now_us` first where that matters; times never go back (the caller's clock is
monotone).
"""

from bisect import bisect_right
from collections.abc import Iterable
from copy import copy

import msgspec

from udfs.domain.limiter.policy import Limit

MAX_DEBT_LIMITS = 2


class Meter(msgspec.Struct, array_like=True):
    """State of one limit for one subject. Entry i was used from starts[i] to lasts[i], amounts[i] in all."""

    starts: list[int] = []
    lasts: list[int] = []
    amounts: list[int] = []
    used: int = 0
    outstanding: int = 0
    debt: int = 0
    bucket_tokens: int = 0
    bucket_fraction: int = 0
    bucket_at_us: int = 0


def is_idle(meter: Meter, limit: Limit, now_us: int) -> bool:
    """Whether it could be forgotten and made anew without anyone noticing."""
    advance(meter, limit, now_us)
    bucket_is_full = limit.burst is None or not _undrained(meter, limit, now_us)
    return bucket_is_full and not (meter.starts or meter.outstanding or meter.debt)


def advance(meter: Meter, limit: Limit, now_us: int) -> None:
    """Let what is older than the window go, and pay debt at the very time at which there is room."""
    horizon_us = now_us - limit.window_us
    lasts = meter.lasts
    while lasts and lasts[0] <= horizon_us:
        left_at_us = lasts.pop(0) + limit.window_us
        meter.starts.pop(0)
        meter.used -= meter.amounts.pop(0)
        if meter.debt:
            _pay_debt(meter, limit, left_at_us)


def _pay_debt(meter: Meter, limit: Limit, now_us: int) -> None:
    paid = min(meter.debt, limit.limit - meter.used - meter.outstanding)
    if paid > 0:
        meter.debt -= paid
        _use(meter, limit, paid, now_us)


def _use(meter: Meter, limit: Limit, amount: int, now_us: int) -> None:
    meter.used += amount
    starts = meter.starts
    if starts and now_us - starts[-1] < limit.slot_us:
        meter.amounts[-1] += amount
        meter.lasts[-1] = now_us
    else:
        starts.append(now_us)
        meter.lasts.append(now_us)
        meter.amounts.append(amount)


def _undrained(meter: Meter, limit: Limit, now_us: int) -> int:
    """What was taken from the bucket and has not come back, in window_us-ths of a token."""
    taken = meter.bucket_tokens * limit.window_us + meter.bucket_fraction
    return max(taken - (now_us - meter.bucket_at_us) * limit.limit, 0)


def _take_from_bucket(meter: Meter, limit: Limit, amount: int, now_us: int) -> None:
    """Take `amount` tokens, or give them back where it is negative."""
    if limit.burst is None:
        return
    taken = max(_undrained(meter, limit, now_us) + amount * limit.window_us, 0)
    meter.bucket_tokens, meter.bucket_fraction = divmod(taken, limit.window_us)
    meter.bucket_at_us = now_us


def room(meter: Meter, limit: Limit, now_us: int) -> int:
    """What could be taken now; never negative."""
    lasts = meter.lasts
    if lasts and lasts[0] <= now_us - limit.window_us:
        advance(meter, limit, now_us)
    left = limit.limit - meter.used - meter.outstanding - meter.debt
    if limit.burst is not None:
        left = min(left, limit.burst - -(-_undrained(meter, limit, now_us) // limit.window_us))
    return left if left > 0 else 0


def reserve(meter: Meter, limit: Limit, amount: int, now_us: int) -> None:
    """Set `amount` aside. The caller has made sure that there is room."""
    meter.outstanding += amount
    if limit.burst is not None:
        _take_from_bucket(meter, limit, amount, now_us)


def draw(meter: Meter, limit: Limit, amount: int, now_us: int) -> None:
    """Use `amount` of what was set aside."""
    lasts = meter.lasts
    if lasts and lasts[0] <= now_us - limit.window_us:
        advance(meter, limit, now_us)
    meter.outstanding -= amount
    # As `_use`, written out: this is done for most events.
    meter.used += amount
    if lasts and now_us - meter.starts[-1] < limit.slot_us:
        meter.amounts[-1] += amount
        lasts[-1] = now_us
    else:
        meter.starts.append(now_us)
        lasts.append(now_us)
        meter.amounts.append(amount)


def draw_late(meter: Meter, limit: Limit, amount: int, used_at_us: int, now_us: int) -> None:
    """Use `amount` of what was set aside, as of an earlier time: what has left the window since does not count."""
    advance(meter, limit, now_us)
    meter.outstanding -= amount
    if used_at_us + limit.window_us > now_us:
        meter.used += amount
        index = bisect_right(meter.starts, used_at_us) - 1
        if index >= 0 and used_at_us - meter.starts[index] < limit.slot_us:
            meter.amounts[index] += amount
            meter.lasts[index] = max(meter.lasts[index], used_at_us)
        else:
            meter.starts.insert(index + 1, used_at_us)
            meter.lasts.insert(index + 1, used_at_us)
            meter.amounts.insert(index + 1, amount)
    if meter.debt:
        _pay_debt(meter, limit, now_us)


def close(meter: Meter, limit: Limit, used: int, unused: int, now_us: int) -> None:
    """Nothing more will be used of what was set aside: use `used` of it and give `unused` back."""
    lasts = meter.lasts
    if lasts and lasts[0] <= now_us - limit.window_us:
        advance(meter, limit, now_us)
    meter.outstanding -= used + unused
    if used:
        _use(meter, limit, used, now_us)
    if limit.burst is not None:
        _take_from_bucket(meter, limit, -unused, now_us)
    if meter.debt:
        _pay_debt(meter, limit, now_us)


def overdraw(meter: Meter, limit: Limit, amount: int, now_us: int) -> int:
    """Charge what was used without a reservation; returns how much of it was written off."""
    advance(meter, limit, now_us)
    booked = min(amount, max(limit.limit - meter.used - meter.outstanding - meter.debt, 0))
    if booked:
        _use(meter, limit, booked, now_us)
    owed = meter.debt + amount - booked
    meter.debt = min(owed, MAX_DEBT_LIMITS * limit.limit)
    written_off = owed - meter.debt
    _take_from_bucket(meter, limit, amount - written_off, now_us)
    return written_off


def refund(meter: Meter, limit: Limit, amount: int, used_at_us: int, now_us: int) -> None:
    """Take back `amount` that was used at `used_at_us`, all of it then. If it has left the window nothing goes back."""
    advance(meter, limit, now_us)
    index = bisect_right(meter.starts, used_at_us) - 1
    if index < 0 or meter.lasts[index] < used_at_us:
        return
    taken = min(amount, meter.amounts[index])
    meter.amounts[index] -= taken
    meter.used -= taken
    _take_from_bucket(meter, limit, -taken, now_us)
    if meter.debt:
        _pay_debt(meter, limit, now_us)


def rebase(meter: Meter, before: Limit, limit: Limit, now_us: int) -> None:
    """Go on under another window or size: what was due under `before` is done first, the rest counts under `limit`.

    A window that grows can't count what had left the shorter one.
    """
    advance(meter, before, now_us)
    whole, fraction = divmod(_undrained(meter, before, now_us), before.window_us)
    meter.bucket_tokens = whole
    meter.bucket_fraction = fraction * limit.window_us // before.window_us
    meter.bucket_at_us = now_us
    while meter.lasts and meter.lasts[0] <= now_us - limit.window_us:
        meter.lasts.pop(0)
        meter.starts.pop(0)
        meter.used -= meter.amounts.pop(0)
    # Not before now: an entry must not end before it began.
    if meter.debt:
        _pay_debt(meter, limit, now_us)


def resets_at(meter: Meter, limit: Limit, now_us: int) -> int:
    """When nothing used so far counts any more, were nothing else to happen."""
    at_us = meter.lasts[-1] + limit.window_us if meter.lasts else now_us
    if limit.burst is not None:
        at_us = max(at_us, now_us - -_undrained(meter, limit, now_us) // limit.limit)
    return max(at_us, now_us)


def earliest_fit(
    meter: Meter,
    limit: Limit,
    amount: int,
    now_us: int,
    unbooked: Iterable[tuple[int, int]] = (),
    lapses: Iterable[tuple[int, int]] = (),
) -> int:
    """The first microsecond at which `amount` fits, were nothing else to happen than what is due anyway.

    `unbooked`: (time, amount) of what was used and is still counted as set aside. `lapses`: (time, amount) at which
    reservations lapse, in order of time. `amount` is at most `limit.capacity`.
    """
    trial = copy(meter)
    trial.starts, trial.lasts, trial.amounts = meter.starts[:], meter.lasts[:], meter.amounts[:]
    for used_at_us, used in unbooked:
        draw_late(trial, limit, used, used_at_us, now_us)
    pending = iter(lapses)
    next_lapse = next(pending, None)
    at_us = now_us
    while True:
        advance(trial, limit, at_us)
        fits_at_us: int | None = None
        if trial.used + trial.outstanding + trial.debt + amount <= limit.limit:
            fits_at_us = at_us
            if limit.burst is not None:
                above = _undrained(trial, limit, at_us) + (amount - limit.burst) * limit.window_us
                fits_at_us = max(at_us, at_us - -above // limit.limit)
        upcoming = [trial.lasts[0] + limit.window_us] if trial.lasts and limit.window_us else []
        if next_lapse is not None:
            upcoming.append(max(next_lapse[0], at_us))
        next_us = min(upcoming, default=None)
        if fits_at_us is not None and (next_us is None or fits_at_us <= next_us):
            return fits_at_us
        if next_us is None:
            raise AssertionError(f"{limit.name}: {amount} can never fit into {limit.capacity}")
        at_us = next_us
        if next_lapse is not None and next_lapse[0] <= at_us:
            close(trial, limit, 0, next_lapse[1], at_us)
            next_lapse = next(pending, None)
