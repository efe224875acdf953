from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.events import (
    Event,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    UsageSource,
)
from tests.ingest_fuzz import fuzz
from udfs.domain.ingest import envoy_ai_gateway, kong
from udfs.domain.ingest.envoy_ai_gateway import read_envoy_ai_gateway
from udfs.domain.ingest.kong import read_kong
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError

ORIGIN = Origin(source="gateway", tenant="fallback")

# The fields of the format in the gateway's documentation, with values of ours.
ENVOY: dict[str, Any] = {
    ":authority": "gateway.test",
    "bytes_received": 105,
    "bytes_sent": 432,
    "connection_termination_details": None,
    "downstream_remote_address": "127.0.0.1:64484",
    "duration": 1526,
    "gen_ai.provider.name": "default/openai/route/aigw/rule/0/ref/0",
    "gen_ai.request.model": "gpt-4o-mini",
    "gen_ai.request.model_override": None,
    "gen_ai.response.model": "gpt-4o-mini-2024-07-18",
    "gen_ai.usage.input_tokens": 15,
    "gen_ai.usage.output_tokens": 7,
    "gen_ai.usage.total_tokens": 22,
    "method": "POST",
    "response_code": 200,
    "response_code_details": "via_upstream",
    "response_flags": "-",
    "start_time": "2025-08-30T16:51:37.894Z",
    "session.id": "conversation-1",
    "upstream_cluster": "httproute/default/aigw/rule/0",
    "upstream_host": "192.0.2.7:443",
    "x-envoy-origin-path": "/v1/chat/completions",
    "x-envoy-upstream-service-time": "451",
    "x-request-id": "83b63da3-45a9-4196-98b8-1a7f697d6d8d",
}
ENVOY_START = 1_756_572_697_894_000

# The same of Kong's, with the proxy and a transformer before it.
KONG: dict[str, Any] = {
    "workspace_name": "default",
    "started_at": 1_726_783_839_538,
    "client_ip": "192.0.2.1",
    "request": {
        "id": "2f6946328ffc4946b8c9120704a4a155",
        "uri": "/llm/chat/completions",
        "method": "POST",
        "size": 323,
    },
    "response": {"status": 200, "headers": {"content-type": "application/json"}},
    "upstream_uri": "/v1/chat/completions",
    "upstream_status": "200",
    "latencies": {"kong": 1, "proxy": 171, "request": 2_670, "receive": 2_498},
    "consumer": {"id": "c-1", "username": "acme", "custom_id": "tenant-7"},
    "authenticated_entity": {"id": "credential-1"},
    "service": {"name": "llm", "host": "api.cohere.test"},
    "ai": {
        "payload": {"request": "secret"},
        "proxy": {
            "payload": {"response": "secret"},
            "usage": {
                "prompt_tokens": 28,
                "completion_tokens": 20,
                "total_tokens": 48,
                "prompt_tokens_details": {"cached_tokens": 16},
                "time_per_token": 133,
                "cost": 0.0038,
            },
            "meta": {
                "request_model": "command",
                "response_model": "command-2",
                "provider_name": "cohere",
                "plugin_id": "546c3856",
                "llm_latency": 2_600,
            },
        },
    },
}
KONG_START = 1_726_783_839_538_000


def envoy(**fields: Any) -> Reading:
    return read_envoy_ai_gateway(Foreign(value=json.dumps({**ENVOY, **fields}).encode()), ORIGIN)


def envoy_renamed(**names: str) -> Reading:
    line = {names.get(name, name): value for name, value in ENVOY.items()}
    return read_envoy_ai_gateway(Foreign(value=json.dumps(line).encode()), ORIGIN)


def read_kong_of(**fields: Any) -> Reading:
    return read_kong(Foreign(value=json.dumps({**KONG, **fields}).encode()), ORIGIN)


def kong_proxy(**parts: Any) -> Reading:
    return read_kong_of(ai={"proxy": {**KONG["ai"]["proxy"], **parts}})


def prompt(reading: Reading) -> PromptSubmitted:
    first = reading.events[0]
    assert isinstance(first, PromptSubmitted)
    return first


def completed(reading: Reading) -> RequestCompleted:
    last = reading.events[-1]
    assert isinstance(last, RequestCompleted)
    return last


