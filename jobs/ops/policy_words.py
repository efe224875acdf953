"""What limiter policies mean, in words for an operator."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Final, NamedTuple

from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.policy_log import ANY_KEY

_SECOND_US: Final = 1_000_000
_MINUTE_US: Final = 60 * _SECOND_US
_HOUR_US: Final = 60 * _MINUTE_US
_DAY_US: Final = 24 * _HOUR_US

# A duration is told in the largest unit that it is a whole number of, and at least so many: 60 s, but 5 min.
_DURATION_UNITS: Final = (
    (_DAY_US, 3, "days"),
    (_HOUR_US, 1, "h"),
    (_MINUTE_US, 5, "min"),
    (_SECOND_US, 1, "s"),
    (1_000, 1, "ms"),
)
_RATE_UNITS: Final = ((_SECOND_US, "a second"), (_MINUTE_US, "a minute"), (_HOUR_US, "an hour"))

LEVEL_WORDS: Final = {
    LimitLevel.TENANT: "tenant",
    LimitLevel.API_KEY: "API key",
    LimitLevel.USER: "user",
    LimitLevel.MODEL: "model",
}


class PolicyWords(NamedTuple):
    """One policy in sentences: whom it holds for and when, its limits, what changes when it takes over from another for
    the same tenants, and how requests are treated under it.
    """

    policy_id: str
    holds: str
    limits: list[str]
    change: list[str]
    treatment: list[str]


class Turn(NamedTuple):
    """The policies for the same tenants that hold before and after one; or the one that holds in its place."""

    before: LimiterPolicy | None
    after: LimiterPolicy | None
    overruled_by: LimiterPolicy | None


def explain(policies: Sequence[LimiterPolicy]) -> list[PolicyWords]:
    """What each policy means, in the order of the file."""
    return [
        PolicyWords(
            policy.id,
            _holds(policy, turn),
            [limit_words(limit, policy) for limit in policy.limits],
            list(_change(policy, turn.before)),
            list(_treatment(policy)),
        )
        for policy, turn in zip(policies, turns(policies), strict=True)
    ]


def duration_words(duration_us: int) -> str:
    """A duration in the unit in which people say it.

    >>> [duration_words(us) for us in (60_000_000, 300_000_000, 86_400_000_000, 604_800_000_000, 1_500_000, 60)]
    ['60 s', '5 min', '24 h', '7 days', '1,500 ms', '60 microseconds']
    """
    for unit_us, least, unit in _DURATION_UNITS:
        if duration_us % unit_us == 0 and duration_us >= least * unit_us:
            return f"{duration_us // unit_us:,} {unit}"
    return f"{duration_us:,} microseconds"


def instant_words(at_us: int) -> str:
    """An instant in UTC.

    >>> instant_words(1_700_160_300_000_000)
    '2023-11-16T18:45:00Z'
    """
    at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=at_us)
    return at.isoformat().replace("+00:00", "Z")


def rate_words(amount: int, window_us: int) -> str:
    """An amount in a window as a rate, in the shortest unit of time in which it comes to one or more.

    >>> [rate_words(60_000, 60_000_000), rate_words(5, 60_000_000), rate_words(1_000_000, 86_400_000_000)]
    ['1,000 a second', '5 a minute', 'about 11.6 a second']
    """
    for unit_us, unit in _RATE_UNITS:
        rate = Fraction(amount * unit_us, window_us)
        if rate.denominator == 1:
            return f"{int(rate):,} {unit}"
        if rate >= 1:
            return f"about {float(rate):,.1f} {unit}"
    return f"about {float(Fraction(amount * _DAY_US, window_us)):.2g} a day"


def limit_words(limit: Limit, policy: LimiterPolicy) -> str:
    """One limit of a policy as a sentence."""
    whom = _whom(limit, policy)
    if limit.unit is LimitUnit.STREAMS:
        what = f"at most {_counted(limit.limit, 'stream')} running at once {whom}"
    else:
        unit = "token" if limit.unit is LimitUnit.TOKENS else "request"
        what = f"at most {_counted(limit.limit, unit)} in any {duration_words(limit.window_us)} {whom}"
    parts = [f"{what} ({'enforced' if limit.mode is DecisionMode.ENFORCE else 'shadow: reported, not enforced'})"]
    if limit.burst is not None:
        parts.append(
            f"a burst of at most {limit.burst:,} at once, refilled at {rate_words(limit.limit, limit.window_us)}"
        )
    if limit.unit is LimitUnit.TOKENS:
        parts.append(_what_counts(limit))
    return f"{limit.name}: {'; '.join(parts)}."


def turns(policies: Sequence[LimiterPolicy]) -> list[Turn]:
    """The turn of each policy, in the order of the file. Of two from the same time, the later in the file holds."""
    timelines: dict[str, dict[int, int]] = {}
    for index, policy in enumerate(policies):
        timelines.setdefault(policy.match, {})[policy.effective_from_us] = index
    found = [Turn(None, None, None)] * len(policies)
    for timeline in timelines.values():
        order = [timeline[from_us] for from_us in sorted(timeline)]
        holding = [None, *(policies[index] for index in order), None]
        for place, index in enumerate(order):
            found[index] = Turn(holding[place], holding[place + 2], None)
    for index, policy in enumerate(policies):
        holder = timelines[policy.match][policy.effective_from_us]
        if holder != index:
            found[index] = Turn(None, None, policies[holder])
    return found


def _holds(policy: LimiterPolicy, turn: Turn) -> str:
    whom = "every tenant without a policy of its own" if policy.match == ANY_KEY else f"tenant {policy.match}"
    if turn.overruled_by is not None:
        return f"Never holds for {whom}: {turn.overruled_by.id} holds from the same time on."
    since = f"From {instant_words(policy.effective_from_us)}" if policy.effective_from_us else "From the beginning"
    until = ""
    if turn.after is not None:
        until = f" until {instant_words(turn.after.effective_from_us)}, when {turn.after.id} takes over"
    return f"{since}{until}: {whom}."


def _whom(limit: Limit, policy: LimiterPolicy) -> str:
    level = LEVEL_WORDS[limit.level]
    if limit.only:
        named = sorted(limit.only)
        return (
            f"for {level} {named[0]} only" if len(named) == 1 else f"for each of the {level}s {', '.join(named)} only"
        )
    if limit.level is LimitLevel.TENANT and policy.match != ANY_KEY:
        return "for the whole tenant"
    return f"for each {level}"


def _what_counts(limit: Limit) -> str:
    if limit.counts_prompt and limit.counts_completion:
        return "prompts and completions count"
    return "prompts count, completions do not" if limit.counts_prompt else "completions count, prompts do not"


def _treatment(policy: LimiterPolicy) -> Iterator[str]:
    token_limits = [limit for limit in policy.limits if limit.unit is LimitUnit.TOKENS]
    if not policy.limits:
        yield "Nothing is limited: requests are followed and settled."
    if any(limit.counts_prompt for limit in token_limits):
        yield _cached_words(policy.cached_weight_permille)
    if any(limit.counts_completion for limit in token_limits):
        yield (
            f"Requests without max_tokens are reserved at the {policy.estimate_quantile * 100:g} % quantile of the "
            f"tenant's recent completions for the model ({_counted(policy.default_completion_tokens, 'token')} until "
            f"{policy.estimate_after:,} {'has' if policy.estimate_after == 1 else 'have'} ended)."
        )
        yield (
            f"A stream that needs more than it reserved grows {_counted(policy.extension_tokens, 'token')} at a time, "
            "or by what room there is; where there is none, it is revoked."
        )
    silence = duration_words(policy.silence_timeout_us)
    yield f"A request without an event for {silence} is settled, and what it did not use is refunded."
    short = [limit for limit in token_limits if limit.window_us < policy.silence_timeout_us]
    if short:
        names = ", ".join(f"{limit.name} ({duration_words(limit.window_us)})" for limit in short)
        yield (
            "What a running request has reserved and not used counts until it is used or refunded, also beyond the "
            f"window: a request that falls silent holds its part of {names} for {silence}."
        )
    yield (
        "The traffic is a recording made without these limits: what a refused or revoked request did afterwards is "
        "taken as not having happened."
        if policy.traffic_is_recorded
        else "The traffic is live: every token that flows is charged, allowed or not."
    )
    yield (
        f"The last {policy.remember_requests:,} ended requests of a tenant are remembered, so that their events are "
        f"known again; beyond {policy.max_subjects:,} counters, further ones share a counter for each limit."
    )


def _cached_words(permille: int) -> str:
    if permille in {0, 1000}:
        return "Cached prompt tokens count like any others." if permille else "Cached prompt tokens do not count."
    return f"Cached prompt tokens count {permille / 10:g} %."


def _change(policy: LimiterPolicy, before: LimiterPolicy | None) -> Iterator[str]:
    """What becomes of the counters when this policy follows another for the same tenants."""
    if before is None:
        return
    known = {limit.name: _identity(limit) for limit in before.limits}
    kept = [limit.name for limit in policy.limits if known.get(limit.name) == _identity(limit)]
    fresh = [limit.name for limit in policy.limits if limit.name not in kept]
    gone = [name for name in known if name not in kept and name not in fresh]
    parts = []
    if kept:
        parts.append(f"what was counted under {', '.join(kept)} goes on counting")
    if fresh:
        parts.append(f"{', '.join(fresh)} {'starts' if len(fresh) == 1 else 'start'} from zero")
    if gone:
        parts.append(f"{', '.join(gone)} {'ends' if len(gone) == 1 else 'end'}")
    if parts:
        yield f"It takes over from {before.id}: {'; '.join(parts)}."


def _identity(limit: Limit) -> tuple[LimitUnit, LimitLevel, bool, bool]:
    return limit.unit, limit.level, limit.counts_prompt, limit.counts_completion


def _counted(amount: int, unit: str) -> str:
    return f"{amount:,} {unit}" if amount == 1 else f"{amount:,} {unit}s"
