"""What LiteLLM logs: standard logging payloads and rows of its spend log.

https://docs.litellm.ai/docs/proxy/logging_spec

- The request id is `id` (`request_id` in spend logs) and never `trace_id`: LiteLLM puts the caller's session id into
  `trace_id` when there is one, so that two requests of a conversation would become one and one of them free. The
  trace is kept as the session. `attempted_retries` of the metadata, where it is written, is the attempt: failures of
  one call share an id.
- The tenant is the first that is set of team id, organisation id, key alias, key hash. Aliases of teams are names that
  people change, so they are not used.
- An answer from LiteLLM's own cache repeats the tokens of the first one: it counts as a request of no tokens.
- Reading a stored response is logged with the tokens of its making: it is passed over.
- `model` is what answered, and what is priced; `model_group`, what was asked for, stands in where it is empty.
"""

import re
from typing import Any, Final

from schemas.events import InterruptReason, UsageSource
from udfs.domain.ingest.api_key import hashed_key, key_name
from udfs.domain.ingest.attempt import Attempt, Chunk, End, Usage, events_of
from udfs.domain.ingest.fields import (
    json_object_of,
    member,
    missing,
    name_text,
    object_in,
    text,
    time_of_iso,
    time_of_seconds,
    tokens,
)
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.objects import read_objects
from udfs.domain.ingest.provider_names import provider_name
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError

READS_AND_CHORES: Final = "reads of stored responses and chores of the API"
CACHED_USAGE: Final = "tokens repeated from LiteLLM's response cache"
TOTALS_ALONE: Final = "totals without prompt and completion tokens"

_READ_OR_CHORE: Final = re.compile(
    r"""
    a?_?(get|list|delete|cancel|retrieve)_.*           # aget_responses, alist_input_items, delete_responses
    | .*_(retrieve|list|delete|cancel|status|content)  # afile_retrieve, video_content
    | a?(create|upload)_(file|batch|thread|assistants?|container|skill|vector_store)
    | a?_?add_message | a?vector_store_(create|file_create)
    """,
    re.VERBOSE,
)
_GENERATES: Final = re.compile(r"a?generate_content")
_BATCH_READS: Final = frozenset(("retrieve_batch", "aretrieve_batch"))
_WITHOUT_COMPLETION: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "a")
    for name in (
        "embedding",
        "rerank",
        "moderation",
        "search",
        "transcription",
        "speech",
        "image_generation",
        "image_edit",
    )
)
_RETRYABLE_CLASSES: Final = frozenset(
    (
        "RateLimitError",
        "Timeout",
        "APIConnectionError",
        "InternalServerError",
        "ServiceUnavailableError",
        "BadGatewayError",
        "MidStreamFallbackError",
    )
)
_MAX_ATTEMPT: Final = 1_000
_MAX_CHOICES: Final = 1 << 20


def read_litellm(record: Foreign, origin: Origin) -> Reading:
    """Read a payload or a spend-log row, an array of them, or one a line. Raises UnreadableRecordError."""
    return read_objects(record.value, lambda found, reading: _read(found, record, origin, reading))


def _read(found: dict[str, Any], record: Foreign, origin: Origin, reading: Reading) -> None:
    payload = member(found, "standard_logging_object") or found
    call_type = text(payload.get("call_type"), "call_type").removeprefix("litellm.")
    metadata = _metadata(payload)
    usage, notes = _usage(payload, metadata)
    if _is_read_or_chore(call_type, usage):
        reading.passed_over[READS_AND_CHORES] += 1
        return
    reading.events += events_of(_attempt(payload, metadata, usage, call_type, record), origin)
    reading.passed_over.update(notes)


def _is_read_or_chore(call_type: str, usage: Usage) -> bool:
    # The tokens of a batch are known, and logged, when it is read and found done. Its id stays the same.
    if call_type in _BATCH_READS and usage.source is not UsageSource.ABSENT:
        return False
    return _READ_OR_CHORE.fullmatch(call_type) is not None and _GENERATES.fullmatch(call_type) is None


