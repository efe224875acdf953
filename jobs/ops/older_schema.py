"""Writing events for consumers of an older version of the schema."""

from collections import Counter
from collections.abc import Iterable

from jobs.ops.figures import printable
from jobs.wiring.event_files import EventFileError
from schemas.codec import encode_events, wire_event
from schemas.downcast import CriticalFieldsLostError, downcast
from schemas.events import Event
from schemas.gen.headrace.v1.events_pb2 import EventBatch
from schemas.versions import CURRENT, ROUTES, UnsupportedVersionError, minor_of, parse


class OlderSchemaError(EventFileError):
    """A version that can't be written, or an event that it can't hold; the message says which and what to do."""


class OlderSchema:
    """Encodes batches in an older version, and counts what that drops by field in `dropped`."""

    def __init__(self, version: str) -> None:
        """Raises OlderSchemaError where there is no such version."""
        try:
            self.version = minor_of(version)
        except UnsupportedVersionError as error:
            raise OlderSchemaError(str(error)) from error
        if self.version not in ROUTES:
            raise OlderSchemaError(f"there is no schema version {self.version}; known are {', '.join(ROUTES)}")
        self.dropped: Counter[str] = Counter()

    def encode(self, shard: int, batch: Iterable[Event]) -> bytes:
        """One record of the events topic. Raises OlderSchemaError where a critical field would be lost."""
        if parse(self.version) == CURRENT:
            return encode_events(shard, batch)
        record = EventBatch(shard=shard)
        for event in batch:
            try:
                older = downcast(wire_event(event), self.version)
            except CriticalFieldsLostError as error:
                which = (
                    f"request {printable(event.request_id)} of {printable(event.tenant)}" if event.tenant else "event"
                )
                raise OlderSchemaError(f"{which}, at {event.event_time_us} us: {error}") from error
            record.events.append(older.event)
            self.dropped.update(field for field, _ in older.dropped)
        return record.SerializeToString()
