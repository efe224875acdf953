"""What the aligner remembers of one session, and the bytes it is stored as."""

from typing import Final

import msgspec

from udfs.domain.alignment.chunk import ModalChunk, Modality
from udfs.domain.alignment.drift import ClockState
from udfs.domain.alignment.sequences import Sequences

STATE_VERSION: Final = 1

NOTHING_TOLD: Final = -1
"""The frontier of a session of which nothing has been told: before every media time."""


class Told(msgspec.Struct, array_like=True):
    """Where the last chunk of a stream ended that was told in its place."""

    sequence: int
    end_us: int
    end_offset_us: int


class StreamState(msgspec.Struct, array_like=True):
    """One modality of a session.

    Up to `next_sequence` (exclusive) the stream is whole or has been given up, and it has reached the media time
    `passed_us`. `heard_us` is the session's clock when something of it last came, or when the session began.
    """

    is_seen: bool = False
    is_silent: bool = True
    heard_us: int = 0
    next_sequence: int = 0
    passed_us: int = NOTHING_TOLD
    buffered: int = 0
    told: Told | None = None
    seen: Sequences = msgspec.field(default_factory=Sequences)
    clock: ClockState = msgspec.field(default_factory=ClockState)


class SessionState(msgspec.Struct, array_like=True):
    """One session. `buffer` is in media order; all of it lies after `frontier_us`, up to which everything was told."""

    session: str
    has_begun: bool = False
    frontier_us: int = NOTHING_TOLD
    due_us: int | None = None
    buffer: list[ModalChunk] = []
    streams: list[StreamState] = msgspec.field(default_factory=lambda: [StreamState() for _ in Modality])

    def stream(self, modality: Modality) -> StreamState:
        """What is remembered of one modality."""
        return self.streams[modality - 1]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionState).decode


def dump(state: SessionState) -> bytes:
    """The bytes of a state, in the form of STATE_VERSION."""
    return _encode(state)


def load(stored: bytes) -> SessionState:
    """The state that `dump` wrote. Raises msgspec.DecodeError where the bytes are not such a state."""
    return _decode(stored)
