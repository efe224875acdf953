"""Access logs of Envoy AI Gateway, as JSON.

https://aigateway.envoyproxy.io/docs/capabilities/observability/accesslogs

Operators name the fields themselves. Read are the names of its documentation, now and before (`gen_ai.*`, `genai_*`),
those of the metadata (`llm_input_token`), and the metadata as one object under `io.envoy.ai_gateway`. A tenant is read
from `tenant`, `tenant.id`, `x-tenant-id` or `x-team-id`, where the format logs one.

`gen_ai.provider.name` is the name of a backend there, a path in the cluster. A line is one request, its retries
included. It does not tell whether it was streamed, nor when the first token came.
"""

from typing import Any, Final

from schemas.events import InterruptReason, UsageSource
from udfs.domain.ingest.access_log import (
    is_without_completion,
    said,
    said_status,
    said_text,
    said_tokens,
    time_after_milliseconds,
)
from udfs.domain.ingest.attempt import Attempt, End, Usage, events_of
from udfs.domain.ingest.fields import json_object_of, missing, object_in, time_of_iso
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.objects import read_objects
from udfs.domain.ingest.provider_names import provider_name
from udfs.domain.ingest.record import Foreign, Origin, Reading

NO_MODEL: Final = "lines that name no model"
TOTALS_ALONE: Final = "totals without input and output tokens"

_METADATA: Final = "io.envoy.ai_gateway"
_MODEL: Final = (
    "gen_ai.request.model_override",
    "genai_model_name_override",
    "model_name_override",
    "gen_ai.request.model",
    "genai_model_name",
    "x-ai-eg-model",
    "gen_ai.response.model",
    "response_model",
)
_INPUT: Final = ("gen_ai.usage.input_tokens", "genai_tokens_input", "llm_input_token", "gen_ai.usage.prompt_tokens")
_OUTPUT: Final = (
    "gen_ai.usage.output_tokens",
    "genai_tokens_output",
    "llm_output_token",
    "gen_ai.usage.completion_tokens",
)
_TOTAL: Final = ("gen_ai.usage.total_tokens", "genai_tokens_total", "llm_total_token")
_CACHED: Final = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cached_input_tokens",
    "llm_cached_input_token",
)
_CACHE_WRITTEN: Final = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm_cache_creation_input_token",
)
_BACKEND: Final = ("gen_ai.provider.name", "genai_backend_name", "backend_name")

_CLIENT_GONE: Final = frozenset(("DC", "DownstreamConnectionTermination"))
_CUT_OFF: Final = frozenset(
    (
        *("UC", "UT", "UR", "LR", "SI", "DT", "UPE", "UMSDR"),
        *("UpstreamConnectionTermination", "UpstreamRequestTimeout", "UpstreamRemoteReset", "LocalReset"),
        *("StreamIdleTimeout", "DurationTimeout", "UpstreamProtocolError", "UpstreamMaxStreamDurationReached"),
    )
)
"""Flags of a response that ended before it was whole, short and long.

https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
"""


def read_envoy_ai_gateway(record: Foreign, origin: Origin) -> Reading:
    """Read one line of the log, or many. Raises UnreadableRecordError."""
    return read_objects(record.value, lambda found, reading: _read(found, record, origin, reading))


def _read(found: dict[str, Any], record: Foreign, origin: Origin, reading: Reading) -> None:
    line = _with_metadata(found)
    usage, alone = _usage(line)
    model = said_text(line, *_MODEL)
    # MCP calls, lists of models and probes stand in the same log.
    if not model and usage.source is UsageSource.ABSENT and not alone:
        reading.passed_over[NO_MODEL] += 1
        return
    reading.events += events_of(_attempt(line, model, usage, record), origin)
    if alone:
        reading.passed_over[TOTALS_ALONE] += 1


def _with_metadata(line: dict[str, Any]) -> dict[str, Any]:
    metadata = line.get(_METADATA) or object_in(line, "dynamic_metadata").get(_METADATA)
    if isinstance(metadata, str) and metadata.startswith("{"):
        metadata = json_object_of(metadata.encode("utf-8", "replace"))
    return {**metadata, **line} if isinstance(metadata, dict) else line


def _usage(line: dict[str, Any]) -> tuple[Usage, bool]:
    """The tokens, and whether there is a total alone, which can't be split."""
    prompt, completion, total = (said_tokens(line, *names) for names in (_INPUT, _OUTPUT, _TOTAL))
    if prompt is None and total is not None and completion is not None:
        prompt = max(total - completion, 0)
    if completion is None and total is not None and prompt is not None:
        completion = max(total - prompt, 0)
    if prompt is None and completion is None:
        return Usage(), bool(total)
    return Usage(
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        cached_tokens=said_tokens(line, *_CACHED) or 0,
        cache_write_tokens=said_tokens(line, *_CACHE_WRITTEN) or 0,
        source=UsageSource.REPORTED,
    ), False


def _attempt(line: dict[str, Any], model: str, usage: Usage, record: Foreign) -> Attempt:
    started_at_us = time_of_iso(said(line, "start_time", "timestamp"), "start_time") or record.received_at_us
    if not started_at_us:
        raise missing("start_time")
    flags = said_text(line, "response_flags", "response_flags_long")
    status = said_status(line, "response_code")
    end, reason = _end(status, frozenset(flag.strip() for flag in flags.split(",")), "response_code" in line)
    details = said_text(line, "response_code_details")
    backend = said_text(line, *_BACKEND)
    return Attempt(
        request_id=said_text(line, "x-request-id", "request_id", "request.id"),
        started_at_us=started_at_us,
        ended_at_us=time_after_milliseconds(started_at_us, line, "duration", "duration_ms"),
        tenant=said_text(line, "tenant", "tenant.id", "x-tenant-id", "x-team-id"),
        session=said_text(line, "session.id", "x-session-id", "session_id"),
        model=model,
        provider="" if "/" in backend else provider_name(backend),
        backend=backend or said_text(line, "upstream_cluster", "upstream_host"),
        user=said_text(line, "user.id", "x-user-id", "enduser.id"),
        without_completion=is_without_completion(said_text(line, "x-envoy-origin-path", "request.path", "path")),
        usage=usage,
        end=end,
        interrupt_reason=reason,
        error_class=flags or ("" if details == "via_upstream" else details) if end is End.FAILED else "",
        status=status,
        retryable=is_retryable(status),
    )


def _end(status: int, flags: frozenset[str], has_status: bool) -> tuple[End, InterruptReason]:
    # Without a response the status is 0: the client went away before there was one.
    if flags & _CLIENT_GONE or status == CLIENT_CLOSED_REQUEST or (has_status and not status):
        return End.INTERRUPTED, InterruptReason.CLIENT_DISCONNECTED
    if status >= 400:
        return End.FAILED, InterruptReason.UNSPECIFIED
    # The status was sent before the stream broke off.
    if flags & _CUT_OFF:
        return End.INTERRUPTED, InterruptReason.CONNECTION_LOST
    return End.COMPLETED, InterruptReason.UNSPECIFIED
