"""Spans of calls to models, as attempts: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/.

Only the span of the call itself is an attempt. Spans around it, of agents, chains and workflows, sum up their children
and are passed over, or the same tokens would be billed at each level (see span_tree for calls around calls).
"""

from enum import Enum
from math import isfinite
from typing import Final, NamedTuple

from schemas.codec import MAX_NAME_BYTES
from schemas.dead_letters import DeadLetterReason
from schemas.events import Provenance, UsageSource
from udfs.domain.ingest.api_key import key_name
from udfs.domain.ingest.attempt import Attempt, Chunk, End, Usage
from udfs.domain.ingest.fields import MAX_TOKENS, missing, name_text, out_of_range, quoted, tokens
from udfs.domain.ingest.genai_content import completion_text, prompt_text
from udfs.domain.ingest.genai_ending import ending_of
from udfs.domain.ingest.genai_names import ALIASES, Known, known_attributes, semantic_provider
from udfs.domain.ingest.otlp_items import Span, Value
from udfs.domain.ingest.record import UnreadableRecordError
from udfs.domain.ingest.tokenizer import count_tokens

ROLL_UP: Final = "roll-up"
NO_MODEL_CALL: Final = "no model call"
OTHER_OPERATION: Final = "other operation"
PENDING_SPAN: Final = "pending span"


class _Kind(Enum):
    COMPLETION = "a call that generates"
    EMBEDDING = "a call without a completion"
    ROLL_UP = "sums up calls below it"
    OTHER = "no call of a model"


_OPERATIONS: Final[dict[str, _Kind]] = {
    **dict.fromkeys(
        (
            *("chat", "text_completion", "generate_content", "completion", "llm", "generation", "responses"),
            *("acompletion", "atext_completion", "aresponses", "anthropic_messages", "agenerate_content"),
            *("ai.generatetext.dogenerate", "ai.streamtext.dostream"),
            *("ai.generateobject.dogenerate", "ai.streamobject.dostream"),
        ),
        _Kind.COMPLETION,
    ),
    **dict.fromkeys(
        ("embeddings", "embedding", "aembedding", "ai.embed.doembed", "ai.embedmany.doembed"), _Kind.EMBEDDING
    ),
    **dict.fromkeys(
        (
            *("invoke_agent", "invoke_workflow", "agent", "chain", "workflow"),
            *("ai.generatetext", "ai.streamtext", "ai.generateobject", "ai.streamobject", "ai.embed", "ai.embedmany"),
        ),
        _Kind.ROLL_UP,
    ),
    **dict.fromkeys(
        (
            *("create_agent", "execute_tool", "retrieval", "plan", "search_memory", "update_memory"),
            *("tool", "task", "retriever", "reranker", "rerank", "guardrail", "evaluator", "prompt", "ai.toolcall"),
            *("get_responses", "aget_responses", "delete_responses", "adelete_responses"),
        ),
        _Kind.OTHER,
    ),
}
"""Values of the operation and kind attributes, in lower case. Reading a stored response again is no call."""

_UNSAID: Final = frozenset(("", "unknown"))


class ModelCall(NamedTuple):
    """A span that calls a model, with what its place in the tree of spans decides."""

    span: Span
    attempt: Attempt

    @property
    def has_usage(self) -> bool:
        """Whether its producer told its tokens."""
        return self.attempt.usage.source is UsageSource.REPORTED


def model_call(span: Span, resource: Known, received_at_us: int = 0) -> ModelCall | str:
    """The call that a span tells of, or, where it is none, what it is. Raises UnreadableRecordError.

    A call has an operation that is known as one. Where none is said, as by vLLM, a count of tokens or a model makes the
    span a call; an operation that nobody knows, with tokens, is refused: counted, it might be billed twice, not
    counted, never. `resource` are the known attributes of the span's resource, which many spans share.
    """
    known = known_attributes(span.attributes)
    if not known:
        return NO_MODEL_CALL
    if known.get("logfire_kind") == "pending_span":
        return PENDING_SPAN
    kind, label = _kind_of(known)
    if kind is _Kind.ROLL_UP:
        return ROLL_UP
    if kind is _Kind.OTHER:
        return label
    return ModelCall(span, _attempt(span, known, resource, received_at_us, without_completion=kind is _Kind.EMBEDDING))


def session_of(span: Span) -> str:
    """The session that a span names, whatever it is: calls below it that name none belong to it. "" where it is bad."""
    try:
        return next((name_text(span.attributes[at], at) for at in ALIASES["session"] if span.attributes.get(at)), "")
    except UnreadableRecordError:
        return ""


