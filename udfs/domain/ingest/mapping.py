"""Which column of a plain trace, CSV or JSON lines, is what.

A mapping is YAML; data/mappings has some that are ready. Its fields:

    format             csv (with a header line) or jsonl
    delimiter          of csv, one character; a comma where left out
    time               column; unit: iso, seconds, milliseconds, microseconds or nanoseconds; base: a date and time that
                       numbers are counted from, for traces whose times are relative; left out: 1970
    prompt_tokens      column; those read from the prompt cache included
    completion_tokens  column
    cached_tokens      column, may be left out
    request_id         column; left out: the file and the number of the row make the id
    tenant, model, session, user, provider, backend, region
                       column: a column, or constant: a value for all rows; may be left out
    end_time           as time; or
    duration           column; unit. Where both are left out, a request ends when it starts
    failed_without_completion
                       true where 0 completion tokens mean that the request failed
    passed_over        columns that are known and not read; "*": all others

A column that is neither mapped nor passed over is refused: it may be the one that tells retries or failures.
"""

from datetime import datetime, timezone
from typing import Final, Literal

import msgspec
import yaml

ALL_OTHERS: Final = "*"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class MappingError(ValueError):
    """Why a mapping can't be used, or does not fit a file. Names the key or column, and the remedy."""


class Time(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of times. A number is counted from `base`, which without an offset is UTC."""

    column: str
    unit: Literal["iso", "seconds", "milliseconds", "microseconds", "nanoseconds"]
    base: datetime = _EPOCH

    def __post_init__(self) -> None:
        if self.unit == "iso" and self.base != _EPOCH:
            raise ValueError("base is for numbers; leave it out where unit is iso")

    @property
    def base_us(self) -> int:
        """The base in microseconds since 1970."""
        base = self.base if self.base.tzinfo else self.base.replace(tzinfo=timezone.utc)
        since = base - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class Duration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of durations."""

    column: str
    unit: Literal["seconds", "milliseconds", "microseconds", "nanoseconds"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text: of a column, or the same for all rows."""

    column: str = ""
    constant: str = ""

    def __post_init__(self) -> None:
        if bool(self.column) == bool(self.constant):
            raise ValueError("give it either a column or a constant")


_TEXTS: Final = ("tenant", "model", "session", "user", "provider", "backend", "region")


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which column is what; the module says it field by field."""

    format: Literal["csv", "jsonl"]
    time: Time
    prompt_tokens: str
    completion_tokens: str
    delimiter: str = ","
    cached_tokens: str = ""
    request_id: str = ""
    tenant: Value | None = None
    model: Value | None = None
    session: Value | None = None
    user: Value | None = None
    provider: Value | None = None
    backend: Value | None = None
    region: Value | None = None
    end_time: Time | None = None
    duration: Duration | None = None
    failed_without_completion: bool = False
    passed_over: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError("delimiter must be one character, and no quote or line end")
        if self.end_time and self.duration:
            raise ValueError("end_time and duration say the same; leave one of them out")
        if twice := sorted(set(self.columns) & set(self.passed_over)):
            raise ValueError(f"{', '.join(twice)} can't be mapped and passed over; take it out of passed_over")

    @property
    def columns(self) -> list[str]:
        """The columns that must be there."""
        texts = [value.column for name in _TEXTS if (value := getattr(self, name))]
        timed = [each.column for each in (self.time, self.end_time, self.duration) if each]
        named = [*timed, self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.request_id, *texts]
        return [column for column in named if column]


def mapping_of(source: str) -> Mapping:
    """The mapping that YAML says. Raises MappingError."""
    try:
        found = yaml.safe_load(source)
    except (yaml.YAMLError, ValueError) as error:
        raise MappingError(f"the mapping is not YAML: {error}") from None
    try:
        return msgspec.convert(found, Mapping)
    except msgspec.ValidationError as error:
        known = ", ".join(Mapping.__struct_fields__)
        raise MappingError(f"{error}. A mapping has the fields {known}") from None
