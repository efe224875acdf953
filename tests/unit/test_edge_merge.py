import msgspec
import pytest

from schemas.codec import canonical_body
from schemas.events import Event, Heartbeat, Provenance, TokensGenerated, UsageSource
from schemas.identity import content_hash
from tests.session_world import (
    SESSION,
    TENANT,
    chunk,
    completed,
    envelope,
    failed,
    interrupted,
    names,
    prompt,
    resumed,
    stamped,
)
from udfs.domain.edge.appending import additions
from udfs.domain.edge.attempt_log import HeldBackReason, sum_of_counts
from udfs.domain.edge.merge import merge
from udfs.domain.events.clocks import Order
from udfs.domain.events.session import SessionState, fold

FIRST = (TENANT, "r1", 0)


def counts(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.cumulative, event.count) for event in events if isinstance(event, TokensGenerated)]


def test_what_an_edge_site_wrote_offline_joins_what_the_cloud_wrote_in_the_total_order() -> None:
    edge: list[Event] = [
        stamped(prompt("p"), "edge", 1, {"edge": 1}),
        stamped(chunk("c1", 5, 5), "edge", 2, {"edge": 2}),
        stamped(completed("e", 5), "edge", 3, {"edge": 3}),
    ]
    cloud: list[Event] = [
        stamped(prompt("q", "r2"), "us", 2, {"us": 2}),
        stamped(failed("f", "r2"), "us", 3, {"us": 3}),
    ]
    merged = merge(cloud, edge)
    assert names(merged.events) == ["p", "c1", "q", "e", "f"]
    assert (merged.read, merged.not_kept, merged.contradictions, merged.held_back) == (5, {}, [], [])


def test_an_upload_sent_twice_is_merged_once() -> None:
    edge: list[Event] = [prompt("p"), chunk("c1", 5, 5), completed("e", 5), Heartbeat(**envelope("h", ""))]
    once, twice = merge(edge), merge(edge, edge)
    assert twice.events == once.events
    assert twice.not_kept == {"repeated": 4}


def test_a_stream_that_both_cut_their_own_way_counts_each_token_once() -> None:
    edge = [chunk("e1", 10, 10, region="edge"), chunk("e2", 20, 10, region="edge")]
    cloud = [chunk("u1", 7, 7, region="us"), chunk("u2", 15, 8, region="us"), chunk("u3", 25, 10, region="us")]
    merged = merge(edge, cloud)
    assert sorted(counts(merged.events)) == [(7, 7), (10, 3), (15, 5), (20, 5), (25, 5)]
    assert sum_of_counts(merged.events) == {FIRST: 25}


def test_chunks_that_tell_the_same_are_one_whatever_their_ids() -> None:
    first = stamped(chunk("z", 10, 10), "edge", 1, {"edge": 1})
    second = stamped(chunk("a", 10, 4), "us", 2, {"us": 1})
    for logs in ([first], [second]), ([second], [first]):
        merged = merge(*logs)
        assert merged.events == [first]
        assert merged.not_kept == {"covered": 1}


def test_a_count_that_was_cut_has_its_hash_made_anew() -> None:
    whole = chunk("u2", 15, 15)
    hashed = msgspec.structs.replace(whole, provenance=Provenance(content_hash=content_hash(canonical_body(whole))))
    _, cut = merge([chunk("e1", 10, 10), hashed]).events
    assert isinstance(cut, TokensGenerated)
    assert (cut.cumulative, cut.count) == (15, 5)
    assert cut.provenance is not None
    assert cut.provenance.content_hash == content_hash(canonical_body(cut))


def test_a_client_that_failed_over_in_mid_stream_is_one_request_in_two_attempts() -> None:
    edge: list[Event] = [prompt("p"), chunk("c", 20, 20), interrupted("i", 15)]
    cloud: list[Event] = [resumed("q", 15), chunk("d", 30, 30, attempt=1), completed("e", 30, attempt=1)]
    merged = merge(cloud, edge)
    assert merged.unlinked == []
    assert sum_of_counts(merged.events) == {FIRST: 20, (TENANT, "r1", 1): 30}
    session = fold(SessionState(TENANT, SESSION), merged.events)
    assert session.goes_on_from("r1", 1) == ("r1", 0)
    assert session.completion_tokens == 50


@pytest.mark.parametrize(
    ("before", "detail"),
    [
        ([], "of which nothing is told"),
        ([interrupted("i", 12)], "was interrupted at 12"),
        ([completed("i", 15)], "which completed"),
        ([chunk("c", 12, 12), interrupted("i", 0, usage_source=UsageSource.ABSENT)], "was interrupted at 12"),
    ],
)
def test_a_resumption_that_the_attempt_before_does_not_bear_out_is_reported(before: list[Event], detail: str) -> None:
    (found,) = merge(before, [resumed("q", 15)]).unlinked
    assert found.attempt == (TENANT, "r1", 1)
    assert detail in found.detail


def test_a_site_that_went_down_before_it_told_the_end_is_linked() -> None:
    assert merge([prompt("p"), chunk("c", 20, 20)], [resumed("q", 15)]).unlinked == []


