"""What is allowed in policies and seldom meant."""

from collections.abc import Iterator, Sequence
from typing import Final

from jobs.ops.policy_words import Turn, instant_words, turns
from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.policy_log import ANY_KEY

LONG_PROMPT_TOKENS: Final = 4_083
"""One prompt in twenty of the Azure conversation trace of 2023 is longer."""


def warn(policies: Sequence[LimiterPolicy]) -> list[str]:
    """One line each; empty where there is nothing to say."""
    each = zip(policies, turns(policies), strict=True)
    return [*_gaps(policies), *(line for policy, turn in each for line in _of_policy(policy, turn))]


def _gaps(policies: Sequence[LimiterPolicy]) -> Iterator[str]:
    """Tenants and times that nothing holds for."""
    if not policies:
        yield "there is no policy: nothing is limited"
        return
    since_us: dict[str, int] = {}
    for policy in policies:
        since_us[policy.match] = min(policy.effective_from_us, since_us.get(policy.match, policy.effective_from_us))
    fallback_us = since_us.pop(ANY_KEY, None)
    if fallback_us is None:
        yield f'no policy for tenant "*": tenants other than {", ".join(sorted(since_us))} are not limited'
    elif fallback_us:
        since = instant_words(fallback_us)
        yield f'before {since} no policy for tenant "*" holds: tenants without one of their own are not limited'
    for tenant, own_us in sorted(since_us.items()):
        unlimited_until_us = own_us if fallback_us is None else min(own_us, fallback_us)
        if unlimited_until_us:
            yield f"before {instant_words(unlimited_until_us)} no policy holds for tenant {tenant}: it is not limited"


def _of_policy(policy: LimiterPolicy, turn: Turn) -> Iterator[str]:
    where = f"policy {policy.id}"
    if turn.overruled_by is not None:
        yield (
            f"{where}: never holds, as {turn.overruled_by.id} is for the same tenant from the same time; "
            "the later in the file wins"
        )
    if not policy.limits:
        yield f"{where}: has no limits"
    elif all(limit.mode is DecisionMode.SHADOW for limit in policy.limits):
        yield f"{where}: all limits are in shadow: nothing is enforced"
    for limit in policy.limits:
        yield from (f"{where}, limit {limit.name}: {line}" for line in _of_limit(limit, policy))


def _of_limit(limit: Limit, policy: LimiterPolicy) -> Iterator[str]:
    if limit.level is LimitLevel.TENANT and limit.only and policy.match not in {ANY_KEY, *limit.only}:
        yield f"is only for {', '.join(sorted(limit.only))}, and the policy is for {policy.match}: it limits nobody"
    if limit.unit is not LimitUnit.TOKENS or limit.mode is DecisionMode.SHADOW:
        return
    if limit.counts_completion and policy.default_completion_tokens > limit.capacity:
        yield (
            f"default_completion_tokens is {policy.default_completion_tokens:,}, more than the {limit.capacity:,} that "
            "can be taken at once: until completions have been learned, a request without max_tokens reserves all of it"
        )
    if limit.counts_prompt and limit.capacity < LONG_PROMPT_TOKENS:
        what = "limit" if limit.burst is None else "burst"
        yield (
            f"its {what} of {limit.capacity:,} is smaller than many prompts: a request that needs more tokens at once "
            "is rejected, not throttled"
        )
