"""Log entries of Kong with its AI plugins, as its logging plugins write them.

https://developer.konghq.com/ai-gateway/ai-audit-log-reference/

- Each plugin that called a model has an object under `ai` (`proxy`; `ai-proxy` before 3.8) and is an attempt. The
  proxy's has the id of the request; others, such as ai-request-transformer, are calls of their own and have their name
  added to it.
- The tenant is the first that is set of the consumer's custom id, user name and id, and the credential's id.
- An answer from the semantic cache repeats the tokens of the first one: it counts as a request of no tokens.
- Kong writes 0 for what it could not count, as in many streams: 0 tokens are taken as not told.
"""

from collections.abc import Iterator
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
from udfs.domain.ingest.fields import missing, name_text, object_in, time_of_milliseconds
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.objects import read_objects
from udfs.domain.ingest.provider_names import provider_name
from udfs.domain.ingest.record import Foreign, Origin, Reading

NO_AI: Final = "entries without a model call"
CACHED_USAGE: Final = "tokens repeated from Kong's semantic cache"
NOT_COUNTED: Final = "answers whose completion tokens Kong did not count"

_PROXIES: Final = ("proxy", "ai-proxy", "ai-proxy-advanced")


def read_kong(record: Foreign, origin: Origin) -> Reading:
    """Read one log entry, or many. Raises UnreadableRecordError."""
    return read_objects(record.value, lambda found, reading: _read(found, record, origin, reading))


def _read(entry: dict[str, Any], record: Foreign, origin: Origin, reading: Reading) -> None:
    events, notes = [], []
    for plugin, call in _calls(object_in(entry, "ai")):
        attempt, note = _attempt(entry, plugin, call, record)
        events += events_of(attempt, origin)
        notes.append(note)
    reading.events += events
    reading.passed_over.update(note for note in notes if note)
    if not events:
        reading.passed_over[NO_AI] += 1


def _calls(ai: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The name and object of each plugin that called a model; None is the proxy, which served the request."""
    main = next((name for name in _PROXIES if isinstance(ai.get(name), dict)), None)
    for name, call in ai.items():
        if isinstance(call, dict) and (object_in(call, "usage") or object_in(call, "meta")):
            yield None if name == main else name, call


def _attempt(entry: dict[str, Any], plugin: str | None, call: dict[str, Any], record: Foreign) -> tuple[Attempt, str]:
    started_at_us = time_of_milliseconds(said(entry, "started_at"), "started_at") or record.received_at_us
    if not started_at_us:
        raise missing("started_at")
    request, response, meta = (object_in(entry, "request"), object_in(entry, "response"), object_in(call, "meta"))
    headers = object_in(response, "headers")
    status = said_status(response, "status")
    is_cached = said_text(object_in(call, "cache"), "cache_status").lower() == "hit"
    without_completion = is_without_completion(said_text(request, "uri") + said_text(entry, "upstream_uri"))
    end = _end(status) if plugin is None else End.COMPLETED
    usage, note = _usage(call, is_cached, may_be_uncounted=end is End.COMPLETED and not without_completion)
    latency = (object_in(entry, "latencies"), "request") if plugin is None else (meta, "llm_latency")
    consumer, credential = object_in(entry, "consumer"), object_in(entry, "authenticated_entity")
    request_id = said_text(request, "id") or said_text(headers, "x-kong-request-id")
    return Attempt(
        request_id=name_text(f"{request_id}/{plugin}", "request.id")
        if plugin is not None and request_id
        else request_id,
        started_at_us=started_at_us,
        ended_at_us=time_after_milliseconds(started_at_us, *latency),
        tenant=said_text(consumer, "custom_id", "username", "id") or said_text(credential, "id"),
        model=said_text(meta, "request_model", "response_model"),
        provider=provider_name(said_text(meta, "provider_name")),
        backend=said_text(object_in(entry, "service"), "name", "host"),
        api_key=said_text(credential, "id"),
        stream=_is_streamed(headers, meta),
        without_completion=without_completion or is_cached,
        usage=usage,
        end=end,
        interrupt_reason=InterruptReason.CLIENT_DISCONNECTED if end is End.INTERRUPTED else InterruptReason.UNSPECIFIED,
        status=status if end is End.FAILED else 0,
        retryable=end is End.FAILED and is_retryable(status),
    ), note


def _end(status: int) -> End:
    if status == CLIENT_CLOSED_REQUEST:
        return End.INTERRUPTED
    return End.FAILED if status >= 400 else End.COMPLETED


def _is_streamed(headers: dict[str, Any], meta: dict[str, Any]) -> bool:
    content_type = headers.get("content-type")
    is_event_stream = isinstance(content_type, str) and content_type.startswith("text/event-stream")
    return is_event_stream or meta.get("request_mode") == "stream"


def _usage(call: dict[str, Any], is_cached: bool, *, may_be_uncounted: bool) -> tuple[Usage, str]:
    if is_cached:
        return Usage(source=UsageSource.REPORTED), CACHED_USAGE
    counts = object_in(call, "usage")
    prompt = said_tokens(counts, "prompt_tokens", "prompt_token") or 0
    completion = said_tokens(counts, "completion_tokens", "completion_token") or 0
    is_uncounted = may_be_uncounted and not completion
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=said_tokens(object_in(counts, "prompt_tokens_details"), "cached_tokens") or 0,
        source=UsageSource.ABSENT if is_uncounted or not (prompt or completion) else UsageSource.REPORTED,
    ), NOT_COUNTED if is_uncounted else ""
