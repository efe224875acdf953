"""A small world around the limiter: events with defaults, two drivers, and generated traffic, well-formed and hostile.

Times are microseconds. Generated traffic is scaled to a window of `WINDOW_US`, so that all its edges are met often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.codec import decode_decisions, encode_decisions, encode_events
from schemas.dead_letters import DeadLetter, Position
from schemas.decisions import Decision, DecisionKind, DecisionMode, LimitLevel, LimitUnit
from schemas.events import (
    Event,
    Heartbeat,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.limiter import Limit, LimiterFold, LimiterPolicy, TenantState
from udfs.domain.policy_log import PolicyLog
from udfs.operators.shard_fold import FoldSettings, ShardFold
from udfs.operators.store import MemoryStore, ShardStore

SECOND = 1_000_000
START_US = 1_700_000_000 * SECOND
WINDOW_US = 6_000
SLOT_US = WINDOW_US // 120
TENANT = "acme"

# --- events and policies ------------------------------------------------------------------------------------------


def at(seconds: float) -> int:
    """Event time so many seconds after the start of the world."""
    return START_US + round(seconds * SECOND)


def _envelope(tenant: str, request_id: str, at_us: int, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    attempt = fields.pop("attempt", 0)
    sequence = fields.pop("sequence", 0)
    return {
        "event_id": f"{request_id}/{attempt}/{kind}/{at_us}".encode(),
        "tenant": tenant,
        "request_id": request_id,
        "attempt": attempt,
        "event_time_us": at_us,
        "watermark_us": fields.pop("watermark_us", 0),
        "sequence": sequence,
        "session": "",
        "model": fields.pop("model", ""),
        "backend": "",
        "region": "",
        "source": "",
        "provenance": None,
    }


def prompt(request_id: str, at_us: int, tokens: int = 0, *, tenant: str = TENANT, **fields: Any) -> PromptSubmitted:
    envelope = _envelope(tenant, request_id, at_us, "prompt", fields)
    return PromptSubmitted(**envelope, prompt_tokens=tokens, **fields)


def chunk(
    request_id: str, at_us: int, count: int = 0, *, cumulative: int = 0, tenant: str = TENANT, **fields: Any
) -> TokensGenerated:
    envelope = _envelope(tenant, request_id, at_us, "chunk", fields)
    return TokensGenerated(**envelope, count=count, cumulative=cumulative, **fields)


def completed(
    request_id: str, at_us: int, usage: tuple[int, int] | None = None, *, tenant: str = TENANT, **fields: Any
) -> RequestCompleted:
    """`usage`: prompt and completion tokens as the backend reports them; None: it reports none."""
    envelope = _envelope(tenant, request_id, at_us, "completed", fields)
    return RequestCompleted(**envelope, **_usage(usage), **fields)


def failed(
    request_id: str, at_us: int, usage: tuple[int, int] | None = None, *, tenant: str = TENANT, **fields: Any
) -> RequestFailed:
    envelope = _envelope(tenant, request_id, at_us, "failed", fields)
    return RequestFailed(**envelope, **_usage(usage), **fields)


def _usage(usage: tuple[int, int] | None) -> dict[str, Any]:
    if usage is None:
        return {"usage_source": UsageSource.ABSENT}
    return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "usage_source": UsageSource.REPORTED}


def interrupted(
    request_id: str, at_us: int, token_offset: int = 0, *, tenant: str = TENANT, **fields: Any
) -> StreamInterrupted:
    envelope = _envelope(tenant, request_id, at_us, "interrupted", fields)
    return StreamInterrupted(
        **envelope, token_offset=token_offset, reason=InterruptReason.CLIENT_DISCONNECTED, **fields
    )


def heartbeat(at_us: int, watermark_us: int | None = None) -> Heartbeat:
    fields = {"watermark_us": at_us if watermark_us is None else watermark_us}
    return Heartbeat(**_envelope("", "", at_us, "heartbeat", fields))


def limit(
    size: int,
    *,
    name: str = "tokens",
    level: LimitLevel = LimitLevel.TENANT,
    unit: LimitUnit = LimitUnit.TOKENS,
    window_us: int | None = None,
    **fields: Any,
) -> Limit:
    """A limit per minute, or per `window_us`."""
    if window_us is None:
        window_us = 0 if unit is LimitUnit.STREAMS else 60 * SECOND
    return Limit(name=name, level=level, unit=unit, limit=size, window_us=window_us, **fields)


def policy(*limits: Limit, **fields: Any) -> LimiterPolicy:
    return LimiterPolicy(**{"id": "p1", "match": "*", "limits": limits, **fields})


# --- driving the fold itself ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What one event, or time alone (`event` None), led to at the tenant's clock `now_us`."""

    now_us: int
    event: RequestEvent | None
    found: list[Decision | Anomaly]

    @property
    def decisions(self) -> list[Decision]:
        return [found for found in self.found if isinstance(found, Decision)]

    def decides(self, kind: DecisionKind) -> bool:
        """Whether a binding decision of this kind was made."""
        return any(found.kind is kind for found in enforced(self.decisions))

    @property
    def anomalies(self) -> list[Anomaly]:
        return [found for found in self.found if isinstance(found, Anomaly)]


