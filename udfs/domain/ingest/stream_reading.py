"""What an answer tells while it comes, whichever provider's words it uses.

A reader is fed one server-sent event, or one body, at a time, and knows at any moment what came so far: tokens, text,
how it ended. The text is kept only to be counted where the provider does not tell its tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec

from schemas.events import UsageSource
from udfs.domain.ingest.attempt import End, Usage
from udfs.domain.ingest.fields import json_of, malformed, text
from udfs.domain.ingest.http_status import is_retryable
from udfs.domain.ingest.record import UnreadableRecordError
from udfs.domain.ingest.sse import ServerSentEvent

DONE: Final = "[DONE]"
"""The data with which OpenAI, and who follows it, ends a stream."""

_WORD_CHARACTERS: Final = 100


class AnswerError(msgspec.Struct, frozen=True, kw_only=True):
    """An error instead of an answer, or in the middle of one. `status` is HTTP's, 0 where none can be told."""

    error_class: str
    status: int = 0
    retryable: bool = False


class AnswerReader(ABC):
    """What one answer has told so far; `fresh` is the text that the last call of a method added.

    Counts of tokens are cumulative at every provider, so of several the greatest stands: adding them up would bill an
    answer many times, and a later chunk without counts takes nothing back. A count holds for the text before it: if
    text follows, an interrupted stream's is the count of all its text.
    """

    provider: ClassVar[str] = ""
    """gen_ai.provider.name of who speaks this format, "" where many do."""

    __slots__ = (
        "_lengths",
        "cache_write_tokens",
        "cached_tokens",
        "characters",
        "completion_tokens",
        "created",
        "deltas_are_cumulative",
        "error",
        "finish_reasons",
        "fresh",
        "has_end_mark",
        "is_aborted",
        "model",
        "pieces",
        "prompt_tokens",
        "response_id",
        "usage_is_current",
        "without_completion",
    )

    def __init__(self) -> None:
        self.response_id = ""
        self.model = ""
        self.created: object = None
        """When the last event says that the answer was made, as its provider writes it: seconds or ISO 8601."""
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens = 0
        self.cache_write_tokens = 0
        self.usage_is_current = False
        self.pieces: dict[int, list[str]] = {}
        """Text by choice: what was said, reasoned, refused, and the arguments of calls, all of which is generated."""
        self.characters = 0
        self.fresh: list[str] = []
        self.finish_reasons: dict[int, str] = {}
        self.error: AnswerError | None = None
        self.has_end_mark = False
        self.is_aborted = False
        self.without_completion = False
        self.deltas_are_cumulative = False
        self._lengths: dict[int, int] = {}

    def read(self, event: ServerSentEvent) -> None:
        """One event of the stream. Raises UnreadableRecordError: its data is no JSON, or a value can't be meant."""
        self.read_data(event.data)

    def read_data(self, data: str) -> None:
        """The same, given the event's data alone: no provider tells by an event's name what its data does not."""
        fresh: list[str] = []
        for payload in payloads_of(data):
            self.read_payload(payload)
            fresh += self.fresh
        self.fresh = fresh

    def read_payload(self, payload: dict[str, Any] | None) -> None:
        """One JSON object: a chunk of the stream, or the body of an answer that was not streamed. None: [DONE]."""
        self.fresh = []
        if payload is None:
            self.has_end_mark = True
            return
        error = error_in(payload)
        if error is not None:
            # The first one is the cause: what follows it reports the broken stream.
            self.error = self.error or self._with_status(error)
        self._read(payload)

    @abstractmethod
    def _read(self, payload: dict[str, Any]) -> None:
        """Note what a payload says, an error aside."""

    def _with_status(self, error: AnswerError) -> AnswerError:
        """The error with the status that its class stands for, where it names none."""
        return error

    def _add_text(self, choice: int, piece: str) -> None:
        if piece:
            pieces = self.pieces.get(choice)
            if pieces is None:
                pieces = self.pieces[choice] = []
            if self.deltas_are_cumulative:
                piece = self._unrepeated(choice, piece)
            pieces.append(piece)
            self.fresh.append(piece)
            self.characters += len(piece)
            self.usage_is_current = False

    def _unrepeated(self, choice: int, piece: str) -> str:
        """What a delta adds that repeats the text before it."""
        known = self._lengths.get(choice, 0)
        # One that is shorter can't repeat it, and comparing it all the same would take quadratic time.
        if len(piece) >= known:
            before = "".join(self.pieces[choice])
            self.pieces[choice][:] = [before]
            piece = piece.removeprefix(before)
        self._lengths[choice] = known + len(piece)
        return piece

    def _add_usage(self, prompt: int | None, completion: int | None, cached: int | None, written: int | None) -> None:
        """Cumulative counts of a payload whose text has been noted before; None: it does not tell."""
        if not prompt and not completion:
            # All zero is what servers write that do not count.
            return
        self.prompt_tokens = _greatest(self.prompt_tokens, prompt)
        self.cached_tokens = max(self.cached_tokens, cached or 0)
        self.cache_write_tokens = max(self.cache_write_tokens, written or 0)
        if completion is not None:
            self.completion_tokens = _greatest(self.completion_tokens, completion)
            self.usage_is_current = True

    @property
    def text(self) -> str:
        """All text so far, one choice after the other."""
        return "".join(piece for index in sorted(self.pieces) for piece in self.pieces[index])

    @property
    def has_told(self) -> bool:
        """Whether anything came that an answer of this format has."""
        told = (self.pieces, self.finish_reasons, self.error, self.prompt_tokens, self.has_end_mark)
        return any(map(bool, told)) or self.completion_tokens is not None

    @property
    def finish_reason(self) -> str:
        """That of the first choice that has one."""
        return next((self.finish_reasons[index] for index in sorted(self.finish_reasons)), "")

    @property
    def end(self) -> End:
        """How the answer would have ended, did nothing more come."""
        if self.error is not None:
            return End.FAILED
        if self.is_aborted:
            return End.INTERRUPTED
        finished = bool(self.finish_reasons) and self.pieces.keys() <= self.finish_reasons.keys()
        return End.COMPLETED if finished or self.has_end_mark else End.INTERRUPTED

    @property
    def reported_tokens(self) -> int | None:
        """Tokens of the completion so far as the provider counts them; None: it has not told, or text came since."""
        if not self.usage_is_current or (not self.completion_tokens and self.characters):
            return None
        return self.completion_tokens

    def usage(self, count: Callable[[str], int], prompt_estimate: int | None = None) -> Usage:
        """Tokens so far. What the provider does not tell is counted, by choice, and all of it marked as estimated.

        `prompt_estimate` stands in for a prompt that is not told.
        """
        prompt, completion = self.prompt_tokens, self.reported_tokens
        source = UsageSource.REPORTED
        if completion is None and prompt and not self.characters and self.end is End.COMPLETED:
            # Of a completion that never began some tell the prompt alone.
            completion = 0
        if completion is None:
            source = UsageSource.ESTIMATED
            counted = sum(count("".join(pieces)) for pieces in self.pieces.values())
            # A stale count is at least what had been generated by then.
            completion = max(counted, self.completion_tokens or 0)
        if not prompt:
            if prompt_estimate:
                source = UsageSource.ESTIMATED
            prompt = prompt_estimate or 0
        # Discounts for more tokens than the prompt has would be owed to its sender.
        cached = min(self.cached_tokens, prompt)
        written = min(self.cache_write_tokens, prompt - cached)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            cache_write_tokens=written,
            source=source,
        )


