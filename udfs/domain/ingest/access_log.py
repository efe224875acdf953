"""What access logs have in common: a hyphen and an empty string say nothing, a status is three digits."""

from typing import Any, Final

from udfs.domain.ingest.durations import time_after
from udfs.domain.ingest.fields import name_text, number, tokens

_NOT_SAID: Final = frozenset(("", "-"))
_EMBEDDING_PATHS: Final = ("/embeddings", "/rerank", "/moderations")


def said(of: dict[str, Any], *names: str) -> Any:  # noqa: ANN401 - whatever the log says
    """The value of the first name that has one; None where none has."""
    for name in names:
        found = of.get(name)
        if found is not None and not (isinstance(found, str) and found in _NOT_SAID):
            return found
    return None


def said_text(of: dict[str, Any], *names: str) -> str:
    """The same as a string; empty where none has one. Raises UnreadableRecordError."""
    return name_text(said(of, *names), names[0])


def said_tokens(of: dict[str, Any], *names: str) -> int | None:
    """The same as a count. Raises UnreadableRecordError."""
    return tokens(said(of, *names), names[0])


def time_after_milliseconds(started_at_us: int, of: dict[str, Any], *names: str) -> int:
    """When it ended, by its duration; when it started where none is said, or -1, as logs write what is unknown.

    In microseconds. Raises UnreadableRecordError.
    """
    milliseconds = number(said(of, *names), names[0])
    if milliseconds is None or milliseconds == -1:
        return started_at_us
    return time_after(started_at_us, milliseconds * 1_000, names[0])


def said_status(of: dict[str, Any], *names: str) -> int:
    """The same as the status of a response; 0 where there was no response."""
    found = tokens(said(of, *names), names[0]) or 0
    return found if found < 1_000 else 0


def is_without_completion(path: str) -> bool:
    """Whether a request to this path is answered with no text."""
    return any(ending in path for ending in _EMBEDDING_PATHS)
