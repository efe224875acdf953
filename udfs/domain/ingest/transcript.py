"""One captured exchange with a model as the events of its life.

A record is one of

- the raw text of an answer: server-sent events, or the JSON body of an answer that was not streamed, as OpenAI (chat
  completions, completions, responses, embeddings, and who follows it), Anthropic or Gemini write it;
- a capture, one JSON object, every field of which but the answer may be left out:

  =====================  ===========================================================================================
  tenant                 who pays; the origin's stands in
  request_id             names the request for good; the answer's own id stands in
  attempt                0 for the first try of the request
  session, user          the conversation; the caller's user
  api_key                a name or a hash of the key; what looks like the key itself is hashed
  provider               OpenTelemetry's gen_ai.provider.name, or a gateway's name of it
  backend, region        who served it, and where
  format                 openai, anthropic or gemini; guessed from the answer where it is left out
  started_at, ended_at   seconds since 1970 or ISO 8601
  status                 HTTP's
  prompt_tokens          what the gateway took the prompt for; used where the answer does not tell
  request                the body that was sent: model, messages, max_tokens, stream, n
  response               the body that came: an object, or its text
  sse                    the stream that came: its text, or a list of its lines
  chunks                 the stream that came, in pieces: [{"at": time, "data": the data of one event}]
  cumulative_deltas      true where each delta repeats the text before it
  error                  what broke the exchange off: a word such as client_disconnected or connection_lost, or an
                         object of type, status and retryable
  =====================  ===========================================================================================

Other fields are passed over. Times are those of the chunks; where they have none, `created` of the answer; where that
is missing too, when the record was received. Chunks at the same moment are one event, and none comes before the start.

A stream without an end mark was interrupted, and is charged for the text that came.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from schemas.events import InterruptReason
from udfs.domain.ingest.api_key import key_name
from udfs.domain.ingest.attempt import Attempt, Chunk, End, Usage, events_of
from udfs.domain.ingest.captured_answer import (
    Captured,
    Part,
    ReadAnswer,
    Said,
    captured_chunks,
    captured_events,
    captured_lines,
    captured_text,
    read_answer,
)
from udfs.domain.ingest.fields import (
    json_of,
    malformed,
    member,
    members,
    missing,
    name_text,
    out_of_range,
    time_of_iso,
    time_of_seconds,
    tokens,
)
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.prompt_estimate import estimated_prompt_tokens
from udfs.domain.ingest.provider_names import provider_name
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError
from udfs.domain.ingest.stream_reading import AnswerError, AnswerReader, error_in
from udfs.domain.ingest.tokenizer import count_tokens

_CAPTURE_KEYS: Final = ("sse", "chunks", "request", "tenant", "started_at")

_INTERRUPTIONS: Final[Mapping[str, InterruptReason]] = {
    "client_disconnected": InterruptReason.CLIENT_DISCONNECTED,
    "client_disconnect": InterruptReason.CLIENT_DISCONNECTED,
    "client_closed_request": InterruptReason.CLIENT_DISCONNECTED,
    "client_closed": InterruptReason.CLIENT_DISCONNECTED,
    "cancelled": InterruptReason.CLIENT_DISCONNECTED,
    "canceled": InterruptReason.CLIENT_DISCONNECTED,
    "connection_lost": InterruptReason.CONNECTION_LOST,
    "connection_reset": InterruptReason.CONNECTION_LOST,
    "connection_closed": InterruptReason.CONNECTION_LOST,
    "upstream_reset": InterruptReason.CONNECTION_LOST,
    "revoked": InterruptReason.REVOKED,
    "interrupted": InterruptReason.UNSPECIFIED,
}
"""Words of `error` that say that the stream broke off, as against the request having failed."""

_MAX_ATTEMPT: Final = 2**31


def read_transcript(record: Foreign, origin: Origin) -> Reading:
    """Read one captured exchange. Raises UnreadableRecordError where no attempt can be told from it."""
    reading = Reading()
    capture, captured = _capture_and_answer(record.value.removeprefix(b"\xef\xbb\xbf"), reading)
    request = member(capture, "request")
    said = Said(
        name_text(capture.get("format"), "format"),
        name_text(request.get("model"), "request.model"),
        capture.get("cumulative_deltas") is True,
    )
    answer = read_answer(captured, said, _moment, reading.passed_over)
    reading.refused = answer.refused
    attempt = _attempt(capture, request, answer, captured, record.received_at_us)
    reading.events = list(events_of(attempt, origin))
    return reading


def _capture_and_answer(value: bytes, reading: Reading) -> tuple[dict[str, Any], Captured]:
    if not value.lstrip().startswith(b"{"):
        return {}, captured_text(value, reading.passed_over)
    document = json_of(value)
    if not isinstance(document, dict):
        raise malformed("the record is no JSON object")
    is_capture = any(key in document for key in _CAPTURE_KEYS) or ("response" in document and "type" not in document)
    if not is_capture:
        return {}, Captured([Part([document])], is_stream=False)
    return document, _captured_answer(document, reading)


def _captured_answer(capture: dict[str, Any], reading: Reading) -> Captured:
    if capture.get("chunks") is not None:
        return captured_chunks(members(capture, "chunks"), reading.passed_over)
    if capture.get("sse") is not None:
        return _captured_sse(capture["sse"], reading)
    response = capture.get("response")
    if response is None or response == "":
        return Captured([], is_stream=False)
    if isinstance(response, dict):
        return Captured([Part([response])], is_stream=False)
    if isinstance(response, list):
        return captured_chunks(response, reading.passed_over)
    if not isinstance(response, str):
        raise malformed("response is neither an object nor its text")
    try:
        return captured_text(response.encode("utf-8", "replace"), reading.passed_over)
    except UnreadableRecordError:
        if (_status(capture) or 0) < 400:
            raise
        # Proxies answer for what is behind them with pages for people.
        return Captured([], is_stream=False)


def _captured_sse(sse: object, reading: Reading) -> Captured:
    if isinstance(sse, list):
        return captured_lines(sse, reading.passed_over) if sse else Captured([], is_stream=True)
    if not isinstance(sse, str):
        raise malformed("sse is neither a string nor an array of lines")
    if not sse.strip():
        return Captured([], is_stream=True)
    return captured_events(sse.encode("utf-8", "replace"), reading.passed_over)


def _attempt(
    capture: dict[str, Any], request: dict[str, Any], answer: ReadAnswer, captured: Captured, received_at_us: int
) -> Attempt:
    reader = answer.reader
    request_id = name_text(capture.get("request_id") or reader.response_id, "request_id")
    model = name_text(reader.model or request.get("model"), "model")
    error, interruption = _broken_off(capture)
    end = _end(reader, error, interruption, captured)
    usage = _usage(capture, request, reader, end, model)
    started_at_us, ended_at_us = _times(capture, answer, received_at_us)
    failure = _failure(reader.error, error) if end is End.FAILED else AnswerError(error_class="")
    return Attempt(
        request_id=request_id,
        started_at_us=started_at_us,
        ended_at_us=ended_at_us,
        tenant=name_text(capture.get("tenant"), "tenant"),
        attempt=_at_most(_MAX_ATTEMPT, capture.get("attempt"), "attempt"),
        session=name_text(capture.get("session"), "session"),
        model=model,
        provider=provider_name(name_text(capture.get("provider"), "provider") or reader.provider),
        backend=name_text(capture.get("backend"), "backend"),
        region=name_text(capture.get("region"), "region"),
        api_key=key_name(name_text(capture.get("api_key"), "api_key")),
        user=name_text(capture.get("user"), "user"),
        stream=captured.is_stream or request.get("stream") is True,
        choices=_asked_choices(request),
        max_tokens=_asked_tokens(request),
        without_completion=reader.without_completion,
        usage=usage,
        chunks=_chunks(answer, usage, started_at_us, ended_at_us),
        end=end,
        finish_reason=reader.finish_reason,
        interrupt_reason=interruption or InterruptReason.UNSPECIFIED,
        error_class=failure.error_class,
        status=failure.status,
        retryable=failure.retryable,
    )


# --- how it ended -------------------------------------------------------------------------------------------------


def _status(capture: dict[str, Any]) -> int | None:
    status = tokens(capture.get("status"), "status")
    if status is not None and not (status == 0 or 100 <= status < 600):
        raise out_of_range("status", capture["status"], "a status of HTTP")
    return status


def _broken_off(capture: dict[str, Any]) -> tuple[AnswerError | None, InterruptReason | None]:
    """What the capture itself says of the end: an error, or why the stream broke off."""
    told, status = capture.get("error"), _status(capture) or 0
    if told:
        kind = told.get("type") if isinstance(told, dict) else told
        if isinstance(kind, str):
            interruption = _INTERRUPTIONS.get(kind.strip().lower().replace(" ", "_").replace("-", "_"))
            if interruption is not None:
                return None, interruption
        error = error_in({"error": told}) or AnswerError(error_class="error")
        status = error.status or (status if status >= 400 else 0)
        retryable = told.get("retryable") if isinstance(told, dict) else None
        if not isinstance(retryable, bool):
            retryable = is_retryable(status)
        return AnswerError(error_class=error.error_class, status=status, retryable=retryable), None
    if status == CLIENT_CLOSED_REQUEST:
        return None, InterruptReason.CLIENT_DISCONNECTED
    if status >= 400:
        return AnswerError(error_class=f"http_{status}", status=status, retryable=is_retryable(status)), None
    return None, None


def _failure(answered: AnswerError | None, told: AnswerError | None) -> AnswerError:
    """The error as the answer has it, which knows its class best, with the status of the exchange if it has none."""
    if answered is None or told is None:
        return answered or told or AnswerError(error_class="error")
    if answered.status:
        return answered
    return AnswerError(error_class=answered.error_class, status=told.status, retryable=told.retryable)


def _end(
    reader: AnswerReader, error: AnswerError | None, interruption: InterruptReason | None, captured: Captured
) -> End:
    if error is not None:
        return End.FAILED
    if not captured.parts and interruption is None:
        raise missing("response, sse or chunks")
    if not reader.has_told and interruption is None:
        raise malformed("the answer has nothing that one of OpenAI, Anthropic or Gemini has; name its format")
    if reader.end is End.INTERRUPTED and not (captured.is_stream or reader.is_aborted or interruption is not None):
        # A body that came whole is an answer that ended, whether it says so or not.
        return End.COMPLETED
    return reader.end


# --- tokens -------------------------------------------------------------------------------------------------------


def _usage(capture: dict[str, Any], request: dict[str, Any], reader: AnswerReader, end: End, model: str) -> Usage:
    if end is End.FAILED and not reader.characters and not reader.prompt_tokens:
        # It failed before it began: nothing was used.
        return Usage()
    estimate = None
    if not reader.prompt_tokens:
        estimate = tokens(capture.get("prompt_tokens"), "prompt_tokens")
        if estimate is None:
            estimate = estimated_prompt_tokens(request, model)
    return reader.usage(partial(count_tokens, model=model), estimate)


def _chunks(answer: ReadAnswer, usage: Usage, started_at_us: int, ended_at_us: int) -> list[Chunk]:
    """The chunks within what was used in the end, and within the time of the attempt."""
    found: list[Chunk] = []
    before = 0
    for chunk in answer.chunks:
        cumulative = min(chunk.cumulative, usage.completion_tokens)
        if cumulative > before:
            found.append(Chunk(max(chunk.at_us, started_at_us) if chunk.at_us else ended_at_us, cumulative))
            before = cumulative
    return found


def _at_most(most: int, value: object, name: str) -> int:
    number = tokens(value, name) or 0
    if number > most:
        raise out_of_range(name, value, f"at most {most:,}")
    return number


def _asked_choices(request: dict[str, Any]) -> int:
    value = request.get("n")
    if value is None:
        value = member(request, "generationConfig").get("candidateCount")
    return _at_most(_MAX_ATTEMPT, value, "request.n")


def _asked_tokens(request: dict[str, Any]) -> int:
    value = next(
        (
            found
            for name in ("max_completion_tokens", "max_tokens", "max_output_tokens")
            if (found := request.get(name)) is not None
        ),
        None,
    )
    if value is None:
        value = member(request, "generationConfig").get("maxOutputTokens")
    if value == -1:
        # llama.cpp's and LM Studio's word for no limit.
        return 0
    return tokens(value, "request.max_tokens") or 0


# --- times --------------------------------------------------------------------------------------------------------


def _moment(value: object, name: str = "the time of a chunk") -> int:
    """Microseconds of a time in seconds since 1970 or ISO 8601. Raises UnreadableRecordError."""
    found = time_of_iso(value, name) if isinstance(value, str) and ":" in value else time_of_seconds(value, name)
    if found is None:
        raise out_of_range(name, value, "seconds since 1970 or ISO 8601")
    return found


def _told_moment(capture: dict[str, Any], name: str) -> int | None:
    value = capture.get(name)
    return None if value is None or value == "" else _moment(value, name)


def _times(capture: dict[str, Any], answer: ReadAnswer, received_at_us: int) -> tuple[int, int]:
    """When the attempt started and ended. Both are told, or those of the answer, or when the record was received."""
    started = _told_moment(capture, "started_at")
    ended = _told_moment(capture, "ended_at")
    first, last = answer.first_us, answer.last_us
    if started is None:
        times = [time for time in (first, ended) if time is not None]
        started = min(times) if times else received_at_us
    if not started:
        raise missing("started_at")
    if ended is None:
        # `created` is in whole seconds, and may lie before a start that is exact.
        ended = max(started, last) if last is not None else max(started, received_at_us)
    return started, ended
