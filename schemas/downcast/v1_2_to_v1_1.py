"""1.2 to 1.1: what 1.2 added is dropped; all else is read by 1.1 as it is."""

from schemas.downcast.dropped import Dropped, drop_added
from schemas.gen.headrace.v1.events_pb2 import Event
from schemas.versions import ADDED


def downcast(event: Event) -> list[Dropped]:
    """Change a 1.2 event into a 1.1 event, in place; returns what is dropped."""
    return drop_added(event, ADDED["1.2"])
