"""What every adapter must keep to, whatever the bytes: a reading, and events that the log can hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from schemas.codec import decode_events, encode_events
from schemas.dead_letters import Position
from tests.ingest_mutations import mutations
from udfs.domain.ingest.record import Adapter, Foreign, Origin, read_foreign

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ORIGIN = Origin(source="fuzz", tenant="fallback")


def fuzz(
    adapter: Adapter, samples: Sequence[bytes], count: int, seed: int, headers: Mapping[str, bytes] | None = None
) -> Counter[str]:
    """Reads changed samples; how many of them were read, refused, and passed over, so that a test sees all of it."""
    seen: Counter[str] = Counter()
    for value in mutations(samples, count, seed):
        reading = read_foreign(adapter, Foreign(value=value, headers=headers or {}), ORIGIN)
        assert reading.events or reading.refused or reading.passed_over, "dropped in silence"
        decoded = decode_events(encode_events(0, reading.events), Position("fuzz", 0, 0))
        assert decoded.dead == []
        assert list(decoded.events) == reading.events
        seen.update(read=bool(reading.events), refused=bool(reading.refused), passed_over=bool(reading.passed_over))
    return seen
