"""Versions of the schema: what each added, what of it is critical, and what becomes of an event of each version.

This is the one home of both. `schemas.upcast` and `schemas.downcast` hold the steps between neighbouring versions.

A version is critical in a field if a reader that does not know the field reads the event wrongly: it would bill
somebody for what is not theirs, or twice. All other fields may be dropped for an older reader. A critical field
matters where it is set; at its default it says what its absence says.

No version has added a critical field so far. Making one has a price: an older reader puts every event aside in which it
is set, so a request whose prompt has it is not decided there until that reader is upgraded.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from schemas.events import SCHEMA_VERSION
from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent


class UnsupportedVersionError(ValueError):
    """A version that an event can be brought neither from nor to."""


class AddedField(NamedTuple):
    """A field that a version added. `why`: what a reader without it gets wrong, or why it gets nothing wrong."""

    message: str
    name: str
    is_critical: bool
    why: str

    @property
    def path(self) -> str:
        """Message and field, such as `PromptSubmitted.provider`."""
        return f"{self.message}.{self.name}"


ADDED: Final[Mapping[str, tuple[AddedField, ...]]] = {
    "1.0": (),
    "1.1": (
        AddedField(
            "Event",
            "event_time_us",
            is_critical=False,
            why="1.0 has event_time_ms: the microseconds beyond the last whole millisecond are lost",
        ),
    ),
    "1.2": (
        AddedField(
            "PromptSubmitted",
            "provider",
            is_critical=False,
            why="names who serves the model; no limit and no count depends on it",
        ),
        # Not critical: else an admission job of 1.1 would put the prompt aside, and its request would wait in vain.
        AddedField(
            "PromptSubmitted",
            "resumed_at_token",
            is_critical=False,
            why="can't put the attempt's text behind that of the one before; counts are of one attempt, so it is "
            "billed and limited rightly",
        ),
        AddedField(
            "StreamInterrupted",
            "usage_source",
            is_critical=False,
            why="says who counted token_offset; the count itself stays",
        ),
        AddedField(
            "RequestCompleted",
            "cache_write_tokens",
            is_critical=False,
            why="a part of prompt_tokens, which stay; what a provider adds for writing its cache is not seen",
        ),
    ),
}
"""major.minor -> the fields of events that it added, oldest version first. Patch versions add none."""


class Route(Enum):
    """What a reader of the current version does with an event."""

    READ = "read as it is"
    UPCAST = "brought to the current version, a step at a time, and read"
    READ_IF_KNOWN = "read as it is if every field that it marks as critical is known here, else refused"
    REFUSE = "refused: a dead letter, unsupported_version"


ROUTES: Final[Mapping[str, Route]] = {"1.0": Route.UPCAST, "1.1": Route.UPCAST, "1.2": Route.READ}
"""major.minor -> what becomes of it. For those that are not named here, see `route_of`."""

_SEMANTIC_VERSION: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.[0-9]{1,9})?([-+][0-9A-Za-z.+-]*)?")


def parse(version: str) -> tuple[int, int]:
    """Major and minor of a semantic version; the patch may be left out. Raises UnsupportedVersionError.

    >>> parse("1.2.0"), parse("1.10")
    ((1, 2), (1, 10))
    """
    found = _SEMANTIC_VERSION.fullmatch(version)
    if found is None:
        # The version comes from outside and may be long.
        raise UnsupportedVersionError(
            f"schema version {version[:40]!r} is not a semantic version such as {SCHEMA_VERSION}"
        )
    return int(found[1]), int(found[2])


def minor_of(version: str) -> str:
    """The name under which a version stands in the tables. Raises UnsupportedVersionError.

    >>> minor_of("1.1.7")
    '1.1'
    """
    return "{}.{}".format(*parse(version))


CURRENT: Final = parse(SCHEMA_VERSION)


def route_of(version: str) -> Route:
    """What becomes of an event of `version`. Raises UnsupportedVersionError where it is not a semantic version.

    >>> [route_of(version).name for version in ("1.0.3", "1.2.0", "1.9.0", "2.0.0", "0.9.0")]
    ['UPCAST', 'READ', 'READ_IF_KNOWN', 'REFUSE', 'REFUSE']
    """
    major, minor = parse(version)
    named = ROUTES.get(f"{major}.{minor}")
    if named is not None:
        return named
    return Route.READ_IF_KNOWN if major == CURRENT[0] and minor > CURRENT[1] else Route.REFUSE


# --- critical fields on the wire ----------------------------------------------------------------------------------

MARKS_OF_A_BODY: Final = 1000
"""A mark in `critical_fields` is the number of a field of Event; for a field of the body, 1000 times the body's
number and the field's own: 9011 stands for PromptSubmitted.resumed_at_token."""


def _marks() -> dict[int, str]:
    found = {field.number: f"Event.{field.name}" for field in WireEvent.DESCRIPTOR.fields}
    for body in WireEvent.DESCRIPTOR.oneofs_by_name["body"].fields:
        if body.message_type is not None:
            for field in body.message_type.fields:
                found[body.number * MARKS_OF_A_BODY + field.number] = f"{body.message_type.name}.{field.name}"
    return found


FIELD_OF_MARK: Final[Mapping[int, str]] = _marks()
"""A mark that this version knows -> message and field."""

MARK_OF_FIELD: Final[Mapping[str, int]] = {path: mark for mark, path in FIELD_OF_MARK.items()}


class CriticalField(NamedTuple):
    """A field of a message, and what stands for it in `critical_fields` of an event in which it is set."""

    name: str
    mark: int


def critical_in(added: Mapping[str, Iterable[AddedField]]) -> dict[str, tuple[CriticalField, ...]]:
    """Message -> the critical ones of the fields that versions added to it; messages without one are left out."""
    found: dict[str, tuple[CriticalField, ...]] = {}
    for fields in added.values():
        for field in fields:
            if field.is_critical:
                one = CriticalField(field.name, MARK_OF_FIELD[field.path])
                found[field.message] = (*found.get(field.message, ()), one)
    return found


CRITICAL: Final[Mapping[str, tuple[CriticalField, ...]]] = critical_in(ADDED)
"""What writers of events mark. While it is empty they do nothing for it."""


def added_after(version: str) -> frozenset[str]:
    """Paths of the fields of this schema that a reader of `version` does not know.

    >>> sorted(added_after("1.1"))[:2]
    ['PromptSubmitted.provider', 'PromptSubmitted.resumed_at_token']
    """
    than = parse(version)
    return frozenset(field.path for name, fields in ADDED.items() if parse(name) > than for field in fields)