def test_two_completions_of_one_attempt_are_resolved_and_reported() -> None:
    first = stamped(completed("z", 5), "edge", 1, {"edge": 1})
    second = stamped(completed("a", 6), "us", 2, {"us": 1})
    for logs in ([first], [second, second]), ([second], [first, second]):
        merged = merge(*logs)
        assert merged.events == [first]
        (found,) = merged.contradictions
        assert (found.what, found.kept, found.dropped, found.order) == ("end", first, second, Order.CONCURRENT)
        assert merged.not_kept == {"repeated": 2}


def test_ends_that_agree_are_no_contradiction() -> None:
    merged = merge([completed("a", 5)], [completed("b", 5), completed("c", 4, usage_source=UsageSource.ESTIMATED)])
    assert (names(merged.events), merged.contradictions) == (["a"], [])


def test_a_completion_stands_before_the_interruption_that_the_other_site_saw() -> None:
    merged = merge([interrupted("a", 3)], [completed("b", 9)])
    assert names(merged.events) == ["b"]
    assert [(it.what, it.order) for it in merged.contradictions] == [("end", None)]


def test_one_attempt_begun_twice_is_reported() -> None:
    merged = merge([prompt("a", tokens=3)], [prompt("b", tokens=4)])
    assert names(merged.events) == ["a"]
    assert [it.what for it in merged.contradictions] == ["prompt"]


def test_one_id_for_two_chunks_keeps_the_one_that_holds_the_other() -> None:
    merged = merge([chunk("c", 5, 5, region="edge")], [chunk("c", 9, 9, region="us")])
    assert counts(merged.events) == [(9, 9)]
    assert [it.what for it in merged.contradictions] == ["chunk"]
    assert merged.read == len(merged.events) + merged.not_kept.total()


def test_of_an_event_told_with_and_without_a_stamp_the_stamped_one_stays() -> None:
    bare = prompt("p")
    timed = stamped(bare, "edge", 4, {"edge": 4})
    assert merge([bare], [timed]).events == merge([timed], [bare]).events == [timed]


def test_chunks_without_cumulative_of_one_site_are_told_apart_by_id() -> None:
    chunks = [chunk("a", 0, 3), chunk("b", 0, 4)]
    assert sum_of_counts(merge(chunks, chunks).events) == {FIRST: 7}


@pytest.mark.parametrize("other", [chunk("u", 0, 4, region="us"), chunk("u", 9, 4, region="edge")])
def test_chunks_without_cumulative_that_may_be_counted_already_are_held_back(other: TokensGenerated) -> None:
    merged = merge([chunk("e", 0, 3, region="edge")], [other])
    assert [it.reason for it in merged.held_back] == [HeldBackReason.NOT_TOLD_APART]
    assert len(merged.events) == 1


@pytest.mark.parametrize("event", [chunk("c", -1), chunk("c", 1, -1), chunk("c", 10**13)])
def test_absurd_counts_are_held_back(event: TokensGenerated) -> None:
    merged = merge([event])
    assert [(it.reason, it.event) for it in merged.held_back] == [(HeldBackReason.IMPLAUSIBLE, event)]


def test_events_without_ids_are_told_apart_by_what_they_say() -> None:
    beats = [Heartbeat(**envelope("", "", event_time_us=at)) for at in (1, 2, 1)]
    assert len(merge(beats).events) == 2


# --- appending ----------------------------------------------------------------------------------------------------


def test_an_upload_adds_what_the_log_does_not_tell_yet() -> None:
    written: list[Event] = [prompt("p"), chunk("u1", 7, 7), chunk("u2", 15, 8)]
    upload: list[Event] = [prompt("p"), chunk("e1", 10, 10), chunk("e2", 20, 10), completed("e", 20)]
    added = additions(written, upload)
    assert names(added.events) == ["e", "e2"]
    assert counts(added.events) == [(20, 5)]
    assert added.covered == 1
    assert additions([*written, *added.events], upload).events == []


def test_an_end_that_stands_before_the_written_one_is_appended() -> None:
    assert names(additions([interrupted("i", 3)], [completed("e", 9)]).events) == ["e"]
    assert names(additions([completed("e", 9)], [interrupted("i", 3)]).events) == []


def test_chunks_without_cumulative_are_appended_only_where_none_of_another_site_is_written() -> None:
    mine, theirs = chunk("a", 0, 3, region="edge"), chunk("b", 0, 3, region="us")
    assert additions([], [mine]).events == [mine]
    assert additions([theirs], [mine]).events == []
    assert additions([chunk("c", 9, 9)], [mine]).events == []
    assert counts(additions([mine], [chunk("c", 9, 9)]).events) == [(9, 6)]


def test_chunks_of_one_upload_count_what_each_is_ahead_of_the_one_before() -> None:
    upload = [chunk("e1", 10, 10), chunk("e2", 20, 10), chunk("e3", 21, 1)]
    assert counts(additions([chunk("u1", 15, 15)], upload).events) == [(20, 5), (21, 1)]
