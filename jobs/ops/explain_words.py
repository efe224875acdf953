"""An explanation in sentences, with the figures that the limiter went by."""

from collections.abc import Iterator
from typing import Final

from jobs.ops.explanation import SILENCE, Asked, Explanation, LimitSeen, Step
from jobs.ops.figures import clock, count, duration, printable
from jobs.ops.policy_words import duration_words, rate_words
from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason

NOTICED: Final = {
    "duplicate": "it was seen before, so nothing changes",
    "early_tokens": "its prompt has not come yet: charged where tenant and model alone tell the limit",
    "after_end": "the request was settled before: it changes nothing",
    "void": "in a recording, what follows a refusal or a revocation is taken as not having happened",
    "unknown_request": "nothing is known of the request's beginning: what it reports is charged where it can be",
    "implausible_count": "a token count can't be right, and is not charged",
    "resumed": "it had been settled for its silence, and speaks again",
    "overdrawn": "tokens were used beyond what was set aside: they are charged all the same",
    "written_off": "a part of what was overdrawn is more than the limit carries as debt, and is written off",
    "subjects_full": "the limit counts too many subjects already: this one shares a meter with others",
}

_ENDS: Final = {
    DecisionReason.COMPLETED: "completed",
    DecisionReason.FAILED: "failed",
    DecisionReason.INTERRUPTED: "interrupted",
    DecisionReason.SILENT: "silent for too long",
    DecisionReason.NO_PROMPT: "its prompt was never seen",
}


def time_words(at_us: int) -> str:
    """Time of day in UTC, with milliseconds.

    >>> time_words(1_700_158_546_680_000)
    '18:15:46.680'
    """
    return f"{clock(at_us)}.{at_us // 1000 % 1000:03d}"


def words_of(explanation: Explanation) -> list[list[str]]:
    """For each step, what happened and why."""
    return [list(_step(step)) for step in explanation.steps]


def limit_label(seen: LimitSeen) -> str:
    """A limit and whom it counts."""
    who = "the subjects beyond the most that are counted apart" if seen.is_shared else f"{seen.level} {seen.subject}"
    return printable(f"{seen.name} of {who.replace('api_key', 'API key')}")


def _step(step: Step) -> Iterator[str]:
    if step.event_time_us < step.at_us and step.kind != SILENCE and step.events == 1:
        late = duration(step.at_us - step.event_time_us)
        yield f"It came {late} after a later event of the tenant, and is decided at the tenant's clock."
    if step.asked is not None:
        yield _asks(step.asked)
    if step.kind == "tokens_generated" and not step.decisions and not step.noticed:
        yield (
            f"{_plural(step.after.streamed_tokens - step.before.streamed_tokens, 'token')} within what is set aside; "
            f"{count(step.after.left_tokens)} left."
        )
    for decision in step.decisions:
        yield from _decision(step, decision)
    for name in step.noticed:
        yield f"Noticed: {NOTICED.get(name, name.replace('_', ' '))}."


def _asks(asked: Asked) -> str:
    total = asked.prompt_tokens + asked.completion_tokens
    start = f"It asks for {_plural(total, 'token')}: {count(asked.prompt_tokens)} of prompt"
    if asked.basis == "none":
        return f"{start}, and no completion."
    basis = {
        "client": "as the client bounds it (max_tokens)",
        "learned": f"which {asked.quantile:.0%} of the tenant's completions of that model did not exceed",
        "default": "the policy's default until more completions of that model have ended than the "
        f"{count(asked.learned_from)} so far",
    }[asked.basis]
    cut = ", cut to what its limits could ever allow" if asked.is_cut else ""
    return f"{start} and {count(asked.completion_tokens)} of completion, {basis}{cut}."


def _decision(step: Step, decision: Decision) -> Iterator[str]:
    is_shadow = decision.mode is DecisionMode.SHADOW
    start = "In shadow, which binds nobody: " if is_shadow else ""
    kind = decision.kind
    if kind is DecisionKind.ADMIT:
        yield _admitted(decision)
    elif kind in {DecisionKind.THROTTLE, DecisionKind.REJECT}:
        verb = "throttled" if kind is DecisionKind.THROTTLE else "rejected"
        yield _capital(f"{start}{verb}. {_why_refused(step, decision)}")
        seen = _bound_of(step, decision)
        if seen is not None and kind is DecisionKind.THROTTLE:
            yield _when(seen, decision)
        yield from _others(step, seen, decision.mode)
    elif kind is DecisionKind.EXTEND:
        more = step.after.granted_tokens - step.before.granted_tokens
        yield f"Extended by {_plural(more, 'token')} to {count(decision.reserved_tokens)} in all{_tightest(decision)}."
    elif kind is DecisionKind.REVOKE:
        yield _capital(f"{start}revoked. {_why_revoked(step, decision)}")
    elif kind is DecisionKind.SETTLE:
        yield _settled(step, decision)


