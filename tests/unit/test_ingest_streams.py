"""What the readers make of answers: the providers' own shapes, and those that have broken others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.events import UsageSource
from udfs.domain.ingest.answer_formats import READERS, reader_for, reader_named
from udfs.domain.ingest.attempt import End, Usage
from udfs.domain.ingest.record import UnreadableRecordError
from udfs.domain.ingest.sse import EventStreamParser
from udfs.domain.ingest.stream_reading import AnswerError, AnswerReader, payloads_of

DONE = "[DONE]"
REPORTED, ESTIMATED = UsageSource.REPORTED, UsageSource.ESTIMATED


def failure(error_class: str, status: int, retryable: bool) -> AnswerError:
    return AnswerError(error_class=error_class, status=status, retryable=retryable)


def words(text: str) -> int:
    """A tokenizer that one can check by eye."""
    return len(text.split())


def read(*payloads: Any, reader: AnswerReader | None = None) -> AnswerReader:
    """A stream of these chunks, as bytes and back, so that nothing comes from the parts of a test by accident."""
    lines = (payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads)
    events = EventStreamParser().feed("".join(f"data: {line}\n\n" for line in lines).encode())
    if reader is None:
        first = payloads[0]
        reader = reader_for(None if isinstance(first, str) else first)
    for event in events:
        reader.read(event)
    return reader


def usage_of(reader: AnswerReader, prompt_estimate: int | None = None) -> Usage:
    return reader.usage(words, prompt_estimate)


def chunk(
    delta: Any = None, finish: str | None = None, usage: Any = None, index: int = 0, **more: Any
) -> dict[str, Any]:
    choices = [{"index": index, "delta": delta or {}, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1767225600, "model": "gpt-4o-mini"}
    return {**head, "choices": choices, "usage": usage, **more}


def said(text: str, **more: Any) -> dict[str, Any]:
    return chunk({"content": text}, **more)


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
USAGE_CHUNK = {**chunk(usage=USAGE), "choices": []}


# --- chat completions ---------------------------------------------------------------------------------------------


def test_a_stream_tells_who_what_and_how_much() -> None:
    reader = read(said("It left"), said(" today."), chunk(finish="stop"), USAGE_CHUNK, DONE)
    assert (reader.response_id, reader.model, reader.created) == ("chatcmpl-1", "gpt-4o-mini", 1767225600)
    assert (reader.text, reader.characters, reader.finish_reason) == ("It left today.", 14, "stop")
    assert (reader.end, reader.has_end_mark) == (End.COMPLETED, True)
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=5, source=REPORTED)


@pytest.mark.parametrize("choices", [[], None])
def test_the_usage_chunk_has_no_choices(choices: Any) -> None:
    # https://github.com/BerriAI/litellm/pull/25410, https://github.com/langfuse/langfuse/issues/6658
    reader = read(said("x"), chunk(finish="stop"), {**USAGE_CHUNK, "choices": choices}, DONE)
    assert usage_of(reader).completion_tokens == 5


def test_the_usage_chunk_has_a_choice_all_the_same() -> None:
    # https://github.com/BerriAI/litellm/issues/36168
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 8}}
    last = {**USAGE_CHUNK, "choices": [{"index": 0, "delta": {}}], "usage": usage}
    reader = read(said("x"), chunk(finish="stop"), last, DONE)
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=8, source=REPORTED)


def test_usage_on_every_chunk_is_a_running_total() -> None:
    # https://github.com/InternLM/lmdeploy/issues/3832 and vLLM's continuous_usage_stats
    totals = [{"prompt_tokens": 12, "completion_tokens": count, "total_tokens": 12 + count} for count in (1, 2, 3)]
    reader = read(*(said("x ", usage=total) for total in totals))
    assert reader.reported_tokens == 3
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=3, source=REPORTED)
    assert reader.end is End.INTERRUPTED


def test_a_later_chunk_without_usage_takes_nothing_back() -> None:
    # https://github.com/openai/openai-agents-python/pull/2126, https://github.com/BerriAI/litellm/issues/17136
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    reader = read(
        said("x"), chunk(finish="stop", usage=USAGE), {**chunk(), "choices": []}, {**USAGE_CHUNK, "usage": nothing}
    )
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=5, source=REPORTED)


def test_usage_stands_in_a_choice() -> None:
    # https://github.com/northes/go-moonshot/issues/17
    last = chunk(finish="stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 19, "completion_tokens": 13, "total_tokens": 32}
    assert usage_of(read(said("x"), last, DONE)) == Usage(prompt_tokens=19, completion_tokens=13, source=REPORTED)


def test_usage_stands_in_x_groq() -> None:
    # https://github.com/Portkey-AI/gateway/issues/1338: in both places, which are one
    both = chunk(finish="stop", x_groq={"id": "req_1", "usage": {**USAGE, "queue_time": 0.01}})
    assert usage_of(read(said("x"), both, USAGE_CHUNK, DONE)).completion_tokens == 5
    assert usage_of(read(said("x"), both, DONE)) == Usage(prompt_tokens=12, completion_tokens=5, source=REPORTED)


def test_text_after_the_last_usage_is_counted() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    reader = read(said("one", usage=usage), said(" two three"))
    assert reader.reported_tokens is None
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=3, source=ESTIMATED)


def test_a_completion_of_no_tokens_that_has_text_is_counted() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}
    reader = read(said("one two"), chunk(finish="stop", usage=usage), DONE)
    assert usage_of(reader) == Usage(prompt_tokens=12, completion_tokens=2, source=ESTIMATED)


def test_reasoning_that_the_total_has_and_the_completion_leaves_out_is_added() -> None:
    # https://github.com/vercel/ai/pull/12425: xAI
    usage = {
        "prompt_tokens": 12,
        "completion_tokens": 1,
        "total_tokens": 399,
        "completion_tokens_details": {"reasoning_tokens": 386},
    }
    assert usage_of(read(said("x"), chunk(finish="stop", usage=usage))).completion_tokens == 387


def test_reasoning_that_the_completion_has_is_not_added_again() -> None:
    usage = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 3}}
    assert usage_of(read(said("x"), chunk(finish="stop", usage=usage))).completion_tokens == 5


@pytest.mark.parametrize(
    ("usage", "cached", "written"),
    [
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 8, "cache_creation_tokens": 3}}, 8, 3),
        ({**USAGE, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 4}, 8, 0),
        ({**USAGE, "cached_tokens": 8}, 8, 0),
        ({**USAGE, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 3}, 8, 3),
        # A discount for more than there is would be owed to its sender.
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 800}}, 12, 0),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 8, "cache_creation_tokens": 30}}, 8, 4),
    ],
)
def test_cached_tokens_have_many_names_and_one_bound(usage: Any, cached: int, written: int) -> None:
    found = usage_of(read(said("x"), chunk(finish="stop", usage=usage)))
    assert (found.prompt_tokens, found.cached_tokens, found.cache_write_tokens) == (12, cached, written)


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -1}, {"completion_tokens": 1.5}, {"prompt_tokens": "many"}, {"prompt_tokens": 10**15}, [1]],
)
def test_a_count_that_cannot_be_meant_is_refused(usage: Any) -> None:
    with pytest.raises(UnreadableRecordError, match=r"tokens is|usage is"):
        read(said("x"), chunk(usage={**USAGE, **usage} if isinstance(usage, dict) else usage))


def test_a_stream_without_usage_is_counted_by_its_text() -> None:
    reader = read(said("one two"), chunk(finish="stop"), DONE)
    assert usage_of(reader, 7) == Usage(prompt_tokens=7, completion_tokens=2, source=ESTIMATED)


def test_the_first_chunk_of_azure_tells_of_its_filter_alone() -> None:
    # https://github.com/AbanteAI/archive-old-cli-mentat/issues/429, https://github.com/langfuse/langfuse/issues/2833
    filtered = {"id": "", "choices": [], "created": 0, "model": "", "object": "", "prompt_filter_results": [{}]}
    reader = read(filtered, said("x"), chunk(finish="stop"), DONE)
    assert (reader.response_id, reader.model, reader.created) == ("chatcmpl-1", "gpt-4o-mini", 1767225600)
    assert reader.end is End.COMPLETED


def test_the_last_chunk_of_azure_has_no_delta() -> None:
    # https://github.com/langfuse/langfuse/issues/4432, https://github.com/NousResearch/hermes-agent/pull/90301
    last = chunk(finish="stop")
    last["choices"] = [{"index": 0, "delta": None, "finish_reason": "stop"}, {"finish_reason": None, "index": 1}]
    assert read(said("x"), last).end is End.COMPLETED


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_finish_reason_is_none(empty: str | None) -> None:
    # https://github.com/ollama/ollama/issues/4357
    assert read(said("x", finish=empty)).end is End.INTERRUPTED


def test_the_finish_reason_stands_on_the_last_text() -> None:
    # https://github.com/deepset-ai/haystack/pull/9046
    assert read(said("x", finish="length"), chunk(), USAGE_CHUNK).finish_reason == "length"


def test_an_end_without_done_is_an_end_and_so_is_done_without_a_finish_reason() -> None:
    assert read(said("x"), chunk(finish="stop")).end is End.COMPLETED
    assert read(said("x"), DONE).end is End.COMPLETED
    assert read(said("x"), " [DONE] ").end is End.COMPLETED  # https://github.com/mistralai/mistral-vibe/pull/793
    assert read(said("x")).end is End.INTERRUPTED


def test_done_within_a_text_is_text() -> None:
    # https://github.com/rahilp/second-brain-cloudflare/issues/353
    reader = read(said("Keep [DONE] in this sentence."))
    assert (reader.text, reader.end) == ("Keep [DONE] in this sentence.", End.INTERRUPTED)


def test_an_abort_is_an_interruption_whatever_follows() -> None:
    # https://github.com/vllm-project/vllm/pull/47933
    reader = read(said("It left"), chunk(finish="abort"), USAGE_CHUNK, DONE)
    assert (reader.end, usage_of(reader).source) == (End.INTERRUPTED, REPORTED)


def test_a_content_filter_ends_an_answer() -> None:
    reader = read(said("x"), chunk(finish="content_filter"), USAGE_CHUNK)
    assert (reader.end, reader.finish_reason) == (End.COMPLETED, "content_filter")


def test_choices_are_apart_and_all_have_to_end() -> None:
    # https://github.com/langfuse/langfuse-python/pull/1853
    stream = [said("a b"), said("one", index=1), said(" c"), said(" two", index=1), chunk(finish="stop")]
    reader = read(*stream)
    assert (reader.text, reader.end) == ("a b cone two", End.INTERRUPTED)
    assert usage_of(reader).completion_tokens == 5
    reader = read(*stream, chunk(finish="length", index=1))
    assert (reader.end, reader.finish_reasons) == (End.COMPLETED, {0: "stop", 1: "length"})


def test_all_that_is_generated_is_counted() -> None:
    calls = [{"index": 0, "id": "c", "type": "function", "function": {"name": "track ", "arguments": '{"id": 7}'}}]
    reader = read(
        chunk({"role": "assistant", "content": None, "refusal": None, "tool_calls": None}),
        chunk({"reasoning_content": "hm ", "reasoning": "hm "}),
        chunk({"reasoning": "well "}),
        chunk({"refusal": "no "}),
        chunk({"tool_calls": calls}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": " {}"}}]}),
        chunk({"function_call": {"name": " old", "arguments": None}}),
        chunk({"audio": {"transcript": " sound", "data": "AAAA"}}),
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " so"}]}]}),  # Mistral
    )
    assert reader.text == 'hm well no track {"id": 7} {} old sound so'


def test_completions_without_chat_have_their_text_in_the_choice() -> None:
    reader = read(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "choices": [{"text": "one two", "index": 0, "finish_reason": None}],
        },
        {"id": "cmpl-1", "object": "text_completion", "choices": [{"text": "", "index": 0, "finish_reason": "stop"}]},
    )
    assert (reader.text, reader.end) == ("one two", End.COMPLETED)


def test_repeated_deltas_are_repeated_text_unless_the_source_says_otherwise() -> None:
    stream = [said("It"), said("It left"), said("It left today."), chunk(finish="stop")]
    assert read(*stream).text == "ItIt leftIt left today."
    reader = READERS["openai"]()
    reader.deltas_are_cumulative = True
    assert read(*stream, reader=reader).text == "It left today."
    assert usage_of(reader).completion_tokens == 3


def test_short_deltas_of_a_source_that_repeats_itself_are_added_in_linear_time() -> None:
    reader = READERS["openai"]()
    reader.deltas_are_cumulative = True
    reader.read_payload(said("a text longer than what follows: "))
    for _ in range(100_000):
        reader.read_payload(said("0123456789"))
    assert reader.characters == len("a text longer than what follows: ") + 1_000_000


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"error": {"message": "m", "type": "timeout", "code": "408"}}, failure("timeout", 408, True)),
        # https://openrouter.ai/docs/api/reference/errors-and-debugging
        ({"error": {"code": 502, "message": "down"}}, failure("error", 502, True)),
        # https://github.com/sgl-project/sglang/pull/20027: 200 with the error in the stream
        (
            {"error": {"object": "error", "type": "BadRequestError", "code": 400}},
            failure("BadRequestError", 400, False),
        ),
        # https://github.com/block/goose/pull/8031: vLLM's former shape
        (
            {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
            failure("BadRequestError", 400, False),
        ),
        ({"error": {"type": "server_error", "code": None}}, failure("server_error", 500, True)),
        ({"error": {"type": None, "code": "rate_limit_exceeded"}}, failure("rate_limit_exceeded", 429, True)),
        # https://github.com/vercel/ai/pull/17279
        (
            {"error": {"message": "m", "code": "CONTEXT_LENGTH_EXCEEDED"}},
            failure("CONTEXT_LENGTH_EXCEEDED", 0, False),
        ),
        ({"error": "the model is loading"}, failure("error", 0, False)),
        ({"error": True}, failure("error", 0, False)),
        ({"error": {}, "object": "error"}, failure("error", 0, False)),
        ({"detail": "Not Found"}, failure("error", 0, False)),
        ({"error": {"type": "x" * 300, "code": 99999}}, failure("x" * 100, 0, False)),
    ],
)
def test_errors_have_a_class_and_a_status_where_they_tell(payload: Any, error: AnswerError) -> None:
    reader = read(said("It left"), payload, DONE)
    assert reader.error == error
    assert (reader.end, reader.text) == (End.FAILED, "It left")


def test_an_error_never_quotes_the_message_which_may_quote_the_prompt() -> None:
    reader = read(said("x"), {"error": {"message": "secret", "type": "bad secret prompt", "code": "secret too"}})
    assert reader.error == failure("error", 0, False)


def test_half_of_a_surrogate_pair_is_no_word_for_the_log() -> None:
    reader = READERS["openai"]()
    reader.read_payload(chunk(finish="\udfff"))
    reader.read_payload({"error": {"type": "\ud800"}})
    assert (reader.finish_reason, reader.error) == ("?", failure("?", 0, False))


def test_the_first_error_is_the_cause() -> None:
    reader = read({"error": {"type": "a", "code": 503}}, {"error": {"type": "b", "code": 500}})
    assert reader.error is not None
    assert reader.error.error_class == "a"


def test_a_finish_reason_of_error_is_one() -> None:
    # https://openrouter.ai/docs/api-reference/streaming
    assert read(said("x"), chunk(finish="error"), DONE).end is End.FAILED


# --- responses ----------------------------------------------------------------------------------------------------


def response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "created_at": 1767225600, "model": "gpt-5", "status": status, **more}


def delta(text: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "i", "output_index": 0, "delta": text}


CREATED = {"type": "response.created", "response": response("in_progress", usage=None)}
RESPONSE_USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 1024,
    "output_tokens_details": {"reasoning_tokens": 1000},
    "total_tokens": 1054,
}
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "It left"}]}


def test_a_response_is_read_by_its_events() -> None:
    done = {"type": "response.output_text.done", "text": "one two"}
    last = {"type": "response.completed", "response": response("completed", output=[MESSAGE], usage=RESPONSE_USAGE)}
    reader = read(CREATED, delta("one"), delta(" two"), done, last)
    assert (reader.response_id, reader.model, reader.created) == ("resp_1", "gpt-5", 1767225600)
    assert (reader.text, reader.end, reader.finish_reason) == ("one two", End.COMPLETED, "completed")
    assert usage_of(reader) == Usage(prompt_tokens=30, completion_tokens=1024, cached_tokens=20, source=REPORTED)


def test_an_incomplete_response_has_its_usage() -> None:
    # https://github.com/BerriAI/litellm/issues/34351, https://github.com/envoyproxy/ai-gateway/pull/2184
    body = response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=RESPONSE_USAGE)
    reader = read(CREATED, delta("one"), {"type": "response.incomplete", "response": body})
    assert (reader.end, reader.finish_reason) == (End.COMPLETED, "max_output_tokens")
    assert usage_of(reader).completion_tokens == 1024


@pytest.mark.parametrize("usage", [RESPONSE_USAGE, None])
def test_a_failed_response_has_its_usage_where_there_is_one(usage: Any) -> None:
    # https://github.com/envoyproxy/ai-gateway/pull/2184
    body = response("failed", error={"code": "rate_limit_exceeded", "message": "m"}, usage=usage)
    reader = read(CREATED, {"type": "response.failed", "response": body})
    assert (reader.end, reader.error) == (End.FAILED, failure("rate_limit_exceeded", 429, True))
    assert usage_of(reader).completion_tokens == (1024 if usage else 0)


def test_a_response_that_is_cut_off_was_interrupted() -> None:
    reader = read(CREATED, delta("one two"), delta("{}", "function_call_arguments"), delta("hm", "reasoning_text"))
    assert (reader.end, usage_of(reader).completion_tokens) == (End.INTERRUPTED, 2)


def test_a_cancelled_response_was_interrupted() -> None:
    assert read(response("cancelled", output=[MESSAGE])).end is End.INTERRUPTED


def test_the_error_event_of_responses() -> None:
    reader = read(CREATED, {"type": "error", "code": "server_error", "message": "m", "param": None})
    assert reader.error == failure("server_error", 500, True)


def test_a_response_that_was_not_streamed() -> None:
    call = {"type": "function_call", "name": "track", "arguments": "{}"}
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    reader = read(response("completed", output=[reasoning, MESSAGE, call], usage=None))
    assert (reader.text, reader.end) == ("hmIt lefttrack{}", End.COMPLETED)


# --- bodies -------------------------------------------------------------------------------------------------------


def test_a_chat_completion_that_was_not_streamed() -> None:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1767225600,
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It left"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    reader = read(body)
    assert (reader.text, reader.end, usage_of(reader).completion_tokens) == ("It left", End.COMPLETED, 5)


def test_embeddings_have_a_prompt_and_no_completion() -> None:
    body = {
        "object": "list",
        "data": [{"embedding": [0.1]}],
        "model": "e",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
    reader = read(body)
    assert (reader.without_completion, reader.end) == (True, End.COMPLETED)
    assert usage_of(reader) == Usage(prompt_tokens=8, completion_tokens=0, source=REPORTED)


# --- Anthropic ----------------------------------------------------------------------------------------------------


def start(**usage: Any) -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {"id": "msg_1", "model": "claude-sonnet-4-5", "content": [], "usage": usage},
    }


def block(**parts: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": parts}


def stop(reason: str | None = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


STOPPED = {"type": "message_stop"}


def test_the_output_of_anthropic_is_cumulative_and_its_input_the_sum_of_three() -> None:
    reader = read(
        start(input_tokens=25, cache_read_input_tokens=100, cache_creation_input_tokens=50, output_tokens=1),
        {"type": "ping"},
        block(type="text_delta", text="Hello"),
        stop(output_tokens=15),
        STOPPED,
    )
    assert (reader.response_id, reader.model, reader.end) == ("msg_1", "claude-sonnet-4-5", End.COMPLETED)
    expected = Usage(prompt_tokens=175, completion_tokens=15, cached_tokens=100, cache_write_tokens=50, source=REPORTED)
    assert usage_of(reader) == expected


def test_cache_counts_in_both_events_are_counted_once() -> None:
    # https://github.com/envoyproxy/ai-gateway/issues/2279
    reader = read(
        start(input_tokens=9, cache_read_input_tokens=1, output_tokens=0),
        stop(input_tokens=9, cache_read_input_tokens=1, output_tokens=16),
        STOPPED,
    )
    assert (usage_of(reader).prompt_tokens, usage_of(reader).cached_tokens) == (10, 1)


def test_usage_that_comes_with_the_end_alone_is_taken() -> None:
    # https://github.com/envoyproxy/ai-gateway/issues/2290
    reader = read(
        start(input_tokens=0, output_tokens=0),
        stop(input_tokens=4522, cache_creation_input_tokens=4511, output_tokens=5),
    )
    usage = usage_of(reader)
    assert (usage.prompt_tokens, usage.cache_write_tokens, usage.completion_tokens) == (9033, 4511, 5)
    assert usage.prompt_tokens + usage.completion_tokens == 9038


def test_nulls_and_zeros_at_the_end_take_nothing_back() -> None:
    reader = read(
        start(input_tokens=25, output_tokens=1), stop(input_tokens=0, cache_read_input_tokens=None, output_tokens=3)
    )
    assert usage_of(reader) == Usage(prompt_tokens=25, completion_tokens=3, source=REPORTED)


def test_the_placeholder_of_an_interrupted_stream_is_not_its_output() -> None:
    # https://github.com/BerriAI/litellm/pull/30787
    reader = read(start(input_tokens=27, output_tokens=4), block(type="text_delta", text="one two three four five six"))
    assert reader.end is End.INTERRUPTED
    assert usage_of(reader) == Usage(prompt_tokens=27, completion_tokens=6, source=ESTIMATED)


def test_an_overload_in_mid_stream_is_a_failure() -> None:
    # https://github.com/use-agent-os/agent-os/pull/2271
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": None}
    reader = read(start(input_tokens=27, output_tokens=1), block(type="text_delta", text="one two"), error)
    assert (reader.end, reader.error) == (End.FAILED, failure("overloaded_error", 529, True))
    assert usage_of(reader) == Usage(prompt_tokens=27, completion_tokens=2, source=ESTIMATED)


def test_an_error_is_all_that_came() -> None:
    # https://github.com/coder/aibridge/issues/56
    reader = read({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}})
    assert reader.error == failure("invalid_request_error", 400, False)


def test_thoughts_and_tool_calls_are_output() -> None:
    reader = read(
        start(input_tokens=1, output_tokens=1),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        block(type="thinking_delta", thinking="hm "),
        block(type="signature_delta", signature="AAAA"),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "name": "track", "input": {}},
        },
        block(type="input_json_delta", partial_json='{"id": '),
        block(type="input_json_delta", partial_json="7}"),
    )
    assert reader.text == 'hm track{"id": 7}'


def test_a_message_that_was_not_streamed() -> None:
    content = [{"type": "text", "text": "Hello"}, {"type": "tool_use", "name": "track", "input": {"id": 7}}]
    usage = {"input_tokens": 25, "cache_read_input_tokens": 5, "output_tokens": 15}
    body = {"id": "m", "type": "message", "model": "c", "content": content, "stop_reason": "tool_use", "usage": usage}
    reader = read(body)
    assert (reader.text, reader.end, reader.finish_reason) == ('Hellotrack{"id":7}', End.COMPLETED, "tool_use")
    assert usage_of(reader) == Usage(prompt_tokens=30, completion_tokens=15, cached_tokens=5, source=REPORTED)


# --- Gemini -------------------------------------------------------------------------------------------------------


def candidate(text: str | None = None, finish: str | None = None, index: int = 0, **usage: Any) -> dict[str, Any]:
    one: dict[str, Any] = {"index": index}
    if text is not None:
        one["content"] = {"role": "model", "parts": [{"text": text}]}
    if finish:
        one["finishReason"] = finish
    return {"candidates": [one], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash", "responseId": "r1"}


def test_the_usage_of_gemini_is_cumulative() -> None:
    # https://github.com/agno-agi/agno/pull/6624
    reader = read(
        candidate("one", promptTokenCount=6, candidatesTokenCount=2, totalTokenCount=8),
        candidate(" two", promptTokenCount=6, candidatesTokenCount=30, totalTokenCount=36),
        candidate(None, "STOP", promptTokenCount=6, candidatesTokenCount=64, totalTokenCount=70),
    )
    assert (reader.response_id, reader.model, reader.end) == ("r1", "gemini-2.5-flash", End.COMPLETED)
    assert (reader.text, reader.finish_reason) == ("one two", "STOP")
    assert usage_of(reader) == Usage(prompt_tokens=6, completion_tokens=64, source=REPORTED)


def test_a_last_chunk_without_usage_takes_nothing_back() -> None:
    # https://github.com/microsoft/semantic-kernel/pull/13944
    reader = read(
        candidate("one", promptTokenCount=6, candidatesTokenCount=2), {"candidates": [{"finishReason": "STOP"}]}
    )
    assert (reader.end, usage_of(reader).completion_tokens, usage_of(reader).source) == (End.COMPLETED, 2, REPORTED)


def test_thoughts_are_part_of_the_completion() -> None:
    # https://github.com/Helicone/helicone/pull/5604
    counts = {"promptTokenCount": 15, "candidatesTokenCount": 359, "totalTokenCount": 1035, "thoughtsTokenCount": 661}
    assert usage_of(read(candidate("x", "STOP", **counts))).completion_tokens == 1020


def test_thoughts_that_the_candidates_have_already_are_counted_once() -> None:
    # https://github.com/simonw/llm-gemini/issues/75: which it is, the total shows
    counts = {"promptTokenCount": 15, "candidatesTokenCount": 1020, "totalTokenCount": 1035, "thoughtsTokenCount": 661}
    assert usage_of(read(candidate("x", "STOP", **counts))).completion_tokens == 1020


def test_prompts_of_tools_and_of_the_cache_belong_to_the_prompt() -> None:
    # https://github.com/simstudioai/sim/pull/3039
    counts = {
        "promptTokenCount": 15,
        "toolUsePromptTokenCount": 5,
        "cachedContentTokenCount": 10,
        "candidatesTokenCount": 3,
    }
    assert usage_of(read(candidate("x", "STOP", **counts))) == Usage(
        prompt_tokens=20, completion_tokens=3, cached_tokens=10, source=REPORTED
    )


def test_a_blocked_prompt_is_an_answer_without_a_completion() -> None:
    # https://github.com/vercel/ai/issues/4236
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 12559, "totalTokenCount": 12559},
        "modelVersion": "gemini-1.5-flash-002",
    }
    reader = read(blocked)
    assert (reader.end, reader.finish_reason) == (End.COMPLETED, "PROHIBITED_CONTENT")
    assert usage_of(reader) == Usage(prompt_tokens=12559, completion_tokens=0, source=REPORTED)


def test_a_finish_reason_without_content_ends_the_stream() -> None:
    # https://github.com/agentjido/req_llm/issues/638
    assert read(candidate("x"), candidate(None, "STOP", promptTokenCount=1)).end is End.COMPLETED


def test_a_stop_on_every_chunk_is_one_end() -> None:
    # https://github.com/songquanpeng/one-api/pull/1477
    reader = read(candidate("one", "STOP"), candidate(" two", "STOP"))
    assert (reader.text, reader.end) == ("one two", End.COMPLETED)


def test_a_stream_of_gemini_that_is_cut_off_was_interrupted() -> None:
    reader = read(candidate("one two", promptTokenCount=6), candidate(" three"))
    assert (reader.end, usage_of(reader)) == (
        End.INTERRUPTED,
        Usage(prompt_tokens=6, completion_tokens=3, source=ESTIMATED),
    )


def test_calls_of_gemini_are_output() -> None:
    parts = [{"functionCall": {"name": "track", "args": {"id": 7}}}, {"thought": True, "text": "hm"}]
    reader = read({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert reader.text == '{"name":"track","args":{"id":7}}hm'


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": 503, "message": "m", "status": "UNAVAILABLE"}, failure("UNAVAILABLE", 503, True)),
        ({"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}, failure("RESOURCE_EXHAUSTED", 429, True)),
        ({"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}, failure("INVALID_ARGUMENT", 400, False)),
    ],
)
def test_errors_of_gemini(error: Any, expected: AnswerError) -> None:
    reader = read({"error": error})
    assert type(reader) is READERS["gemini"]
    assert (reader.end, reader.error) == (End.FAILED, expected)


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (USAGE_CHUNK, "openai"),
        (CREATED, "openai"),
        ({"type": "error", "code": "server_error"}, "openai"),
        ({"error": {"type": "x", "code": "y"}}, "openai"),
        (STOPPED, "anthropic"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "anthropic"),
        (candidate("x"), "gemini"),
        (None, "openai"),
    ],
)
def test_the_format_is_guessed_from_the_first_chunk(payload: Any, name: str) -> None:
    assert type(reader_for(payload)) is READERS[name]


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnreadableRecordError, match="openai, anthropic, gemini"):
        reader_named("cohere")


def test_a_capture_without_blank_lines_has_a_chunk_a_line() -> None:
    assert payloads_of('{"a": 1}\n{"a": 2}\n[DONE]') == [{"a": 1}, {"a": 2}, None]
    assert payloads_of('[{"a": 1}, {"a": 2}]') == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("data", ["", " ", "\n"])
def test_an_event_without_data_is_a_keep_alive(data: str) -> None:
    # https://github.com/lidge-jun/opencodex/pull/1188
    assert payloads_of(data) == []


@pytest.mark.parametrize("data", ["{", "x", '"text"', "[1]", "1", "{}x", '{"a": 1}\nx', "[" * 100_000, "[DONE"])
def test_what_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(UnreadableRecordError):
        payloads_of(data)


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": 5},
        {"choices": [5]},
        {"choices": [{"delta": 5}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"finish_reason": 5}]},
        {"candidates": {"x": 1}},
        {"candidates": [5]},
        {"candidates": [{"content": {"parts": [5]}}]},
        {"candidates": [{"finishReason": 5}]},
        {"type": "message_start", "message": 5},
        {"type": "message", "content": [5]},
        {"type": "message_delta", "delta": {"stop_reason": 5}},
        {"type": "response.completed", "response": 5},
    ],
)
def test_values_of_the_wrong_kind_are_refused_by_name(payload: Any) -> None:
    with pytest.raises(UnreadableRecordError):
        read(payload)
