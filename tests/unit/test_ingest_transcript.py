"""Captured exchanges as events: whole bodies, streams, streams cut off, errors, and what can't be read."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from schemas.dead_letters import DeadLetterReason
from schemas.events import (
    Event,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from tests.ingest_fuzz import fuzz
from udfs.domain.ingest.captured_answer import COMMENTS, CUT_OFF, MAX_BROKEN_CHUNKS, UNKNOWN_LINES
from udfs.domain.ingest.record import MAX_RECORD_BYTES, Foreign, Origin, Reading, UnreadableRecordError, read_foreign
from udfs.domain.ingest.transcript import read_transcript

SECOND = 1_000_000
T = 1767225600
ORIGIN = Origin(source="gateway-1", tenant="acme", region="eu-1", backend="pool-a")
REPORTED, ESTIMATED, ABSENT = UsageSource.REPORTED, UsageSource.ESTIMATED, UsageSource.ABSENT

SHARED = Path(__file__).parents[3] / "shared"
needs_shared = pytest.mark.skipif(not (SHARED / "samples").exists(), reason="the shared samples are not here")


def read(record: object, *, received_at: float = T + 100, origin: Origin = ORIGIN) -> Reading:
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    return read_transcript(Foreign(value=value, received_at_us=round(received_at * SECOND)), origin)


def events(record: object, **more: Any) -> list[Event]:
    reading = read(record, **more)
    assert reading.refused == []
    return list(reading.events)


def ends(record: object) -> RequestCompleted | RequestFailed | StreamInterrupted:
    last = events(record)[-1]
    assert isinstance(last, (RequestCompleted, RequestFailed, StreamInterrupted))
    return last


def prompt_of(record: object) -> PromptSubmitted:
    first = events(record)[0]
    assert isinstance(first, PromptSubmitted)
    return first


def refusal(record: object, **more: Any) -> UnreadableRecordError:
    with pytest.raises(UnreadableRecordError) as caught:
        read(record, **more)
    return caught.value


def chunk(text: str = "", finish: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "created": T, "model": "gpt-4o-mini", "choices": choices, "usage": usage, **more}


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
STREAM = [
    chunk("It"),
    chunk(" left"),
    chunk(" today"),
    chunk("."),
    chunk(finish="stop"),
    {**chunk(usage=USAGE), "choices": []},
]
BODY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": T,
    "model": "gpt-4o-mini",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It left today."}, "finish_reason": "stop"}],
    "usage": USAGE,
}
REQUEST = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Where is my parcel?"}], "max_tokens": 64}


def sse(*chunks: Any, end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + end).encode()


# --- the samples and the cases ------------------------------------------------------------------------------------

TERMINALS = {RequestCompleted: "completed", StreamInterrupted: "interrupted", RequestFailed: "failed"}
SOURCES = {"provider": REPORTED, "estimated": ESTIMATED}
NAMES = {
    "openai_sse_include_usage.json": [""],
    "openai_sse_variants.json": [
        "usage_chunk_choices_null",
        "finish_reason_on_last_content_chunk",
        "continuous_usage_stats",
        "interrupted_no_usage",
        "no_include_usage",
        "abort_finish_reason",
        "cumulative_deltas",
        "error_mid_stream",
        "comment_and_crlf",
    ],
    "anthropic_sse.json": ["plain", "usage_only_on_message_delta"],
}
FORMS = ("list of lines", "text", "text with CRLF", "raw with blank lines", "raw without blank lines", "chunks")


def sample(file: str, name: str) -> dict[str, Any]:
    found = json.loads((SHARED / "samples" / file).read_text())
    samples = {each.get("name", ""): each for each in (found if isinstance(found, list) else [found])}
    assert set(samples) == set(NAMES[file]), "all samples are tested"
    chosen: dict[str, Any] = samples[name]
    return chosen


def in_form(form: str, lines: list[str]) -> object:
    blank_after_data = "\n".join(line + ("\n" if line.startswith("data:") else "") for line in lines)
    if "" in lines:
        blank_after_data = "\n".join(lines)
    blocks = [block for block in (blank_after_data + "\n").split("\n\n") if block]
    return {
        "list of lines": {"sse": lines},
        "text": {"sse": "\n".join(lines)},
        "text with CRLF": {"sse": blank_after_data.replace("\n", "\r\n")},
        "raw with blank lines": blank_after_data.encode(),
        "raw without blank lines": "\n".join(lines).encode(),
        "chunks": {"chunks": [{"at": T + index, "data": block} for index, block in enumerate(blocks)]},
    }[form]


@needs_shared
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in NAMES.items() for name in names])
def test_every_sample_ends_as_it_is_expected_to_in_whatever_form_it_was_kept(file: str, name: str, form: str) -> None:
    found = sample(file, name)
    expected = found.get("expect") or {}
    record = in_form(form, found["sse"])
    first, last = prompt_of(record), ends(record)
    if "terminal" in expected:
        assert TERMINALS[type(last)] == expected["terminal"]
    if "usage_source" in expected:
        assert last.usage_source is SOURCES[expected["usage_source"]]
    if "input_tokens" in expected:
        assert first.prompt_tokens == expected["input_tokens"]
    if "output_tokens" in expected:
        output = last.token_offset if isinstance(last, StreamInterrupted) else last.completion_tokens
        assert output == expected["output_tokens"]
    if "cache_write_tokens" in expected:
        assert isinstance(last, RequestCompleted)
        assert last.cache_write_tokens == expected["cache_write_tokens"]
        assert last.prompt_tokens + last.completion_tokens == expected["total_tokens"]
    if "finish_reason" in expected:
        assert isinstance(last, RequestCompleted)
        assert last.finish_reason == expected["finish_reason"]
    if "error_class" in expected:
        assert isinstance(last, RequestFailed)
        assert (last.error_class, last.status, last.retryable) == (expected["error_class"], 408, True)


@needs_shared
def test_a_sample_with_its_request_is_a_capture() -> None:
    first = prompt_of(sample("openai_sse_include_usage.json", ""))
    assert (first.stream, first.max_tokens, first.model) == (True, 64, "gpt-4o-mini-2024-07-18")


@needs_shared
@pytest.mark.parametrize(("cumulative", "tokens"), [(True, 4), (False, 7)])
def test_deltas_that_repeat_themselves_are_cut_where_the_capture_says_so(*, cumulative: bool, tokens: int) -> None:
    found = sample("openai_sse_variants.json", "cumulative_deltas")
    last = ends({"sse": found["sse"], "cumulative_deltas": cumulative})
    assert isinstance(last, RequestCompleted)
    assert last.completion_tokens == tokens


def case(name: str) -> dict[str, Any]:
    cases = json.loads((SHARED / "cases" / "cases.json").read_text())["cases"]
    return next(each for each in cases if each["id"] == name)


@needs_shared
def test_co03_a_client_that_goes_away_is_charged_for_what_it_got() -> None:
    # https://github.com/BerriAI/litellm/issues/14457
    told = case("CO03")
    given, expected = told["input"], told["expected"]
    capture = {
        "tenant": "acme",
        "request_id": "r1",
        "prompt_tokens": given["input_tokens_estimate"],
        "chunks": [{"at": T + at, "data": chunk(delta)} for at, delta in enumerate(given["deltas"])],
        "error": "client_disconnected",
    }
    last = ends(capture)
    assert isinstance(last, StreamInterrupted)
    assert TERMINALS[type(last)] == given["terminal"]
    assert last.token_offset >= expected["output_tokens_min"]
    assert (last.usage_source, last.reason) == (ESTIMATED, InterruptReason.CLIENT_DISCONNECTED)
    assert prompt_of(capture).prompt_tokens == given["input_tokens_estimate"]


@needs_shared
def test_co05_usage_given_with_the_end_alone_is_taken() -> None:
    # https://github.com/envoyproxy/ai-gateway/issues/2290
    told = case("CO05")
    names = {"input": "input_tokens", "output": "output_tokens", "cache_creation": "cache_creation_input_tokens"}
    start, end = ({names[name]: count for name, count in each.items()} for each in told["input"]["usage_events"])
    last = ends(
        sse(
            {"type": "message_start", "message": {"id": "m", "usage": start}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
            end="",
        )
    )
    assert isinstance(last, RequestCompleted)
    found = {"input_total": last.prompt_tokens, "output": last.completion_tokens}
    assert {**found, "total": sum(found.values())} == told["expected"]


@needs_shared
def test_in04_usage_on_a_trailing_chunk_without_choices_is_taken() -> None:
    # https://github.com/BerriAI/litellm/pull/25410
    told = case("IN04")
    last = ends(sample(told["input"]["sample"], ""))
    assert isinstance(last, RequestCompleted)
    assert {"input": last.prompt_tokens, "output": last.completion_tokens} == told["expected"]


@needs_shared
def test_in06_an_abort_is_an_interruption() -> None:
    # https://github.com/vllm-project/vllm/pull/47933
    told = case("IN06")
    file, name = told["input"]["sample"].split("#")
    assert TERMINALS[type(ends(sample(file, name)))] == told["expected"]["terminal"]


def test_an_answer_read_again_is_the_same_events() -> None:
    # https://github.com/BerriAI/litellm/issues/17814: reading a stored answer books its cost again
    assert [e.event_id for e in events(BODY)] == [e.event_id for e in events(BODY, received_at=T + 9999)]
    capture = {"request": REQUEST, "response": BODY}
    assert [e.event_id for e in events(BODY)] == [e.event_id for e in events(capture)]


# --- whole answers ------------------------------------------------------------------------------------------------


def test_a_capture_says_all_there_is_to_say() -> None:
    capture = {
        "tenant": "umbrella",
        "request_id": "r1",
        "attempt": 2,
        "session": "s1",
        "api_key": "key-7",
        "user": "u1",
        "provider": "azure",
        "backend": "b1",
        "region": "us-1",
        "started_at": "2026-01-01T00:00:00.250Z",
        "ended_at": T + 2.5,
        "status": 200,
        "request": {**REQUEST, "n": 1, "stream": False},
        "response": BODY,
    }
    first, last = events(capture)
    assert isinstance(first, PromptSubmitted)
    assert isinstance(last, RequestCompleted)
    for event in (first, last):
        assert (event.tenant, event.request_id, event.attempt, event.session) == ("umbrella", "r1", 2, "s1")
        assert (event.model, event.backend, event.region, event.source) == ("gpt-4o-mini", "b1", "us-1", "gateway-1")
    assert (first.api_key, first.user, first.provider) == ("key-7", "u1", "azure.ai.openai")
    assert (first.prompt_tokens, first.max_tokens, first.choices, first.stream) == (12, 64, 1, False)
    assert (first.event_time_us, last.event_time_us) == (T * SECOND + 250_000, T * SECOND + 2_500_000)
    assert (last.prompt_tokens, last.completion_tokens, last.finish_reason) == (12, 5, "stop")
    assert last.usage_source is REPORTED


def test_a_bare_body_takes_its_id_its_time_and_its_tenant_from_where_there_are_some() -> None:
    first, last = events(BODY)
    assert (first.request_id, first.tenant, first.region, first.backend) == ("chatcmpl-1", "acme", "eu-1", "pool-a")
    assert first.event_time_us == last.event_time_us == T * SECOND


def test_the_text_of_a_body_is_as_good_as_the_body() -> None:
    for response in (json.dumps(BODY), "\ufeff" + json.dumps(BODY), sse(*STREAM).decode()):
        last = ends({"request": REQUEST, "response": response.removeprefix("\ufeff")})
        assert isinstance(last, RequestCompleted)
        assert last.completion_tokens == 5
    assert events(b"\xef\xbb\xbf" + json.dumps(BODY).encode()) == events(BODY)


def test_a_body_without_usage_is_counted_and_says_so() -> None:
    last = ends({"request": REQUEST, "response": {**BODY, "usage": None}})
    assert isinstance(last, RequestCompleted)
    assert (last.prompt_tokens, last.completion_tokens, last.usage_source) == (12, 4, ESTIMATED)


def test_a_body_that_came_whole_has_ended_whether_it_says_so_or_not() -> None:
    body = {**BODY, "choices": [{"message": {"content": "It left"}}]}
    assert isinstance(ends({"response": body}), RequestCompleted)


def test_embeddings_take_no_completion() -> None:
    body = {"object": "list", "data": [], "model": "e", "usage": {"prompt_tokens": 8, "total_tokens": 8}}
    first = prompt_of({"request_id": "r1", "request": {"model": "e", "input": "x"}, "response": body})
    assert (first.without_completion, first.prompt_tokens) == (True, 8)


def test_an_answer_of_gemini_as_an_array_is_a_stream() -> None:
    parts = [{"text": "It left"}]
    stream = [
        {"candidates": [{"content": {"parts": parts}}], "usageMetadata": {"promptTokenCount": 6}, "responseId": "g1"},
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 6, "candidatesTokenCount": 2}},
    ]
    first, _, last = events(json.dumps(stream, indent=1).encode())
    assert isinstance(first, PromptSubmitted)
    assert isinstance(last, RequestCompleted)
    assert (first.stream, first.provider, last.completion_tokens) == (True, "gcp.gemini", 2)
    cut = json.dumps(stream, indent=1).encode()[:-40]
    reading = read(cut)
    assert isinstance(reading.events[-1], StreamInterrupted)
    assert reading.events[-1].token_offset == 2
    assert reading.passed_over == {CUT_OFF: 1}


def test_limits_that_a_request_asked_for() -> None:
    def asked(**request: Any) -> tuple[int, int]:
        first = prompt_of({"request": request, "response": BODY})
        return first.max_tokens, first.choices

    assert asked(max_completion_tokens=9, max_tokens=None) == (9, 0)
    assert asked(max_output_tokens=9, n=3) == (9, 3)
    assert asked(generationConfig={"maxOutputTokens": 9, "candidateCount": 2}) == (9, 2)
    assert asked(max_tokens=-1) == (0, 0), "no limit, as llama.cpp writes it"
    assert "request.max_tokens" in refusal({"request": {"max_tokens": -7}, "response": BODY}).detail


# --- streams ------------------------------------------------------------------------------------------------------


def test_chunks_with_times_are_events_with_the_tokens_so_far() -> None:
    capture = {
        "request_id": "r1",
        "started_at": T,
        "ended_at": T + 9,
        "chunks": [{"at": T + at, "data": json.dumps(each)} for at, each in enumerate([*STREAM, "[DONE]"][:-1], 1)],
    }
    found = [e for e in events(capture) if isinstance(e, TokensGenerated)]
    assert [(e.event_time_us, e.count, e.cumulative) for e in found] == [
        ((T + 1) * SECOND, 1, 1),
        ((T + 2) * SECOND, 1, 2),
        ((T + 3) * SECOND, 1, 3),
        ((T + 4) * SECOND, 1, 4),
    ]
    assert {e.text for e in found} == {""}
    assert [e.sequence for e in events(capture)] == [1, 2, 3, 4, 5, 6]
    assert events(capture)[-1].event_time_us == (T + 9) * SECOND


def test_running_totals_are_the_tokens_so_far_whatever_the_text() -> None:
    totals = [{"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count} for count in (3, 3, 10)]
    chunks = [{"at": T + at, "data": chunk("x", usage=total)} for at, total in enumerate(totals)]
    found = [e for e in events({"request_id": "r1", "chunks": chunks}) if isinstance(e, TokensGenerated)]
    assert [(e.event_time_us, e.cumulative) for e in found] == [(T * SECOND, 3), ((T + 2) * SECOND, 10)]


def test_what_was_counted_of_the_chunks_is_never_more_than_what_was_used() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}
    chunks = [{"at": T + at, "data": chunk("one two three")} for at in range(3)]
    chunks.append({"at": T + 3, "data": chunk(finish="stop", usage=usage)})
    found = [e.cumulative for e in events({"request_id": "r1", "chunks": chunks}) if isinstance(e, TokensGenerated)]
    assert found == [2]


def test_chunks_without_times_are_one_event_at_the_time_of_the_answer() -> None:
    first, tokens, last = events(sse(*STREAM))
    assert isinstance(tokens, TokensGenerated)
    assert (tokens.cumulative, tokens.event_time_us) == (4, T * SECOND)
    assert first.event_time_us == last.event_time_us == T * SECOND
    later = [{**each, "created": T + at // 2} for at, each in enumerate(STREAM)]
    found = [(e.event_time_us, e.cumulative) for e in events(sse(*later)) if isinstance(e, TokensGenerated)]
    assert found == [(T * SECOND, 2), ((T + 1) * SECOND, 4)]


def test_times_are_those_of_receiving_where_there_are_no_others() -> None:
    stream = sse(*({**each, "created": 0} for each in STREAM))
    assert {e.event_time_us for e in events(stream)} == {(T + 100) * SECOND}
    assert refusal(stream, received_at=0).detail == "without started_at"


def test_a_chunk_in_whole_seconds_is_not_before_a_start_that_is_exact() -> None:
    first, tokens, last = events({"request_id": "r1", "started_at": T + 0.5, "sse": sse(*STREAM).decode()})
    assert first.event_time_us == tokens.event_time_us == last.event_time_us == T * SECOND + 500_000


def test_a_stream_that_is_cut_off_in_mid_chunk_was_interrupted() -> None:
    whole = sse(*STREAM)
    reading = read(whole[: whole.index(b" today") + 3])
    last = reading.events[-1]
    assert isinstance(last, StreamInterrupted)
    assert (last.token_offset, last.usage_source) == (2, ESTIMATED)
    assert reading.passed_over == {CUT_OFF: 1}
    assert reading.refused == []


def test_a_capture_without_blank_lines_that_is_cut_off_keeps_what_came_whole() -> None:
    whole = sse(*STREAM).replace(b"\n\n", b"\n")
    reading = read(whole[: whole.index(b" today") + 3])
    assert isinstance(reading.events[-1], StreamInterrupted)
    assert (reading.events[-1].token_offset, reading.passed_over) == (2, {CUT_OFF: 1})


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("client_disconnected", InterruptReason.CLIENT_DISCONNECTED),
        ("Client-Disconnected", InterruptReason.CLIENT_DISCONNECTED),
        ("connection lost", InterruptReason.CONNECTION_LOST),
        ("revoked", InterruptReason.REVOKED),
        ({"type": "client_disconnected"}, InterruptReason.CLIENT_DISCONNECTED),
    ],
)
def test_a_capture_says_why_its_stream_broke_off(word: object, reason: InterruptReason) -> None:
    last = ends({"request": REQUEST, "sse": sse(*STREAM[:2], end="").decode(), "error": word})
    assert isinstance(last, StreamInterrupted)
    assert (last.reason, last.token_offset) == (reason, 2)


def test_a_client_that_goes_before_the_first_chunk_is_charged_its_prompt() -> None:
    capture = {"request_id": "r1", "request": REQUEST, "sse": "", "status": 499}
    first, last = events(capture)
    assert isinstance(first, PromptSubmitted)
    assert isinstance(last, StreamInterrupted)
    assert (first.prompt_tokens, last.token_offset, last.usage_source) == (12, 0, ESTIMATED)
    assert last.reason is InterruptReason.CLIENT_DISCONNECTED


def test_a_client_that_goes_after_the_last_chunk_has_its_answer() -> None:
    assert isinstance(ends({"sse": sse(*STREAM).decode(), "error": "client_disconnected"}), RequestCompleted)


def test_what_is_no_chunk_is_counted() -> None:
    stream = b": keep-alive\n\n: keep-alive\n\nfoo: bar\n" + sse(*STREAM)
    assert read(stream).passed_over == {COMMENTS: 2, UNKNOWN_LINES: 1}


def test_a_broken_chunk_is_a_dead_letter_and_the_rest_is_read() -> None:
    stream = sse(*STREAM[:2], end="") + b"data: {broken\n\n" + sse(*STREAM[2:])
    reading = read(stream)
    (refused,) = reading.refused
    assert (refused.reason, refused.index, refused.payload) == (DeadLetterReason.MALFORMED, 2, b"{broken")
    assert isinstance(reading.events[-1], RequestCompleted)
    assert reading.events[-1].completion_tokens == 5


def test_too_many_broken_chunks_refuse_the_record() -> None:
    broken = b"data: {broken\n\n"
    (one,) = read(sse(*STREAM[:2], end="") + broken * MAX_BROKEN_CHUNKS + sse(*STREAM)).refused
    assert (one.index, one.payload) == (2, b"{broken")
    assert "(100 chunks of this record, the first at index 2)" in one.detail
    assert "not JSON" in refusal(sse(*STREAM[:2], end="") + broken * (MAX_BROKEN_CHUNKS + 1) + sse(*STREAM)).detail


def test_a_count_that_cannot_be_meant_refuses_the_record() -> None:
    error = refusal(sse(*STREAM[:5], {**STREAM[5], "usage": {**USAGE, "completion_tokens": -5}}))
    assert error.reason is DeadLetterReason.OUT_OF_RANGE
    assert "completion_tokens is -5" in error.detail


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "error_class", "status", "retryable"),
    [
        (
            {"status": 429, "response": {"error": {"type": "rate_limit_error", "message": "m"}}},
            "rate_limit_error",
            429,
            True,
        ),
        ({"status": 503, "response": "<html>upstream</html>"}, "http_503", 503, True),
        ({"status": 502, "response": None}, "http_502", 502, True),
        ({"status": 408}, "http_408", 408, True),
        ({"status": 400, "response": {"error": {"type": "x", "code": None}}}, "x", 400, False),
        ({"status": 401, "response": '{"error": {"code": "invalid_api_key"}}'}, "invalid_api_key", 401, False),
        ({"status": 404, "response": {"detail": "Not Found"}}, "error", 404, False),
        ({"response": {"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}}, "UNAVAILABLE", 503, True),
        ({"response": {"type": "error", "error": {"type": "overloaded_error"}}}, "overloaded_error", 529, True),
        ({"error": "dns_failure"}, "dns_failure", 0, False),
        ({"error": "dns_failure", "status": 503}, "dns_failure", 503, True),
        ({"error": {"type": "timeout", "status": 504, "retryable": False}}, "timeout", 504, False),
        ({"error": "a sentence, perhaps with a secret"}, "error", 0, False),
        ({"error": ["odd"]}, "error", 0, False),
    ],
)
def test_a_request_that_failed_has_a_class_a_status_and_no_usage(
    capture: dict[str, Any], error_class: str, status: int, *, retryable: bool
) -> None:
    last = ends({"request_id": "r1", "request": REQUEST, **capture})
    assert isinstance(last, RequestFailed)
    assert (last.error_class, last.status, last.retryable) == (error_class, status, retryable)
    assert (last.prompt_tokens, last.completion_tokens, last.usage_source) == (0, 0, ABSENT)


def test_a_request_that_failed_in_mid_stream_has_the_tokens_that_came() -> None:
    error = {"error": {"message": "m", "type": "timeout", "code": "408"}}
    last = ends({"request": REQUEST, "sse": sse(*STREAM[:2], error).decode()})
    assert isinstance(last, RequestFailed)
    assert (last.prompt_tokens, last.completion_tokens, last.usage_source) == (12, 2, ESTIMATED)


def test_no_event_and_no_refusal_has_the_text_of_the_exchange() -> None:
    private = "my-iban-is-DE00"
    request = {**REQUEST, "messages": [{"role": "user", "content": private}]}
    error = {"error": {"message": private, "type": private + " is bad", "code": private + " too"}}
    for stream in (sse(chunk(private), *STREAM), sse(chunk(private), error), sse(chunk(private), end="")):
        for event in events({"request": request, "sse": stream.decode()}):
            assert private not in repr(event)
    for delta in (5, [5], {"x": private}):
        broken = {**STREAM[0], "choices": [{"delta": {"content": [private, delta, 5]}}]}
        assert private not in refusal(sse(broken)).detail


# --- what can't be read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        (b"", DeadLetterReason.MALFORMED, "neither JSON nor an event stream"),
        (b"hello", DeadLetterReason.MALFORMED, "neither JSON nor an event stream"),
        (b"{", DeadLetterReason.MALFORMED, "not JSON"),
        (b"[", DeadLetterReason.MALFORMED, "not JSON"),
        (b"[1]", DeadLetterReason.MALFORMED, "no JSON object"),
        (b"\xff\xfe", DeadLetterReason.MALFORMED, "neither JSON nor an event stream"),
        (b"[" * 100_000, DeadLetterReason.MALFORMED, "nested too deeply"),
        (b'{"a":' * 100_000, DeadLetterReason.MALFORMED, "nested too deeply"),
        ({"id": "x", "model": "m"}, DeadLetterReason.MALFORMED, "nothing that one of OpenAI, Anthropic or Gemini has"),
        (b'data: {"id": "x"}\n\n', DeadLetterReason.MALFORMED, "name its format"),
        ({"tenant": "a", "request": REQUEST}, DeadLetterReason.MISSING_FIELD, "without response, sse or chunks"),
        ({"request": 5, "response": BODY}, DeadLetterReason.MALFORMED, "request is a number"),
        ({"sse": 5}, DeadLetterReason.MALFORMED, "sse is neither"),
        ({"sse": [5]}, DeadLetterReason.MALFORMED, "a line of sse"),
        ({"chunks": 5}, DeadLetterReason.MALFORMED, "chunks is a number"),
        ({"chunks": [5]}, DeadLetterReason.MALFORMED, "the data of a chunk"),
        ({"response": 5}, DeadLetterReason.MALFORMED, "response is neither"),
        ({"response": BODY, "status": 9}, DeadLetterReason.OUT_OF_RANGE, "status is 9"),
        ({"response": BODY, "attempt": 2**40}, DeadLetterReason.OUT_OF_RANGE, "attempt is"),
        ({"response": BODY, "attempt": -1}, DeadLetterReason.OUT_OF_RANGE, "attempt is -1"),
        ({"response": BODY, "request": {"n": 10**11}}, DeadLetterReason.OUT_OF_RANGE, "request.n is"),
        ({"response": BODY, "format": "cohere"}, DeadLetterReason.MALFORMED, "it must be one of openai"),
        ({"response": BODY, "started_at": T * 1000}, DeadLetterReason.OUT_OF_RANGE, "started_at is"),
        ({"response": BODY, "started_at": "soon"}, DeadLetterReason.OUT_OF_RANGE, "started_at is 'soon'"),
        ({"response": BODY, "started_at": []}, DeadLetterReason.OUT_OF_RANGE, "started_at is list"),
        ({"response": BODY, "started_at": T, "ended_at": T - 1}, DeadLetterReason.OUT_OF_RANGE, "before it starts"),
        ({"chunks": [{"at": -1, "data": STREAM[0]}]}, DeadLetterReason.OUT_OF_RANGE, "the time of a chunk is -1"),
        ({"response": BODY, "tenant": "x" * 600}, DeadLetterReason.TOO_LARGE, "tenant has 600 bytes"),
        ({"response": {**BODY, "id": None}}, DeadLetterReason.MISSING_FIELD, "without request id"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_reason(record: object, reason: DeadLetterReason, detail: str) -> None:
    error = refusal(record)
    assert error.reason is reason
    assert detail in error.detail


def test_a_record_without_a_tenant_is_refused_by_that() -> None:
    assert "without tenant" in refusal(BODY, origin=Origin(source="s")).detail


def test_a_record_that_is_too_large_is_refused_unread() -> None:
    (one,) = read_foreign(read_transcript, Foreign(value=b" " * (MAX_RECORD_BYTES + 1)), ORIGIN).refused
    assert one.reason is DeadLetterReason.TOO_LARGE


def test_a_key_in_the_clear_is_hashed() -> None:
    events = read({"request_id": "r", "tenant": "t", "api_key": "sk-1234", "response": BODY, "started_at": T}).events
    assert isinstance(events[0], PromptSubmitted)
    assert events[0].api_key == sha256(b"sk-1234").hexdigest()
    assert "sk-1234" not in repr(events)


@pytest.mark.parametrize(
    "record",
    [
        b"data: x\n\n" * 1_100_000,
        b"\n" * 9_999_999,
        b"data:" * 1_999_999,
        b"data: {}\n" * 1_100_000,
        b":\n" * 4_999_999,
        b"[" + b"{}," * 3_000_000,
        b'{"sse": "' + b"data: x\\n\\n" * 900_000 + b'"}',
        sse({**STREAM[0], "choices": [{"delta": {"content": "a" * 9_900_000}}]}),
        b'data: {"id":"x","choices":[{"delta":{"content":"' + " é".encode() * 3_200_000 + b'"}}]}\n\n',
        sse(*[{"choices": [{"delta": {"content": "a"}}], "id": "x"}] * 150_000),
        b"data: [DONE]\n" * 700_000,
    ],
)
def test_ten_megabytes_of_anything_are_read_or_refused(record: bytes) -> None:
    assert len(record) <= MAX_RECORD_BYTES
    reading = read_foreign(read_transcript, Foreign(value=record, received_at_us=T * SECOND), ORIGIN)
    assert bool(reading.events) is not bool(reading.refused)


# --- fuzz ---------------------------------------------------------------------------------------------------------


def fuzz_samples() -> list[bytes]:
    anthropic = [
        {
            "type": "message_start",
            "message": {"id": "m", "model": "c", "usage": {"input_tokens": 25, "output_tokens": 1}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
        {"type": "message_stop"},
    ]
    counts = {"promptTokenCount": 6, "candidatesTokenCount": 2, "thoughtsTokenCount": 4, "totalTokenCount": 12}
    gemini = [
        {"candidates": [{"content": {"parts": [{"text": "It"}]}, "index": 0}], "responseId": "g", "modelVersion": "g"},
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": counts, "createTime": "2026-01-01T00:00:00Z"},
    ]
    response = {
        "id": "r",
        "object": "response",
        "created_at": T,
        "status": "completed",
        "output": [],
        "usage": {"input_tokens": 3},
    }
    responses = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "It"},
        {"type": "response.completed", "response": response},
    ]
    chunks = [{"at": T + at, "data": json.dumps(each)} for at, each in enumerate(STREAM)]
    capture = {
        "tenant": "a",
        "request_id": "r",
        "attempt": 1,
        "session": "s",
        "api_key": "k",
        "user": "u",
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": T + 9,
        "status": 200,
        "prompt_tokens": 9,
        "request": {**REQUEST, "n": 2, "stream": True, "tools": [{"type": "function"}]},
    }
    samples = [
        sse(*stream) for stream in (STREAM, anthropic, gemini, responses, [STREAM[0], {"error": {"code": "408"}}])
    ]
    bodies: list[object] = [BODY, gemini, response, {"error": {"type": "x", "code": 429}}]
    bodies += [
        {**capture, "response": BODY},
        {**capture, "chunks": chunks},
        {**capture, "error": "client_disconnected"},
    ]
    bodies += [
        {**capture, "sse": sse(*stream).decode().split("\n")} for stream in (STREAM, anthropic, gemini, responses)
    ]
    return samples + [json.dumps(body).encode() for body in bodies]


def test_no_damage_makes_the_reading_fail() -> None:
    seen = fuzz(read_transcript, fuzz_samples(), 2_000, seed=5)
    assert min(seen["read"], seen["refused"], seen["passed_over"]) > 50


@pytest.mark.slow
def test_no_damage_makes_the_reading_fail_at_full_size() -> None:
    fuzz(read_transcript, fuzz_samples(), 100_000, seed=6)
