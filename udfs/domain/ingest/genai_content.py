"""The text of a call's messages, where a span has them: to be counted when the usage is missing, for nothing else."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from udfs.domain.ingest.otlp_items import Span, Value

_PROMPT: Final = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.prompt", "ai.prompt.messages")
_COMPLETION: Final = ("gen_ai.output.messages", "gen_ai.completion", "ai.response.text")
_PROMPT_PARTS: Final = re.compile(r"(gen_ai\.prompt|llm\.input_messages)\.\d+\.(message\.)?contents?(\..*)?$")
_COMPLETION_PARTS: Final = re.compile(r"(gen_ai\.completion|llm\.output_messages)\.\d+\.(message\.)?contents?(\..*)?$")
_TEXT_FIELDS: Final = frozenset(("content", "text", "arguments", "response", "result"))


def prompt_text(span: Span) -> str:
    """What was sent to the model, as far as the span has it; "" where it has nothing."""
    return _text(span, _PROMPT, _PROMPT_PARTS)


def completion_text(span: Span) -> str:
    """What the model answered."""
    return _text(span, _COMPLETION, _COMPLETION_PARTS)


def _text(span: Span, whole: tuple[str, ...], parts: re.Pattern[str]) -> str:
    attributes = span.attributes
    found = [text for name in whole for text in _texts(_parsed(attributes.get(name)))]
    if not found:
        found = [value for name, value in attributes.items() if isinstance(value, str) and parts.match(name)]
    return "\n".join(found)


def _parsed(value: Value) -> Any:  # noqa: ANN401 - whatever an instrumentation wrote
    """Messages are structured, or the same as JSON, or plain text. Cut short, JSON is text like any other."""
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        try:
            return msgspec.json.decode(value.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    """Texts anywhere in messages: OpenTelemetry's parts, and the shapes of providers, written down as they are."""
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if isinstance(at, str):
            yield at
        elif isinstance(at, list):
            waiting.extend(reversed(at))
        elif isinstance(at, dict):
            waiting.extend(
                member
                for name, member in reversed(at.items())
                if name in _TEXT_FIELDS or (isinstance(member, (dict, list)) and name != "metadata")
            )
