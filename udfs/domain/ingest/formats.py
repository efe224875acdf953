"""The formats that people have, by the names that settings and commands take."""

from typing import Final, NamedTuple

from udfs.domain.ingest.envoy_ai_gateway import read_envoy_ai_gateway
from udfs.domain.ingest.kong import read_kong
from udfs.domain.ingest.litellm import read_litellm
from udfs.domain.ingest.otlp_adapter import read_otlp
from udfs.domain.ingest.prometheus_text import read_prometheus
from udfs.domain.ingest.record import Adapter
from udfs.domain.ingest.transcript import read_transcript


class Format(NamedTuple):
    """A format. `per_line`: its files hold a record a line, or are one document; else a file is one record.

    `or_whole`: a file that is not JSON is one record too. `refuses_others`: what it passes over is of its own making,
    so that a file of nothing else is still known by it.
    """

    name: str
    words: str
    adapter: Adapter
    per_line: bool = True
    or_whole: bool = False
    refuses_others: bool = False


FORMATS: Final = {
    it.name: it
    for it in (
        Format(
            "otlp",
            "OpenTelemetry requests with GenAI and vLLM spans, protobuf or JSON",
            read_otlp,
            or_whole=True,
            refuses_others=True,
        ),
        Format(
            "transcript",
            "requests and answers of OpenAI, Anthropic and Gemini, streamed or whole",
            read_transcript,
            or_whole=True,
        ),
        Format("litellm", "LiteLLM's standard logging payloads and spend logs", read_litellm),
        Format("envoy-ai-gateway", "access logs of Envoy AI Gateway, as JSON", read_envoy_ai_gateway),
        Format("kong", "logs of Kong's AI plugins, as JSON", read_kong),
        Format(
            "prometheus",
            "scrapes of vLLM, SGLang, TGI, llama.cpp and DCGM: health of backends",
            read_prometheus,
            per_line=False,
        ),
    )
}
