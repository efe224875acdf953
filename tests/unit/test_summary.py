"""The summary of a run, against counts made by hand and by brute force."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ops.azure_trace import lives, read_trace
from jobs.ops.summary import MOST_BUCKETS, JobFacts, LimitStep, RunSummary, bucket_width_us, summarise
from jobs.ops.token_use import LimitPiece, PeakUse, RequestLife, Use, peak_use, uses_of
from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason, LimitLevel, LimitUnit
from schemas.events import (
    Event,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from udfs.domain.limiter import Limit, LimiterFold, LimiterPolicy, TenantState
from udfs.domain.policy_log import FOREVER_US, PolicyLog

SECOND = 1_000_000
JOB = JobFacts(events=0, wall_seconds=1.0, events_per_second=0.0)
TRACE = Path(__file__).parents[2] / "data" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz"


def envelope(at_us: int, request: str = "r", tenant: str = "acme", sequence: int = 0) -> dict[str, Any]:
    return {
        "event_id": f"{tenant}/{request}/{at_us}/{sequence}".encode(),
        "tenant": tenant,
        "request_id": request,
        "attempt": 0,
        "event_time_us": at_us,
        "watermark_us": 0,
        "sequence": sequence,
        "session": "s",
        "model": "m",
        "backend": "",
        "region": "",
        "source": "",
        "provenance": None,
    }


def prompt(at_us: int, tokens: int, request: str = "r", tenant: str = "acme", cached: int = 0) -> PromptSubmitted:
    head = envelope(at_us, request, tenant, 1)
    return PromptSubmitted(**head, prompt_tokens=tokens, cached_tokens=cached)


def chunk(
    at_us: int, count: int, cumulative: int, request: str = "r", tenant: str = "acme", sequence: int = 2
) -> TokensGenerated:
    head = envelope(at_us, request, tenant, sequence)
    return TokensGenerated(**head, count=count, cumulative=cumulative)


def completed(at_us: int, tokens: tuple[int, int] | None, request: str = "r", tenant: str = "acme") -> RequestCompleted:
    head = envelope(at_us, request, tenant, 9)
    if tokens is None:
        return RequestCompleted(**head)
    return RequestCompleted(
        **head,
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        usage_source=UsageSource.REPORTED,
    )


def decision(
    kind: DecisionKind,
    at_us: int,
    request: str = "r",
    tenant: str = "acme",
    *,
    mode: DecisionMode = DecisionMode.ENFORCE,
    reserved: int = 0,
    used: int = 0,
    refunded: int = 0,
    overdrawn: int = 0,
) -> Decision:
    return Decision(
        decision_id=f"{request}/0/{kind.name}/{at_us}/{mode.name}",
        kind=kind,
        mode=mode,
        reason=DecisionReason.WITHIN_LIMITS,
        tenant=tenant,
        request_id=request,
        attempt=0,
        decided_at_us=at_us,
        reserved_tokens=reserved,
        used_tokens=used,
        refunded_tokens=refunded,
        overdrawn_tokens=overdrawn,
    )


def tokens_limit(limit: int, window_us: int = 60 * SECOND, name: str = "tokens") -> Limit:
    return Limit(name=name, level=LimitLevel.TENANT, unit=LimitUnit.TOKENS, limit=limit, window_us=window_us)


def policy(*limits: Limit, since_us: int = 0, match: str = "*", recorded: bool = False) -> LimiterPolicy:
    return LimiterPolicy(
        id=f"p{since_us}",
        match=match,
        effective_from_us=since_us,
        limits=limits,
        traffic_is_recorded=recorded,
        cached_weight_permille=500,
    )


def life(*events: RequestEvent, ran: bool = True, cut: int | None = None) -> RequestLife:
    told = RequestLife(ran=ran, cut_tokens=cut)
    for event in events:
        told.add(event)
    return told


def shape(uses: Iterable[Use]) -> list[tuple[int, int]]:
    return [(use.at_us, use.tokens) for use in uses]


class TestTokensOfARequest:
    def test_the_prompt_counts_at_the_first_token(self) -> None:
        told = life(prompt(10, 100), chunk(50, 5, 5), chunk(70, 5, 10), completed(70, (100, 10)))
        assert uses_of(told) == [Use(50, 100, is_prompt=True), Use(50, 5, is_prompt=False), Use(70, 5, is_prompt=False)]

    def test_without_a_token_the_prompt_counts_at_the_end(self) -> None:
        assert shape(uses_of(life(prompt(10, 100), completed(80, (100, 0))))) == [(80, 100)]

    def test_tokens_reported_beyond_the_chunks_count_at_the_end(self) -> None:
        told = life(prompt(10, 100), chunk(50, 5, 5), completed(70, (100, 30)))
        assert shape(uses_of(told)) == [(50, 100), (50, 5), (70, 25)]

    def test_chunks_beyond_what_is_reported_do_not_count(self) -> None:
        told = life(prompt(10, 100), chunk(50, 5, 5), chunk(60, 5, 10), completed(70, (90, 6)))
        assert shape(uses_of(told)) == [(50, 90), (50, 5), (60, 1)]

    def test_the_order_of_delivery_does_not_matter(self) -> None:
        events: list[RequestEvent] = [prompt(10, 100), chunk(50, 5, 5), chunk(60, 5, 10), completed(70, (100, 10))]
        assert uses_of(life(*events)) == uses_of(life(*reversed(events)))

    def test_a_chunk_sent_twice_counts_once(self) -> None:
        again = chunk(50, 5, 0, sequence=2)
        assert shape(uses_of(life(prompt(10, 7), again, again, chunk(60, 5, 0, sequence=3)))) == [
            (50, 7),
            (50, 5),
            (60, 5),
        ]

    def test_of_two_ends_the_first_counts(self) -> None:
        assert shape(uses_of(life(completed(70, (1, 2)), completed(80, (100, 200))))) == [(70, 1), (70, 2)]

    def test_a_request_that_did_not_run_has_none(self) -> None:
        assert uses_of(life(prompt(10, 100), chunk(50, 5, 5), ran=False)) == []

    def test_a_revoked_request_of_a_recording_ends_where_it_was_cut(self) -> None:
        told = life(prompt(10, 100), chunk(50, 5, 5), chunk(60, 5, 10), completed(70, (100, 20)), cut=107)
        assert shape(uses_of(told)) == [(50, 100), (50, 5), (60, 2)]

    def test_cached_prompt_tokens_count_by_their_weight(self) -> None:
        assert shape(uses_of(life(prompt(10, 100, cached=60), chunk(50, 5, 5)), 500)) == [(50, 70), (50, 5)]

    @pytest.mark.parametrize(("offset", "expected"), [(3, [(50, 9), (50, 5)]), (8, [(50, 9), (50, 5), (60, 3)])])
    def test_an_interrupted_stream_counts_up_to_its_offset(self, offset: int, expected: list[tuple[int, int]]) -> None:
        end = StreamInterrupted(
            **envelope(60),
            token_offset=offset,
            reason=InterruptReason.CONNECTION_LOST,
        )
        assert shape(uses_of(life(prompt(10, 9), chunk(50, 5, 5), end))) == expected

    def test_a_failure_before_the_first_token_costs_nothing(self) -> None:
        failed = RequestFailed(**envelope(60), error_class="overload", status=503)
        assert uses_of(life(prompt(10, 9), failed)) == []

    @pytest.mark.parametrize("absurd", [-1, 2**63 - 1])
    def test_counts_that_cannot_be_believed_are_left_out(self, absurd: int) -> None:
        told = life(prompt(10, absurd), chunk(50, 1, absurd), chunk(55, absurd, 0), chunk(60, 4, 4))
        assert shape(uses_of(told)) == [(60, 4)]


def brute_force_peak(uses: Sequence[Use], pieces: Sequence[LimitPiece], horizon_us: int) -> tuple[int, int, int] | None:
    """(time, tokens, allowed) at the first microsecond of the highest share, from the definition."""

    def piece_at(at_us: int) -> LimitPiece | None:
        return next((piece for piece in pieces if piece.from_us <= at_us < piece.until_us), None)

    best: tuple[Fraction, int, int, int] | None = None
    for at_us in range(horizon_us):
        now = piece_at(at_us)
        if now is None:
            continue
        window = range(at_us - now.limit.window_us + 1, at_us + 1)
        tokens = sum(use.tokens for use in uses if use.at_us in window)
        allowed = max(
            piece.limit.limit
            for piece in pieces
            if piece.limit.window_us == now.limit.window_us
            # It held at some microsecond of the window.
            and range(max(piece.from_us, window.start), min(piece.until_us, window.stop))
        )
        share = Fraction(tokens, allowed)
        if best is None or share > best[0]:
            best = (share, at_us, tokens, allowed)
    return None if best is None else best[1:]


class TestFullestWindow:
    @given(
        uses=st.lists(st.tuples(st.integers(0, 1199), st.integers(1, 50)), max_size=25),
        cuts=st.lists(st.integers(1, 1500), max_size=3, unique=True),
        limits=st.lists(st.one_of(st.none(), st.integers(1, 100)), min_size=4, max_size=4),
        windows=st.lists(st.sampled_from([600, 700]), min_size=4, max_size=4),
    )
    def test_is_that_of_the_definition(
        self, uses: list[tuple[int, int]], cuts: list[int], limits: list[int | None], windows: list[int]
    ) -> None:
        edges = [0, *sorted(cuts), FOREVER_US]
        pieces = [
            LimitPiece(from_us, until_us, tokens_limit(limit, window_us))
            for from_us, until_us, limit, window_us in zip(edges, edges[1:], limits, windows, strict=False)
            if limit is not None
        ]
        made = sorted(Use(at_us, tokens, is_prompt=False) for at_us, tokens in uses)
        peak = peak_use(made, pieces)
        found = None if peak is None else (peak.at_us, peak.tokens, peak.limit)
        assert found == brute_force_peak(made, pieces, 2600)

    def test_a_use_leaves_the_window_exactly_one_window_later(self) -> None:
        piece = [LimitPiece(0, FOREVER_US, tokens_limit(10, 1000))]
        assert peak_use([Use(0, 6, is_prompt=False), Use(999, 6, is_prompt=False)], piece) == PeakUse(
            limit_name="tokens", window_us=1000, at_us=999, tokens=12, limit=10, share=1.2, within=False
        )
        later = peak_use([Use(0, 6, is_prompt=False), Use(1000, 6, is_prompt=False)], piece)
        assert later is not None
        assert (later.tokens, later.within) == (6, True)

    def test_only_the_tokens_that_the_limit_counts(self) -> None:
        limit = msgspec.structs.replace(tokens_limit(10, 1000), counts_prompt=False)
        peak = peak_use([Use(0, 6, is_prompt=True), Use(0, 3, is_prompt=False)], [LimitPiece(0, FOREVER_US, limit)])
        assert peak is not None
        assert peak.tokens == 3


class TestRun:
    def summary(self) -> RunSummary:
        """Two tenants: acme has one request settled, one refused and one in flight; bolt has one revoked."""
        events: list[Event] = [
            prompt(0, 100, "a"),
            prompt(2 * SECOND, 50, "bolt-1", "bolt"),
            chunk(3 * SECOND, 10, 10, "bolt-1", "bolt"),
            chunk(4 * SECOND, 20, 20, "a"),
            prompt(5 * SECOND, 900, "b"),
            completed(6 * SECOND, (100, 25), "a"),
            chunk(7 * SECOND, 10, 20, "bolt-1", "bolt"),
            chunk(8 * SECOND, 400, 400, "b"),
            prompt(9 * SECOND, 30, "c"),
        ]
        settle = decision(DecisionKind.SETTLE, 6 * SECOND, "a", reserved=200, used=125, refunded=75)
        decisions = [
            decision(DecisionKind.ADMIT, 0, "a", reserved=200),
            decision(DecisionKind.ADMIT, 2 * SECOND, "bolt-1", "bolt", reserved=65),
            decision(DecisionKind.THROTTLE, 5 * SECOND, "b"),
            settle,
            settle,
            decision(DecisionKind.REVOKE, 7 * SECOND, "bolt-1", "bolt", reserved=65, used=65),
            decision(DecisionKind.SETTLE, 7 * SECOND, "bolt-1", "bolt", reserved=65, used=65),
            decision(DecisionKind.THROTTLE, 9 * SECOND, "c", mode=DecisionMode.SHADOW),
            decision(DecisionKind.ADMIT, 9 * SECOND, "c", reserved=130),
        ]
        policies = PolicyLog(
            [
                policy(tokens_limit(250), recorded=True),
                policy(tokens_limit(60), match="bolt", recorded=True),
                policy(tokens_limit(80), match="bolt", since_us=5 * SECOND, recorded=True),
            ]
        )
        return summarise(events, decisions, policies, JOB)

    def test_counts_of_a_tenant(self) -> None:
        acme = self.summary().tenants[0]
        assert acme.tenant == "acme"
        counts = {name: number for name, number in msgspec.to_builtins(acme.counts).items() if number}
        assert counts == {
            "requests": 3,
            "admitted": 2,
            "throttled": 1,
            "settled": 1,
            "shadow": 1,
            "in_flight": 1,
            "reserved_tokens": 330,
            "used_tokens": 125,
            "refunded_tokens": 75,
            "held_tokens": 130,
        }

    def test_tokens_are_conserved(self) -> None:
        total = self.summary().total
        assert total.reserved_tokens + total.overdrawn_tokens == (
            total.used_tokens + total.refunded_tokens + total.held_tokens
        )

    def test_totals_are_the_sums_over_tenants(self) -> None:
        summary = self.summary()
        for field in summary.total.__struct_fields__:
            assert getattr(summary.total, field) == sum(getattr(each.counts, field) for each in summary.tenants)

    def test_a_refused_request_uses_nothing(self) -> None:
        acme = self.summary().tenants[0]
        assert acme.peak is not None
        assert (acme.peak.tokens, acme.peak.limit, acme.peak.at_us, acme.peak.within) == (125, 250, 6 * SECOND, True)

    def test_a_tenant_beyond_its_limit_is_told(self) -> None:
        summary = self.summary()
        bolt = summary.tenants[1]
        assert bolt.peak is not None
        assert (bolt.peak.tokens, bolt.peak.limit, bolt.peak.within) == (60, 60, True)
        assert summary.tenants_over == ()
        tighter = summarise(
            [prompt(0, 61), completed(1, (61, 0))],
            [decision(DecisionKind.ADMIT, 0, reserved=61), decision(DecisionKind.SETTLE, 1, reserved=61, used=61)],
            PolicyLog([policy(tokens_limit(60))]),
            JOB,
        )
        assert [each.tenant for each in tighter.tenants_over] == ["acme"]

    def test_a_change_of_policy_is_a_step(self) -> None:
        assert self.summary().tenants[1].steps == (
            LimitStep(0, 60, 60 * SECOND),
            LimitStep(5 * SECOND, 80, 60 * SECOND),
        )

    def test_series_by_bucket(self) -> None:
        summary = self.summary()
        assert (summary.start_us, summary.bucket_us, summary.buckets) == (0, SECOND, 10)
        assert summary.tenants[0].rolling_tokens == (0, 0, 0, 0, 120, 120, 125, 125, 125, 125)
        assert summary.tenants[1].rolling_tokens == (0, 0, 0, 60, 60, 60, 60, 65, 65, 65)
        assert summary.tenants[0].refused == (0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
        assert summary.tenants[1].revoked == (0, 0, 0, 0, 0, 0, 0, 1, 0, 0)
        assert summary.decisions["admit"] == (1, 0, 1, 0, 0, 0, 0, 0, 0, 1)

    def test_what_the_limiter_settles_otherwise_than_the_events_tell_is_counted(self) -> None:
        assert self.summary().total.unreconciled == 0
        told = summarise(
            [prompt(0, 61), completed(1, (61, 5))],
            [decision(DecisionKind.ADMIT, 0, reserved=61), decision(DecisionKind.SETTLE, 1, reserved=61, used=61)],
            PolicyLog([policy(tokens_limit(100))]),
            JOB,
        )
        assert told.total.unreconciled == 1

    def test_without_a_limit_there_is_no_peak(self) -> None:
        shadow = msgspec.structs.replace(tokens_limit(10), mode=DecisionMode.SHADOW)
        by_key = Limit(name="k", level=LimitLevel.API_KEY, unit=LimitUnit.TOKENS, limit=5, window_us=60 * SECOND)
        others = msgspec.structs.replace(tokens_limit(10, name="o"), only=frozenset({"bolt"}))
        policies = PolicyLog([policy(shadow, by_key, others)])
        summary = summarise([prompt(0, 61)], [decision(DecisionKind.ADMIT, 0, reserved=61)], policies, JOB)
        assert summary.tenants[0].peak is None
        assert summary.tenants[0].steps == ()

    def test_the_limit_nearest_to_full_is_the_one_shown(self) -> None:
        limits = (tokens_limit(1000), tokens_limit(10_000, name="day", window_us=86_400 * SECOND))
        events: list[Event] = []
        decisions: list[Decision] = []
        for number in range(30):
            at_us, request = number * 60 * SECOND, f"r{number}"
            events += [prompt(at_us, 300, request), completed(at_us, (300, 0), request)]
            decisions += [decision(DecisionKind.ADMIT, at_us, request, reserved=300)]
        peak = summarise(events, decisions, PolicyLog([policy(*limits)]), JOB).tenants[0].peak
        assert peak is not None
        assert (peak.limit_name, peak.tokens) == ("day", 9000)

    def test_nothing_at_all(self) -> None:
        summary = summarise([], [], PolicyLog([]), JOB)
        assert (summary.tenants, summary.total.requests, summary.buckets) == ((), 0, 1)

    def test_a_clock_centuries_ahead_costs_no_more_buckets(self) -> None:
        far = 2**63 - 1
        summary = summarise([prompt(0, 1), prompt(far, 1, "z")], [], PolicyLog([policy(tokens_limit(5))]), JOB)
        assert summary.buckets <= MOST_BUCKETS + 1

    def test_goes_through_json(self) -> None:
        summary = self.summary()
        assert msgspec.json.decode(msgspec.json.encode(summary), type=RunSummary) == summary


@given(st.integers(0, 2**63))
def test_a_span_has_at_most_so_many_buckets(span_us: int) -> None:
    assert span_us // bucket_width_us(span_us) + 1 <= MOST_BUCKETS + 1


def test_the_limiter_keeps_its_limit_and_its_books_on_the_trace() -> None:
    rows = [row for row, _ in zip(read_trace(TRACE), range(1500), strict=False)]
    events = lives(rows, tenants=3, seed=7)
    held = policy(tokens_limit(40_000), recorded=True)
    fold = LimiterFold()
    states: dict[str, TenantState] = {}
    clocks: dict[str, int] = {}
    decisions: list[Decision] = []
    for event in events:
        key = fold.key(event)
        assert key is not None
        assert isinstance(event, RequestEvent)
        state = states.setdefault(key, fold.new(key))
        clocks[key] = max(clocks.get(key, 0), event.event_time_us)
        while (due_us := fold.due(state)) is not None and due_us <= clocks[key]:
            decisions += [out for out in fold.wake(state, held, due_us) if isinstance(out, Decision)]
        decisions += [out for out in fold.apply(state, event, held, clocks[key]) if isinstance(out, Decision)]
    summary = summarise(events, decisions, PolicyLog([held]), JOB)
    assert summary.total.requests == 1500
    assert summary.total.throttled > 0
    assert summary.total.unreconciled == 0
    assert summary.tenants_over == ()
    assert all(tenant.peak is not None and tenant.peak.share > 0.5 for tenant in summary.tenants)