class Direct:
    """One tenant folded event by event without any operator: a key's clock and wake-ups, and no more."""

    def __init__(self, policies: LimiterPolicy | PolicyLog[LimiterPolicy], tenant: str = TENANT) -> None:
        self.fold = LimiterFold()
        self.policies = policies if isinstance(policies, PolicyLog) else PolicyLog([policies])
        self.tenant = tenant
        self.state: TenantState = self.fold.new(tenant)
        self.clock_us = 0

    def copy(self) -> Direct:
        twin = Direct(self.policies, self.tenant)
        twin.clock_us = self.clock_us
        twin.state = twin.fold.load(self.fold.dump(self.state))
        return twin

    def restart(self) -> None:
        self.state = self.fold.load(self.fold.dump(self.state))

    def wake_until(self, at_us: int) -> Iterator[Step]:
        while (due_us := self.fold.due(self.state)) is not None and due_us <= at_us:
            self.clock_us = max(self.clock_us, due_us)
            in_force = self.policies.at(self.tenant, self.clock_us).policy
            found = list(self.fold.wake(self.state, in_force, self.clock_us))
            later_us = self.fold.due(self.state)
            assert later_us is None or later_us > self.clock_us, "a wake-up must move `due` beyond itself"
            yield Step(self.clock_us, None, found)

    def feed(self, event: RequestEvent) -> Iterator[Step]:
        """The wake-ups that come before the event, and the event; those that it made overdue come after it."""
        if event.event_time_us > self.clock_us:
            yield from self.wake_until(event.event_time_us)
            self.clock_us = max(self.clock_us, event.event_time_us)
        in_force = self.policies.at(self.tenant, self.clock_us).policy
        yield Step(self.clock_us, event, list(self.fold.apply(self.state, event, in_force, self.clock_us)))
        yield from self.wake_until(self.clock_us)

    def tell(self, *events: RequestEvent) -> list[Decision]:
        """The decisions that these events lead to."""
        return [decision for event in events for step in self.feed(event) for decision in step.decisions]

    def notice(self, event: RequestEvent) -> list[Anomaly]:
        return [anomaly for step in self.feed(event) for anomaly in step.anomalies]

    def one(self, event: RequestEvent) -> Decision:
        """The one decision that this event leads to."""
        decisions = self.tell(event)
        assert len(decisions) == 1, decisions
        return decisions[0]


def kinds(decisions: Iterable[Decision]) -> list[DecisionKind]:
    return [decision.kind for decision in decisions]


def enforced(decisions: Iterable[Decision]) -> list[Decision]:
    return [decision for decision in decisions if decision.mode is DecisionMode.ENFORCE]


# --- driving a shard -----------------------------------------------------------------------------------------------


