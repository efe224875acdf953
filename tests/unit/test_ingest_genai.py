"""Calls of models as spans tell them: names old and new, tokens that must not be billed twice, and how calls end."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.otlp_requests import ORIGIN, SHARED, START_US, TRACE, chat, needs_samples, read, sample, span, traces
from udfs.domain.ingest.genai import NO_MODEL_CALL, OTHER_OPERATION, PENDING_SPAN, ROLL_UP
from udfs.domain.ingest.genai_names import ALIASES, known_attributes, semantic_provider
from udfs.domain.ingest.record import Origin
from udfs.domain.ingest.span_tree import NESTED_CALL

SECOND = 1_000_000


def said(event: Event) -> dict[str, Any]:
    """What an event says beyond the defaults, without its id and where it comes from."""
    left_out = {"event_id", "source", "provenance"}
    return {
        "kind": type(event).__name__,
        **{name: value for name in event.__struct_fields__ if name not in left_out and (value := getattr(event, name))},
    }


def ends(*spans: Any, **more: Any) -> list[RequestCompleted]:
    return [event for event in read(traces(*spans, **more)).events if isinstance(event, RequestCompleted)]


def end(values: dict[str, Any] | None = None, **more: Any) -> RequestCompleted:
    (found,) = ends(chat(values, **more))
    return found


def last(values: dict[str, Any] | None = None, **more: Any) -> Event:
    return read(traces(chat(values, **more))).events[-1]


def prompt(values: dict[str, Any] | None = None, **more: Any) -> PromptSubmitted:
    first = read(traces(chat(values), **more)).events[0]
    assert isinstance(first, PromptSubmitted)
    return first


def refusal(values: dict[str, Any]) -> tuple[DeadLetterReason, str]:
    reading = read(traces(chat(values)))
    assert reading.events == []
    (refused,) = reading.refused
    return refused.reason, refused.detail


# --- the samples ----------------------------------------------------------------------------------------------------

STREAMED = {
    "tenant": "tenant-a",
    "request_id": "chatcmpl-sample-0001",
    "session": "conv-0001",
    "model": "gpt-4o-mini",
    "backend": "api.openai.com",
}
LEGACY = {
    "tenant": "tenant-a",
    "request_id": "5b8efff798038103d269b633813fc60c-eee19b7ec3c1b175",
    "model": "gpt-4o-mini",
    "backend": "azure.ai.openai",
}
FROM_VLLM = {"tenant": "origin-tenant", "request_id": "chatcmpl-vllm-0001", "model": "facebook/opt-125m"}
LEFT = {
    "tenant": "tenant-a",
    "request_id": "6b8efff798038103d269b633813fc60c-aaa19b7ec3c1b174",
    "session": "conv-0002",
    "model": "gpt-4o-mini",
    "backend": "openai",
}
LIMITED = {
    "tenant": "tenant-a",
    "request_id": "7b8efff798038103d269b633813fc60c-bbb19b7ec3c1b174",
    "model": "gpt-4o-mini",
    "backend": "openai",
}


def in_agent(number: int) -> dict[str, Any]:
    return {
        "tenant": "tenant-a",
        "request_id": f"8b8efff798038103d269b633813fc60c-{number:016d}",
        "session": "conv-0003",
        "model": "gpt-4o-mini",
        "backend": "openai",
    }


def at(seconds: float, sequence: int) -> dict[str, int]:
    return {"event_time_us": START_US + round(seconds * SECOND), "sequence": sequence}


REPORTED = {"usage_source": UsageSource.REPORTED}
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "otlp_genai_chat_stream.json": [
        {"kind": "PromptSubmitted", **STREAMED, **at(0, 1), "provider": "openai", "stream": True}
        | {"prompt_tokens": 1000, "cached_tokens": 640, "max_tokens": 256},
        {"kind": "TokensGenerated", **STREAMED, **at(0.41, 2), "count": 1, "cumulative": 1},
        {"kind": "RequestCompleted", **STREAMED, **at(2.5, 3), **REPORTED, "finish_reason": "stop"}
        | {"prompt_tokens": 1000, "completion_tokens": 100, "cached_tokens": 640},
    ],
    "otlp_genai_legacy_names.json": [
        {"kind": "PromptSubmitted", **LEGACY, **at(3, 1), "provider": "azure.ai.openai"}
        | {"prompt_tokens": 1000, "cached_tokens": 640},
        {"kind": "RequestCompleted", **LEGACY, **at(4, 2), **REPORTED, "finish_reason": "stop"}
        | {"prompt_tokens": 1000, "completion_tokens": 100, "cached_tokens": 640, "cache_write_tokens": 64},
    ],
    "otlp_genai_interrupted.json": [
        {"kind": "PromptSubmitted", **LEFT, **at(10, 1), "provider": "openai", "stream": True, "max_tokens": 512},
        {"kind": "StreamInterrupted", **LEFT, **at(11.2, 2), "reason": InterruptReason.CLIENT_DISCONNECTED},
        {"kind": "PromptSubmitted", **LIMITED, **at(12, 1), "provider": "openai"},
        {"kind": "RequestFailed", **LIMITED, **at(12.1, 2), "error_class": "429", "status": 429, "retryable": True},
    ],
    "otlp_genai_agent_rollup.json": [
        {"kind": "PromptSubmitted", **in_agent(1_000_000_000_000_002), **at(20.1, 1), "provider": "openai"}
        | {"prompt_tokens": 100},
        {"kind": "RequestCompleted", **in_agent(1_000_000_000_000_002), **at(21, 2), **REPORTED}
        | {"prompt_tokens": 100, "completion_tokens": 20},
        {"kind": "PromptSubmitted", **in_agent(1_000_000_000_000_003), **at(22, 1), "provider": "openai"}
        | {"prompt_tokens": 200},
        {"kind": "RequestCompleted", **in_agent(1_000_000_000_000_003), **at(23, 2), **REPORTED}
        | {"prompt_tokens": 200, "completion_tokens": 30},
    ],
    "otlp_vllm_llm_request.json": [
        {"kind": "PromptSubmitted", **FROM_VLLM, **at(30, 1), "prompt_tokens": 42, "max_tokens": 128, "choices": 1},
        {"kind": "TokensGenerated", **FROM_VLLM, **at(30.085, 2), "count": 1, "cumulative": 1},
        {"kind": "RequestCompleted", **FROM_VLLM, **at(31.5, 3), **REPORTED}
        | {"prompt_tokens": 42, "completion_tokens": 64},
    ],
    "otlp_genai_log_event.json": [],
    "otlp_genai_metrics.json": [],
}
PASSED_OVER = {
    "otlp_genai_agent_rollup.json": {ROLL_UP: 1},
    "otlp_genai_log_event.json": {"gen_ai.client.inference.operation.details": 1},
    "otlp_genai_metrics.json": {"gen_ai.client.token.usage": 1},
}


@needs_samples
@pytest.mark.parametrize("name", EXPECTED)
def test_each_sample_gives_its_events(name: str) -> None:
    reading = read(sample(name))
    assert [said(event) for event in reading.events] == EXPECTED[name]
    assert (reading.refused, reading.passed_over) == ([], PASSED_OVER.get(name, {}))


@needs_samples
def test_case_in02_the_provider_is_known_by_its_old_and_new_name() -> None:
    # https://github.com/SigNoz/signoz/issues/12759
    names = ("otlp_genai_chat_stream.json", "otlp_genai_legacy_names.json")
    providers = [
        event.provider for name in names for event in read(sample(name)).events[:1] if hasattr(event, "provider")
    ]
    assert providers == case("IN02")["expected"]["provider"] == ["openai", "azure.ai.openai"]


@needs_samples
def test_case_co07_cached_tokens_are_within_the_input() -> None:
    # https://github.com/langfuse/langfuse/pull/14902
    expected = case("CO07")["expected"]
    found = end({**case("CO07")["input"]})
    assert found.cached_tokens == expected["cached"] == 9216
    assert found.prompt_tokens - found.cached_tokens == expected["uncached"] == 4459


@needs_samples
def test_case_co09_reading_a_stored_response_again_is_no_call() -> None:
    # https://github.com/BerriAI/litellm/issues/17814
    spans = [
        chat({"gen_ai.operation.name": told["call_type"], "gen_ai.response.id": told["response_id"]}, number=number)
        for number, told in enumerate(case("CO09")["input"]["events"], 1)
    ]
    reading = read(traces(*spans))
    assert len([event for event in reading.events if isinstance(event, RequestCompleted)]) == 1
    assert reading.passed_over == {"aget_responses": 1}


def case(name: str) -> dict[str, Any]:
    cases = json.loads((SHARED / "cases" / "cases.json").read_text())["cases"]
    found: dict[str, Any] = next(one for one in cases if one["id"] == name)
    return found


# --- names ----------------------------------------------------------------------------------------------------------


def test_no_attribute_has_two_meanings() -> None:
    aliases = [alias for of in ALIASES.values() for alias in of]
    assert len(aliases) == len(set(aliases))


@pytest.mark.parametrize("alias", ALIASES["input_tokens"])
def test_input_tokens_are_known_by_each_name(alias: str) -> None:
    assert end({"gen_ai.usage.input_tokens": None, alias: 77}).prompt_tokens == 77


@pytest.mark.parametrize("alias", ALIASES["output_tokens"])
def test_output_tokens_are_known_by_each_name(alias: str) -> None:
    assert end({"gen_ai.usage.output_tokens": None, alias: 77}).completion_tokens == 77


@pytest.mark.parametrize("alias", ALIASES["cache_read_tokens"])
def test_tokens_read_from_the_cache_are_known_by_each_name(alias: str) -> None:
    # https://github.com/langfuse/langfuse/issues/12306 and https://github.com/langfuse/langfuse/pull/14902
    found = end({"gen_ai.usage.input_tokens": 100, alias: 77})
    assert (found.prompt_tokens, found.cached_tokens) == (100, 77)


@pytest.mark.parametrize("alias", ALIASES["cache_write_tokens"])
def test_tokens_written_into_the_cache_are_known_by_each_name(alias: str) -> None:
    found = end({"gen_ai.usage.input_tokens": 100, alias: 77})
    assert (found.prompt_tokens, found.cache_write_tokens) == (100, 77)


@given(st.dictionaries(st.sampled_from(ALIASES["input_tokens"]), st.integers(0, 3), min_size=1))
def test_of_two_names_the_first_that_says_something_counts(given_names: dict[str, int]) -> None:
    in_order = [given_names[alias] for alias in ALIASES["input_tokens"] if alias in given_names]
    expected = next((number for number in in_order if number), 0)
    assert known_attributes(given_names) == {"input_tokens": expected}


@pytest.mark.parametrize(
    ("told", "provider"),
    [
        ({"gen_ai.provider.name": "openai", "gen_ai.system": "az.ai.openai"}, "openai"),
        ({"gen_ai.system": "az.ai.inference"}, "azure.ai.inference"),
        ({"gen_ai.system": "vertex_ai"}, "gcp.vertex_ai"),
        ({"gen_ai.system": "gemini"}, "gcp.gemini"),
        ({"gen_ai.system": "xai"}, "x_ai"),
        ({"gen_ai.system": "OpenAI"}, "openai"),
        ({"gen_ai.system": "anthropic.messages"}, "anthropic"),
        ({"llm.system": "openai", "llm.provider": "azure"}, "azure.ai.openai"),
        ({}, ""),
    ],
)
def test_the_provider_has_one_name(told: dict[str, Any], provider: str) -> None:
    assert prompt({"gen_ai.provider.name": None, **told}).provider == provider


@given(st.text(max_size=20))
def test_a_providers_name_stays_what_it_has_become(name: str) -> None:
    once = semantic_provider(name)
    assert semantic_provider(once) == once


@pytest.mark.parametrize("alias", ["tenant.id", "tenant_id", "metadata.user_api_key_team_id"])
def test_the_tenant_may_stand_on_the_span_or_the_resource(alias: str) -> None:
    assert prompt({alias: "of-span"}, resource={"tenant.id": "of-resource"}).tenant == "of-span"
    assert prompt({}, resource={alias: "of-resource"}).tenant == "of-resource"
    assert prompt({}, resource={}).tenant == ORIGIN.tenant


def test_a_call_without_a_tenant_is_refused_with_the_remedy() -> None:
    (refused,) = read(traces(chat(), resource={}), Origin(source="s")).refused
    assert (refused.reason, refused.index) == (DeadLetterReason.MISSING_FIELD, 0)
    assert "without tenant" in refused.detail


def test_session_user_region_and_place_are_told() -> None:
    told = prompt(
        {
            "session.id": "s-1",
            "enduser.id": "u-1",
            "server.address": "gpu.internal",
            "server.port": 8000,
            "gen_ai.request.choice.count": 2,
        },
        resource={"tenant.id": "t", "cloud.region": "eu-west-1"},
    )
    assert (told.session, told.user, told.backend, told.region, told.choices) == (
        *("s-1", "u-1", "gpu.internal:8000", "eu-west-1", 2),
    )


def test_an_engines_own_span_ran_where_its_resource_is() -> None:
    resource = {"tenant.id": "t", "service.instance.id": "10.0.0.1:8000"}
    assert read(traces(chat(), resource=resource, scope="vllm.llm_engine")).events[0].backend == "10.0.0.1:8000"
    assert read(traces(chat(), resource=resource, scope="a client")).events[0].backend == "openai"


def test_a_key_is_taken_as_its_hash_alone() -> None:
    told = prompt(
        {
            "metadata.user_api_key_hash": "88dc28d0f0",
            "http.request.header.authorization": "Bearer sk-secret",
            "gen_ai.request.api_key": "sk-secret",
            "llm.headers": "authorization: sk-secret",
        }
    )
    assert told.api_key == "88dc28d0f0"
    assert "sk-secret" not in repr(told)


def test_a_request_is_known_by_its_own_id_its_response_or_its_span() -> None:
    assert prompt({"gen_ai.request.id": "r", "gen_ai.response.id": "s"}).request_id == "r"
    assert prompt({"gen_ai.response.id": "s"}).request_id == "s"
    assert prompt().request_id == f"{TRACE}-{1:016x}"
    (refused,) = read(traces(chat(traceId=""))).refused
    assert refused.reason is DeadLetterReason.MISSING_FIELD


def test_a_call_that_is_told_twice_is_the_same_events() -> None:
    # Two spans, but for their ids the same: https://github.com/BerriAI/litellm/issues/10588
    first, second = (read(traces(chat({"gen_ai.response.id": "r"}, number=number))).events for number in (1, 2))
    assert [event.event_id for event in first] == [event.event_id for event in second]


def test_a_name_that_is_too_long_to_be_a_key_is_refused() -> None:
    reason, detail = refusal({"gen_ai.conversation.id": "s" * 513})
    assert (reason, detail[:22]) == (DeadLetterReason.TOO_LARGE, "gen_ai.conversation.id")


# --- tokens ---------------------------------------------------------------------------------------------------------

INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
READ, WRITTEN = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"


def test_anthropics_input_that_includes_the_cache_is_taken_as_it_is() -> None:
    # https://github.com/pydantic/pydantic-ai/issues/4364
    found = end({"gen_ai.provider.name": "anthropic", INPUT: 130_213, READ: 128_955, WRITTEN: 1_253})
    assert (found.prompt_tokens, found.cached_tokens, found.cache_write_tokens) == (130_213, 128_955, 1_253)


@pytest.mark.parametrize(
    "told", [{"gen_ai.provider.name": "anthropic"}, {"gen_ai.system": "bedrock"}, {"gen_ai.request.model": "claude-4"}]
)
def test_anthropics_input_without_the_cache_is_added_up(told: dict[str, Any]) -> None:
    # https://github.com/pydantic/logfire/pull/1812: the same call, before instrumentations added it up.
    found = end({"gen_ai.provider.name": None, **told, INPUT: 5, READ: 128_955, WRITTEN: 1_253})
    assert (found.prompt_tokens, found.cached_tokens, found.cache_write_tokens) == (130_213, 128_955, 1_253)


def test_more_cached_tokens_than_input_are_refused_where_they_are_within_it() -> None:
    reason, detail = refusal({INPUT: 5, READ: 6})
    assert reason is DeadLetterReason.OUT_OF_RANGE
    assert detail == f"{READ} is 6, it must be at most the input tokens, 5"


@pytest.mark.parametrize("count", [-1, 1.5, "many", True, 10**13, ["1"]])
def test_a_count_that_can_not_be_meant_is_refused_by_its_name(count: Any) -> None:
    reason, detail = refusal({OUTPUT: count})
    assert reason is DeadLetterReason.OUT_OF_RANGE
    assert detail.startswith(OUTPUT)


def test_a_count_may_be_a_string() -> None:
    assert end({OUTPUT: "12"}).completion_tokens == 12


def test_what_is_left_of_the_total_is_the_part_that_is_not_told() -> None:
    found = end({OUTPUT: None, "llm.usage.total_tokens": 1100, INPUT: 1000})
    assert (found.prompt_tokens, found.completion_tokens) == (1000, 100)


def test_a_call_that_tells_no_tokens_is_completed_without() -> None:
    found = end({INPUT: None, OUTPUT: None})
    assert (found.usage_source, found.prompt_tokens, found.completion_tokens) == (UsageSource.ABSENT, 0, 0)


MESSAGES = [
    {"role": "user", "parts": [{"type": "text", "content": "Where is my parcel?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "arguments": {"text": "parcel"}}]},
]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "It left today."}], "finish_reason": "stop"}]


@pytest.mark.parametrize(
    "told",
    [
        {"gen_ai.input.messages": json.dumps(MESSAGES[:1]), "gen_ai.output.messages": json.dumps(ANSWER)},
        {"gen_ai.input.messages": MESSAGES[:1], "gen_ai.output.messages": ANSWER},
        {"gen_ai.prompt.0.content": "Where is my parcel?", "gen_ai.completion.0.content": "It left today."},
        {
            "llm.input_messages.0.message.content": "Where is my parcel?",
            "llm.output_messages.0.message.content": "It left today.",
        },
        {"gen_ai.prompt": "Where is my parcel?", "gen_ai.completion": "It left today."},
    ],
)
def test_tokens_that_are_not_told_are_counted_from_the_messages(told: dict[str, Any]) -> None:
    found = end({INPUT: None, OUTPUT: None, **told})
    assert (found.usage_source, found.prompt_tokens, found.completion_tokens) == (UsageSource.ESTIMATED, 5, 4)


def test_messages_that_were_cut_short_are_counted_as_text() -> None:
    found = end({OUTPUT: None, "gen_ai.output.messages": json.dumps(ANSWER)[:-9]})
    assert found.usage_source is UsageSource.ESTIMATED
    assert found.completion_tokens > 4


def test_messages_are_in_no_event() -> None:
    told = {"gen_ai.input.messages": json.dumps(MESSAGES), "gen_ai.output.messages": json.dumps(ANSWER)}
    for values in (told, {INPUT: None, OUTPUT: None, **told}):
        assert "parcel" not in repr(read(traces(chat(values))))


# --- what is a call -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"gen_ai.operation.name": "text_completion"},
        {"gen_ai.operation.name": "acompletion"},
        {"gen_ai.operation.name": None, "llm.request.type": "chat"},
        {"gen_ai.operation.name": None, "openinference.span.kind": "LLM"},
        {"gen_ai.operation.name": None, "ai.operationId": "ai.generateText.doGenerate"},
        {"gen_ai.operation.name": None},
        {"gen_ai.operation.name": "Chat", "openinference.span.kind": "UNKNOWN"},
    ],
)
def test_a_call_is_known_by_each_convention(told: dict[str, Any]) -> None:
    assert end(told).completion_tokens == 5


@pytest.mark.parametrize(
    "told",
    [
        {"gen_ai.operation.name": "invoke_agent"},
        {"gen_ai.operation.name": "invoke_workflow"},
        {"gen_ai.operation.name": None, "openinference.span.kind": "CHAIN"},
        {"gen_ai.operation.name": None, "traceloop.span.kind": "workflow"},
        {"gen_ai.operation.name": "chat", "openinference.span.kind": "AGENT"},
        {"gen_ai.operation.name": None, "ai.operationId": "ai.streamText"},
    ],
)
def test_a_span_that_sums_up_calls_is_passed_over(told: dict[str, Any]) -> None:
    # https://github.com/pydantic/pydantic-ai/issues/3995, https://github.com/Arize-ai/phoenix/pull/12775,
    # https://github.com/braintrustdata/braintrust-sdk-javascript/pull/1377
    reading = read(traces(chat(told)))
    assert (reading.events, reading.passed_over) == ([], {ROLL_UP: 1})


@pytest.mark.parametrize(
    ("told", "label"),
    [
        ({"gen_ai.operation.name": "execute_tool"}, "execute_tool"),
        ({"gen_ai.operation.name": "create_agent"}, "create_agent"),
        ({"openinference.span.kind": "RETRIEVER"}, "retriever"),
        ({"gen_ai.operation.name": "something_new", "gen_ai.request.model": "m"}, OTHER_OPERATION),
        ({"logfire.span_type": "pending_span", "gen_ai.request.model": "m"}, PENDING_SPAN),
        ({"http.request.method": "GET"}, NO_MODEL_CALL),
        ({}, NO_MODEL_CALL),
    ],
)
def test_a_span_that_is_no_call_is_passed_over_by_what_it_is(told: dict[str, Any], label: str) -> None:
    reading = read(traces(span(told)))
    assert (reading.events, reading.refused, reading.passed_over) == ([], [], {label: 1})


def test_tokens_of_an_operation_that_nobody_knows_are_refused() -> None:
    reason, detail = refusal({"gen_ai.operation.name": "divination"})
    assert reason is DeadLetterReason.UNKNOWN_KIND
    assert "'divination'" in detail


def test_embeddings_are_a_call_without_a_completion() -> None:
    told = {"gen_ai.operation.name": "embeddings", OUTPUT: None}
    assert prompt(told).without_completion
    found = end(told)
    assert (found.prompt_tokens, found.completion_tokens, found.usage_source) == (10, 0, UsageSource.REPORTED)


# --- calls around calls ---------------------------------------------------------------------------------------------


def test_a_call_around_a_call_is_counted_once() -> None:
    # https://github.com/DataDog/dd-trace-js/issues/8936, https://github.com/langfuse/langfuse/issues/9344
    reading = read(traces(chat(number=1), span({}, number=2, parent=1), chat({INPUT: 11}, number=3, parent=2)))
    (found,) = [event for event in reading.events if isinstance(event, RequestCompleted)]
    assert (found.prompt_tokens, reading.passed_over) == (11, {ROLL_UP: 1, NO_MODEL_CALL: 1})


def test_a_call_that_alone_tells_its_tokens_is_counted_and_not_the_one_within() -> None:
    # LiteLLM writes a span of the raw request, without tokens, below its own: https://github.com/BerriAI/litellm/pull/4078
    reading = read(traces(chat(number=1), chat({INPUT: None, OUTPUT: None}, number=2, parent=1)))
    (found,) = [event for event in reading.events if isinstance(event, RequestCompleted)]
    assert (found.request_id[-1], reading.passed_over) == ("1", {NESTED_CALL: 1})


def test_attempts_below_a_call_are_each_counted() -> None:
    # https://github.com/openlit/openlit/issues/1488
    failed = {INPUT: None, OUTPUT: None, "error.type": "429"}
    reading = read(traces(chat(number=1), chat(failed, number=2, parent=1), chat(number=3, parent=1)))
    assert [type(event) for event in reading.events] == [
        *(PromptSubmitted, RequestFailed),
        *(PromptSubmitted, RequestCompleted),
    ]
    assert reading.passed_over == {ROLL_UP: 1}


def test_spans_that_are_their_own_ancestors_do_not_hang() -> None:
    reading = read(traces(chat(number=1, parent=2), chat(number=2, parent=1), chat(number=3, parent=3)))
    assert len(reading.events) + sum(reading.passed_over.values()) >= 3


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=30))
def test_of_calls_within_calls_the_innermost_that_tell_tokens_are_counted(tree: list[tuple[int, bool]]) -> None:
    parents = {number: min(parent, number - 1) for number, (parent, _) in enumerate(tree, 1)}
    tells = {number: has for number, (_, has) in enumerate(tree, 1)}

    def above(number: int) -> list[int]:
        return [parents[number], *above(parents[number])] if parents[number] else []

    expected = {
        number
        for number in tells
        if tells[number] and not any(number in above(other) for other in tells if tells[other])
    }
    spans = [
        chat({} if tells[number] else {INPUT: None, OUTPUT: None}, number=number, parent=parent)
        for number, parent in parents.items()
    ]
    counted = {int(event.request_id[-16:], 16) for event in ends(*spans) if event.usage_source is UsageSource.REPORTED}
    assert counted == expected


def test_a_call_belongs_to_the_session_of_the_agent_above_it() -> None:
    agent = span({"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": "c"}, number=1)
    spans = [
        agent,
        span({}, number=2, parent=1),
        chat(number=3, parent=2),
        chat({"session.id": "own"}, number=4, parent=1),
    ]
    assert [found.session for found in ends(*spans)] == ["c", "own"]


# --- how a call ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"error.type": "client_disconnected"},
        {"error.type": "ClientDisconnect"},
        {"error.type": "asyncio.exceptions.CancelledError"},
        {"error.type": "499"},
        {"http.response.status_code": 499},
        {"gen_ai.response.finish_reasons": ["abort"]},
    ],
)
def test_a_client_that_leaves_interrupts_the_stream(told: dict[str, Any]) -> None:
    # The finish reason: https://github.com/vllm-project/vllm/pull/47933
    found = last(told)
    assert isinstance(found, StreamInterrupted)
    assert (found.reason, found.token_offset) == (InterruptReason.CLIENT_DISCONNECTED, 5)
    assert found.usage_source is UsageSource.REPORTED


def test_a_connection_that_is_lost_interrupts_a_stream_and_fails_what_is_none() -> None:
    lost = {"error.type": "httpx.RemoteProtocolError", INPUT: None, OUTPUT: None}
    stream, whole = last({**lost, "gen_ai.request.stream": True}), last(lost)
    assert isinstance(stream, StreamInterrupted)
    assert stream.reason is InterruptReason.CONNECTION_LOST
    assert isinstance(whole, RequestFailed)
    assert whole.retryable


@pytest.mark.parametrize(
    ("told", "error_class", "status", "retryable"),
    [
        ({"error.type": "429"}, "429", 429, True),
        ({"error.type": "openai.RateLimitError"}, "openai.RateLimitError", 0, True),
        ({"error.type": "timeout"}, "timeout", 0, True),
        ({"error.type": "BadRequestError", "http.response.status_code": "400"}, "BadRequestError", 400, False),
        ({"http.response.status_code": 503}, "503", 503, True),
        ({"error.type": "_OTHER", "http.response.status_code": -5}, "_OTHER", 0, False),
    ],
)
def test_an_error_fails_the_call(told: dict[str, Any], error_class: str, status: int, retryable: bool) -> None:
    found = last(told)
    assert isinstance(found, RequestFailed)
    assert (found.error_class, found.status, found.retryable) == (error_class, status, retryable)
    assert (found.prompt_tokens, found.completion_tokens) == (10, 5)


def test_a_status_of_error_is_named_by_its_exception() -> None:
    exception = {"name": "exception", "attributes": [{"key": "exception.type", "value": {"stringValue": "KeyError"}}]}
    named, unnamed = last(status={"code": 2}, events=[exception]), last(status={"code": "STATUS_CODE_ERROR"})
    assert isinstance(named, RequestFailed)
    assert isinstance(unnamed, RequestFailed)
    assert (named.error_class, unnamed.error_class) == ("KeyError", "error")


def test_a_span_without_an_end_is_a_prompt_whose_end_another_tells() -> None:
    opened = read(traces(chat(end_us=0))).events
    assert [type(event) for event in opened] == [PromptSubmitted]
    assert opened[0].event_id == read(traces(chat())).events[0].event_id


def test_a_span_that_ends_before_it_starts_is_refused() -> None:
    (refused,) = read(traces(chat(end_us=START_US - 1))).refused
    assert refused.reason is DeadLetterReason.OUT_OF_RANGE


def test_a_span_without_a_time_has_that_of_its_record() -> None:
    timeless = traces(chat(startTimeUnixNano=0, endTimeUnixNano=0))
    assert [event.event_time_us for event in read(timeless, received_at_us=START_US).events] == [START_US]
    assert read(timeless).refused[0].reason is DeadLetterReason.MISSING_FIELD


@pytest.mark.parametrize(
    ("told", "after_us"),
    [
        ({"gen_ai.response.time_to_first_chunk": 0.25}, 250_000),
        ({"gen_ai.latency.time_to_first_token": "0.25"}, 250_000),
        ({"ai.response.msToFirstChunk": 250}, 250_000),
        ({"gen_ai.response.time_to_first_chunk": 7.0}, 1_000_000),
    ],
)
def test_the_first_chunk_is_one_token_within_the_span(told: dict[str, Any], after_us: int) -> None:
    (found,) = [event for event in read(traces(chat(told))).events if isinstance(event, TokensGenerated)]
    assert (found.event_time_us, found.count, found.cumulative) == (START_US + after_us, 1, 1)


@pytest.mark.parametrize("told", [{OUTPUT: 0}, {"gen_ai.response.time_to_first_chunk": -1.0}, {}])
def test_where_no_first_token_is_known_there_is_no_chunk(told: dict[str, Any]) -> None:
    values = {"gen_ai.response.time_to_first_chunk": 0.5, **told} if told else {}
    assert len(read(traces(chat(values))).events) == 2


def test_the_first_of_openllmetrys_chunk_events_is_the_first_chunk() -> None:
    events = [
        {"name": "llm.content.completion.chunk", "timeUnixNano": str((START_US + after) * 1_000)} for after in (7, 9)
    ]
    assert read(traces(chat(events=events))).events[1].event_time_us == START_US + 7


@pytest.mark.parametrize("given_limit", [-1, "-1", "None"])
def test_a_limit_that_is_none_is_left_out(given_limit: Any) -> None:
    assert prompt({"gen_ai.request.max_tokens": given_limit}).max_tokens == 0


@pytest.mark.parametrize("finish", [["stop", "length"], "stop", '["stop"]'])
def test_the_finish_reason_may_be_a_list_or_a_word(finish: Any) -> None:
    assert end({"gen_ai.response.finish_reasons": finish}).finish_reason == "stop"
