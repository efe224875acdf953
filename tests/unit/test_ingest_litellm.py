from __future__ import annotations

import copy
import json
from hashlib import sha256
from pathlib import Path
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
from tests.ingest_fuzz import fuzz
from udfs.domain.ingest.litellm import CACHED_USAGE, READS_AND_CHORES, TOTALS_ALONE, read_litellm
from udfs.domain.ingest.objects import EMPTY, MAX_OBJECTS
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError, read_foreign

SHARED = Path(__file__).parents[3] / "shared"
SUCCESS_FILE = SHARED / "samples" / "litellm_standard_logging_success.json"
FAILURE_FILE = SHARED / "samples" / "litellm_standard_logging_failure.json"
PAYLOAD_FILE = SHARED / "data" / "litellm" / "standard_logging_payload.json"
SPEND_FILE = SHARED / "data" / "litellm" / "spend_logs_payload.abridged.json"
needs_shared = pytest.mark.skipif(not SUCCESS_FILE.exists(), reason="the shared samples are not at hand")

ORIGIN = Origin(source="litellm", tenant="fallback")
SECOND = 1_000_000
START = 1_767_225_600
KEY_HASH = "0" * 64

SUCCESS: dict[str, Any] = {
    "id": "chatcmpl-1",
    "trace_id": "trace-1",
    "call_type": "acompletion",
    "stream": True,
    "status": "success",
    "custom_llm_provider": "openai",
    "total_tokens": 1100,
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "startTime": float(START),
    "endTime": START + 2.5,
    "completionStartTime": START + 0.41,
    "model": "gpt-4o-mini",
    "model_id": "deploy-a1",
    "model_group": "chat-small",
    "api_base": "https://api.openai.com",
    "metadata": {
        "user_api_key_hash": KEY_HASH,
        "user_api_key_alias": "key-a",
        "user_api_key_org_id": "org-a",
        "user_api_key_team_id": "team-a",
        "user_api_key_team_alias": "The A Team",
        "usage_object": {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1100,
            "prompt_tokens_details": {"cached_tokens": 640},
        },
    },
    "cache_hit": False,
    "end_user": "enduser-1",
    "messages": [{"role": "user", "content": "Where is my parcel?"}],
    "response": {"choices": [{"message": {"content": "On its way."}, "finish_reason": "stop"}]},
    "error_information": None,
    "model_parameters": {"stream": True, "max_tokens": 256, "n": 2},
}
FAILURE: dict[str, Any] = {
    **SUCCESS,
    "id": "call-2",
    "status": "failure",
    "total_tokens": 0,
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "metadata": {**SUCCESS["metadata"], "usage_object": None},
    "response": None,
    "error_information": {"error_code": "429", "error_class": "RateLimitError", "llm_provider": "openai"},
}
SPEND_ROW: dict[str, Any] = {
    "request_id": "chatcmpl-3",
    "session_id": "conversation-1",
    "call_type": "acompletion",
    "api_key": KEY_HASH,
    "cache_hit": "None",
    "startTime": "2025-01-24 09:20:46.847371",
    "endTime": "2025-01-24 09:20:48.851954",
    "completionStartTime": "2025-01-24 09:20:47.000001",
    "model": "gpt-4o",
    "team_id": "team-b",
    "organization_id": "",
    "metadata": json.dumps({"status": "success", "usage_object": None, "user_api_key_team_id": None}),
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "custom_llm_provider": "azure",
    "messages": "{}",
    "response": "{}",
}


def changed(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(base), **fields}


