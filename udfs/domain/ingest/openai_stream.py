"""OpenAI's answers, and those of all who speak its formats: chat completions, completions, responses, embeddings.

https://platform.openai.com/docs/api-reference/chat-streaming, https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Mapping
from typing import Any, Final

from udfs.domain.ingest.fields import malformed, member, members, tokens
from udfs.domain.ingest.http_status import is_retryable
from udfs.domain.ingest.stream_reading import AnswerError, AnswerReader, text_of, word

ABORTED: Final = frozenset({"abort", "aborted", "cancelled", "canceled"})
"""Finish reasons of an answer that was broken off: vLLM's abort is an empty delta with that reason, and no error."""

_STATUS_OF_CLASS: Final[Mapping[str, int]] = {
    "server_error": 500,
    "internal_error": 500,
    "InternalServerError": 500,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "context_length_exceeded": 400,
    "timeout": 408,
}

_TEXT_EVENTS: Final = frozenset(
    {
        "response.output_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.mcp_call_arguments.delta",
        "response.code_interpreter_call_code.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.audio.transcript.delta",
    }
)
"""Events of the responses API that carry generated text, in `delta`. Their `done` twins repeat all of it."""

_ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})


class OpenAiReader(AnswerReader):
    """Reads chat completions (choices), completions (choices with text) and responses (events or an object).

    A chunk's usage may be null until the last one, whose choices may be empty or null, stand within a choice
    (Moonshot) or in x_groq, or be a running total on every chunk (vLLM's continuous_usage_stats).
    """

    __slots__ = ()

    def _read(self, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            self._read_response_event(kind, payload)
        elif payload.get("object") == "response":
            self._read_response(payload, with_text=True)
        else:
            self._read_completion(payload)

    def _with_status(self, error: AnswerError) -> AnswerError:
        status = error.status or _STATUS_OF_CLASS.get(error.error_class, 0)
        return AnswerError(error_class=error.error_class, status=status, retryable=is_retryable(status))

    # --- chat completions -------------------------------------------------------------------------------------

    def _read_completion(self, chunk: dict[str, Any]) -> None:
        self._note_origin(chunk, "created")
        choices = chunk.get("choices")
        if choices:
            if not isinstance(choices, list):
                raise malformed("choices is no array")
            for choice in choices:
                self._read_choice(choice)
        elif chunk.get("object") == "list" and "data" in chunk:
            # Embeddings: a prompt and no completion.
            self.without_completion = True
            self.has_end_mark = True
        usage = chunk.get("usage")
        if usage is None and "x_groq" in chunk:
            usage = member(chunk, "x_groq").get("usage")
        if usage is not None:
            self._read_usage(usage)

    def _note_origin(self, payload: dict[str, Any], created: str) -> None:
        if not self.response_id:
            found = payload.get("id")
            if isinstance(found, str):
                self.response_id = found
        if not self.model:
            found = payload.get("model")
            if isinstance(found, str):
                self.model = found
        when = payload.get(created)
        if when:
            # Azure's first chunk, which tells of its content filter alone, has 0.
            self.created = when

    def _read_choice(self, choice: object) -> None:
        if not isinstance(choice, dict):
            raise malformed("a choice is no object")
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        if delta:
            if not isinstance(delta, dict):
                raise malformed("a delta is no object")
            self._read_delta(index, delta)
        if choice.get("text"):
            self._add_text(index, text_of(choice["text"], "text"))
        reason = choice.get("finish_reason")
        if reason:
            self._finish(index, reason)
        if choice.get("usage"):
            self._read_usage(choice["usage"])

    def _read_delta(self, index: int, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if not value:
                continue
            if name == "content":
                self._add_text(index, value if isinstance(value, str) else text_of(value, name))
            elif name in {"reasoning_content", "refusal"}:
                self._add_text(index, text_of(value, name))
            elif name == "reasoning" and not delta.get("reasoning_content"):
                # vLLM and OpenRouter write it under both names for a while.
                self._add_text(index, text_of(value, name))
            elif name == "tool_calls":
                for call in members(delta, name):
                    self._read_call(index, member(call, "function") or member(call, "custom"))
            elif name == "function_call":
                self._read_call(index, member(delta, name))
            elif name == "audio":
                self._add_text(index, text_of(member(delta, name).get("transcript"), "transcript"))

    def _read_call(self, index: int, function: dict[str, Any]) -> None:
        for name in ("name", "arguments", "input"):
            value = function.get(name)
            if isinstance(value, str):
                self._add_text(index, value)

    def _finish(self, index: int, reason: object) -> None:
        if not isinstance(reason, str):
            raise malformed("finish_reason is no string")
        if reason in ABORTED:
            self.is_aborted = True
        elif reason == "error" and self.error is None:
            self.error = AnswerError(error_class="error")
        self.finish_reasons[index] = word(reason, "finish_reason")

    def _read_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            raise malformed("usage is no object")
        prompt = _count(usage, "prompt_tokens", "input_tokens")
        completion = _count(usage, "completion_tokens", "output_tokens")
        total = _count(usage, "total_tokens")
        read = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        made = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
        cached = written = None
        if isinstance(read, dict):
            cached = _count(read, "cached_tokens")
            written = _count(read, "cache_write_tokens", "cache_creation_tokens")
        if cached is None:
            # DeepSeek's, Moonshot's and LiteLLM's names.
            cached = _count(usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
        if written is None:
            written = _count(usage, "cache_creation_input_tokens")
        if completion is None and total is not None and prompt is not None:
            completion = max(0, total - prompt)
        elif completion is not None and total is not None and isinstance(made, dict):
            reasoning = _count(made, "reasoning_tokens")
            if reasoning and total == (prompt or 0) + completion + reasoning:
                # xAI's completion leaves out what was reasoned, which its total shows.
                completion += reasoning
        self._add_usage(prompt, completion, cached, written)

    # --- responses --------------------------------------------------------------------------------------------

    def _read_response_event(self, kind: str, event: dict[str, Any]) -> None:
        if kind in _TEXT_EVENTS:
            self._add_text(0, text_of(event.get("delta"), "delta"))
            return
        if "response" in event:
            response = member(event, "response")
            if kind.removeprefix("response.") in _ENDED:
                response = {**response, "status": response.get("status") or kind.removeprefix("response.")}
            # Its output was streamed before, unless this event is all there is.
            self._read_response(response, with_text=not self.characters)

    def _read_response(self, response: dict[str, Any], *, with_text: bool) -> None:
        self._note_origin(response, "created_at")
        if with_text:
            for item in members(response, "output"):
                if isinstance(item, dict):
                    self._read_output(item)
        status = response.get("status")
        if status == "failed":
            error = member(response, "error")
            code = error.get("code")
            error_class = word(code, "code") if isinstance(code, str) and code else "failed"
            self.error = self.error or self._with_status(AnswerError(error_class=error_class))
        elif status == "cancelled":
            self.is_aborted = True
        elif status == "incomplete":
            self._finish(0, member(response, "incomplete_details").get("reason") or "incomplete")
        elif status == "completed":
            self._finish(0, "completed")
        if response.get("usage") is not None:
            self._read_usage(response["usage"])

    def _read_output(self, item: dict[str, Any]) -> None:
        for name in ("content", "summary"):
            self._add_text(0, text_of(item.get(name), name))
        self._read_call(0, item)


def _count(usage: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if value is not None:
            return tokens(value, name)
    return None