_KIND_NAMES: Final = frozenset(("openinference_kind", "traceloop_kind", "ai_sdk_operation", "request_type"))


def _kind_of(known: Known) -> tuple[_Kind, str]:
    operation = known.get("operation")
    if _KIND_NAMES.isdisjoint(known) and isinstance(operation, str) and operation in _OPERATIONS:
        return _OPERATIONS[operation], operation
    said = [
        value.lower()
        for name in ("openinference_kind", "traceloop_kind", "ai_sdk_operation", "operation", "request_type")
        if isinstance(value := known.get(name), str) and value.lower() not in _UNSAID
    ]
    kinds = {_OPERATIONS[label]: label for label in reversed(said) if label in _OPERATIONS}
    # A span that one convention calls an agent and another a chat is around the call.
    for kind in (_Kind.ROLL_UP, _Kind.OTHER, _Kind.EMBEDDING, _Kind.COMPLETION):
        if kind in kinds:
            return kind, kinds[kind]
    told = [name for name in ("input_tokens", "output_tokens", "total_tokens") if name in known]
    if said and told:
        detail = f"the operation is {quoted(said[0])}, which is not known, and the span has tokens"
        raise UnreadableRecordError(DeadLetterReason.UNKNOWN_KIND, detail)
    if said:
        return _Kind.OTHER, OTHER_OPERATION
    if told or "request_model" in known or "response_model" in known:
        return _Kind.COMPLETION, ""
    return _Kind.OTHER, NO_MODEL_CALL


def _attempt(span: Span, known: Known, resource: Known, received_at_us: int, *, without_completion: bool) -> Attempt:
    started_at_us = span.started_at_us or span.ended_at_us or received_at_us
    if not started_at_us:
        raise missing("startTimeUnixNano")
    end = ending_of(span, known)
    model = _name(known, "request_model") or _name(known, "response_model")
    usage = _usage(span, known, model, without_completion=without_completion, ended=end.end is End.COMPLETED)
    stream = known.get("stream") in (True, "true", "True")
    return Attempt(
        request_id=_request_id(span, known),
        started_at_us=started_at_us,
        ended_at_us=span.ended_at_us,
        tenant=_name(known, "tenant") or _name(resource, "tenant"),
        session=_name(known, "session"),
        model=model,
        provider=semantic_provider(_name(known, "provider")),
        backend=_backend(span, known),
        region=_name(known, "region") or _name(resource, "region"),
        api_key=key_name(_name(known, "api_key")),
        user=_name(known, "user"),
        stream=stream,
        choices=min(_bound(known, "choices"), 2**31),
        max_tokens=_bound(known, "max_tokens"),
        without_completion=without_completion,
        usage=usage,
        chunks=_first_chunk(span, known, started_at_us) if usage.completion_tokens else (),
        end=end.end if span.ended_at_us else End.OPEN,
        finish_reason=end.finish_reason,
        interrupt_reason=end.interrupt_reason,
        error_class=end.error_class,
        status=end.status,
        retryable=end.retryable,
        provenance=Provenance(trace_id=span.trace_id, span_id=span.span_id) if span.trace_id else None,
    )


_SURELY_FITS: Final = MAX_NAME_BYTES // 4


def _name(known: Known, name: str) -> str:
    value = known.get(name)
    if value is None:
        return ""
    # Most are short; what is longer, or no string, is looked at more closely.
    return value if isinstance(value, str) and len(value) <= _SURELY_FITS else name_text(value, ALIASES[name][0])


def _request_id(span: Span, known: Known) -> str:
    """VLLM's own id, which is also the response id its client sees: the two spans of one call are then one request."""
    named = _name(known, "request_id") or _name(known, "response_id")
    if named:
        return named
    if span.trace_id and span.span_id:
        return f"{span.trace_id.hex()}-{span.span_id.hex()}"
    raise missing("gen_ai.response.id", "traceId", "spanId")


_OWN_PLACE: Final = ("service.instance.id", "k8s.pod.name", "host.name")


def _backend(span: Span, known: Known) -> str:
    """Where the call went: the server's address, or for an engine's own span the instance that it ran on."""
    address = _name(known, "address")
    if address:
        port = str(known.get("port") or "")
        return address if port in {"", "80", "443"} or ":" in address else name_text(f"{address}:{port}", "server.port")
    if span.scope.startswith("vllm"):
        return next((name_text(span.resource[at], at) for at in _OWN_PLACE if span.resource.get(at)), "")
    return ""


