"""What the aligner tells. A chunk is in exactly one of Aligned, Alone, Late and Overflow; the rest tell of streams."""

from enum import Enum
from typing import TypeAlias

import msgspec

from udfs.domain.alignment.chunk import ModalChunk, Modality


class Aligned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Chunks of two modalities or more that begin within the tolerance of `at_us`, in order of media time."""

    session: str
    at_us: int
    spread_us: int
    """From the first to the last of them."""
    chunks: tuple[ModalChunk, ...]


class Alone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A chunk beside which no other modality had one within the tolerance."""

    session: str
    at_us: int
    chunk: ModalChunk


class LateReason(str, Enum):
    """Why a chunk could no longer take its place."""

    BEHIND = "behind"
    """What follows it in media time had been told."""
    FORGOTTEN = "forgotten"
    """Its sequence number lies before all that are remembered: it may be a repeat."""


class Late(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A chunk that came after its place had been passed: `late_by_us` behind the end of what has been told."""

    session: str
    at_us: int
    late_by_us: int
    reason: LateReason
    chunk: ModalChunk


class OverflowReason(str, Enum):
    """Which bound of the buffer was reached."""

    FULL = "full"
    """The modality's bound in chunks: the oldest was let go."""
    AHEAD = "ahead"
    """The bound in time: the chunk lies too far ahead of the session's clock."""


class Overflow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A chunk that was let go unaligned, because the buffer may not grow. It may be out of order."""

    session: str
    at_us: int
    reason: OverflowReason
    chunk: ModalChunk


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A hole between two chunks of a stream that have been told one after the other.

    `from_us` is the end of the one and `to_us` the start of the other in media time; `to_us` is the smaller one where
    they overlap. The offsets say the same within the stream. `missing` are ranges of sequence numbers, both ends
    included, that had not come by then; one that comes yet is told as Late. Empty: time is missing, and no chunk.
    """

    session: str
    modality: Modality
    from_us: int
    to_us: int
    from_offset_us: int
    to_offset_us: int
    missing: tuple[tuple[int, int], ...]


class Silent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stream is no longer waited for: nothing of it came since the session's clock stood at `since_us`."""

    session: str
    modality: Modality
    since_us: int


class Drift(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How a producer's clock runs against the session's; told when it crosses the bound or changes by as much.

    `rate_ppm` is how many microseconds a second it gains. `offset_us` is how far it was ahead at `at_us`, less the
    shortest delay between capture and event time, which can't be told from an offset. `is_beyond` is False where the
    clock has come back within the bound.
    """

    session: str
    modality: Modality
    at_us: int
    rate_ppm: float
    offset_us: int
    is_beyond: bool


class ClockStep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A producer's clock was set, or a new producer took over: it is `by_us` further ahead than it was."""

    session: str
    modality: Modality
    at_us: int
    by_us: int


Output: TypeAlias = Aligned | Alone | Late | Overflow | Gap | Silent | Drift | ClockStep
