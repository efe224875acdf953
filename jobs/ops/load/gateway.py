"""What a gateway does, without a clock or a log: time and decisions come in, events to send come out.

A request goes WAITING -> STREAMING -> SETTLING -> DONE. A throttled one goes from WAITING by way of BACKING_OFF to its
next attempt; one that is refused or lost is DONE at once.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, TypeAlias, TypeVar

import msgspec

from jobs.ops.load.plan import PlannedRequest
from jobs.ops.load.request import GatewayRequest, Phase
from jobs.ops.load.tally import Fault, Outcome, Tally
from schemas.codec import NAME_OF_KIND
from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason
from schemas.events import (
    Event,
    Heartbeat,
    InterruptReason,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from schemas.identity import event_id
from udfs.domain.watermark import WatermarkPolicy

HEARTBEAT_US: Final = 1_000_000
WATERMARK_DELTA_US: Final = WatermarkPolicy().min_delta_us
"""A gateway's events are in order, so its adaptive watermark stays this far behind them."""

_ANSWERS: Final = frozenset((DecisionKind.ADMIT, DecisionKind.THROTTLE, DecisionKind.REJECT))
_REFUSALS: Final = frozenset((DecisionKind.THROTTLE, DecisionKind.REJECT))
_PROVISIONAL: Final = frozenset((None, DecisionReason.SILENT, DecisionReason.NO_PROMPT))
"""Settlements that a later one supersedes, when the stream goes on or its end comes after all; None: none yet."""

_EnvelopeFields: TypeAlias = tuple[bytes, str, str, int, int, int, int, str, str, str, str, str, None]
_EventT = TypeVar("_EventT", bound=RequestEvent)