def counts(reading: Reading) -> tuple[int, int]:
    return completed(reading).prompt_tokens, completed(reading).completion_tokens


# --- Envoy AI Gateway ---------------------------------------------------------------------------------------------


def test_a_line_of_envoy_as_documented() -> None:
    reading = envoy()
    first, last = prompt(reading), completed(reading)
    assert len(reading.events) == 2
    assert (last.tenant, last.request_id, last.attempt) == ("fallback", ENVOY["x-request-id"], 0)
    assert (last.session, last.model, last.backend) == ("conversation-1", "gpt-4o-mini", ENVOY["gen_ai.provider.name"])
    assert (first.event_time_us, last.event_time_us) == (ENVOY_START, ENVOY_START + 1_526_000)
    assert (last.prompt_tokens, last.completion_tokens, last.usage_source) == (15, 7, UsageSource.REPORTED)
    assert (first.provider, first.stream, first.without_completion) == ("", False, False)


@pytest.mark.parametrize(
    ("model", "output", "given"),
    [
        ("genai_model_name", "genai_tokens_output", "genai_tokens_input"),
        ("x-ai-eg-model", "llm_output_token", "llm_input_token"),
    ],
)
def test_the_names_of_older_formats_and_of_the_metadata(model: str, output: str, given: str) -> None:
    reading = envoy_renamed(
        **{
            "gen_ai.request.model": model,
            "gen_ai.usage.output_tokens": output,
            "gen_ai.usage.input_tokens": given,
        }
    )
    assert reading == envoy()


@pytest.mark.parametrize("as_text", [False, True])
def test_the_metadata_as_one_object(as_text: bool) -> None:
    metadata = {"llm_input_token": 15, "llm_output_token": 7, "llm_cached_input_token": 4, "backend_name": "openai"}
    line = {name: value for name, value in ENVOY.items() if not name.startswith("gen_ai.")}
    line |= {"x-ai-eg-model": "gpt-4o-mini", "io.envoy.ai_gateway": json.dumps(metadata) if as_text else metadata}
    reading = read_envoy_ai_gateway(Foreign(value=json.dumps(line).encode()), ORIGIN)
    assert counts(reading) == (15, 7)
    assert (prompt(reading).cached_tokens, prompt(reading).provider, prompt(reading).backend) == (4, "openai", "openai")


@pytest.mark.parametrize("not_said", ["-", "", None])
def test_a_hyphen_says_nothing(not_said: str | None) -> None:
    reading = envoy(**{name: not_said for name in ENVOY if name.startswith(("gen_ai.usage", "session", "duration"))})
    assert completed(reading).usage_source is UsageSource.ABSENT
    assert (completed(reading).session, completed(reading).event_time_us) == ("", ENVOY_START)


def test_numbers_may_come_as_strings() -> None:
    as_strings = {name: str(value) for name, value in ENVOY.items() if isinstance(value, int)}
    assert envoy(**as_strings) == envoy()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gen_ai.usage.input_tokens": None}, (15, 7)),
        ({"gen_ai.usage.output_tokens": None}, (15, 7)),
        ({"gen_ai.usage.total_tokens": None}, (15, 7)),
        ({"gen_ai.usage.output_tokens": None, "gen_ai.usage.total_tokens": None}, (15, 0)),
    ],
)
def test_a_total_gives_the_count_that_is_not_logged(given: dict[str, Any], expected: tuple[int, int]) -> None:
    assert counts(envoy(**given)) == expected


