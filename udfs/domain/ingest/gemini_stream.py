"""Gemini's answers: streamGenerateContent as server-sent events or as a JSON array, and generateContent.

https://ai.google.dev/api/generate-content#UsageMetadata
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from udfs.domain.ingest.fields import malformed, member, members, tokens
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.stream_reading import AnswerError, AnswerReader, text_of, word

_STATUS_OF_CLASS: Final[Mapping[str, int]] = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": CLIENT_CLOSED_REQUEST,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""https://ai.google.dev/gemini-api/docs/troubleshooting"""


class GeminiReader(AnswerReader):
    """Reads GenerateContentResponse objects, one a chunk. There is no end mark: the finish reason ends a candidate.

    The counts of usageMetadata are those up to its chunk. The completion is the candidates' tokens and those of
    thoughts, which are counted apart; where the total shows that the candidates' have them already, once. A prompt that
    was blocked is an answer without text, whose finish reason is the reason of the block.
    """

    provider: ClassVar[str] = "gcp.gemini"
    __slots__ = ()

    def _with_status(self, error: AnswerError) -> AnswerError:
        status = error.status or _STATUS_OF_CLASS.get(error.error_class, 0)
        return AnswerError(error_class=error.error_class, status=status, retryable=is_retryable(status))

    def _read(self, payload: dict[str, Any]) -> None:
        response_id, model, created = (payload.get(name) for name in ("responseId", "modelVersion", "createTime"))
        if isinstance(response_id, str) and not self.response_id:
            self.response_id = response_id
        if isinstance(model, str) and not self.model:
            self.model = model
        if created:
            self.created = created
        for candidate in members(payload, "candidates"):
            self._read_candidate(candidate)
        blocked = member(payload, "promptFeedback").get("blockReason")
        if blocked:
            self._finish(0, blocked)
        self._read_usage(member(payload, "usageMetadata"))

    def _read_candidate(self, candidate: object) -> None:
        if not isinstance(candidate, dict):
            raise malformed("a candidate is no object")
        index = candidate.get("index")
        if type(index) is not int:
            index = 0
        for part in members(member(candidate, "content"), "parts"):
            if not isinstance(part, dict):
                raise malformed("a part is no object")
            self._add_text(index, text_of(part.get("text"), "text"))
            for name in ("functionCall", "executableCode"):
                if part.get(name):
                    self._add_text(index, msgspec.json.encode(part[name]).decode("utf-8", "replace"))
        if candidate.get("finishReason"):
            self._finish(index, candidate["finishReason"])

    def _finish(self, index: int, reason: object) -> None:
        if not isinstance(reason, str):
            raise malformed("finishReason is no string")
        self.finish_reasons[index] = word(reason, "finishReason")

    def _read_usage(self, usage: dict[str, Any]) -> None:
        if not usage:
            return

        def count(name: str) -> int | None:
            return tokens(usage.get(name), name)

        prompt = (count("promptTokenCount") or 0) + (count("toolUsePromptTokenCount") or 0)
        candidates, thoughts, total = (
            count("candidatesTokenCount"),
            count("thoughtsTokenCount"),
            count("totalTokenCount"),
        )
        completion = candidates
        if thoughts:
            is_within = total is not None and candidates is not None and total == prompt + candidates
            completion = candidates if is_within else (candidates or 0) + thoughts
        self._add_usage(prompt, completion, count("cachedContentTokenCount"), None)