def with_metadata(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return changed(base, metadata={**base["metadata"], **fields})


def read(payload: object, origin: Origin = ORIGIN) -> Reading:
    return read_litellm(Foreign(value=json.dumps(payload).encode()), origin)


def prompt_of(reading: Reading) -> PromptSubmitted:
    prompt = reading.events[0]
    assert isinstance(prompt, PromptSubmitted)
    return prompt


def completed(reading: Reading) -> RequestCompleted:
    end = reading.events[-1]
    assert isinstance(end, RequestCompleted)
    return end


def failed(reading: Reading) -> RequestFailed:
    end = reading.events[-1]
    assert isinstance(end, RequestFailed)
    return end


def unique(events: list[Event]) -> list[Event]:
    return list({event.event_id: event for event in events}.values())


# --- the samples --------------------------------------------------------------------------------------------------


@needs_shared
def test_the_sample_of_a_success() -> None:
    reading = read_litellm(Foreign(value=SUCCESS_FILE.read_bytes()), ORIGIN)
    prompt, chunk, end = reading.events
    assert isinstance(prompt, PromptSubmitted)
    assert isinstance(chunk, TokensGenerated)
    assert isinstance(end, RequestCompleted)
    for event in reading.events:
        assert (event.tenant, event.request_id, event.attempt) == ("team-a", "chatcmpl-sample-0001", 0)
        assert (event.session, event.model, event.backend) == ("conv-0001", "gpt-4o-mini", "deploy-a1")
    assert [event.event_time_us for event in reading.events] == [
        START * SECOND,
        START * SECOND + 410_000,
        START * SECOND + 2_500_000,
    ]
    assert (prompt.prompt_tokens, prompt.cached_tokens, prompt.max_tokens) == (1000, 640, 256)
    assert (prompt.api_key, prompt.user, prompt.stream, prompt.provider) == (KEY_HASH, "enduser-0001", True, "openai")
    assert (chunk.count, chunk.cumulative, chunk.text) == (1, 1, "")
    assert (end.prompt_tokens, end.completion_tokens, end.cached_tokens) == (1000, 100, 640)
    assert (end.usage_source, end.finish_reason) == (UsageSource.REPORTED, "stop")
    assert not reading.refused
    assert not reading.passed_over


@needs_shared
def test_the_sample_of_a_failure() -> None:
    reading = read_litellm(Foreign(value=FAILURE_FILE.read_bytes()), ORIGIN)
    prompt, end = reading.events
    assert isinstance(end, RequestFailed)
    assert (end.tenant, end.request_id, end.session) == ("team-a", "litellm-call-0002", "conv-0001")
    assert (prompt.event_time_us, end.event_time_us) == ((START - 1) * SECOND, (START - 1) * SECOND + 500_000)
    assert (end.error_class, end.status, end.retryable) == ("RateLimitError", 429, True)
    assert (end.prompt_tokens, end.completion_tokens, end.usage_source) == (0, 0, UsageSource.ABSENT)


@needs_shared
def test_the_payload_of_litellms_own_tests() -> None:
    reading = read_litellm(Foreign(value=PAYLOAD_FILE.read_bytes()), ORIGIN)
    prompt, chunk, end = reading.events
    assert isinstance(end, RequestCompleted)
    assert (end.tenant, end.request_id) == ("fallback", "chatcmpl-2299b6a2-82a3-465a-b47c-04e685a2227f")
    assert prompt.event_time_us == 1_737_710_446_847_371
    assert chunk.event_time_us == end.event_time_us == 1_737_710_446_851_954
    assert (end.prompt_tokens, end.completion_tokens, end.finish_reason) == (10, 20, "stop")


@needs_shared
def test_the_spend_log_row_of_litellms_own_tests() -> None:
    reading = read_litellm(Foreign(value=SPEND_FILE.read_bytes()), ORIGIN)
    prompt, end = reading.events
    assert isinstance(prompt, PromptSubmitted)
    assert isinstance(end, RequestCompleted)
    assert (end.tenant, end.request_id) == ("fallback", "chatcmpl-2283081b-dc89-41f6-93e6-d4f914774027")
    assert (end.session, end.model, prompt.provider, prompt.stream) == ("1234567890", "gpt-4o", "openai", False)
    assert (prompt.event_time_us, end.event_time_us) == (1_737_710_446_847_371, 1_737_710_446_851_954)
    assert (end.prompt_tokens, end.completion_tokens) == (10, 20)


# --- one record, many payloads ------------------------------------------------------------------------------------


def test_an_array_and_lines_are_the_payloads_one_by_one() -> None:
    payloads = [SUCCESS, FAILURE, SPEND_ROW]
    alone = [event for payload in payloads for event in read(payload).events]
    lines = b"\r\n".join(json.dumps(payload).encode() for payload in payloads) + b"\n\n"
    assert read(payloads).events == alone
    assert read_litellm(Foreign(value=b"\xef\xbb\xbf" + lines), ORIGIN).events == alone


def test_of_many_the_one_that_is_broken_is_refused_alone() -> None:
    value = b"\n".join((json.dumps(SUCCESS).encode(), b'{"id": ', json.dumps(FAILURE).encode(), b"[]"))
    reading = read_litellm(Foreign(value=value), ORIGIN)
    assert {event.request_id for event in reading.events} == {"chatcmpl-1", "call-2"}
    assert [(refused.index, refused.payload) for refused in reading.refused] == [(1, b'{"id": '), (3, b"[]")]


def test_a_broken_payload_on_many_lines_is_one_dead_letter() -> None:
    value = json.dumps(SUCCESS, indent=1).encode()[:-5]
    assert len(read_foreign(read_litellm, Foreign(value=value), ORIGIN).refused) == 1


def test_a_record_of_countless_payloads_is_refused_whole() -> None:
    with pytest.raises(UnreadableRecordError, match="smaller batches") as raised:
        read_litellm(Foreign(value=b"[" + b",".join([b"1"] * (MAX_OBJECTS + 1)) + b"]"), ORIGIN)
    assert raised.value.reason is DeadLetterReason.TOO_LARGE


def test_a_batch_of_nothing_is_passed_over() -> None:
    assert read([]).passed_over == {EMPTY: 1}


def test_a_callbacks_arguments_have_the_payload_within() -> None:
    assert read({"standard_logging_object": SUCCESS, "model": "x"}).events == read(SUCCESS).events


# --- ids, attempts ------------------------------------------------------------------------------------------------


def test_a_payload_sent_again_is_the_same_events() -> None:
    """CO01: https://github.com/BerriAI/litellm/issues/30460: what comes twice is counted once."""
    payloads = [changed(SUCCESS, id=f"r{number % 14}") for number in range(28)]
    events = read(payloads).events
    assert len([event for event in unique(events) if isinstance(event, RequestCompleted)]) == 14


def test_requests_of_one_trace_stay_apart() -> None:
    """A session id is logged as trace_id: https://github.com/BerriAI/litellm/pull/36035."""
    first, second = (read(changed(SUCCESS, id=name, trace_id="conversation-9")) for name in ("a", "b"))
    assert {event.session for event in first.events + second.events} == {"conversation-9"}
    assert len(unique(first.events + second.events)) == len(first.events) + len(second.events)


@pytest.mark.parametrize(
    "payload",
    [
        with_metadata(FAILURE, attempted_retries=2),
        changed(FAILURE, hidden_params={"additional_headers": {"x-litellm-attempted-retries": "2"}}),
        changed(FAILURE, hidden_params={"additional_headers": {"x_litellm_attempted_retries": 2}}),
    ],
)
def test_failures_that_share_an_id_are_told_apart_by_their_retry(payload: dict[str, Any]) -> None:
    retried = read(payload).events
    assert {event.attempt for event in retried} == {2}
    assert not {event.event_id for event in retried} & {event.event_id for event in read(FAILURE).events}


@pytest.mark.parametrize("missing_id", ["", None, "None"])
def test_without_an_id_it_is_refused(missing_id: str | None) -> None:
    """https://github.com/BerriAI/litellm/issues/6633: with an empty id only the first row was saved."""
    with pytest.raises(UnreadableRecordError, match="request id") as raised:
        read(changed(SPEND_ROW, request_id=missing_id))
    assert raised.value.reason is DeadLetterReason.MISSING_FIELD


# --- what is counted ----------------------------------------------------------------------------------------------


def test_reading_a_stored_response_counts_nothing() -> None:
    """CO09: https://github.com/BerriAI/litellm/issues/17814: a read booked the cost again, with a new id."""
    made = changed(SPEND_ROW, request_id="r1", call_type="aresponses", prompt_tokens=121, completion_tokens=400)
    again = [changed(made, request_id=f"r1-read-{number}", call_type="aget_responses") for number in range(2)]
    reading = read([made, *again])
    ends = [event for event in reading.events if isinstance(event, RequestCompleted)]
    assert [(end.prompt_tokens, end.completion_tokens) for end in ends] == [(121, 400)]
    assert reading.passed_over == {READS_AND_CHORES: 2}


@pytest.mark.parametrize(
    "call_type",
    [
        "aget_responses",
        "get_responses",
        "adelete_responses",
        "alist_input_items",
        "acancel_responses",
        "afile_retrieve",
        "file_content",
        "afile_list",
        "acreate_file",
        "acreate_batch",
        "aretrieve_batch",
        "avideo_content",
        "list_mcp_tools",
        "a_add_message",
        "aget_thread",
        "alist_fine_tuning_jobs",
    ],
)
def test_reads_and_chores_are_passed_over(call_type: str) -> None:
    payload = changed(FAILURE, call_type=call_type, status="success", error_information=None)
    assert read(payload) == Reading(passed_over=read(payload).passed_over)
    assert read(payload).passed_over == {READS_AND_CHORES: 1}


@pytest.mark.parametrize(
    "call_type",
    [
        "completion",
        "acompletion",
        "litellm.completion",
        "atext_completion",
        "aresponses",
        "anthropic_messages",
        "agenerate_content",
        "generate_content_stream",
        "pass_through_endpoint",
        "allm_passthrough_route",
        "_arealtime",
        "arun_thread",
        "acompact_responses",
        "something_of_next_year",
    ],
)
def test_what_generates_is_counted(call_type: str) -> None:
    reading = read(changed(SUCCESS, call_type=call_type))
    assert completed(reading).completion_tokens == 100
    assert not prompt_of(reading).without_completion


@pytest.mark.parametrize("call_type", ["aembedding", "embedding", "arerank", "amoderation", "aimage_generation"])
def test_what_answers_with_no_text_is_said_to(call_type: str) -> None:
    assert prompt_of(read(changed(SUCCESS, call_type=call_type))).without_completion


def test_a_batch_counts_once_however_often_it_is_polled() -> None:
    """https://github.com/BerriAI/litellm/pull/36877: each retrieval of a finished batch billed it again."""
    poll = changed(SUCCESS, id="batch_1", call_type="aretrieve_batch", stream=None)
    waiting = changed(FAILURE, id="batch_1", call_type="aretrieve_batch", status="success", error_information=None)
    reading = read([waiting, poll, poll, poll])
    ends = [event for event in unique(reading.events) if isinstance(event, RequestCompleted)]
    assert [(end.prompt_tokens, end.completion_tokens) for end in ends] == [(1000, 100)]


@pytest.mark.parametrize("cache_hit", [True, "True", "true"])
def test_an_answer_from_litellms_cache_has_no_tokens(cache_hit: object) -> None:
    """https://github.com/BerriAI/litellm/issues/39057: its row repeats the tokens of the first answer."""
    reading = read(changed(SUCCESS, cache_hit=cache_hit))
    prompt, end = prompt_of(reading), completed(reading)
    assert len(reading.events) == 2
    assert (end.prompt_tokens, end.completion_tokens, end.cached_tokens) == (0, 0, 0)
    assert (end.usage_source, prompt.prompt_tokens, prompt.without_completion) == (UsageSource.REPORTED, 0, True)
    assert reading.passed_over == {CACHED_USAGE: 1}


def test_cached_and_written_tokens_are_part_of_the_prompt() -> None:
    usage = {
        "prompt_tokens": 3000,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2000, "cache_creation_tokens": 900},
    }
    end = completed(read(changed(with_metadata(SUCCESS, usage_object=usage), prompt_tokens=3000, completion_tokens=7)))
    assert (end.prompt_tokens, end.cached_tokens, end.cache_write_tokens) == (3000, 2000, 900)