def test_a_total_alone_is_not_split() -> None:
    reading = envoy(**{"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None})
    assert completed(reading).usage_source is UsageSource.ABSENT
    assert reading.passed_over == {envoy_ai_gateway.TOTALS_ALONE: 1}


def test_an_override_is_the_model_that_was_called() -> None:
    assert completed(envoy(**{"gen_ai.request.model_override": "gpt-5"})).model == "gpt-5"
    assert completed(envoy(**{"gen_ai.request.model": "-"})).model == "gpt-4o-mini-2024-07-18"


def test_a_client_that_left_before_the_end_of_the_stream_keeps_its_model() -> None:
    """https://github.com/envoyproxy/ai-gateway/issues/2563: a whole answer, and no usage in the log."""
    usage = {name: None for name in ENVOY if name.startswith("gen_ai.usage")}
    (first, last) = envoy(response_flags="DC", **usage).events
    assert isinstance(last, StreamInterrupted)
    assert (last.reason, last.token_offset) == (InterruptReason.CLIENT_DISCONNECTED, 0)
    assert (last.usage_source, first.model) == (UsageSource.ABSENT, "gpt-4o-mini")


def test_tokens_of_a_client_that_left_are_counted_where_they_are_known() -> None:
    last = envoy(response_flags="DC").events[-1]
    assert isinstance(last, StreamInterrupted)
    assert (last.token_offset, last.usage_source) == (7, UsageSource.REPORTED)


@pytest.mark.parametrize(
    ("code", "flags", "kind", "reason"),
    [
        (200, "-", RequestCompleted, None),
        (200, "DC", StreamInterrupted, InterruptReason.CLIENT_DISCONNECTED),
        (200, "DownstreamConnectionTermination", StreamInterrupted, InterruptReason.CLIENT_DISCONNECTED),
        (200, "UC", StreamInterrupted, InterruptReason.CONNECTION_LOST),
        (200, "UT,URX", StreamInterrupted, InterruptReason.CONNECTION_LOST),
        (200, "StreamIdleTimeout", StreamInterrupted, InterruptReason.CONNECTION_LOST),
        (0, "-", StreamInterrupted, InterruptReason.CLIENT_DISCONNECTED),
        (499, "-", StreamInterrupted, InterruptReason.CLIENT_DISCONNECTED),
        (503, "UC", RequestFailed, None),
        (504, "UT", RequestFailed, None),
        (429, "-", RequestFailed, None),
    ],
)
def test_how_a_response_ended(code: int, flags: str, kind: type[Event], reason: InterruptReason | None) -> None:
    last = envoy(response_code=code, response_flags=flags).events[-1]
    assert type(last) is kind
    assert getattr(last, "reason", None) == reason


@pytest.mark.parametrize(
    ("code", "flags", "details", "error_class", "retryable"),
    [
        (503, "UF", "upstream_reset_before_response_started{connection_failure}", "UF", True),
        (429, "-", "via_upstream", "", True),
        (400, "-", "via_upstream", "", False),
        (403, "-", "rbac_access_denied", "rbac_access_denied", False),
    ],
)
def test_why_a_request_failed(code: int, flags: str, details: str, error_class: str, retryable: bool) -> None:
    """https://github.com/envoyproxy/ai-gateway/issues/2440: a failure has its model and nothing else."""
    last = envoy(
        response_code=code,
        response_flags=flags,
        response_code_details=details,
        **{name: None for name in ENVOY if name.startswith(("gen_ai.usage", "gen_ai.provider", "gen_ai.response"))},
    ).events[-1]
    assert isinstance(last, RequestFailed)
    assert (last.status, last.error_class, last.retryable) == (code, error_class, retryable)
    assert (last.model, last.backend, last.usage_source) == (
        "gpt-4o-mini",
        ENVOY["upstream_cluster"],
        UsageSource.ABSENT,
    )


def test_a_line_of_a_backend_that_is_down() -> None:
    """The line of https://github.com/envoyproxy/ai-gateway/issues/1303, which has no flags."""
    line = (
        b'{"bytes_received":122,"duration":1,"genai_backend_name":null,"genai_model_name":"qwen2.5:0.5b",'
        b'"genai_model_name_override":null,"genai_tokens_input":null,"genai_tokens_output":null,"method":"POST",'
        b'"response_code":503,"start_time":"2025-10-08T10:50:31.634Z",'
        b'"upstream_cluster":"httproute/default/aigw-run/rule/0","upstream_host":null,'
        b'"x-envoy-origin-path":"/v1/chat/completions","x-request-id":"5dfa983f-f787-4f4d-91de-026aaff7efe6"}'
    )
    last = read_envoy_ai_gateway(Foreign(value=line), ORIGIN).events[-1]
    assert isinstance(last, RequestFailed)
    assert (last.model, last.status, last.retryable) == ("qwen2.5:0.5b", 503, True)


def test_lines_that_name_no_model_are_passed_over() -> None:
    """MCP calls stand in the same log: https://github.com/envoyproxy/ai-gateway/issues/1303."""
    line = {name: value for name, value in ENVOY.items() if not name.startswith("gen_ai.")}
    line |= {"x-envoy-origin-path": "/mcp", "mcp.method.name": "tools/call"}
    reading = read_envoy_ai_gateway(Foreign(value=json.dumps(line).encode()), ORIGIN)
    assert (reading.events, reading.passed_over) == ([], {envoy_ai_gateway.NO_MODEL: 1})


def test_embeddings_are_without_completion() -> None:
    assert prompt(envoy(**{"x-envoy-origin-path": "/v1/embeddings"})).without_completion


@pytest.mark.parametrize("name", ["tenant", "tenant.id", "x-tenant-id", "x-team-id"])
def test_a_tenant_that_the_format_logs(name: str) -> None:
    assert completed(envoy(**{name: "acme"})).tenant == "acme"


def test_lines_of_a_file_are_read_one_by_one() -> None:
    lines = b"\n".join(json.dumps({**ENVOY, "x-request-id": name}).encode() for name in ("a", "b"))
    reading = read_envoy_ai_gateway(Foreign(value=lines), ORIGIN)
    assert [event.request_id for event in reading.events] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"x-request-id": None}, "request id"),
        ({"start_time": None}, "start_time"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"duration": -5}, "duration"),
        ({"duration": 1e300}, "duration"),
        ({"gen_ai.usage.output_tokens": -7}, "gen_ai.usage.output_tokens"),
        ({"gen_ai.usage.output_tokens": "7 tokens"}, "gen_ai.usage.output_tokens"),
    ],
)
def test_what_envoy_cant_have_meant_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnreadableRecordError, match=named):
        envoy(**fields)


