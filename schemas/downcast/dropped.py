"""What a downcast drops, and the error where it must not."""

from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import Message

from schemas.gen.headrace.v1.events_pb2 import Event as WireEvent
from schemas.versions import CRITICAL, FIELD_OF_MARK, AddedField


class Dropped(NamedTuple):
    """A value that the older version has no place for.

    `field` is message and field, `PromptSubmitted.provider`, or message and number where this version does not know it.
    `value` is what stood there; of event_time_us, the microseconds beyond the millisecond; None where it is not known.
    """

    field: str
    value: object


class CriticalFieldsLostError(ValueError):
    """An older reader would read the event wrongly: it does not know `fields`, which are set and critical."""

    def __init__(self, fields: tuple[str, ...], version: str) -> None:
        super().__init__(
            f"schema {version} has no {' and no '.join(fields)}, without which the event would be read wrongly; "
            "upgrade its readers first"
        )
        self.fields = fields
        self.version = version


def body_of(event: WireEvent) -> Message | None:
    """The body of an event; None where it has none that is known."""
    kind = event.WhichOneof("body")
    if kind is None:
        return None
    body: Message = getattr(event, kind)
    return body


def drop_added(event: WireEvent, fields: Iterable[AddedField]) -> list[Dropped]:
    """Clear those of `fields` that are set, and return them."""
    body = body_of(event)
    dropped = []
    for message, name, _, _ in fields:
        holder = event if message == "Event" else body
        if holder is None or holder.DESCRIPTOR.name != message:
            continue
        value = getattr(holder, name)
        if value != holder.DESCRIPTOR.fields_by_name[name].default_value:
            dropped.append(Dropped(f"{message}.{name}", value))
            holder.ClearField(name)
    return dropped


def require_nothing_critical(event: WireEvent, dropped: Iterable[Dropped], version: str) -> None:
    """Raises CriticalFieldsLostError where something of `dropped` is critical, by the schema or the event's marks."""
    critical = {f"{message}.{field.name}" for message, fields in CRITICAL.items() for field in fields}
    critical |= {FIELD_OF_MARK[mark] for mark in event.critical_fields if mark in FIELD_OF_MARK}
    lost = tuple(field for field, _ in dropped if field in critical)
    if lost:
        raise CriticalFieldsLostError(lost, version)