def test_a_prompt_smaller_than_its_cached_part_leaves_it_out() -> None:
    """https://github.com/BerriAI/litellm/issues/15056: prompt_tokens 31 beside 1253 written into the cache."""
    usage = {
        "prompt_tokens": 31,
        "completion_tokens": 467,
        "total_tokens": 498,
        "prompt_tokens_details": {"cached_tokens": 0},
        "cache_creation_input_tokens": 1253,
        "cache_read_input_tokens": 0,
    }
    payload = changed(with_metadata(SUCCESS, usage_object=usage), prompt_tokens=31, completion_tokens=467)
    end = completed(read(payload))
    assert (end.prompt_tokens, end.cached_tokens, end.cache_write_tokens) == (1284, 0, 1253)


def test_anthropics_own_counts_leave_the_cached_part_out() -> None:
    """The numbers of https://github.com/envoyproxy/ai-gateway/issues/2290 (CO05)."""
    usage = {
        "input_tokens": 4522,
        "cache_creation_input_tokens": 4511,
        "cache_read_input_tokens": 0,
        "output_tokens": 5,
    }
    payload = changed(with_metadata(SUCCESS, usage_object=usage), prompt_tokens=0, completion_tokens=0)
    end = completed(read(payload))
    assert (end.prompt_tokens, end.completion_tokens, end.cache_write_tokens) == (9033, 5, 4511)