def _metadata(payload: dict[str, Any]) -> dict[str, Any]:
    """The metadata, which a row of the spend log has as a string of JSON."""
    found = payload.get("metadata")
    return (
        json_object_of(found.encode("utf-8", "replace"))
        if isinstance(found, str) and found
        else member(payload, "metadata")
    )


# --- tokens -------------------------------------------------------------------------------------------------------


def _usage(payload: dict[str, Any], metadata: dict[str, Any]) -> tuple[Usage, list[str]]:
    if _is_true(payload.get("cache_hit")):
        return Usage(source=UsageSource.REPORTED), [CACHED_USAGE]
    response = payload.get("response")
    detail = object_in(metadata, "usage_object") or object_in(response, "usage")
    prompt = tokens(payload.get("prompt_tokens"), "prompt_tokens") or 0
    completion = tokens(payload.get("completion_tokens"), "completion_tokens") or 0
    if not prompt and not completion:
        prompt = _first(detail, "prompt_tokens", "input_tokens")
        completion = _first(detail, "completion_tokens", "output_tokens")
    of_prompt = object_in(detail, "prompt_tokens_details") or object_in(detail, "input_tokens_details")
    cached = _first(of_prompt, "cached_tokens") or _first(detail, "cache_read_input_tokens")
    written = _first(of_prompt, "cache_creation_tokens", "cache_write_tokens") or _first(
        detail, "cache_creation_input_tokens"
    )
    # Anthropic's input_tokens leave out what the cache was read for and written; so do some counts made of them.
    of_anthropic = "prompt_tokens" not in detail and not of_prompt and prompt == _first(detail, "input_tokens")
    if cached + written > prompt or (of_anthropic and cached + written):
        prompt += cached + written
    if prompt or completion:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            cache_write_tokens=written,
            source=UsageSource.REPORTED,
        ), []
    alone = tokens(payload.get("total_tokens"), "total_tokens") or _first(detail, "total_tokens")
    return Usage(), [TOTALS_ALONE] if alone else []


def _first(of: dict[str, Any], *names: str) -> int:
    """The first count that is set and not 0."""
    return next((found for name in names if (found := tokens(of.get(name), name))), 0)


# --- the attempt --------------------------------------------------------------------------------------------------


def _attempt(
    payload: dict[str, Any], metadata: dict[str, Any], usage: Usage, call_type: str, record: Foreign
) -> Attempt:
    error = object_in(payload, "error_information") or object_in(metadata, "error_information")
    end, status = _end(payload, metadata, error)
    error_class = name_text(error.get("error_class"), "error_class")
    started_at_us, first_token_at_us, ended_at_us = _times(payload, record)
    # LiteLLM puts the end where there was no first token, so one before the end is that of a stream; spend logs say no
    # more than this.
    stream = _is_true(payload.get("stream")) or (
        "stream" not in payload and started_at_us < first_token_at_us < ended_at_us
    )
    has_first_token = stream and usage.completion_tokens >= 1 and started_at_us <= first_token_at_us <= ended_at_us
    parameters = object_in(payload, "model_parameters")
    return Attempt(
        request_id=_named(payload, "id", "request_id", "litellm_call_id"),
        attempt=_attempt_number(payload, metadata),
        started_at_us=started_at_us,
        ended_at_us=ended_at_us,
        tenant=_tenant(payload, metadata),
        session=_session(payload, metadata),
        model=_named(payload, "model", "model_group"),
        provider=provider_name(_named(payload, "custom_llm_provider") or _named(error, "llm_provider")),
        backend=_named(payload, "model_id") or _named(payload, "api_base"),
        api_key=_key_hash(payload, metadata),
        user=_named(payload, "end_user") or _named(metadata, "user_api_key_end_user_id"),
        stream=stream,
        choices=min(_parameter(parameters, "n"), _MAX_CHOICES),
        max_tokens=_parameter(parameters, "max_completion_tokens", "max_tokens", "max_output_tokens"),
        without_completion=call_type in _WITHOUT_COMPLETION or _is_true(payload.get("cache_hit")),
        usage=usage,
        chunks=(Chunk(first_token_at_us, 1),) if has_first_token else (),
        end=end,
        finish_reason=_finish_reason(payload.get("response")),
        interrupt_reason=InterruptReason.CLIENT_DISCONNECTED if end is End.INTERRUPTED else InterruptReason.UNSPECIFIED,
        error_class=error_class,
        status=status,
        retryable=is_retryable(status) or (not status and error_class in _RETRYABLE_CLASSES),
    )


