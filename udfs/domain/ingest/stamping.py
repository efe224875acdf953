"""What ingest adds to events that come from outside: each once, and each with its watermark.

One state a shard: its watermark is that of all sources in it together, and a producer that sends again is known by the
ids of its events. Time comes in as heartbeats, one a second, so that a shard whose producers are silent goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from schemas.events import Event, Heartbeat
from udfs.domain.anomaly import Anomaly
from udfs.domain.events.duplicates import DuplicateBounds, SeenIds, Verdict
from udfs.domain.watermark import (
    MergedWatermark,
    WatermarkPolicy,
    WatermarkState,
    heartbeat,
    merge,
    observe,
    source_watermark,
)

THE_SHARD: Final = "shard"
"""The one key of each shard's state."""


class StampingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How watermarks follow events, and how far back a duplicate is known."""

    watermark: WatermarkPolicy = WatermarkPolicy()
    duplicates: DuplicateBounds = DuplicateBounds()


class Stamping(msgspec.Struct):
    """State of one shard."""

    sources: dict[str, WatermarkState]
    merged: MergedWatermark
    seen: SeenIds
    arrival_us: int = 0
    """The clock, as the last heartbeat told it; 0: none came yet."""


class _Stored(msgspec.Struct, array_like=True):
    """The state as bytes. A change of it is a new version of the fold."""

    sources: dict[str, WatermarkState]
    merged: MergedWatermark
    arrival_us: int
    seen: bytes


class StampingFold:
    """Drops what came before and stamps the rest, in the order in which it came. Outputs are events."""

    name: Final = "stamping"
    version: Final = 1
    upgrades: Final[Mapping[int, Callable[[bytes], bytes]]] = {}

    def __init__(self, policy: StampingPolicy | None = None) -> None:
        self._policy = policy or StampingPolicy()

    def key(self, event: Event) -> str:  # noqa: ARG002 - of the protocol
        """All events of a shard have one state."""
        return THE_SHARD

    def new(self, key: str) -> Stamping:  # noqa: ARG002 - of the protocol
        """A shard that has seen nothing."""
        return Stamping({}, MergedWatermark(), SeenIds())

    def apply(self, state: Stamping, event: Event, policy: object, now_us: int) -> Sequence[Event | Anomaly]:  # noqa: ARG002
        """The event with its stamp, or that it is a duplicate. A heartbeat moves what is silent."""
        if isinstance(event, Heartbeat):
            return self._beat(state, event)
        # By the watermark, not by the clock: yesterday's log that is read today has duplicates too.
        now_us = max(state.merged.watermark_us, 0)
        verdict = state.seen.check(event.event_id, event.event_time_us, now_us, self._policy.duplicates)
        if verdict is Verdict.DUPLICATE:
            return (Anomaly.DUPLICATE,)
        # As many as the settings name.
        source = state.sources.get(event.source)
        if source is None:
            source = state.sources[event.source] = WatermarkState()
        arrival_us = state.arrival_us or None
        observed = observe(source, self._policy.watermark, event.event_time_us, arrival_us)
        noticed = []
        if observed.late:
            noticed.append(Anomaly.LATE)
        if verdict is Verdict.UNCHECKED:
            noticed.append(Anomaly.UNCHECKED)
        return self._stamped(state, event), *noticed

    def _stamped(self, state: Stamping, event: Event) -> Event:
        watermark_us = merge(state.merged, map(source_watermark, state.sources.values()))
        return msgspec.structs.replace(event, watermark_us=max(watermark_us, 0))

    def _beat(self, state: Stamping, event: Heartbeat) -> Sequence[Event]:
        state.arrival_us = max(state.arrival_us, event.event_time_us)
        silent = [heartbeat(source, self._policy.watermark, state.arrival_us) for source in state.sources.values()]
        watermark_us = merge(state.merged, silent)
        if watermark_us <= 0:
            return ()
        return (msgspec.structs.replace(event, event_time_us=watermark_us, watermark_us=watermark_us),)

    def due(self, state: Stamping) -> int | None:  # noqa: ARG002 - of the protocol
        """Time comes in as heartbeats: never."""
        return None

    def wake(self, state: Stamping, policy: object, now_us: int) -> Sequence[Event]:  # noqa: ARG002
        """Nothing is due."""
        return ()

    def dump(self, state: Stamping) -> bytes:
        """The state as bytes of `version`."""
        stored = _Stored(state.sources, state.merged, state.arrival_us, state.seen.dump())
        return msgspec.msgpack.encode(stored)

    def load(self, stored: bytes) -> Stamping:
        """The state that `dump` wrote."""
        found = msgspec.msgpack.decode(stored, type=_Stored)
        return Stamping(found.sources, found.merged, SeenIds.load(found.seen), found.arrival_us)