# --- Kong ---------------------------------------------------------------------------------------------------------


def test_an_entry_of_kong_as_documented() -> None:
    reading = read_kong_of()
    first, last = prompt(reading), completed(reading)
    assert len(reading.events) == 2
    assert (last.tenant, last.request_id) == ("tenant-7", "2f6946328ffc4946b8c9120704a4a155")
    assert (last.model, last.backend, first.provider, first.api_key) == ("command", "llm", "cohere", "credential-1")
    assert (first.event_time_us, last.event_time_us) == (KONG_START, KONG_START + 2_670_000)
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (28, 20, 16)
    assert (last.usage_source, first.stream, reading.passed_over) == (UsageSource.REPORTED, False, {})
    assert "secret" not in repr(reading)


def test_the_names_of_older_versions() -> None:
    usage = {"prompt_token": 28, "completion_token": 20, "total_tokens": 48}
    reading = read_kong_of(ai={"ai-proxy": {**KONG["ai"]["proxy"], "usage": usage}})
    assert counts(reading) == (28, 20)
    assert completed(reading).request_id == KONG["request"]["id"]


def test_each_plugin_that_called_a_model_is_an_attempt() -> None:
    transformer = {
        "usage": {"prompt_tokens": 89, "completion_tokens": 56},
        "meta": {"request_model": "gpt-35-turbo", "provider_name": "azure", "llm_latency": 4_927},
    }
    reading = read_kong_of(ai={"ai-request-transformer": transformer, **KONG["ai"]}, response={"status": 503})
    by_id = {event.request_id: event for event in reading.events}
    other = by_id[KONG["request"]["id"] + "/ai-request-transformer"]
    assert isinstance(other, RequestCompleted)
    assert (other.prompt_tokens, other.completion_tokens, other.model) == (89, 56, "gpt-35-turbo")
    assert other.event_time_us == KONG_START + 4_927_000
    main = by_id[KONG["request"]["id"]]
    assert isinstance(main, RequestFailed)
    assert (main.status, main.retryable) == (503, True)
    assert len({event.event_id for event in reading.events}) == 4


def test_an_answer_from_the_semantic_cache_has_no_tokens() -> None:
    reading = kong_proxy(cache={"cache_status": "Hit", "fetch_latency": 21})
    assert counts(reading) == (0, 0)
    assert prompt(reading).without_completion
    assert reading.passed_over == {kong.CACHED_USAGE: 1}
    assert counts(kong_proxy(cache={"cache_status": "Miss"})) == (28, 20)