class GatewayRules(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a gateway and its clients are.

    A request is asked at most `max_attempts` times, and given up where it would have to wait longer than `max_wait_us`.
    An answer or a settlement that takes longer than `decision_timeout_us` is taken for lost. Latencies count for
    prompts that are due `warm_up_us` after the start or later.
    """

    max_attempts: int = 3
    max_wait_us: int = 60_000_000
    decision_timeout_us: int = 30_000_000
    warm_up_us: int = 0

    def __post_init__(self) -> None:
        for name, least in (("max_attempts", 1), ("max_wait_us", 0), ("decision_timeout_us", 1), ("warm_up_us", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least {least}")


class Gateway:
    """One gateway. `advance` is to be called when `due_us` has come, `decide` for each decision on its requests.

    Ids of requests are `<name>-<number>`, so no other gateway or run may have the name. Each chunk is due at its offset
    from the moment of admission, however late the one before it went out.
    """

    def __init__(
        self, name: str, planned: Iterator[PlannedRequest], rules: GatewayRules, tally: Tally, start_us: int
    ) -> None:
        self.name = name
        self._planned = planned
        self._next = next(planned, None)
        self._rules = rules
        self._tally = tally
        self._start_us = start_us
        self._requests: dict[str, GatewayRequest] = {}
        self._open: dict[str, GatewayRequest] = {}
        self._timers: list[tuple[int, int, GatewayRequest]] = []
        self._timer_count = 0
        self._beat_us = start_us
        self._is_stopping = False
        self._out: list[Event] = []

    @property
    def open_requests(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._open)

    @property
    def is_over(self) -> bool:
        """Whether every request has ended and none is to come."""
        return self._next is None and not self._open

    @property
    def due_us(self) -> int:
        """When `advance` is to be called next."""
        due_us = self._beat_us
        if self._next is not None:
            due_us = min(due_us, self._start_us + self._next.due_us)
        if self._timers:
            due_us = min(due_us, self._timers[0][0])
        return due_us

    def advance(self, now_us: int) -> list[Event]:
        """What is to be sent by now, in order."""
        if now_us >= self._beat_us:
            # A shard that falls silent would never settle the streams that were lost in it.
            self._beat_us = now_us + HEARTBEAT_US
            watermark_us = now_us - WATERMARK_DELTA_US
            self._out.append(Heartbeat(b"", "", "", 0, now_us, watermark_us, 0, "", "", "", "", self.name, None))
        while self._next is not None and self._start_us + self._next.due_us <= now_us:
            request = GatewayRequest(f"{self.name}-{len(self._requests)}", self._next)
            self._requests[request.id] = self._open[request.id] = request
            self._tally.requests += 1
            self._submit(request, self._start_us + self._next.due_us, now_us)
            self._next = next(self._planned, None)
        timers = self._timers
        while timers and timers[0][0] <= now_us:
            at_us, timer, request = heappop(timers)
            if timer == request.timer:
                self._on_time(request, at_us, now_us)
        return self._taken()

    def decide(self, decision: Decision, now_us: int) -> list[Event]:
        """Obey a decision that was read at `now_us`. One that is read again changes nothing."""
        request = self._requests.get(decision.request_id)
        if request is None or decision.attempt > request.attempt:
            self._tally.unknown_decisions += 1
            return []
        fingerprint = hash(decision)
        known = request.seen.get(decision.decision_id)
        if known is not None:
            if known == fingerprint:
                self._tally.duplicates += 1
            else:
                self._tally.fault(Fault.CHANGED, decision)
            return []
        request.seen[decision.decision_id] = fingerprint
        self._tally.decided(decision)
        if request.ends_as in {Outcome.LOST, Outcome.UNSETTLED}:
            self._tally.late_decisions += 1
        if decision.mode is DecisionMode.ENFORCE:
            if decision.kind in _ANSWERS:
                self._on_answer(request, decision, now_us)
            elif decision.kind is DecisionKind.REVOKE:
                self._on_revoke(request, decision, now_us)
            elif decision.kind is DecisionKind.SETTLE:
                self._on_settle(request, decision)
        return self._taken()

    def stop(self, now_us: int) -> list[Event]:
        """Send no further prompt, and end what runs; then only answers and settlements are waited for."""
        self._is_stopping = True
        self._next = None
        for request in tuple(self._open.values()):
            if request.phase is Phase.STREAMING:
                self._interrupt(request, InterruptReason.CLIENT_DISCONNECTED, now_us)
            elif request.phase is Phase.BACKING_OFF:
                self._finish(request, Outcome.THROTTLED)
        return self._taken()

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _on_answer(self, request: GatewayRequest, decision: Decision, now_us: int) -> None:
        attempt, kind = decision.attempt, decision.kind
        if request.answers[attempt] is not None or (kind in _REFUSALS and request.settled[attempt] not in _PROVISIONAL):
            self._tally.fault(Fault.CONTRADICTED, decision)
            return
        request.answers[attempt] = kind
        if request.phase is not Phase.WAITING or attempt != request.attempt:
            return
        if request.due_us >= self._start_us + self._rules.warm_up_us:
            self._tally.from_due_us.append(now_us - request.due_us)
            self._tally.from_sent_us.append(now_us - request.sent_us)
        if kind is DecisionKind.ADMIT:
            request.admitted_us = now_us
            if self._is_stopping:
                self._interrupt(request, InterruptReason.CLIENT_DISCONNECTED, now_us)
            else:
                request.phase = Phase.STREAMING
                self._stream(request, now_us)
        elif kind is DecisionKind.REJECT:
            self._finish(request, Outcome.REJECTED)
        elif (
            self._is_stopping
            or attempt + 1 >= self._rules.max_attempts
            or decision.retry_at_us > now_us + self._rules.max_wait_us
        ):
            self._finish(request, Outcome.THROTTLED)
        else:
            request.phase = Phase.BACKING_OFF
            self._set_timer(request, max(decision.retry_at_us, now_us))

    def _on_revoke(self, request: GatewayRequest, decision: Decision, now_us: int) -> None:
        if request.answers[decision.attempt] in _REFUSALS:
            self._tally.fault(Fault.CONTRADICTED, decision)
            return
        if decision.attempt != request.attempt or request.is_revoked or request.phase is Phase.DONE:
            return
        request.is_revoked = True
        self._tally.overshoot_tokens.append(request.streamed_after(decision.decided_at_us))
        if request.phase is Phase.SETTLING:
            self._tally.revoked_after_end += 1
            return
        request.ends_as = Outcome.REVOKED
        self._tally.stop_us.append(now_us - decision.decided_at_us)
        self._interrupt(request, InterruptReason.REVOKED, now_us)

    def _on_settle(self, request: GatewayRequest, decision: Decision) -> None:
        attempt = decision.attempt
        if request.settled[attempt] not in _PROVISIONAL:
            self._tally.fault(Fault.SETTLED_TWICE, decision)
            return
        request.settled[attempt] = decision.reason
        if request.answers[attempt] in _REFUSALS:
            self._tally.fault(Fault.CONTRADICTED, decision)
        elif (
            attempt == request.attempt
            and request.phase is Phase.SETTLING
            and (decision.reason not in _PROVISIONAL or decision.caused_by == request.end_id)
        ):
            self._finish(request, request.ends_as)

    # --- time --------------------------------------------------------------------------------------------------------

    def _on_time(self, request: GatewayRequest, at_us: int, now_us: int) -> None:
        if request.phase is Phase.STREAMING:
            self._stream(request, now_us)
        elif request.phase is Phase.BACKING_OFF:
            self._submit(request, at_us, now_us)
        elif request.phase is Phase.SETTLING:
            # Its end may not have got into the log; then silence has settled it, once.
            is_settled = request.settled[request.attempt] is not None
            self._finish(request, request.ends_as if is_settled else Outcome.UNSETTLED)
        else:
            # Its client is told that the gateway timed out; the log is told too, and what it holds is freed.
            envelope = self._envelope(request, "request_failed", now_us)
            self._send(RequestFailed(*envelope, "decision_timeout", 504, True))
            self._finish(request, Outcome.LOST)

    def _submit(self, request: GatewayRequest, due_us: int, now_us: int) -> None:
        request.attempt += 1
        request.answers.append(None)
        request.settled.append(None)
        request.due_us = due_us
        request.sent_us = now_us
        request.phase = Phase.WAITING
        self._send(self._from(request.plan.prompt, request, now_us))
        self._set_timer(request, now_us + self._rules.decision_timeout_us)

    def _stream(self, request: GatewayRequest, now_us: int) -> None:
        plan, times_us, began_us = request.plan, request.chunk_times_us, request.admitted_us
        streamed = request.streamed_tokens
        while len(times_us) < len(plan.offsets_us) and began_us + plan.offsets_us[len(times_us)] <= now_us:
            total = plan.cumulatives[len(times_us)]
            envelope = self._envelope(request, "tokens_generated", now_us)
            self._send(TokensGenerated(*envelope, total - streamed, total))
            streamed = total
            times_us.append(now_us)
        is_all = len(times_us) == len(plan.offsets_us)
        due_us = began_us + (plan.end_offset_us if is_all else plan.offsets_us[len(times_us)])
        if due_us > now_us:
            self._set_timer(request, due_us)
            return
        ending = self._from(plan.ending, request, now_us)
        if isinstance(ending, StreamInterrupted):
            ending = msgspec.structs.replace(ending, token_offset=streamed)
        self._await_settlement(request, ending, now_us)

    def _interrupt(self, request: GatewayRequest, reason: InterruptReason, now_us: int) -> None:
        envelope = self._envelope(request, "stream_interrupted", now_us)
        self._await_settlement(request, StreamInterrupted(*envelope, request.streamed_tokens, reason), now_us)

    def _await_settlement(self, request: GatewayRequest, ending: RequestEvent, now_us: int) -> None:
        self._send(ending)
        request.end_id = ending.event_id
        request.phase = Phase.SETTLING
        if request.settled[request.attempt] in _PROVISIONAL:
            self._set_timer(request, now_us + self._rules.decision_timeout_us)
        else:
            self._finish(request, request.ends_as)

    def _finish(self, request: GatewayRequest, outcome: Outcome) -> None:
        request.end(outcome)
        del self._open[request.id]
        self._tally.outcomes[outcome] += 1

    # --- events ------------------------------------------------------------------------------------------------------

    def _envelope(self, request: GatewayRequest, kind: str, now_us: int) -> _EnvelopeFields:
        """The fields that every event of the request begins with. A session is one request, all its attempts."""
        request.sequence = sequence = request.sequence + 1
        prompt = request.plan.prompt
        return (
            event_id(request.id, sequence, kind),
            prompt.tenant,
            request.id,
            request.attempt,
            now_us,
            now_us - WATERMARK_DELTA_US,
            sequence,
            request.id,
            prompt.model,
            "",
            "",
            self.name,
            None,
        )

    def _from(self, template: _EventT, request: GatewayRequest, now_us: int) -> _EventT:
        kind = type(template)
        envelope = self._envelope(request, NAME_OF_KIND[kind], now_us)
        body = [getattr(template, name) for name in kind.__struct_fields__[len(envelope) :]]
        return kind(*envelope, *body)

    def _send(self, event: Event) -> None:
        self._out.append(event)

    def _set_timer(self, request: GatewayRequest, at_us: int) -> None:
        self._timer_count += 1
        request.timer = self._timer_count
        heappush(self._timers, (at_us, self._timer_count, request))

    def _taken(self) -> list[Event]:
        out, self._out = self._out, []
        return out
