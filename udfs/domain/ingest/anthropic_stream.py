"""Anthropic's messages, streamed or not.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from udfs.domain.ingest.fields import malformed, member, members, tokens
from udfs.domain.ingest.http_status import is_retryable
from udfs.domain.ingest.stream_reading import AnswerError, AnswerReader, text_of, word

_STATUS_OF_CLASS: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""https://docs.anthropic.com/en/api/errors: in mid-stream an error has no status but the one it stands for."""

_PROMPT_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicReader(AnswerReader):
    """Reads message_start to message_stop, or a message.

    `input_tokens` leave out what was read from the prompt cache and written into it; the prompt here is the sum of the
    three. Each of them, and the output, is cumulative, and may stand in message_start, message_delta or both. The
    output of message_start is a placeholder: a stream that breaks off is counted by its text.
    """

    provider: ClassVar[str] = "anthropic"
    __slots__ = ("_prompt_counts",)

    def __init__(self) -> None:
        super().__init__()
        self._prompt_counts = [0, 0, 0]

    def _with_status(self, error: AnswerError) -> AnswerError:
        status = error.status or _STATUS_OF_CLASS.get(error.error_class, 0)
        return AnswerError(error_class=error.error_class, status=status, retryable=is_retryable(status))

    def _read(self, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "content_block_delta":
            self._read_delta(member(payload, "delta"))
        elif kind == "content_block_start":
            self._read_block(member(payload, "content_block"))
        elif kind == "message_start":
            message = member(payload, "message")
            self._note_origin(message)
            self._read_usage(message, is_final=False)
        elif kind == "message_delta":
            self._finish(member(payload, "delta").get("stop_reason"))
            self._read_usage(payload, is_final=True)
        elif kind == "message_stop":
            self.has_end_mark = True
        elif kind == "message":
            self._note_origin(payload)
            for block in members(payload, "content"):
                self._read_block(block)
            self._finish(payload.get("stop_reason"))
            self._read_usage(payload, is_final=True)

    def _note_origin(self, message: dict[str, Any]) -> None:
        response_id, model = message.get("id"), message.get("model")
        if isinstance(response_id, str):
            self.response_id = response_id
        if isinstance(model, str):
            self.model = model

    def _read_delta(self, delta: dict[str, Any]) -> None:
        for name in ("text", "partial_json", "thinking"):
            value = delta.get(name)
            if value:
                self._add_text(0, text_of(value, name))

    def _read_block(self, block: object) -> None:
        if not isinstance(block, dict):
            raise malformed("a block of content is no object")
        self._read_delta(block)
        if "input" in block:
            name = block.get("name")
            self._add_text(0, name if isinstance(name, str) else "")
            if block["input"]:
                self._add_text(0, msgspec.json.encode(block["input"]).decode("utf-8", "replace"))

    def _finish(self, reason: object) -> None:
        if reason is None:
            return
        if not isinstance(reason, str):
            raise malformed("stop_reason is no string")
        if reason:
            self.finish_reasons[0] = word(reason, "stop_reason")

    def _read_usage(self, of: dict[str, Any], *, is_final: bool) -> None:
        usage = member(of, "usage")
        if not usage:
            return
        for index, name in enumerate(_PROMPT_COUNTS):
            self._prompt_counts[index] = max(self._prompt_counts[index], tokens(usage.get(name), name) or 0)
        _, read, written = self._prompt_counts
        output = tokens(usage.get("output_tokens"), "output_tokens")
        self._add_usage(sum(self._prompt_counts), output if is_final else None, read, written)
