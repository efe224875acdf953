"""Who serves a model, by one name, whatever a gateway calls it."""

from collections.abc import Mapping
from typing import Final

_OPEN_TELEMETRY_NAMES: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "azure_text": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "text-completion-openai": "openai",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "watsonx_text": "ibm.watsonx.ai",
    "xai": "x_ai",
}


def provider_name(gateway_name: str) -> str:
    """The value of OpenTelemetry's gen_ai.provider.name for a gateway's own name; one it has none for stays as it is.

    https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/

    >>> provider_name("azure"), provider_name("openai"), provider_name("my-cluster")
    ('azure.ai.openai', 'openai', 'my-cluster')
    """
    return _OPEN_TELEMETRY_NAMES.get(gateway_name, gateway_name)
