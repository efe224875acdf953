"""Which provider's words an answer is in."""

from collections.abc import Mapping
from typing import Any, Final

from udfs.domain.ingest.anthropic_stream import AnthropicReader
from udfs.domain.ingest.fields import malformed, quoted
from udfs.domain.ingest.gemini_stream import GeminiReader
from udfs.domain.ingest.openai_stream import OpenAiReader
from udfs.domain.ingest.stream_reading import AnswerReader

READERS: Final[Mapping[str, type[AnswerReader]]] = {
    "openai": OpenAiReader,
    "anthropic": AnthropicReader,
    "gemini": GeminiReader,
}

_ANTHROPIC_TYPES: Final = frozenset(
    {
        "message",
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "ping",
    }
)
_GEMINI_KEYS: Final = ("candidates", "usageMetadata", "promptFeedback", "modelVersion")


def reader_named(name: str) -> AnswerReader:
    """A new reader for a format by its name. Raises UnreadableRecordError."""
    reader = READERS.get(name.lower())
    if reader is None:
        raise malformed(f"format is {quoted(name)}, it must be one of {', '.join(READERS)}")
    return reader()


def reader_for(payload: dict[str, Any] | None) -> AnswerReader:
    """A new reader for an answer whose first chunk, or whose body, is this one: OpenAI's where nothing says otherwise.

    >>> type(reader_for({"type": "ping"})).__name__, type(reader_for({"candidates": []})).__name__
    ('AnthropicReader', 'GeminiReader')
    """
    if payload is None:
        return OpenAiReader()
    kind, error = payload.get("type"), payload.get("error")
    if isinstance(kind, str) and (kind in _ANTHROPIC_TYPES or (kind == "error" and isinstance(error, dict))):
        return AnthropicReader()
    if any(key in payload for key in _GEMINI_KEYS):
        return GeminiReader()
    if isinstance(error, dict) and isinstance(error.get("status"), str) and isinstance(error.get("code"), int):
        return GeminiReader()
    return OpenAiReader()
