"""Bringing events to an older schema version, for consumers that can't be upgraded yet.

One step a version, on a copy. A step drops the fields that its newer version added (`schemas.versions.ADDED`) and says
which: bringing the result up again gives the event but for them. Where a critical field would be lost, be it critical
by the schema or by the event's own marks, nothing is written and the error names it.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]

from schemas.downcast import v1_1_to_v1_0, v1_2_to_v1_1
from schemas.downcast.dropped import CriticalFieldsLostError, Dropped, body_of, require_nothing_critical
from schemas.events import SCHEMA_VERSION
from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent
from schemas.upcast import to_current
from schemas.versions import (
    CURRENT,
    FIELD_OF_MARK,
    ROUTES,
    Route,
    UnsupportedVersionError,
    added_after,
    minor_of,
    parse,
    route_of,
)

__all__ = ["STEPS", "CriticalFieldsLostError", "Downcast", "Dropped", "Step", "downcast"]


class Step(NamedTuple):
    """The version that a step leads to, and the change itself, made in place; it returns what it dropped."""

    to_version: str
    apply: Callable[[WireEvent], list[Dropped]]


STEPS: Final[Mapping[str, Step]] = {
    "1.2": Step("1.1", v1_2_to_v1_1.downcast),
    "1.1": Step("1.0", v1_1_to_v1_0.downcast),
}
"""major.minor of an event -> the step that leads down from it."""


class Downcast(NamedTuple):
    """An event as a reader of an older version knows it, and what it had beyond that."""

    event: WireEvent
    dropped: tuple[Dropped, ...]


def downcast(event: WireEvent, to_version: str) -> Downcast:
    """A copy of `event` for readers of `to_version`, such as "1.1" or "1.1.0". `event` itself is not changed.

    An event that is of that version or an older one is returned as it is: readers upcast those by themselves. One of a
    newer minor version than ours loses all that we do not know. Raises CriticalFieldsLostError where a critical field
    would be lost, and UnsupportedVersionError where there is no way from the one version to the other.
    """
    target = minor_of(to_version)
    if target not in ROUTES:
        raise UnsupportedVersionError(f"there is no schema version {target}; known are {', '.join(ROUTES)}")
    route = route_of(event.schema_version)
    if route is not Route.REFUSE and parse(event.schema_version) <= parse(target):
        return Downcast(event, ())
    copy = WireEvent()
    copy.CopyFrom(event)
    # Refuses what a reader of ours would refuse.
    to_current(copy)
    dropped = _drop_unknown(copy) if route is Route.READ_IF_KNOWN else []
    # From the current version, whatever the event says: what a producer of 1.1 set beyond 1.1 is read by us as well.
    name = minor_of(SCHEMA_VERSION)
    while name != target:
        step = STEPS[name]
        dropped += step.apply(copy)
        name = step.to_version
    require_nothing_critical(event, dropped, target)
    dropped += _drop_marks(copy, target)
    copy.schema_version = SCHEMA_VERSION if parse(target) == CURRENT else f"{target}.0"
    return Downcast(copy, tuple(dropped))


def _drop_unknown(event: WireEvent) -> list[Dropped]:
    """Drop what this version does not know. None of it is critical: `to_current` has looked at the marks."""
    body = body_of(event)
    if body is None:
        raise UnsupportedVersionError(
            f"the event has no body of a kind known to schema {SCHEMA_VERSION}, so nothing would be left of it"
        )
    found = [Dropped(f"Event.{field.field_number}", None) for field in UnknownFieldSet(event)]
    name = body.DESCRIPTOR.name
    found += [Dropped(f"{name}.{field.field_number}", None) for field in UnknownFieldSet(body)]
    event.DiscardUnknownFields()  # type: ignore[attr-defined]
    return list(dict.fromkeys(found))


def _drop_marks(event: WireEvent, target: str) -> list[Dropped]:
    """Drop marks of fields that a reader of `target` does not know, and that the event no longer has."""
    gone = added_after(target)
    kept = [mark for mark in event.critical_fields if mark in FIELD_OF_MARK and FIELD_OF_MARK[mark] not in gone]
    lost = tuple(mark for mark in event.critical_fields if mark not in kept)
    if not lost:
        return []
    del event.critical_fields[:]
    event.critical_fields.extend(kept)
    return [Dropped("Event.critical_fields", lost)]
