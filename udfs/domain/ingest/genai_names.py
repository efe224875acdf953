"""What attributes of generative-AI spans are called: OpenTelemetry's names, those it had before, and those of others.

Sources: the conventions (https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/), with the names that
they have given up; OpenLLMetry (llm.usage.*, llm.request.type, traceloop.*); OpenInference
(https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md: llm.token_count.*, llm.model_name);
LiteLLM (metadata.user_api_key_*); vLLM (gen_ai.request.id, gen_ai.latency.*); the Vercel AI SDK (ai.*); Sentry
(gen_ai.usage.input_tokens.cached) and Pydantic AI (gen_ai.usage.details.*).
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from udfs.domain.ingest.otlp_items import Attributes, Value
from udfs.domain.ingest.provider_names import provider_name

Known: TypeAlias = Mapping[str, Value]
"""Attributes by their names in ALIASES."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "operation": ("gen_ai.operation.name",),
    "request_type": ("llm.request.type",),
    "openinference_kind": ("openinference.span.kind",),
    "traceloop_kind": ("traceloop.span.kind",),
    "ai_sdk_operation": ("ai.operationId",),
    "logfire_kind": ("logfire.span_type",),
    "provider": ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.vendor", "llm.system"),
    "request_model": (
        "gen_ai.request.model",
        "llm.request.model",
        "llm.model_name",
        "embedding.model_name",
        "ai.model.id",
    ),
    "response_model": ("gen_ai.response.model", "llm.response.model", "ai.response.model"),
    "request_id": ("gen_ai.request.id",),
    "response_id": ("gen_ai.response.id", "llm.response.id", "ai.response.id"),
    "tenant": (
        "tenant.id",
        "tenant_id",
        "traceloop.association.properties.tenant_id",
        "metadata.user_api_key_team_id",
    ),
    "session": (
        "gen_ai.conversation.id",
        "session.id",
        "langfuse.session.id",
        "traceloop.association.properties.session_id",
    ),
    "user": ("enduser.id", "user.id", "enduser.pseudo.id", "langfuse.user.id", "llm.user"),
    # A hash, made by LiteLLM. Keys themselves are never read, wherever a span may have them.
    "api_key": ("metadata.user_api_key_hash",),
    "region": ("cloud.region",),
    "address": ("server.address", "net.peer.name"),
    "port": ("server.port", "net.peer.port"),
    "stream": ("gen_ai.request.stream", "llm.is_streaming", "gen_ai.request.is_stream"),
    "max_tokens": ("gen_ai.request.max_tokens", "llm.request.max_tokens"),
    "choices": ("gen_ai.request.choice.count", "gen_ai.request.n"),
    "finish_reason": (
        "gen_ai.response.finish_reasons",
        "gen_ai.completion.0.finish_reason",
        "llm.response.finish_reason",
        "llm.response.stop_reason",
        "ai.response.finishReason",
    ),
    "input_tokens": (
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.prompt_tokens",
        "llm.usage.prompt_tokens",
        "llm.token_count.prompt",
        "ai.usage.inputTokens",
        "ai.usage.promptTokens",
    ),
    "output_tokens": (
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.completion_tokens",
        "llm.usage.completion_tokens",
        "llm.token_count.completion",
        "ai.usage.outputTokens",
        "ai.usage.completionTokens",
    ),
    "total_tokens": ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total"),
    "cache_read_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
        "gen_ai.usage.input_cached_tokens",
        "gen_ai.usage.input_tokens.cached",
        "gen_ai.usage.cache_read_tokens",
        "gen_ai.usage.details.cache_read_tokens",
        "gen_ai.usage.details.cache_read_input_tokens",
        "llm.usage.cache_read_input_tokens",
        "llm.token_count.prompt_details.cache_read",
        "ai.usage.cachedInputTokens",
    ),
    "cache_write_tokens": (
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
        "gen_ai.usage.input_tokens.cache_write",
        "gen_ai.usage.cache_write_tokens",
        "gen_ai.usage.details.cache_write_tokens",
        "gen_ai.usage.details.cache_creation_input_tokens",
        "llm.usage.cache_creation_input_tokens",
        "llm.token_count.prompt_details.cache_write",
    ),
    "first_chunk_seconds": ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token"),
    "first_chunk_milliseconds": ("ai.response.msToFirstChunk",),
    "error_type": ("error.type",),
    "status": ("http.response.status_code", "http.status_code"),
}
"""Our name of an attribute -> what it is called, the name that holds today first."""

_NAMED: Final = {alias: (name, rank) for name, aliases in ALIASES.items() for rank, alias in enumerate(aliases)}

_FORMER_PROVIDERS: Final[Mapping[str, str]] = {
    "az.ai.inference": "azure.ai.inference",
    "az.ai.openai": "azure.ai.openai",
    "anthropic.messages": "anthropic",
    "aws": "aws.bedrock",
    "azure.openai": "azure.ai.openai",
    "azure-openai.chat": "azure.ai.openai",
    "google": "gcp.gen_ai",
    "google.generative-ai": "gcp.gemini",
    "google.vertex.chat": "gcp.vertex_ai",
    "mistralai": "mistral_ai",
    "openai.chat": "openai",
    "openai.responses": "openai",
    "vertexai": "gcp.vertex_ai",
}
"""Values of gen_ai.system and llm.provider that gen_ai.provider.name knows by another name."""


def known_attributes(attributes: Attributes) -> dict[str, Value]:
    """Attributes by the names of ALIASES. Of two names for one thing the first in its list counts, unless it says zero.

    Instrumentations in between two conventions write both names, and some a zero under one of them.

    >>> known_attributes({"gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.input_tokens": 0, "other": 1})
    {'input_tokens': 12}
    """
    found: dict[str, Value] = {}
    ranks: dict[str, int] = {}
    for attribute, value in attributes.items():
        named = _NAMED.get(attribute)
        if named is None or value is None or value == "":
            continue
        name, rank = named
        if name not in found or _order(value, rank) < _order(found[name], ranks[name]):
            found[name] = value
            ranks[name] = rank
    return found


def _order(value: Value, rank: int) -> tuple[bool, int]:
    return not value or value == "0", rank


def semantic_provider(name: str) -> str:
    """gen_ai.provider.name for whatever gen_ai.system, llm.provider or a gateway calls it.

    >>> semantic_provider("az.ai.openai"), semantic_provider("OpenAI"), semantic_provider("my-cluster")
    ('azure.ai.openai', 'openai', 'my-cluster')
    """
    lower = name.lower()
    return _FORMER_PROVIDERS.get(lower) or provider_name(lower)