def _admitted(decision: Decision) -> str:
    aside = f"{_plural(decision.reserved_tokens, 'token')} set aside"
    if decision.reason is DecisionReason.NO_POLICY:
        return f"Admitted, {aside}: no limit holds for it."
    return f"Admitted, {aside}{_tightest(decision)}."


def _tightest(decision: Decision) -> str:
    bound = decision.bound
    if bound is None:
        return ""
    return (
        f"; the tightest limit is then {printable(bound.name)}, "
        f"with {count(bound.remaining)} of {count(bound.limit)} left"
    )


def _bound_of(step: Step, decision: Decision) -> LimitSeen | None:
    bound = decision.bound
    if bound is None:
        return None
    return next((seen for seen in step.limits if seen.name == bound.name), None)


def _why_refused(step: Step, decision: Decision) -> str:
    if decision.reason is DecisionReason.IMPLAUSIBLE_COUNT:
        return "Its token counts can't be right: they are negative or absurdly large."
    seen = _bound_of(step, decision)
    if seen is None:
        return ""
    unit = _unit(seen)
    if decision.reason is DecisionReason.NEVER_FITS:
        most = _plural(seen.capacity, unit)
        return f"It needs {count(seen.asked)} of {limit_label(seen)}, which never allows more than {most} at once."
    held = [f"{count(seen.used)} used in the last {duration_words(seen.window_us)}"] if seen.window_us else []
    held.append(f"{count(seen.reserved)} {'running' if not seen.window_us else 'set aside'}")
    if seen.debt:
        held.append(f"{count(seen.debt)} of debt")
    why = f"{' and '.join(held)} of {_plural(seen.limit, unit)}"
    if seen.burst_left is not None and seen.burst_left == seen.left:
        why += f"; its burst bucket of {count(seen.burst or 0)} holds {count(seen.burst_left)}"
    return (
        f"It needs {count(seen.asked)} of {limit_label(seen)}, which has room for {count(seen.left)}: "
        f"{count(seen.short)} too many ({why})."
    )


def _when(seen: LimitSeen, decision: Decision) -> str:
    wait = duration(decision.retry_at_us - decision.decided_at_us)
    start = f"It would fit at {time_words(decision.retry_at_us)}, {wait} later, were nothing else to happen"
    reasons = []
    if seen.leaving:
        reasons.append(f"{_plural(seen.leaving, _unit(seen))} will have left the window")
    if seen.lapsing:
        reasons.append(
            f"{_plural(seen.lapsing, _unit(seen))} that running requests hold will have lapsed, if they stay silent"
        )
    if seen.burst is not None and seen.burst_left is not None and seen.burst_left < seen.asked:
        reasons.append(f"the bucket, refilled at {rate_words(seen.limit, seen.window_us)}, will hold enough")
    return f"{start}: by then {', and '.join(reasons)}." if reasons else f"{start}."


def _others(step: Step, bound: LimitSeen | None, mode: DecisionMode) -> Iterator[str]:
    for seen in step.limits:
        if seen is not bound and seen.short and seen.mode == mode.name.lower():
            fits = f", and would fit at {time_words(seen.fits_at_us)}" if seen.fits_at_us else ""
            yield f"The limit {limit_label(seen)} has too little room as well, by {count(seen.short)}{fits}."


def _why_revoked(step: Step, decision: Decision) -> str:
    seen = _bound_of(step, decision)
    overdrawn = decision.overdrawn_tokens
    charged = (
        f" {_plural(overdrawn, 'token')} beyond its reservation {_is(overdrawn)} charged all the same."
        if overdrawn
        else ""
    )
    if seen is None or decision.bound is None:
        return f"It runs although it was refused.{charged}" if step.before.phase == "refused" else charged.strip()
    if step.before.phase == "refused":
        return f"It runs although it was refused, and must stop.{charged}"
    if not seen.asked:
        return f"The limit {limit_label(seen)} has no room for it.{charged}"
    return (
        f"It had used up the {count(step.before.granted_tokens)} set aside for it and needs {count(seen.asked)} more, "
        f"of which {limit_label(seen)} has room for {count(decision.bound.remaining)}.{charged}"
    )


def _settled(step: Step, decision: Decision) -> str:
    end = _ENDS.get(decision.reason, decision.reason.name.lower())
    if step.kind == SILENCE:
        waited = step.facts.get("silence_timeout_us")
        end = f"silent for {duration_words(int(waited))}" if waited else end
    back = (
        f"{_plural(decision.refunded_tokens, 'token')} given back" if decision.refunded_tokens else "nothing given back"
    )
    over = f", {count(decision.overdrawn_tokens)} beyond its reservation" if decision.overdrawn_tokens else ""
    return (
        f"Settled ({end}): of {_plural(decision.reserved_tokens, 'token')} set aside it used "
        f"{count(decision.used_tokens)}{over}; {back}."
    )


def _unit(seen: LimitSeen) -> str:
    return seen.unit.removesuffix("s")


def _plural(amount: int, unit: str) -> str:
    return f"{count(amount)} {unit}{'' if amount == 1 else 's'}"


def _is(amount: int) -> str:
    return "is" if amount == 1 else "are"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
