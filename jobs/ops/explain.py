"""Why one request was decided as it was: its events one by one, and what the limiter saw before each.

The log is folded as the job folds it, by a limiter that looks on: before each event of the request it keeps a copy of
the tenant's state, and where something is decided it asks that copy what the limiter asked. Looking changes nothing, so
the decisions are those of a replay without it. Chunks that decide nothing are told together.
"""

from collections.abc import Collection, Sequence

from jobs.ops.event_sources import EventSource
from jobs.ops.explain_state import (
    account_after,
    account_of,
    ask_for_stream,
    asked_by,
    claims_of,
    facts_of,
    limit_seen,
    meters_of,
    prepare_stream,
    request_of,
    tell_what_frees,
)
from jobs.ops.explanation import SILENCE, Explanation, LimitSeen, Step
from jobs.ops.replay import Progress, Replay, ReplayWindow
from schemas.codec import NAME_OF_KIND, decode_events
from schemas.dead_letters import Position
from schemas.decisions import Decision, DecisionMode
from schemas.events import Event, PromptSubmitted, TokensGenerated
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import LimiterFold, LimiterPolicy, TenantState, admission, estimate, ledger
from udfs.domain.limiter import meter as metering
from udfs.domain.limiter.limiter import NO_POLICY
from udfs.domain.limiter.meter import Meter
from udfs.domain.limiter.state import MeterKey, Request
from udfs.domain.limiter.tokens import is_plausible
from udfs.domain.policy_log import PolicyLog
from udfs.operators.shard_fold import FoldSettings


class RequestNotFoundError(ValueError):
    """The request is not in the log, or in more than one tenant's; the message says what to name."""


# --- finding it ---------------------------------------------------------------------------------------------------


def find_request(
    source: EventSource, request_id: str, tenants: Collection[str] = (), progress: Progress = lambda _: None
) -> dict[str, Position]:
    """The tenants that have a request of this id, each with the position of the last record that speaks of it."""
    found: dict[str, Position] = {}
    # An id stands in a record as its UTF-8, so most records need not be decoded.
    if not request_id:
        # Heartbeats have none either.
        return found
    needle = request_id.encode(errors="surrogateescape")
    for _, record, where, share in source.records(tenants):
        progress(share)
        if needle in record:
            for event in decode_events(record, where).events:
                if event.request_id == request_id and (not tenants or event.tenant in tenants):
                    found[event.tenant] = where
    return found


def the_tenant(found: dict[str, Position], request_id: str) -> str:
    """The one tenant that has the request. Raises RequestNotFoundError."""
    if not found:
        raise RequestNotFoundError(
            f"{request_id or repr('')}: no such request in the log; check the id, the tenant and the servers"
        )
    if len(found) > 1:
        names = sorted(found)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise RequestNotFoundError(f"{request_id}: {shown} have a request of that id; name one with --tenant")
    return next(iter(found))


def explain_request(
    source: EventSource,
    policies: PolicyLog[LimiterPolicy],
    tenant: str,
    request_id: str,
    last: Position,
    *,
    shard_count: int,
    settings: FoldSettings | None = None,
    progress: Progress = lambda _: None,
) -> Explanation:
    """Replay the tenant and look at one request. `last` is where the log last speaks of it, from `find_request`.

    The fold goes on after that only while the request runs: then its silence may still settle it. Raises
    RequestNotFoundError where the fold puts all of its events aside.
    """
    watcher = Watcher(tenant, request_id)

    def is_enough(where: Position) -> bool:
        watcher.is_past_last = watcher.is_past_last or where == last
        return watcher.is_past_last and not watcher.is_running

    window = ReplayWindow(tenants=frozenset((tenant,)))
    replay = Replay(
        source,
        policies,
        window,
        shard_count=shard_count,
        settings=settings,
        progress=progress,
        fold=watcher,
        is_enough=is_enough,
    )
    for _ in replay.decisions():
        pass
    if not watcher.steps:
        raise RequestNotFoundError(
            f"{request_id}: no such request among the events that can be read; headrace dlq list shows what was put "
            "aside"
        )
    summary = replay.summary()
    warnings = summary.warnings
    if summary.dead_letters.get("fold_failed"):
        warnings.append(
            "the fold failed on an event of this shard and went over its log again: steps may be told twice"
        )
    return Explanation(
        tenant=tenant,
        request_id=request_id,
        steps=watcher.steps,
        is_running=watcher.is_running,
        warnings=warnings,
    )


# --- looking on ---------------------------------------------------------------------------------------------------