class Shard:
    """A shard over a store, fed with records. Every decision goes over the wire and back."""

    def __init__(
        self,
        policies: PolicyLog[LimiterPolicy],
        store: ShardStore | None = None,
        settings: FoldSettings | None = None,
        fold: Any = None,
    ) -> None:
        self.policies = policies
        self.store = store if store is not None else MemoryStore()
        self.settings = settings
        self.fold: Any = LimiterFold() if fold is None else fold
        self.dead: list[DeadLetter] = []
        self.offset = 0
        self.restart()

    def restart(self) -> None:
        """Nothing is left but what the store holds."""
        self.shard = ShardFold(self.fold, self.policies, self.store, self.settings)

    def tell(self, batch: Sequence[Event]) -> list[Decision]:
        result = self.shard.process(encode_events(0, batch), Position("test", 0, self.offset))
        self.offset += 1
        self.dead += result.dead
        wired = decode_decisions(encode_decisions(0, result.outputs))
        assert wired == result.outputs
        return wired


def by_tenant(decisions: Iterable[Decision]) -> dict[str, list[Decision]]:
    found: dict[str, list[Decision]] = {}
    for decision in decisions:
        found.setdefault(decision.tenant, []).append(decision)
    return found


def stamped(events: Sequence[Event], lags_us: Sequence[int]) -> list[Event]:
    """The events with watermarks that keep their promise: never above the time of an event that is still to come."""
    out: list[Event] = []
    lowest_us = 2**63 - 1
    for event, lag_us in zip(reversed(events), reversed(lags_us), strict=True):
        lowest_us = min(lowest_us, event.event_time_us)
        out.append(replace(event, watermark_us=max(lowest_us - lag_us, 0)))
    return out[::-1]


# --- generated policies --------------------------------------------------------------------------------------------

sizes = st.integers(5, 60) | st.sampled_from([1, 10, 100])


