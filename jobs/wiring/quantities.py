"""Counts, durations, shares and instants as people write them in a file, and what a program counts in.

All arithmetic is on whole numbers and decimals, so what is written is what holds.
"""

import re
from datetime import datetime, timezone
from decimal import Decimal
from typing import Final

COUNT_FORM: Final = "a count such as 500, 60_000, 60k or 1.5M"
DURATION_FORM: Final = "a duration such as 500ms, 60s, 5m, 24h or 1d"
SHARE_FORM: Final = "a share from 0.0 to 1.0"
INSTANT_FORM: Final = "a time with its zone such as 2026-01-31T18:45:00Z"

_TIMES: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}

_SHOWN_CHARACTERS: Final = 40
_MICROSECOND_DIGITS: Final = 6

# Twenty digits hold every 64-bit count; more are not worth the time to convert them.
_NUMBER = re.compile(r"(?P<number>[0-9]{1,20}(?:_[0-9]{1,20}){0,6}(?:\.[0-9]{1,9})?) ?(?P<unit>[A-Za-zµ]*)")
_SHARE = re.compile(r"[01](?:\.[0-9]{1,9})?")
_RFC_3339 = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:[0-9]{2})?"
)


class QuantityError(ValueError):
    """A quantity that can't be read; the message says what was written, what is wrong and what is allowed."""


def shown(text: str) -> str:
    """`text` as a message quotes it: on one line, and not at any length."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def parse_count(text: str) -> int:
    """A count; k stands for a thousand and M for a million.

    Raises QuantityError for anything else, signs, exponents and what comes to no whole number among it.

    >>> [parse_count(text) for text in ("500", "60_000", "60k", "1.5M")]
    [500, 60000, 60000, 1500000]
    >>> parse_count("60K")
    Traceback (most recent call last):
    jobs.wiring.quantities.QuantityError: is '60K', must be a count such as 500, 60_000, 60k or 1.5M
    """
    return _scaled(text, _TIMES, COUNT_FORM)


def parse_duration_us(text: str) -> int:
    """A duration in microseconds; the unit is one of us, ms, s, m (minutes), h and d (24 hours).

    Raises QuantityError for anything else, a number without a unit among it.

    >>> [parse_duration_us(text) for text in ("500ms", "60s", "1m", "24h", "1d")]
    [500000, 60000000, 60000000, 86400000000, 86400000000]
    >>> parse_duration_us("60")
    Traceback (most recent call last):
    jobs.wiring.quantities.QuantityError: is '60' without a unit, must be a duration such as 500ms, 60s, 5m, 24h or 1d
    """
    return _scaled(text, _UNITS_US, DURATION_FORM)


def _scaled(text: str, units: dict[str, int], form: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None or (match["unit"] and match["unit"] not in units):
        raise QuantityError(f"is {shown(text)}, must be {form}")
    if match["unit"] not in units:
        raise QuantityError(f"is {shown(text)} without a unit, must be {form}")
    # A fraction has at most nine digits and the number 140: exact as a ratio, whatever the decimal context.
    numerator, denominator = Decimal(match["number"]).as_integer_ratio()
    whole, rest = divmod(numerator * units[match["unit"]], denominator)
    if rest:
        raise QuantityError(f"is {shown(text)}, which comes to no whole number; must be {form}")
    return whole


def parse_share(text: str) -> Decimal:
    """A share from 0 to 1.

    >>> parse_share("0.95")
    Decimal('0.95')
    >>> parse_share("25%")
    Traceback (most recent call last):
    jobs.wiring.quantities.QuantityError: is '25%', must be a share from 0.0 to 1.0
    """
    share = Decimal(text) if _SHARE.fullmatch(text) else None
    if share is None or share > 1:
        raise QuantityError(f"is {shown(text)}, must be {SHARE_FORM}")
    return share


def parse_permille(text: str) -> int:
    """A share from 0 to 1, in thousandths; it must have no more than three decimals.

    >>> [parse_permille(text) for text in ("0", "0.25", "1.0")]
    [0, 250, 1000]
    """
    permille, finer = divmod(parse_share(text) * 1000, 1)
    if finer:
        raise QuantityError(f"is {shown(text)}, must have at most three decimals")
    return int(permille)


def parse_instant_us(text: str) -> int:
    """A point in time as RFC 3339 writes it, in microseconds since 1970. The zone must be there.

    >>> parse_instant_us("2023-11-16T18:45:00Z") == parse_instant_us("2023-11-16T19:45:00.000+01:00")
    True
    >>> parse_instant_us("2023-11-16T18:45:00Z")
    1700160300000000
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise QuantityError(f"is {shown(text)}, must be {INSTANT_FORM}")
    date, time, fraction, zone = match.group("date", "time", "fraction", "zone")
    if zone is None:
        raise QuantityError(f"is {shown(text)} without a zone: write {date}T{time}Z for UTC, or an offset like +01:00")
    fraction = (fraction or "").rstrip("0").ljust(_MICROSECOND_DIGITS, "0")
    if len(fraction) > _MICROSECOND_DIGITS:
        raise QuantityError(f"is {shown(text)}, finer than a microsecond; must be {INSTANT_FORM}")
    try:
        at = datetime.fromisoformat(f"{date}T{time}{'+00:00' if zone in 'Zz' else zone}")
    except ValueError as error:
        raise QuantityError(f"is {shown(text)}, which is no date or time of day ({error})") from error
    since = at - datetime(1970, 1, 1, tzinfo=timezone.utc)
    if since.days < 0:
        raise QuantityError(f"is {shown(text)}, must not be before 1970")
    return (since.days * 86_400 + since.seconds) * 1_000_000 + int(fraction)