def _greatest(known: int | None, told: int | None) -> int | None:
    return known if told is None or (known is not None and known > told) else told


def payloads_of(data: str) -> list[dict[str, Any] | None]:
    r"""The JSON objects in the data of one event; None stands for [DONE]. Raises UnreadableRecordError.

    As a rule it is one. Captures that left out blank lines have a whole stream in one event, an object a line; a JSON
    array of objects is what Gemini sends where server-sent events were not asked for.

    >>> payloads_of('{"a": 1}'), payloads_of('{"a":\n1}'), payloads_of('{"a": 1}\n[DONE]'), payloads_of(" ")
    ([{'a': 1}], [{'a': 1}], [{'a': 1}, None], [])
    """
    if data == DONE:
        return [None]
    try:
        return objects_of(json_of(data))
    except UnreadableRecordError:
        lines = [line for line in map(str.strip, data.split("\n")) if line]
        if lines and (len(lines) == 1) and lines[0] != DONE:
            raise
        found: list[dict[str, Any] | None] = []
        for line in lines:
            found += [None] if line == DONE else objects_of(json_of(line))
        return found


def objects_of(value: object) -> list[dict[str, Any] | None]:
    """A JSON object, or an array of them. Raises UnreadableRecordError."""
    found: list[dict[str, Any] | None] = []
    for each in value if isinstance(value, list) else (value,):
        if not isinstance(each, dict):
            raise malformed("a chunk of the stream is no JSON object")
        found.append(each)
    return found


def error_in(payload: dict[str, Any]) -> AnswerError | None:
    """The error that a chunk or a body tells of: OpenAI's, Anthropic's and Gemini's shapes, vLLM's old one, FastAPI's.

    The message is left out: it may quote the prompt. A `code` is a status where it is a number, or written like one.

    >>> error_in({"error": {"message": "too long", "type": "timeout", "code": "408"}})
    AnswerError(error_class='timeout', status=408, retryable=True)
    """
    error = payload.get("error")
    if not error:
        if payload.get("object") == "error" or (payload.get("type") == "error" and "choices" not in payload):
            # vLLM, and the error event of OpenAI's responses: its fields stand in the chunk itself.
            error = payload if payload.get("object") == "error" else {**payload, "type": None}
        elif "detail" in payload and "choices" not in payload:
            error = {"type": "error"}
        else:
            return None
    if not isinstance(error, dict):
        return AnswerError(error_class=word(error, "error") if _is_word(error) else "error")
    status = next((found for name in ("code", "status_code", "status") if (found := _status(error.get(name)))), 0)
    names = [error.get(name) for name in ("type", "code", "status")]
    error_class = next((word(name, "error") for name in names if _is_word(name)), "error")
    return AnswerError(error_class=error_class, status=status, retryable=is_retryable(status))


def _is_word(value: object) -> bool:
    # Some servers put the message where others have the class.
    return isinstance(value, str) and bool(value) and " " not in value and not value.isdigit()


def word(value: object, name: str) -> str:
    """A word of a provider's own, such as a finish reason: bounded, and fit for the log."""
    return text(value, name)[:_WORD_CHARACTERS]


def _status(value: object) -> int:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
        return value
    return 0


def text_of(value: object, name: str) -> str:
    """Generated text: a string, or the list of parts that some write instead. Raises UnreadableRecordError."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_part_text(part, name) for part in value)
    raise malformed(f"{name} is neither a string nor a list of parts")


def _part_text(part: object, name: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        for key in ("text", "thinking", "refusal"):
            found = part.get(key)
            if isinstance(found, str):
                return found
            if isinstance(found, list):
                return "".join(inner["text"] for inner in found if isinstance(inner, dict) and _has_text(inner))
        return ""
    raise malformed(f"a part of {name} is neither a string nor an object")


def _has_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)