@st.composite
def limits(draw: st.DrawFn, name: str, *, shadow: bool | None = None) -> Limit:
    unit = draw(st.sampled_from([LimitUnit.TOKENS, LimitUnit.TOKENS, LimitUnit.REQUESTS, LimitUnit.STREAMS]))
    size = draw({LimitUnit.TOKENS: sizes, LimitUnit.REQUESTS: st.integers(1, 5)}.get(unit, st.integers(1, 3)))
    is_stream = unit is LimitUnit.STREAMS
    is_shadow = draw(st.booleans()) if shadow is None else shadow
    counts_prompt, counts_completion = draw(st.sampled_from([(True, True), (True, True), (True, False), (False, True)]))
    level = draw(st.sampled_from(list(LimitLevel)))
    only = {LimitLevel.API_KEY: "k0", LimitLevel.USER: "u0", LimitLevel.MODEL: "m0"}.get(level)
    return Limit(
        name=name,
        level=level,
        unit=unit,
        limit=size,
        window_us=0 if is_stream else draw(st.sampled_from([WINDOW_US, WINDOW_US, WINDOW_US // 10, WINDOW_US * 4])),
        burst=None if is_stream or draw(st.integers(0, 2)) else draw(st.integers(1, size)),
        mode=DecisionMode.SHADOW if is_shadow else DecisionMode.ENFORCE,
        counts_prompt=counts_prompt,
        counts_completion=counts_completion,
        only=frozenset([only]) if only and draw(st.integers(0, 3)) == 0 else frozenset(),
    )


@st.composite
def policies(draw: st.DrawFn, /, **fields: Any) -> LimiterPolicy:
    """At least one limit binds."""
    more = range(1, draw(st.sampled_from([1, 1, 2, 3, 4])))
    chosen = [draw(limits("l0", shadow=False)), *(draw(limits(f"l{index}")) for index in more)]
    return policy(
        *draw(st.permutations(chosen)),
        **{
            "cached_weight_permille": draw(st.sampled_from([0, 100, 1000])),
            "default_completion_tokens": draw(st.integers(1, 30)),
            "estimate_after": draw(st.sampled_from([1, 3, 20])),
            "extension_tokens": draw(st.integers(1, 10)),
            "silence_timeout_us": draw(st.sampled_from([WINDOW_US // 3, WINDOW_US * 2, WINDOW_US * 10])),
            **fields,
        },
    )


# --- generated traffic ---------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """One thing that happens, in terms of what is going on then: see `Traffic`."""

    wait_us: int
    what: str
    who: int
    tokens: int
    more: int


waits_us = st.one_of(
    st.sampled_from([0, 0, 1, SLOT_US - 1, SLOT_US, SLOT_US + 1, WINDOW_US // 2, WINDOW_US - 1, WINDOW_US]),
    st.integers(0, WINDOW_US // 4),
    st.integers(0, SLOT_US * 2),
)
tokens_in_bounds = st.integers(0, 30) | st.integers(1, 6)


def moves(what: Sequence[str], max_size: int = 40) -> st.SearchStrategy[list[Move]]:
    move = st.builds(
        Move,
        waits_us,
        st.sampled_from(what),
        st.integers(0, 3),
        st.integers(0, 6) | tokens_in_bounds,
        st.integers(0, 12),
    )
    return st.integers(0, max_size).flatmap(lambda size: st.lists(move, min_size=size, max_size=size))


ORDERLY = ("chunk",) * 8 + ("completed", "reported", "reported", "failed", "interrupted", "abandoned")
WITHIN_GRANT = ("chunk",) * 6 + ("spent", "spent", "completed", "abandoned")


class Life:
    """One request as its gateway sees it."""

    def __init__(self, asked: PromptSubmitted) -> None:
        self.asked = asked
        self.streamed = 0


class Traffic:
    """Turns moves into events of orderly lives, told the decisions: a refused request does nothing more."""

    def __init__(self, *, stops_when_revoked: bool) -> None:
        self.at_us = START_US
        self.lives: dict[int, Life] = {}
        self.begun = 0
        self.stops_when_revoked = stops_when_revoked

    def event(self, move: Move) -> RequestEvent | None:
        self.at_us += move.wait_us
        life = self.lives.get(move.who)
        if life is None:
            return self._prompt(move)
        if move.what == "abandoned":
            del self.lives[move.who]
            return None
        return self._next(life, move)

    def _prompt(self, move: Move) -> PromptSubmitted:
        self.begun += 1
        asked = prompt(
            f"r{self.begun // 2}",
            self.at_us,
            move.tokens,
            attempt=self.begun % 2,
            max_tokens=move.more * 3 if move.more % 3 else 0,
            cached_tokens=move.tokens // 2 if move.more % 4 == 0 else 0,
            choices=move.more % 3,
            api_key=f"k{move.who % 2}",
            user=f"u{move.who % 3}",
            model=f"m{move.who % 2}",
            without_completion=move.more == 11,
        )
        self.lives[move.who] = Life(asked)
        return asked

    def _next(self, life: Life, move: Move) -> RequestEvent:
        asked = life.asked
        name = asked.request_id
        where: dict[str, Any] = {"attempt": asked.attempt, "model": asked.model}
        if move.what == "chunk":
            life.streamed += max(move.tokens, 1)
            return chunk(name, self.at_us, max(move.tokens, 1), cumulative=life.streamed, **where)
        del self.lives[move.who]
        if move.what == "interrupted":
            return interrupted(name, self.at_us, life.streamed + move.more % 3, **where)
        if move.what == "failed":
            return failed(name, self.at_us, (asked.prompt_tokens, life.streamed) if move.more % 2 else None, **where)
        if move.what == "reported":
            usage = (move.tokens, max(life.streamed + move.more - 6, 0))
            return completed(name, self.at_us, usage, cached_tokens=move.more, **where)
        if move.what == "spent":
            usage = (asked.prompt_tokens, life.streamed)
            return completed(name, self.at_us, usage, cached_tokens=asked.cached_tokens, **where)
        return completed(name, self.at_us, **where)

    def hear(self, decisions: Iterable[Decision]) -> None:
        stops = {DecisionKind.THROTTLE, DecisionKind.REJECT}
        if self.stops_when_revoked:
            stops.add(DecisionKind.REVOKE)
        for decision in decisions:
            if decision.kind in stops and decision.mode is DecisionMode.ENFORCE:
                for who, life in list(self.lives.items()):
                    if (life.asked.request_id, life.asked.attempt) == (decision.request_id, decision.attempt):
                        del self.lives[who]


def play(
    driver: Direct,
    script: Iterable[Move],
    *,
    stops_when_revoked: bool = False,
    allowed: Callable[[RequestEvent], bool] = lambda _: True,
) -> Iterator[Step]:
    """Orderly traffic; `allowed` leaves out single events. In the end all fall silent."""
    traffic = Traffic(stops_when_revoked=stops_when_revoked)
    for move in script:
        event = traffic.event(move)
        steps: Iterable[Step] = ()
        if event is None:
            steps = driver.wake_until(traffic.at_us)
        elif allowed(event):
            steps = driver.feed(event)
        for step in steps:
            traffic.hear(step.decisions)
            yield step
    yield from driver.wake_until(traffic.at_us + 1_000 * WINDOW_US)


# --- hostile traffic -----------------------------------------------------------------------------------------------

INT64_MAX = 2**63 - 1
odd_counts = st.sampled_from([0, -1, 1, 2**24 - 1, 2**24, 2**31, INT64_MAX, -(2**63)])
counts = st.one_of(tokens_in_bounds, tokens_in_bounds, tokens_in_bounds, odd_counts)
usages = st.none() | st.tuples(counts, counts)
KINDS: tuple[Callable[..., RequestEvent], ...] = (prompt, chunk, completed, failed, interrupted)


@st.composite
def hostile_events(draw: st.DrawFn, at_us: int, tenant: str = TENANT, requests: int = 4) -> RequestEvent:
    """Any event of any of a few requests, in any order."""
    name = f"h{draw(st.integers(0, requests - 1))}"
    fields: dict[str, Any] = {
        "tenant": tenant,
        "attempt": draw(st.sampled_from([0, 0, 0, 1])),
        "model": draw(st.sampled_from(["m0", "m0", "m1"])),
        "sequence": draw(st.sampled_from([0, 0, 1, 2, 3, 2**63])),
    }
    kind = draw(st.sampled_from(["prompt", "prompt", "chunk", "chunk", "chunk", "completed", "failed", "interrupted"]))
    if kind == "prompt":
        return prompt(
            name,
            at_us,
            draw(counts),
            max_tokens=draw(st.just(0) | counts),
            cached_tokens=draw(st.just(0) | counts),
            choices=draw(st.sampled_from([0, 1, 2, 2**32 - 1])),
            api_key=draw(st.sampled_from(["k0", "k1", ""])),
            user=draw(st.sampled_from(["u0", "u1", ""])),
            without_completion=draw(st.booleans()),
            **fields,
        )
    if kind == "chunk":
        return chunk(name, at_us, draw(counts), cumulative=draw(st.just(0) | counts), **fields)
    if kind == "completed":
        return completed(name, at_us, draw(usages), cached_tokens=draw(st.just(0) | counts), **fields)
    if kind == "failed":
        return failed(name, at_us, draw(usages), **fields)
    return interrupted(name, at_us, draw(counts), **fields)


@st.composite
def hostile_streams(
    draw: st.DrawFn, tenant: str = TENANT, max_size: int = 40, *, jumps: bool = True
) -> list[RequestEvent]:
    """Duplicates, wrong orders, lost prompts and ends, late events and, with `jumps`, clocks that go wrong."""
    at_us = START_US
    events: list[RequestEvent] = []
    for _ in range(draw(st.integers(0, max_size))):
        at_us += draw(waits_us)
        far_us = (
            draw(st.sampled_from([0] * 12 + [-WINDOW_US // 2, -SLOT_US, WINDOW_US * 3, -WINDOW_US * 50]))
            if jumps
            else 0
        )
        events.append(draw(hostile_events(max(at_us + far_us, 1), tenant)))
        if draw(st.integers(0, 7)) == 0:
            events.append(events[draw(st.integers(0, len(events) - 1))])
    return events