def _end(payload: dict[str, Any], metadata: dict[str, Any], error: dict[str, Any]) -> tuple[End, int]:
    """How it ended, and the status of HTTP; 0: not said."""
    code = error.get("error_code")
    digits = str(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else ""
    status = int(digits) if digits.isascii() and digits.isdigit() and len(digits) == 3 else 0
    told = " ".join(found for found in (error.get("error_message"), payload.get("error_str")) if isinstance(found, str))
    error_class = error.get("error_class")
    if (
        status == CLIENT_CLOSED_REQUEST
        or error_class == "CancelledError"
        or "Client disconnected the request" in told[:1_000]
    ):
        return End.INTERRUPTED, status
    said = payload.get("status") or metadata.get("status")
    failed = said == "failure" or (not said and (bool(error_class) or status >= 400))
    return (End.FAILED if failed else End.COMPLETED), status


def _times(payload: dict[str, Any], record: Foreign) -> tuple[int, int, int]:
    """When it started, gave its first token, and ended."""
    started, first, ended = (_time(payload.get(name), name) for name in ("startTime", "completionStartTime", "endTime"))
    start = started or ended or record.received_at_us
    if not start:
        raise missing("startTime")
    end = ended or start
    return start, first or end, end


def _time(value: object, name: str) -> int | None:
    """Seconds in payloads that were sent, ISO 8601 in spend logs and in payloads that were written by `str`."""
    if isinstance(value, str) and ("-" in value[1:] or ":" in value):
        return time_of_iso(value, name)
    return time_of_seconds(value, name)


def _attempt_number(payload: dict[str, Any], metadata: dict[str, Any]) -> int:
    headers = object_in(object_in(payload, "hidden_params"), "additional_headers")
    for holder, name in (
        (metadata, "attempted_retries"),
        (headers, "x-litellm-attempted-retries"),
        (headers, "x_litellm_attempted_retries"),
    ):
        found = tokens(holder.get(name), name)
        if found is not None:
            return min(found, _MAX_ATTEMPT)
    return 0


def _tenant(payload: dict[str, Any], metadata: dict[str, Any]) -> str:
    return (
        _named(metadata, "user_api_key_team_id")
        or _named(payload, "team_id")
        or _named(metadata, "user_api_key_org_id")
        or _named(payload, "organization_id")
        or _named(metadata, "user_api_key_alias")
        or _key_hash(payload, metadata)
    )


def _key_hash(payload: dict[str, Any], metadata: dict[str, Any]) -> str:
    """The hash of the key. Old versions log the key itself: it is hashed as LiteLLM does, so that both are one key."""
    found = _named(metadata, "user_api_key_hash") or _named(payload, "api_key")
    return key_name(found) if found else hashed_key(_named(metadata, "user_api_key"))


def _session(payload: dict[str, Any], metadata: dict[str, Any]) -> str:
    requester = object_in(metadata, "requester_metadata")
    return _named(requester, "session_id") or _named(payload, "session_id", "trace_id")


def _finish_reason(response: object) -> str:
    """Of the first choice. The response may be left out, or be a string where messages are not logged."""
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    found = first.get("finish_reason") if isinstance(first, dict) else None
    return name_text(found, "finish_reason") if isinstance(found, str) else ""


# --- single values ------------------------------------------------------------------------------------------------


def _named(of: dict[str, Any], *names: str) -> str:
    """The first of the names that is set. Spend logs have the word None for what is not."""
    for name in names:
        found = name_text(of.get(name), name)
        if found and found != "None":
            return found
    return ""


def _parameter(parameters: dict[str, Any], *names: str) -> int:
    """A count that the client asked for. It may be anything: the request then failed, which is worth knowing."""
    for name in names:
        try:
            found = tokens(parameters.get(name), name)
        except UnreadableRecordError:
            continue
        if found:
            return found
    return 0


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")
