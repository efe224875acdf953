"""Bringing events of other schema versions to the one version that folds see.

One step a version, applied to the decoded message at the edge. A step knows its two versions and nothing else. Events
newer than this reader are read as they are where the major version is the same and every field that they mark as
critical is known here: dropping the others loses nothing that the producer called needed. All else is refused.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from schemas.events import SCHEMA_VERSION
from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent
from schemas.upcast import v1_0_to_v1_1, v1_1_to_v1_2


class Step(NamedTuple):
    """The version that a step leads to, and the change itself, made in place."""

    to_version: str
    apply: Callable[[WireEvent], None]


STEPS: Final[Mapping[str, Step]] = {
    "1.0": Step("1.1", v1_0_to_v1_1.upcast),
    "1.1": Step("1.2", v1_1_to_v1_2.upcast),
}
"""major.minor of an event -> the step that leads on from it. Patch versions never change meaning."""


class UnsupportedVersionError(ValueError):
    """An event that can be brought to the current version neither way."""


_SEMANTIC_VERSION: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(\.[0-9]{1,9})?([-+][0-9A-Za-z.+-]*)?")


def _minor(version: str) -> tuple[int, int]:
    """Major and minor of a semantic version; the patch may be left out."""
    found = _SEMANTIC_VERSION.fullmatch(version)
    if found is None:
        # The version comes from outside and may be long.
        raise UnsupportedVersionError(
            f"schema version {version[:40]!r} is not a semantic version such as {SCHEMA_VERSION}"
        )
    return int(found[1]), int(found[2])


CURRENT: Final = _minor(SCHEMA_VERSION)
_KNOWN_FIELDS: Final = frozenset(field.number for field in WireEvent.DESCRIPTOR.fields)


def to_current(event: WireEvent) -> None:
    """Bring `event` to SCHEMA_VERSION, in place.

    Raises UnsupportedVersionError, and then the event is unchanged, or OverflowError where a step finds a value that
    the next version can't hold.
    """
    version = _minor(event.schema_version)
    if version == CURRENT:
        return
    if version > CURRENT:
        _accept_newer(event, version)
        return
    name = f"{version[0]}.{version[1]}"
    if name not in STEPS:
        raise UnsupportedVersionError(
            f"schema version {event.schema_version!r} is not supported; known are {', '.join(STEPS)} "
            f"and {SCHEMA_VERSION}"
        )
    while name in STEPS:
        step = STEPS[name]
        step.apply(event)
        name = step.to_version
    event.schema_version = SCHEMA_VERSION


def _accept_newer(event: WireEvent, version: tuple[int, int]) -> None:
    if version[0] != CURRENT[0]:
        raise UnsupportedVersionError(
            f"schema version {event.schema_version!r} is of another major version than {SCHEMA_VERSION}; "
            "upgrade this reader first"
        )
    unknown = sorted(set(event.critical_fields) - _KNOWN_FIELDS)
    if unknown:
        raise UnsupportedVersionError(
            f"schema version {event.schema_version!r} marks fields {unknown} as critical, "
            f"and a reader of {SCHEMA_VERSION} does not know them; upgrade this reader first"
        )
