"""Bringing events of other schema versions to the one version that folds see.

One step a version, applied to the decoded message at the edge. A step knows its two versions and nothing else. What
becomes of which version stands in `schemas.versions`. An event of a newer minor version is read as it is, version and
unknown fields included, where every field that it marks as critical is known here: passing over the others loses
nothing that the producer called needed.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from schemas.events import SCHEMA_VERSION
from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent
from schemas.upcast import v1_0_to_v1_1, v1_1_to_v1_2
from schemas.versions import CURRENT, FIELD_OF_MARK, ROUTES, Route, UnsupportedVersionError, minor_of, parse, route_of

__all__ = ["STEPS", "Step", "UnsupportedVersionError", "to_current"]


class Step(NamedTuple):
    """The version that a step leads to, and the change itself, made in place."""

    to_version: str
    apply: Callable[[WireEvent], None]


STEPS: Final[Mapping[str, Step]] = {
    "1.0": Step("1.1", v1_0_to_v1_1.upcast),
    "1.1": Step("1.2", v1_1_to_v1_2.upcast),
}
"""major.minor of an event -> the step that leads on from it. Patch versions never change meaning."""


def to_current(event: WireEvent) -> None:
    """Bring `event` to SCHEMA_VERSION, in place.

    Raises UnsupportedVersionError, and then the event is unchanged, or OverflowError where a step finds a value that
    the next version can't hold.
    """
    route = route_of(event.schema_version)
    if route is Route.UPCAST:
        name = minor_of(event.schema_version)
        while name in STEPS:
            step = STEPS[name]
            step.apply(event)
            name = step.to_version
        event.schema_version = SCHEMA_VERSION
    elif route is Route.READ_IF_KNOWN:
        _require_known(event)
    elif route is Route.REFUSE:
        raise UnsupportedVersionError(_why_refused(event.schema_version))


def _require_known(event: WireEvent) -> None:
    unknown = sorted(set(event.critical_fields) - FIELD_OF_MARK.keys())
    if unknown:
        raise UnsupportedVersionError(
            f"schema version {event.schema_version!r} marks fields {unknown} as critical, "
            f"and a reader of {SCHEMA_VERSION} does not know them; upgrade this reader first"
        )


def _why_refused(version: str) -> str:
    if parse(version)[0] > CURRENT[0]:
        return (
            f"schema version {version!r} is of another major version than {SCHEMA_VERSION}; upgrade this reader first"
        )
    return f"schema version {version!r} is not supported; known are {', '.join(ROUTES)}"
