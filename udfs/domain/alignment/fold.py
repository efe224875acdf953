"""The aligner as a fold, so that the keyed fold runs it."""

from collections.abc import Callable, Mapping, Sequence

from schemas.events import Event
from udfs.domain.alignment import aligner
from udfs.domain.alignment import state as states
from udfs.domain.alignment.chunk import ModalChunk
from udfs.domain.alignment.outputs import Output
from udfs.domain.alignment.policy import DEFAULT_POLICY, AlignmentPolicy
from udfs.domain.alignment.state import SessionState
from udfs.domain.anomaly import Anomaly


class AlignmentFold:
    """The aligner over a session's events: see udfs.operators.fold.Fold for the contract.

    `chunk_of` reads the chunk in an event; None: the event is none. The key is the chunk's session, so the log must be
    sharded by session.
    """

    name = "alignment"
    version = states.STATE_VERSION
    upgrades: Mapping[int, Callable[[bytes], bytes]] = {}

    def __init__(self, chunk_of: Callable[[Event], ModalChunk | None]) -> None:
        self._chunk_of = chunk_of

    def key(self, event: Event) -> str | None:
        """The session, for events that carry a chunk."""
        chunk = self._chunk_of(event)
        return None if chunk is None else chunk.session

    def new(self, key: str) -> SessionState:
        """A session of which nothing has come."""
        return SessionState(key)

    def apply(
        self, state: SessionState, event: Event, policy: AlignmentPolicy | None, now_us: int
    ) -> Sequence[Output | Anomaly]:
        """Take one chunk in at the session's clock."""
        chunk = self._chunk_of(event)
        return () if chunk is None else aligner.apply(state, chunk, policy or DEFAULT_POLICY, now_us)

    def due(self, state: SessionState) -> int | None:
        """When the oldest group has waited long enough, or a stream has been silent for too long."""
        return state.due_us

    def wake(self, state: SessionState, policy: AlignmentPolicy | None, now_us: int) -> Sequence[Output]:
        """Tell what has waited long enough."""
        return aligner.advance(state, policy or DEFAULT_POLICY, now_us)

    def dump(self, state: SessionState) -> bytes:
        """The state as bytes of `version`."""
        return states.dump(state)

    def load(self, stored: bytes) -> SessionState:
        """The state that `dump` wrote."""
        return states.load(stored)