class Watcher(LimiterFold):
    """The limiter, looking at one request while it decides all."""

    def __init__(self, tenant: str, request_id: str) -> None:
        self._tenant = tenant
        self._request_id = request_id
        self.steps: list[Step] = []
        self.is_running = False
        self.is_past_last = False

    def apply(
        self, state: TenantState, event: Event, policy: LimiterPolicy | None, now_us: int
    ) -> Sequence[Decision | Anomaly]:
        """See LimiterFold."""
        if event.request_id != self._request_id or state.tenant != self._tenant:
            return super().apply(state, event, policy, now_us)
        before = self.dump(state)
        found = super().apply(state, event, policy, now_us)
        self._look(state, before, event, policy or NO_POLICY, now_us, found)
        return found

    def wake(self, state: TenantState, policy: LimiterPolicy | None, now_us: int) -> Sequence[Decision | Anomaly]:
        """See LimiterFold."""
        if not (self.is_running and state.tenant == self._tenant):
            return super().wake(state, policy, now_us)
        before = self.dump(state)
        found = super().wake(state, policy, now_us)
        mine = [it for it in found if isinstance(it, Decision) and it.request_id == self._request_id]
        for decision in mine:
            key = (self._request_id, decision.attempt)
            was = self._copy(before, policy or NO_POLICY, now_us)
            request = was.requests.get(key)
            keys = meters_of(request)
            self.steps.append(
                Step(
                    attempt=decision.attempt,
                    kind=SILENCE,
                    at_us=now_us,
                    event_time_us=now_us,
                    facts={"silence_timeout_us": state.silence_timeout_us},
                    policy=(policy or NO_POLICY).id,
                    before=account_of(request),
                    after=account_of(state.ended.get(key)),
                    limits=self._seen(was, keys, now_us, self._rooms(state, keys, policy or NO_POLICY, now_us)),
                    decisions=[decision],
                )
            )
        self._note_running(state)
        return found

    def _note_running(self, state: TenantState) -> None:
        self.is_running = any(request_id == self._request_id for request_id, _ in state.requests)

    def _copy(self, dumped: bytes, policy: LimiterPolicy, now_us: int) -> TenantState:
        """A state to ask things of: asking moves meters on, so the limiter's own is never asked."""
        copied = self.load(dumped)
        ledger.bind(copied, policy, now_us)
        return copied

    def _look(
        self,
        state: TenantState,
        before: bytes,
        event: Event,
        policy: LimiterPolicy,
        now_us: int,
        found: Sequence[Decision | Anomaly],
    ) -> None:
        self._note_running(state)
        key = (event.request_id, event.attempt)
        decisions = [it for it in found if isinstance(it, Decision)]
        noticed = [it.value for it in found if isinstance(it, Anomaly)]
        now = request_of(state, key)
        if (
            not decisions
            and isinstance(event, TokensGenerated)
            and self._told_with_the_last(event, now_us, now, noticed)
        ):
            return
        was = self._copy(before, policy, now_us)
        request = request_of(was, key)
        step = Step(
            attempt=event.attempt,
            kind=NAME_OF_KIND[type(event)],
            at_us=now_us,
            event_time_us=event.event_time_us,
            until_us=now_us,
            facts=facts_of(event),
            policy=policy.id,
            before=account_of(request),
            after=account_after(now, decisions, account_of(request)),
            decisions=decisions,
            noticed=noticed,
        )
        self.steps.append(step)
        if isinstance(event, PromptSubmitted) and decisions:
            self._explain_prompt(step, was, state, event, policy, now_us)
        elif decisions:
            keys = meters_of(request) or meters_of(now)
            if isinstance(event, TokensGenerated) and request is not None:
                prepare_stream(was, request, now_us)
                keys = list(request.completion_meters) or keys
            step.limits = self._seen(was, keys, now_us, self._rooms(state, keys, policy, now_us))
            if isinstance(event, TokensGenerated):
                ask_for_stream(step, event, request.completion_left if request else 0)

    def _told_with_the_last(self, event: Event, now_us: int, now: Request | None, noticed: Sequence[str]) -> bool:
        """Whether a chunk that decides nothing goes on where the last step left off."""
        last = self.steps[-1] if self.steps else None
        if last is None or last.decisions or last.noticed != noticed or last.attempt != event.attempt:
            return False
        if last.kind != NAME_OF_KIND[TokensGenerated]:
            return False
        last.events += 1
        last.until_us = now_us
        last.after = account_of(now)
        tokens = last.after.streamed_tokens - last.before.streamed_tokens
        last.facts = {"tokens": tokens} if tokens > 0 else {}
        return True

    def _explain_prompt(
        self,
        step: Step,
        was: TenantState,
        state: TenantState,
        event: PromptSubmitted,
        policy: LimiterPolicy,
        now_us: int,
    ) -> None:
        if not (is_plausible(event.prompt_tokens) and is_plausible(event.cached_tokens)):
            return
        subjects = admission.subjects_of(was, event)
        learned = was.lengths.get(event.model) or was.lengths.get(estimate.OTHER_MODELS)
        need, _ = admission.assess(was, event, policy, subjects)
        step.asked = asked_by(event, policy, need, learned)
        claims = claims_of(was, policy, subjects, need, now_us)
        is_refused = any(amount > room and limit.mode is DecisionMode.ENFORCE for _, limit, _, amount, room in claims)
        if is_refused and ledger.book_stalled(was, now_us):
            claims = claims_of(was, policy, subjects, need, now_us)
        after = self._rooms(state, [key for key, *_ in claims], policy, now_us)
        for claim in claims:
            key, limit, meter, amount, room = claim
            seen = limit_seen(was, key, limit, meter, now_us)
            seen.asked, seen.left_after = amount, after.get(key)
            if amount > room:
                seen.short = amount - room
                why = admission.refusal(was, [claim], now_us)
                if why is not None and why.retry_at_us:
                    tell_what_frees(seen, was, key, meter, limit, why.retry_at_us)
            step.limits.append(seen)

    def _rooms(
        self, state: TenantState, keys: Sequence[MeterKey], policy: LimiterPolicy, now_us: int
    ) -> dict[MeterKey, int]:
        after = self._copy(self.dump(state), policy, now_us)
        return {
            key: metering.room(meter, after.limits[key[0]], now_us)
            for key in keys
            if (meter := after.meters.get(key)) is not None and key[0] in after.limits
        }

    @staticmethod
    def _seen(was: TenantState, keys: Sequence[MeterKey], now_us: int, after: dict[MeterKey, int]) -> list[LimitSeen]:
        found = []
        for key in keys:
            limit = was.limits.get(key[0])
            if limit is not None:
                seen = limit_seen(was, key, limit, was.meters.get(key) or Meter(), now_us)
                seen.left_after = after.get(key)
                found.append(seen)
        return found