def _bound(known: Known, name: str) -> int:
    """A limit that the client gave; none where it is negative, which some servers take for no limit, or "None"."""
    value = known.get(name)
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    if value is None or value in ("None", "null") or str(value).startswith("-"):
        return 0
    return tokens(value, ALIASES[name][0]) or 0


# --- tokens ---------------------------------------------------------------------------------------------------------


def _usage(span: Span, known: Known, model: str, *, without_completion: bool, ended: bool) -> Usage:
    read, total = _count(known, "input_tokens"), _count(known, "total_tokens")
    written = _count(known, "output_tokens")
    if without_completion:
        read, written = (total if read is None else read), 0
    elif total is not None and (read is None) != (written is None):
        known_part = (read or 0) + (written or 0)
        if known_part <= total:
            read, written = (total - known_part if one is None else one for one in (read, written))
    cached, cache_write = _count(known, "cache_read_tokens") or 0, _count(known, "cache_write_tokens") or 0
    source = UsageSource.ABSENT if read is None and written is None else UsageSource.REPORTED
    if ended and (read is None or written is None):
        # Instrumentations that see the stream but not its usage may still have written down what was said.
        said = (prompt_text(span) if read is None else "", completion_text(span) if written is None else "")
        if any(said):
            source = UsageSource.ESTIMATED
            read = count_tokens(said[0], model) if read is None else read
            written = count_tokens(said[1], model) if written is None else written
    read = _whole_prompt(read or 0, cached, cache_write, known, model) if source is UsageSource.REPORTED else read or 0
    return Usage(
        prompt_tokens=read,
        completion_tokens=written or 0,
        cached_tokens=cached if source is UsageSource.REPORTED else 0,
        cache_write_tokens=cache_write if source is UsageSource.REPORTED else 0,
        source=source,
    )


def _whole_prompt(read: int, cached: int, cache_write: int, known: Known, model: str) -> int:
    """Input tokens with those from and into the cache.

    The conventions say that gen_ai.usage.input_tokens includes both
    (https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/), and instrumentations that follow them add
    Anthropic's and Bedrock's counts up, which exclude both
    (https://platform.claude.com/docs/en/build-with-claude/prompt-caching#tracking-cache-performance,
    https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_TokenUsage.html). Some don't: only where the
    cached tokens are more than the input are they surely not in it, and then they are added. For any other provider
    such counts are refused, as one of them must be wrong.
    """
    if cached + cache_write <= read:
        return read
    provider = known.get("provider")
    excludes = isinstance(provider, str) and semantic_provider(provider) in {"anthropic", "aws.bedrock"}
    if excludes or "claude" in model.lower():
        return read + cached + cache_write
    # Written tokens may be counted among those read by providers that bill no writing.
    if cached <= read and cache_write <= read:
        return read
    raise out_of_range(ALIASES["cache_read_tokens"][0], cached + cache_write, f"at most the input tokens, {read}")


def _count(known: Known, name: str) -> int | None:
    value = known.get(name)
    if value is None or (type(value) is int and 0 <= value <= MAX_TOKENS):
        return value
    return tokens(value, ALIASES[name][0])


def _first_chunk(span: Span, known: Known, started_at_us: int) -> tuple[Chunk, ...]:
    """When the first token came, within the span: one token is known to have been there by then."""
    if not span.ended_at_us:
        return ()
    seconds = _seconds(known.get("first_chunk_seconds"), 1.0)
    seconds = _seconds(known.get("first_chunk_milliseconds"), 1e-3) if seconds is None else seconds
    if seconds is not None:
        at_us = started_at_us + round(min(seconds, 1e9) * 1_000_000)
        return (Chunk(min(at_us, span.ended_at_us), 1),)
    at_us = next((event.at_us for event in span.events if event.name == _CHUNK_EVENT), 0)
    return (Chunk(at_us, 1),) if started_at_us <= at_us <= span.ended_at_us else ()


_CHUNK_EVENT: Final = "llm.content.completion.chunk"
"""What OpenLLMetry adds to a span for each chunk of a stream."""


def _seconds(value: Value, unit: float) -> float | None:
    try:
        seconds = float(value) * unit if isinstance(value, (int, float, str)) else -1.0
    except (ValueError, OverflowError):
        return None
    return seconds if isfinite(seconds) and seconds >= 0 else None
