"""What is refused of one record, in few dead letters: a fault that a thousand parts share is told once."""

from typing import Final

import msgspec

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.record import Refused, UnreadableRecordError

MAX_REFUSED: Final = 16
"""Of one record come at most so many dead letters: the last one stands for all further faults."""


class _Fault:
    __slots__ = ("count", "detail", "index", "payload", "reason")

    def __init__(self, why: UnreadableRecordError, index: int, payload: bytes | msgspec.Raw) -> None:
        self.reason: DeadLetterReason = why.reason
        self.detail = why.detail
        self.index = index
        self.payload = payload
        self.count = 1


class Refusals:
    """Collects the parts of one record that can't be read. `part` is what one is called, such as "line".

    Each part is added once, with its own bytes: together they are at most those of the record. Bytes are kept of the
    first part of each fault only; the others are found by the record's place and the count.
    """

    def __init__(self, part: str) -> None:
        self.count = 0
        """Parts so far."""
        self._part = part
        self._faults: dict[tuple[DeadLetterReason, str], _Fault] = {}
        self._others: _Fault | None = None

    def add(self, why: UnreadableRecordError, index: int, payload: bytes | msgspec.Raw) -> None:
        """Note one part, by its index within the record."""
        self.count += 1
        fault = self._faults.get((why.reason, why.detail))
        if fault is not None:
            fault.count += 1
        elif len(self._faults) < MAX_REFUSED - 1:
            self._faults[why.reason, why.detail] = _Fault(why, index, payload)
        elif self._others is None:
            self._others = _Fault(why, index, payload)
        else:
            self._others.count += 1

    def refused(self) -> list[Refused]:
        """One Refused for each fault, in the order in which they were found first."""
        found = [self._refused(fault, "") for fault in self._faults.values()]
        if self._others is not None:
            found.append(self._refused(self._others, ", not all for this reason"))
        return found

    def _refused(self, fault: _Fault, remark: str) -> Refused:
        detail = fault.detail
        if fault.count > 1:
            detail = (
                f"{detail} ({fault.count:,} {self._part}s of this record{remark}, the first at index {fault.index})"
            )
        return Refused(fault.reason, detail, fault.index, bytes(fault.payload), fault.count)