def test_openais_input_tokens_include_the_cached_part() -> None:
    """https://github.com/BerriAI/litellm/issues/35127: 11,008 of 12,000 were read from the cache."""
    usage = {"input_tokens": 12_000, "output_tokens": 40, "input_tokens_details": {"cached_tokens": 11_008}}
    payload = changed(with_metadata(SUCCESS, usage_object=usage), prompt_tokens=0, completion_tokens=0)
    end = completed(read(payload))
    assert (end.prompt_tokens, end.completion_tokens, end.cached_tokens) == (12_000, 40, 11_008)


def test_a_total_alone_is_not_split_by_guessing() -> None:
    """https://github.com/BerriAI/litellm/issues/33688: prompt and completion tokens were lost, the total was not."""
    payload = with_metadata(SUCCESS, usage_object={"total_tokens": 1100})
    reading = read(changed(payload, prompt_tokens=0, completion_tokens=0))
    assert completed(reading).usage_source is UsageSource.ABSENT
    assert reading.passed_over == {TOTALS_ALONE: 1}


def test_reasoning_is_part_of_the_completion() -> None:
    """https://github.com/BerriAI/litellm/issues/18599: 448 of 482 were reasoning, and only those were billed."""
    usage = {"completion_tokens": 482, "prompt_tokens": 17, "completion_tokens_details": {"reasoning_tokens": 448}}
    payload = changed(with_metadata(SUCCESS, usage_object=usage), prompt_tokens=17, completion_tokens=482)
    assert completed(read(payload)).completion_tokens == 482


