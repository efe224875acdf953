"""How a call ended, as its span tells: completed, interrupted or failed.

https://opentelemetry.io/docs/specs/semconv/general/recording-errors/; error.type is a class of an exception, a code of
the provider or an HTTP status, as the instrumentation likes.
"""

from typing import Final

import msgspec

from schemas.events import InterruptReason
from udfs.domain.ingest.attempt import End
from udfs.domain.ingest.genai_names import Known
from udfs.domain.ingest.http_status import CLIENT_CLOSED_REQUEST, is_retryable
from udfs.domain.ingest.otlp_items import STATUS_ERROR, Span, Value


class Ending(msgspec.Struct, frozen=True):
    """The end of an attempt, by the fields of Attempt."""

    end: End = End.COMPLETED
    finish_reason: str = ""
    interrupt_reason: InterruptReason = InterruptReason.UNSPECIFIED
    error_class: str = ""
    status: int = 0
    retryable: bool = False


_CLIENT_LEFT: Final = frozenset(
    (
        *("clientdisconnected", "clientdisconnect", "clientclosedrequest", "499", "requestcancelled", "cancelled"),
        *("canceled", "cancellederror", "generatorexit", "aborterror", "apiuseraborterror", "abort", "aborted"),
    )
)
_CONNECTION_LOST: Final = frozenset(
    (
        *("connectionlost", "connectionreset", "connectionreseterror", "econnreset", "brokenpipe", "brokenpipeerror"),
        *("remoteprotocolerror", "incompleteread", "chunkedencodingerror", "streaminterrupted"),
    )
)
_REVOKED: Final = frozenset(("revoked", "budgetexceededmidstream"))
_RETRYABLE: Final = frozenset(
    (
        *("timeout", "timeouterror", "apitimeouterror", "readtimeout", "connecttimeout", "deadlineexceeded"),
        *("ratelimiterror", "apiconnectionerror", "connecterror", "connectionerror", "overloadederror"),
        *("internalservererror", "serviceunavailableerror", "unavailable", "resourceexhausted", "throttlingexception"),
    )
)
_LONGEST_WORD: Final = 200


def ending_of(span: Span, known: Known) -> Ending:
    """The end that a span tells by error.type, else its status and exception, else the HTTP status.

    A client that left, and a connection that broke within a stream, interrupt it; every other error is a failure.
    """
    finish_reason = _first_text(known.get("finish_reason"))
    status = _http_status(known.get("status"))
    error = _first_text(known.get("error_type"))
    if not error and span.status_code == STATUS_ERROR:
        error = _exception(span) or "error"
    if not error and status >= 400:
        error = str(status)
    if not error:
        if finish_reason and finish_reason != "stop" and _word(finish_reason) in _CLIENT_LEFT:
            return Ending(End.INTERRUPTED, finish_reason, InterruptReason.CLIENT_DISCONNECTED)
        return Ending(End.COMPLETED, finish_reason)
    word = _word(error)
    status = status or _http_status(error)
    if word in _CLIENT_LEFT or status == CLIENT_CLOSED_REQUEST:
        return Ending(End.INTERRUPTED, finish_reason, InterruptReason.CLIENT_DISCONNECTED)
    if word in _REVOKED:
        return Ending(End.INTERRUPTED, finish_reason, InterruptReason.REVOKED)
    if word in _CONNECTION_LOST and (known.get("stream") is True or "output_tokens" in known):
        return Ending(End.INTERRUPTED, finish_reason, InterruptReason.CONNECTION_LOST)
    retryable = is_retryable(status) or word in _RETRYABLE or word in _CONNECTION_LOST
    return Ending(End.FAILED, finish_reason, error_class=error, status=status, retryable=retryable)


def _word(name: str) -> str:
    """A class or code of an error without its module, case and punctuation."""
    return "".join(filter(str.isalnum, name.rsplit(".", 1)[-1])).lower()


def _http_status(value: Value) -> int:
    if isinstance(value, (int, str)) and len(str(value)) == 3 and str(value).isascii() and str(value).isdigit():
        return int(value)
    return 0


def _exception(span: Span) -> str:
    for event in span.events:
        if event.name == "exception":
            return _first_text(event.attributes.get("exception.type"))
    return ""


def _first_text(value: Value) -> str:
    """A word, or the first of a list of them; also of a list that is written as JSON. Cut where it is no word."""
    if value is None:
        return ""
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, str) and value.startswith('["'):
        value = value[2:].split('"', 1)[0]
    return str(value)[:_LONGEST_WORD] if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
