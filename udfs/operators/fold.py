"""What a capability writes: a pure fold over the events of one key."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from schemas.events import Event
from udfs.domain.anomaly import Anomaly
from udfs.domain.policy_log import PolicyRecord

State = TypeVar("State")
Policy = TypeVar("Policy", bound=PolicyRecord)
Out = TypeVar("Out")
_PolicyT_contra = TypeVar("_PolicyT_contra", contravariant=True)
_OutT_co = TypeVar("_OutT_co", covariant=True)


class Fold(Protocol[State, _PolicyT_contra, _OutT_co]):
    """Decides the events of a key in log order. Pure: no clock, no randomness, no I/O; what it returns depends on the
    key's events and policies alone.

    `now_us` is the key's clock: the largest event time that the key has seen, so it never goes back. An event older
    than it is late and is decided at the clock.
    """

    @property
    def name(self) -> str:
        """Name of the state: a contract that outlives deploys."""

    @property
    def version(self) -> int:
        """Version of the bytes that `dump` writes."""

    @property
    def upgrades(self) -> Mapping[int, Callable[[bytes], bytes]]:
        """From each older version, the step to the next one."""

    def key(self, event: Event) -> str | None:
        """Whose event it is; None: not an event for this fold."""

    def new(self, key: str) -> State:
        """A key that nothing is known of."""

    def apply(
        self, state: State, event: Event, policy: _PolicyT_contra | None, now_us: int
    ) -> Sequence[_OutT_co | Anomaly]:
        """Change `state` by one event and return what is decided and noticed."""

    def due(self, state: State) -> int | None:
        """When `wake` is to be called, if ever. It may be early: a wake-up that finds nothing to do decides nothing."""

    def wake(self, state: State, policy: _PolicyT_contra | None, now_us: int) -> Sequence[_OutT_co | Anomaly]:
        """What time alone decides. `now_us` is the time that was due. Must move `due` beyond it."""

    def dump(self, state: State) -> bytes:
        """The state as bytes of `version`."""

    def load(self, stored: bytes) -> State:
        """The state that `dump` of the same version wrote."""


AnyFold = Fold[Any, Any, Any]