@pytest.mark.parametrize(("name", "value"), [("prompt_tokens", -1), ("completion_tokens", 0.5), ("total_tokens", -2)])
def test_counts_that_cant_be_meant_are_refused_by_name(name: str, value: float) -> None:
    payload = changed(
        with_metadata(SUCCESS, usage_object=None), **{"prompt_tokens": 0, "completion_tokens": 0, name: value}
    )
    with pytest.raises(UnreadableRecordError, match=name):
        read(payload)


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error_class", "status", "retryable"),
    [
        ("429", "RateLimitError", 429, True),
        (503, "ServiceUnavailableError", 503, True),
        ("408", "Timeout", 408, True),
        ("400", "ContextWindowExceededError", 400, False),
        ("401", "AuthenticationError", 401, False),
        ("", "APIConnectionError", 0, True),
        ("None", "Timeout", 0, True),
        (None, "BudgetExceededError", 0, False),
        ("context_length_exceeded", "BadRequestError", 0, False),
        (True, "BadRequestError", 0, False),
        ("9" * 5_000, "BadRequestError", 0, False),
    ],
)
def test_failures(code: object, error_class: str, status: int, retryable: bool) -> None:
    end = failed(read(changed(FAILURE, error_information={"error_code": code, "error_class": error_class})))
    assert (end.error_class, end.status, end.retryable) == (error_class, status, retryable)