def test_a_stream_whose_completion_kong_did_not_count() -> None:
    """https://github.com/Kong/kong/issues/14535: 0 completion tokens of an answer that had some."""
    reading = kong_proxy(usage={"prompt_tokens": 28, "completion_tokens": 0})
    assert completed(reading).usage_source is UsageSource.ABSENT
    assert completed(reading).prompt_tokens == 28
    assert reading.passed_over == {kong.NOT_COUNTED: 1}


def test_a_stream_of_which_kong_counted_nothing() -> None:
    """https://github.com/Kong/kong/issues/14768: Responses API, all counts 0."""
    reading = kong_proxy(usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
    assert completed(reading).usage_source is UsageSource.ABSENT


def test_embeddings_have_no_completion_to_count() -> None:
    fields = {"ai": {"proxy": {**KONG["ai"]["proxy"], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}}}
    reading = read_kong_of(upstream_uri="/v1/embeddings", **fields)
    assert (counts(reading), completed(reading).usage_source) == ((9, 0), UsageSource.REPORTED)
    assert (prompt(reading).without_completion, reading.passed_over) == (True, {})


def test_the_tenant_is_the_first_of_consumer_and_credential() -> None:
    consumer = dict(KONG["consumer"])
    found = []
    for name in ("custom_id", "username", "id"):
        found.append(completed(read_kong_of(consumer=consumer)).tenant)
        consumer[name] = None
    found.extend(
        (
            completed(read_kong_of(consumer=consumer)).tenant,
            completed(read_kong_of(consumer=[], authenticated_entity=None)).tenant,
        )
    )
    assert found == ["tenant-7", "acme", "c-1", "credential-1", "fallback"]


@pytest.mark.parametrize("ai", [None, {}, [], {"payload": {"request": "x"}}, {"proxy": []}])
def test_entries_without_a_model_call_are_passed_over(ai: object) -> None:
    reading = read_kong_of(ai=ai)
    assert (reading.events, reading.passed_over) == ([], {kong.NO_AI: 1})


def test_a_client_that_closed_the_request() -> None:
    last = read_kong_of(response={"status": 499}).events[-1]
    assert isinstance(last, StreamInterrupted)
    assert (last.reason, last.token_offset) == (InterruptReason.CLIENT_DISCONNECTED, 20)


def test_streams_are_known_by_their_type() -> None:
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    assert prompt(read_kong_of(response={"status": 200, "headers": headers})).stream


def test_the_id_may_stand_in_the_answers_headers_alone() -> None:
    response = {"status": 200, "headers": {"x-kong-request-id": "abc"}}
    assert completed(read_kong_of(request=[], response=response)).request_id == "abc"
    with pytest.raises(UnreadableRecordError, match="request id"):
        read_kong_of(request={})


def test_batches_of_entries_are_arrays() -> None:
    entries = [{**KONG, "request": {"id": name}} for name in ("a", "b")]
    reading = read_kong(Foreign(value=json.dumps(entries).encode()), ORIGIN)
    assert [event.request_id for event in reading.events] == ["a", "a", "b", "b"]


def test_a_latency_of_minus_one_is_not_known() -> None:
    assert completed(read_kong_of(latencies={"request": -1})).event_time_us == KONG_START


# --- whatever comes -----------------------------------------------------------------------------------------------

ENVOY_SAMPLES = [
    json.dumps({**ENVOY, **more}).encode() for more in ({}, {"response_flags": "DC"}, {"response_code": 503})
]
KONG_SAMPLES = [json.dumps(each).encode() for each in (KONG, [KONG, KONG])]


def test_whatever_comes_is_read_or_refused() -> None:
    for adapter, samples in ((read_envoy_ai_gateway, ENVOY_SAMPLES), (read_kong, KONG_SAMPLES)):
        seen = fuzz(adapter, samples, 2_000, seed=3)
        assert min(seen["read"], seen["refused"]) > 200


@pytest.mark.slow
def test_whatever_comes_is_read_or_refused_at_length() -> None:
    for adapter, samples in ((read_envoy_ai_gateway, ENVOY_SAMPLES), (read_kong, KONG_SAMPLES)):
        fuzz(adapter, samples, 100_000, seed=4)
