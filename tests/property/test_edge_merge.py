"""Tokens counted are tokens generated, whoever wrote them down; the oracle is the generator of the streams."""

import random
from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from schemas.events import Event, TokensGenerated
from tests.session_world import SESSION, TENANT, chunk, completed, interrupted, names, prompt, resumed
from udfs.domain.edge.appending import additions
from udfs.domain.edge.merge import merge
from udfs.domain.events.order import in_total_order
from udfs.domain.events.session import SessionState, dump, fold
from udfs.domain.events.stamping import new_clock, receive, stamp


class World(NamedTuple):
    """What was generated (request, attempt -> tokens), and what each of two sites wrote of it, in its order."""

    generated: dict[tuple[str, int], int]
    edge: list[Event]
    cloud: list[Event]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Streams that the edge began: written by it, by the cloud, or by both, each with its own cuts; some fail over."""
    generated: dict[tuple[str, int], int] = {}
    written: dict[str, list[Event]] = {"edge": [], "us": []}
    for number in range(draw(st.integers(1, 3))):
        request_id, resumed_at = f"r{number}", 0
        for attempt in range(draw(st.integers(1, 3))):
            tokens = draw(st.integers(1, 40))
            generated[request_id, attempt] = tokens
            begin = (
                resumed(f"p{request_id}/{attempt}", resumed_at, attempt, request_id)
                if resumed_at
                else prompt(f"p{request_id}/{attempt}", request_id, attempt)
            )
            is_last = draw(st.booleans())
            offset = draw(st.integers(1, tokens))
            end: Event = (
                completed(f"e{request_id}/{attempt}", tokens, request_id, attempt)
                if is_last
                else interrupted(f"e{request_id}/{attempt}", offset, request_id, attempt)
            )
            sites = draw(st.sampled_from([("edge",), ("us",), ("edge", "us")]))
            to_the_end = draw(st.sampled_from(sites))
            for site in sites:
                # A site may miss any part of the stream, but one of them saw its end.
                cuts = draw(st.sets(st.integers(1, tokens), max_size=6)) | ({tokens} if site == to_the_end else set())
                before = draw(st.sampled_from([0, *sorted(cuts)]))
                written[site].append(begin)
                for cut in sorted(cuts):
                    # Both name a chunk by its place in the stream, or each in its own way.
                    name = f"{request_id}/{attempt}/{cut}" + draw(st.sampled_from(["", f"/{site}"]))
                    count = max(cut - before, 0)
                    written[site].append(chunk(name, cut, count, request_id, attempt, region=site))
                    before = cut
                if site == to_the_end or draw(st.booleans()):
                    written[site].append(end)
            if is_last:
                break
            resumed_at += offset
    return World(generated, *(stamped_by(site, written[site]) for site in ("edge", "us")))


def stamped_by(site: str, events: list[Event]) -> list[Event]:
    clock, made = new_clock(site), []
    for event in events:
        clock, timed = stamp(clock, event)
        made.append(timed)
    return made


def counted(events: list[Event]) -> dict[tuple[str, int], int]:
    """Tokens by adding up counts, as a reader does that knows of nothing else."""
    total: Counter[tuple[str, int]] = Counter()
    for event in events:
        if isinstance(event, TokensGenerated):
            total[event.request_id, event.attempt] += event.count
    return dict(total)


def uploads(events: list[Event], rng: random.Random) -> list[list[Event]]:
    """All events in any order, some several times, in uploads of any size."""
    told = events + [event for event in events if rng.random() < 0.4]
    rng.shuffle(told)
    cut: list[list[Event]] = [[]]
    for event in told:
        if rng.random() < 0.3:
            cut.append([])
        cut[-1].append(event)
    return cut


@given(worlds(), st.randoms(use_true_random=False))
def test_tokens_counted_are_tokens_generated(world: World, rng: random.Random) -> None:
    merged = merge(world.cloud, *uploads(world.edge, rng))
    assert counted(merged.events) == world.generated
    largest: dict[tuple[str, int], int] = {}
    for event in merged.events:
        if isinstance(event, TokensGenerated):
            key = (event.request_id, event.attempt)
            largest[key] = max(largest.get(key, 0), event.cumulative)
    assert largest == world.generated
    assert (merged.contradictions, merged.held_back) == ([], [])
    assert merged.unlinked == []
    assert merged.read == len(merged.events) + merged.not_kept.total()
    assert len(set(names(merged.events))) == len(merged.events)


@given(worlds(), st.randoms(use_true_random=False))
def test_any_cut_of_the_uploads_gives_the_same_log(world: World, rng: random.Random) -> None:
    whole = merge(world.cloud, world.edge).events
    assert whole == in_total_order(whole)
    step_by_step = merge(world.cloud).events
    for upload in uploads(world.edge, rng):
        step_by_step = merge(upload, step_by_step).events
    assert step_by_step == whole
    assert merge(world.edge, world.cloud).events == whole


@given(worlds(), st.randoms(use_true_random=False))
def test_a_log_that_is_only_appended_to_counts_right_after_the_last_upload(world: World, rng: random.Random) -> None:
    log = additions([], world.cloud).events
    for upload in uploads(world.edge, rng):
        added = additions(log, upload)
        assert len(set(names(log)) & set(names(added.events))) == 0
        log = log + added.events
        expected: dict[tuple[str, int], int] = {}
        for event in log:
            if isinstance(event, TokensGenerated):
                key = (event.request_id, event.attempt)
                expected[key] = max(expected.get(key, 0), event.cumulative)
        assert counted(log) == expected
    assert counted(log) == world.generated
    assert additions(log, [*world.edge, *world.cloud]).events == []


@given(worlds(), st.randoms(use_true_random=False))
def test_sessions_fold_the_appended_log_as_the_merged_one(world: World, rng: random.Random) -> None:
    log = additions([], world.cloud).events
    for upload in uploads(world.edge, rng):
        log = log + additions(log, upload).events
    appended = fold(SessionState(TENANT, SESSION), log)
    merged = fold(SessionState(TENANT, SESSION), merge(world.cloud, world.edge).events)
    assert {key: attempt.completion_tokens for key, attempt in appended.attempts.items()} == world.generated
    assert {key: attempt.completion_tokens for key, attempt in merged.attempts.items()} == world.generated
    for request_id, attempt in world.generated:
        if attempt:
            assert appended.goes_on_from(request_id, attempt) == (request_id, attempt - 1)
    assert dump(fold(appended, merge(world.cloud, world.edge).events)) == dump(fold(merged, log))


@given(worlds())
def test_what_the_cloud_writes_after_it_received_an_upload_stands_behind_it(world: World) -> None:
    clock = new_clock("us")
    for event in [*world.cloud, *world.edge]:
        clock = receive(clock, event)
    _, after = stamp(clock, prompt("after", "later"))
    assert merge(world.cloud, world.edge, [after]).events[-1] == after