def test_a_failure_in_mid_stream_keeps_the_tokens_it_had() -> None:
    """https://github.com/BerriAI/litellm/pull/39589."""
    end = failed(read(changed(FAILURE, prompt_tokens=20, completion_tokens=35)))
    assert (end.prompt_tokens, end.completion_tokens, end.usage_source) == (20, 35, UsageSource.REPORTED)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "success", "error_str": "Client disconnected the request"},
        {"status": "failure", "error_information": {"error_code": "499", "error_class": "HTTPException"}},
        {"status": "failure", "error_information": {"error_code": "", "error_class": "CancelledError"}},
    ],
)
def test_a_client_that_went_away_interrupted_it(fields: dict[str, Any]) -> None:
    """https://github.com/BerriAI/litellm/pull/39589 logs one as a success, #25776 as a failure with 499."""
    end = read(changed(SUCCESS, completion_tokens=35, **fields)).events[-1]
    assert isinstance(end, StreamInterrupted)
    assert (end.token_offset, end.reason) == (35, InterruptReason.CLIENT_DISCONNECTED)
    assert end.usage_source is UsageSource.REPORTED


def test_a_spend_row_without_a_status_failed_where_it_has_an_error() -> None:
    error = {"error_information": {"error_code": "500", "error_class": "InternalServerError"}}
    assert failed(read(changed(SPEND_ROW, metadata=json.dumps(error)))).status == 500


@pytest.mark.parametrize(
    "response", ["redacted-by-litellm", {"text": "redacted-by-litellm"}, "{}", None, [], {"choices": []}]
)
def test_redacted_responses_are_read_all_the_same(response: object) -> None:
    end = completed(read(changed(SUCCESS, response=response, messages="redacted-by-litellm")))
    assert (end.completion_tokens, end.finish_reason) == (100, "")


def test_a_parameter_that_is_nonsense_does_not_cost_the_record() -> None:
    reading = read(changed(FAILURE, model_parameters={"max_tokens": -1, "n": "many", "max_completion_tokens": {}}))
    assert (prompt_of(reading).max_tokens, prompt_of(reading).choices) == (0, 0)


# --- who and where ------------------------------------------------------------------------------------------------


def test_the_tenant_is_the_first_of_team_organisation_alias_and_key() -> None:
    order = ["user_api_key_team_id", "user_api_key_org_id", "user_api_key_alias", "user_api_key_hash"]
    found = []
    payload = copy.deepcopy(SUCCESS)
    for name in order:
        found.append(prompt_of(read(payload)).tenant)
        payload["metadata"][name] = None
    assert found == ["team-a", "org-a", "key-a", KEY_HASH]
    assert prompt_of(read(payload)).tenant == "fallback"
    assert prompt_of(read(SPEND_ROW)).tenant == "team-b"


def test_a_key_in_the_clear_never_gets_into_events() -> None:
    """https://github.com/BerriAI/litellm/issues/1806 shows one in a spend log. LiteLLM's own hash is SHA-256."""
    clear = "sk-_abcdefghijklmnopqrstuvw"
    payload = changed(SPEND_ROW, api_key=clear, team_id="", metadata=json.dumps({"user_api_key": clear}))
    reading = read(payload)
    assert prompt_of(reading).api_key == prompt_of(reading).tenant == sha256(clear.encode()).hexdigest()
    assert clear not in repr(reading)


def test_the_field_of_the_key_itself_is_hashed_whatever_is_in_it() -> None:
    reading = read(changed(SPEND_ROW, api_key="", team_id="", metadata=json.dumps({"user_api_key": "plain"})))
    assert prompt_of(reading).api_key == prompt_of(reading).tenant == sha256(b"plain").hexdigest()
    hashed = read(changed(SPEND_ROW, api_key="", team_id="", metadata=json.dumps({"user_api_key": KEY_HASH})))
    assert prompt_of(hashed).api_key == KEY_HASH


def test_equal_faults_of_a_batch_are_one_dead_letter_with_the_bytes_of_the_first() -> None:
    parts = [b"[]", *[b'{"id": '] * 50]
    value = b"\n".join([json.dumps(SUCCESS).encode(), *parts])
    refused = read_foreign(read_litellm, Foreign(value=value), ORIGIN).refused
    assert [(one.index, one.payload) for one in refused] == [(1, b"[]"), (2, b'{"id": ')]
    assert refused[1].detail.endswith("(50 objects of this record, the first at index 2)")


