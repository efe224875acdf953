"""Numbers, times and foreign names as people read them, the same in the terminal and in the report."""

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LONGEST_NAME = 80


def count(number: int) -> str:
    """A whole number with separators.

    >>> count(303234)
    '303,234'
    """
    return f"{number:,}"


def compact(number: float) -> str:
    """Three digits at most, as axes and narrow tables need them.

    >>> [compact(number) for number in (0, 0.25, 1.5, 950, 1500, 60_000, 999_900, 12_345_678)]
    ['0', '0.25', '1.5', '950', '1.5k', '60k', '1M', '12.3M']
    """
    if number < 10:
        return f"{number:.2f}".rstrip("0").rstrip(".")
    for unit, size in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = number / size
        if round(scaled, 1 if scaled < 100 and size > 1 else 0) < 1000:
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 100 and size > 1 else f"{scaled:.0f}{unit}"
    return f"{number:.2e}"


def percent(share: float) -> str:
    """A share as percent, cut and not rounded, so that 100 % is only what is no less.

    >>> [percent(share) for share in (0.0, 0.5, 0.99999, 1.0)]
    ['0.0 %', '50.0 %', '99.9 %', '100.0 %']
    """
    return f"{int(share * 1000 + 1e-9) / 10:.1f} %"


def duration(micros: float) -> str:
    """A span of time with two or three digits and its unit.

    >>> [duration(micros) for micros in (0, 800, 51_234, 1_500_000, 60_000_000, 3_502_000_000, 86_400_000_000)]
    ['0 ms', '0.8 ms', '51 ms', '1.5 s', '60 s', '58 min', '24 h']
    """
    for unit, size, upto in (("ms", 1e3, 1e6), ("s", 1e6, 120e6), ("min", 60e6, 7200e6)):
        if micros < upto:
            scaled = micros / size
            return f"{scaled:.0f} {unit}" if scaled >= 10 or scaled == int(scaled) else f"{scaled:.1f} {unit}"
    return f"{micros / 3600e6:.0f} h"


def _utc(at_us: int) -> datetime:
    # Foreign clocks may say any int64: what a calendar can't hold is shown at its end.
    try:
        return _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc) if at_us > 0 else datetime.min.replace(tzinfo=timezone.utc)


def clock(at_us: int) -> str:
    """Time of day, UTC.

    >>> clock(1_700_158_546_680_000)
    '18:15:46'
    """
    return f"{_utc(at_us):%H:%M:%S}"


def day_and_time(at_us: int) -> str:
    """Date and minute, UTC.

    >>> day_and_time(1_700_158_546_680_000)
    '2023-11-16 18:15'
    """
    at = _utc(at_us)
    return f"{at.year:04d}-{at:%m-%d %H:%M}"


def axis_time(at_us: int, span_us: int) -> str:
    """A time as the axis of a plot over `span_us` needs it: seconds, minutes or days."""
    at = _utc(at_us)
    if span_us >= 2 * 86_400_000_000:
        return f"{at:%m-%d}"
    return f"{at:%H:%M:%S}" if span_us < 300_000_000 else f"{at:%H:%M}"


def printable(name: str, longest: int = _LONGEST_NAME) -> str:
    r"""A name from foreign input as it may be shown: no control characters, no escapes, not endless.

    >>> printable("acme\x1b[2J")
    'acme�[2J'
    """
    shown = "".join(char if char.isprintable() else "\ufffd" for char in name)
    return shown if len(shown) <= longest else shown[: longest - 1] + "\u2026"
