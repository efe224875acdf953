"""A piece of one stream of a session, as the aligner sees it."""

from enum import IntEnum
from typing import Final

import msgspec

from schemas.codec import MAX_TIME_US

MAX_SEQUENCE: Final = 2**63 - 1


class Modality(IntEnum):
    """What a stream carries. The numbers stand in stored state and are contracts."""

    TEXT = 1
    SPEECH = 2
    VISION = 3


class ImplausibleChunkError(ValueError):
    """A chunk that can't be meant; the message names the field and what it must be."""


class ModalChunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One chunk of one stream. It is the same chunk wherever session, modality and sequence are the same.

    `sequence` counts up by one within the stream, from any start. `offset_us` is where the chunk begins within its own
    stream, `duration_us` how much of it the chunk covers; 0 for an instant. `captured_at_us` is when it began by the
    producer's own clock, 0 where that is not known; `event_time_us` is when it began by the clock that all streams of
    the session share: its media time. Raises ImplausibleChunkError for what can't be meant.
    """

    session: str
    modality: Modality
    sequence: int
    offset_us: int
    duration_us: int
    captured_at_us: int
    event_time_us: int

    def __post_init__(self) -> None:
        for name, value, lowest, highest in (
            ("sequence", self.sequence, 0, MAX_SEQUENCE),
            ("offset_us", self.offset_us, -MAX_TIME_US, MAX_TIME_US),
            ("duration_us", self.duration_us, 0, MAX_TIME_US),
            ("captured_at_us", self.captured_at_us, 0, MAX_TIME_US),
            ("event_time_us", self.event_time_us, 0, MAX_TIME_US),
        ):
            if not lowest <= value <= highest:
                raise ImplausibleChunkError(f"{name} is {value}, it must be from {lowest} to {highest}")


def in_media_order(chunk: ModalChunk) -> tuple[int, int, int]:
    """The total order of a session's chunks: media time, then modality, then sequence."""
    return chunk.event_time_us, chunk.modality, chunk.sequence