def test_prompts_answers_and_messages_of_errors_stay_out() -> None:
    error = {"error_code": "400", "error_class": "BadRequestError", "error_message": "secret", "traceback": "secret"}
    payload = changed(FAILURE, error_information=error, error_str="secret", messages=[{"content": "secret"}])
    assert "secret" not in repr(read(payload))
    assert "parcel" not in repr(read(SUCCESS))


def test_the_model_is_the_one_that_answered_and_the_group_stands_in() -> None:
    assert prompt_of(read(SUCCESS)).model == "gpt-4o-mini"
    assert prompt_of(read(changed(SUCCESS, model=""))).model == "chat-small"


def test_providers_have_their_open_telemetry_names() -> None:
    assert prompt_of(read(SPEND_ROW)).provider == "azure.ai.openai"
    assert prompt_of(read(changed(SUCCESS, custom_llm_provider="bedrock"))).provider == "aws.bedrock"
    without = changed(FAILURE, custom_llm_provider=None)
    assert prompt_of(read(without)).provider == "openai"


# --- times --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [float(START), START, str(START), "2026-01-01 00:00:00", "2026-01-01T00:00:00Z"])
def test_times_in_any_of_their_forms(start: object) -> None:
    assert read(changed(SUCCESS, startTime=start)).events[0].event_time_us == START * SECOND


def test_the_first_token_of_a_stream_is_a_chunk_and_nothing_else_is() -> None:
    def chunks(**fields: Any) -> list[Event]:
        return [event for event in read(changed(SUCCESS, **fields)).events if isinstance(event, TokensGenerated)]

    assert [chunk.event_time_us for chunk in chunks()] == [START * SECOND + 410_000]
    assert chunks(stream=False) == []
    assert chunks(completion_tokens=0) == []
    assert chunks(completionStartTime=START - 5) == []
    assert chunks(completionStartTime=START + 60) == []


def test_a_spend_row_with_a_first_token_before_its_end_was_streamed() -> None:
    reading = read(SPEND_ROW)
    assert prompt_of(reading).stream
    assert reading.events[1].event_time_us == 1_737_710_447_000_001


def test_without_times_the_logs_own_stands_in_and_without_that_it_is_refused() -> None:
    value = json.dumps(changed(SUCCESS, startTime=None, endTime=None, completionStartTime=None)).encode()
    reading = read_litellm(Foreign(value=value, received_at_us=7 * SECOND), ORIGIN)
    assert {event.event_time_us for event in reading.events} == {7 * SECOND}
    with pytest.raises(UnreadableRecordError, match="startTime"):
        read_litellm(Foreign(value=value), ORIGIN)


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(UnreadableRecordError, match="before it starts"):
        read(changed(SUCCESS, endTime=START - 1))


# --- whatever comes -----------------------------------------------------------------------------------------------

_small = st.integers(0, 1_000)


@given(prompt=_small, cached=_small, written=_small, completion=_small)
def test_a_prompt_is_never_less_than_what_of_it_was_cached(
    prompt: int, cached: int, written: int, completion: int
) -> None:
    details = {"cached_tokens": cached, "cache_creation_tokens": written}
    payload = changed(with_metadata(SUCCESS, usage_object={"prompt_tokens_details": details}))
    end = completed(read(changed(payload, prompt_tokens=prompt, completion_tokens=completion)))
    if end.usage_source is UsageSource.REPORTED:
        assert end.prompt_tokens == (prompt if cached + written <= prompt else prompt + cached + written)
        assert end.completion_tokens == completion
    else:
        assert (prompt, completion, cached, written) == (0, 0, 0, 0)


SAMPLES = [json.dumps(each).encode() for each in (SUCCESS, FAILURE, SPEND_ROW, [SUCCESS, FAILURE])]
SAMPLES.append(b"\n".join(SAMPLES[:3]))


def test_whatever_comes_is_read_or_refused() -> None:
    seen = fuzz(read_litellm, SAMPLES, 2_000, seed=1)
    assert min(seen["read"], seen["refused"]) > 200


@pytest.mark.slow
def test_whatever_comes_is_read_or_refused_at_length() -> None:
    fuzz(read_litellm, SAMPLES, 100_000, seed=2)
