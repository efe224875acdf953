"""Single values as producers write them: tolerant in form, strict in meaning.

A number may come as a string, a time in seconds, in nanoseconds or as ISO 8601. What a number can't mean, a negative
or broken count, a time before 1970, is refused by its name: a wrong guess would bill somebody.
"""

import re
from datetime import datetime, timezone
from math import isfinite
from typing import Any, Final

import msgspec

from schemas.codec import MAX_NAME_BYTES, MAX_TIME_US
from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.record import UnreadableRecordError

MAX_TOKENS: Final = 10**12
"""More tokens than any request has; what is above is a fault of its producer."""

_WRITTEN_NUMBER: Final = re.compile(r" *[+-]?[0-9]{1,20}([.][0-9]{0,6})?([eE][+-]?[0-9]{1,2})? *", re.ASCII)
_NUMBER_OR_TIME: Final = re.compile(r"[0-9+-][0-9+:.,/ eETZ-]*", re.ASCII)
_LONGEST_WORD: Final = 12
_QUOTED: Final = 60


def quoted(value: object) -> str:
    """A value for a message: short, on one line. Of a string that is no number, time or short word, its length alone.

    It may be what somebody wrote to a model, in the wrong place.

    >>> quoted("many"), quoted("2026-13-45T00:00:00Z"), quoted("how do I")
    ("'many'", "'2026-13-45T00:00:00Z'", 'a string of 8 characters')
    """
    if isinstance(value, (str, bytes)) and not _may_be_shown(value):
        return f"a string of {len(value):,} {'characters' if isinstance(value, str) else 'bytes'}"
    text = repr(value) if isinstance(value, (str, bytes, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= _QUOTED else text[: _QUOTED - 3] + "..."


def _may_be_shown(value: str | bytes) -> bool:
    if isinstance(value, bytes):
        return len(value) <= _LONGEST_WORD
    is_word = len(value) <= _LONGEST_WORD and not any(map(str.isspace, value))
    return is_word or _NUMBER_OR_TIME.fullmatch(value) is not None


def out_of_range(name: str, value: object, must: str) -> UnreadableRecordError:
    """The error for a value that can't be meant."""
    return UnreadableRecordError(DeadLetterReason.OUT_OF_RANGE, f"{name} is {quoted(value)}, it must be {must}")


def malformed(detail: str) -> UnreadableRecordError:
    """The error for a record or a value of another form than its format has."""
    return UnreadableRecordError(DeadLetterReason.MALFORMED, detail)


def missing(*names: str) -> UnreadableRecordError:
    """The error for fields without which a record is no event."""
    return UnreadableRecordError(DeadLetterReason.MISSING_FIELD, f"without {', '.join(names)}")


def json_of(value: bytes | str) -> Any:  # noqa: ANN401 - whatever a producer wrote
    """A record's JSON; a byte order mark is allowed. Raises UnreadableRecordError."""
    try:
        return msgspec.json.decode(value.removeprefix(b"\xef\xbb\xbf") if isinstance(value, bytes) else value)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise malformed(f"not JSON: {error}") from None
    except RecursionError:
        raise malformed("nested too deeply") from None


def json_object_of(value: bytes) -> dict[str, Any]:
    """The same, where an object is wanted."""
    found = json_of(value)
    if isinstance(found, dict):
        return found
    raise malformed(f"the record is {_kind_of(found)}, it must be a JSON object")


def member(of: object, name: str) -> dict[str, Any]:
    """The object `name` of an object; {} where it is left out or null. Raises UnreadableRecordError for other types."""
    found = of.get(name) if isinstance(of, dict) else None
    if found is None:
        return {}
    if isinstance(found, dict):
        return found
    raise malformed(f"{name} is {_kind_of(found)}, it must be an object")


def object_in(of: object, name: str) -> dict[str, Any]:
    """The same where anything may stand: {} for it. What is redacted is a string, and Lua's empty object an array."""
    found = of.get(name) if isinstance(of, dict) else None
    return found if isinstance(found, dict) else {}


def members(of: object, name: str) -> list[Any]:
    """The array `name` of an object; [] where it is left out or null. Raises UnreadableRecordError for other types."""
    found = of.get(name) if isinstance(of, dict) else None
    if found is None:
        return []
    if isinstance(found, list):
        return found
    raise malformed(f"{name} is {_kind_of(found)}, it must be an array")


def _kind_of(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def tokens(value: object, name: str) -> int | None:
    """A count of tokens or requests; None where it is not said (None, an empty string). Raises UnreadableRecordError.

    >>> tokens("12", "prompt_tokens"), tokens(12.0, "prompt_tokens"), tokens(None, "prompt_tokens")
    (12, 12, None)
    """
    if value is None or value == "":
        return None
    number = _integer(value)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise out_of_range(name, value, f"a whole number from 0 to {MAX_TOKENS:,}")
    return number


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and _WRITTEN_NUMBER.fullmatch(value):
        return int(value) if value.strip("+- ").isdigit() else _integer(float(value))
    return None


def number(value: object, name: str) -> float | None:
    """A finite number, given as one or as a string; None where it is not said. Raises UnreadableRecordError."""
    if value is None or value == "":
        return None
    if not isinstance(value, bool) and isinstance(value, (int, float, str)):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            found = float("nan")
        if isfinite(found):
            return found
    raise out_of_range(name, value, "a finite number")


def text(value: object, name: str) -> str:
    """A string; a number is written out, None is empty. Raises UnreadableRecordError for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        # Half of a surrogate pair can be written in JSON and not in UTF-8, in which the log is written.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise malformed(f"{name} is {_kind_of(value)}, it must be a string")


def name_text(value: object, name: str) -> str:
    """A string that becomes a key: a tenant, a request, a session. Raises UnreadableRecordError if it is too long."""
    found = text(value, name)
    if len(found) > MAX_NAME_BYTES // 4 and len(found.encode()) > MAX_NAME_BYTES:
        detail = f"{name} has {len(found.encode())} bytes, at most {MAX_NAME_BYTES} are allowed"
        raise UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail)
    return found


def _time(value: object, microseconds: float | None, name: str) -> int:
    if microseconds is not None and isfinite(microseconds) and 0 < microseconds <= MAX_TIME_US:
        return round(microseconds)
    raise out_of_range(name, value, "a time after 1970 and before 2255")


def time_of_seconds(value: object, name: str) -> int | None:
    """Microseconds of a time in seconds since 1970, with or without a fraction; None where it is not said."""
    seconds = number(value, name)
    if seconds is None:
        return None
    return _time(value, seconds * 1_000_000, name)


def time_of_milliseconds(value: object, name: str) -> int | None:
    """The same of a time in milliseconds."""
    milliseconds = number(value, name)
    if milliseconds is None:
        return None
    return _time(value, milliseconds * 1_000, name)


def time_of_nanoseconds(value: object, name: str) -> int | None:
    """The same of a whole number of nanoseconds, as OTLP has them: a number, or a string of digits. 0: not said."""
    if value is None or value == "":
        return None
    nanoseconds = _integer(value)
    if nanoseconds == 0:
        return None
    if nanoseconds is None or not 0 < nanoseconds <= MAX_TIME_US * 1_000:
        raise out_of_range(name, value, "nanoseconds after 1970 and before 2255")
    return nanoseconds // 1_000


def time_of_iso(value: object, name: str) -> int | None:
    """The same of a time in ISO 8601 or RFC 3339; without an offset it is UTC.

    >>> time_of_iso("2026-01-01T00:00:00.25Z", "startTime")
    1767225600250000
    """
    if value is None or value == "":
        return None
    try:
        when = msgspec.convert(value.strip().replace(" ", "T", 1) if isinstance(value, str) else value, datetime)
    except msgspec.ValidationError:
        raise out_of_range(name, value, "a time such as 2026-01-01T00:00:00.250Z") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    try:
        since = when - _EPOCH
    except OverflowError:
        raise out_of_range(name, value, "a time after 1970 and before 2255") from None
    return _time(value, since.days * 86_400e6 + since.seconds * 1e6 + since.microseconds, name)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
