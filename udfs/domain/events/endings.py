"""How an attempt ended, where more than one end of it was told.

The rule: a completion stands before a failure, a failure before an interruption, since who saw more of the stream saw
its completion; then reported usage before estimated, estimated before none; then the first in the total order.
Two ends contradict each other where they are of different kinds, or both report usage and the counts differ.
"""

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from schemas.events import RequestCompleted, RequestFailed, StreamInterrupted, UsageSource
from udfs.domain.events.order import place_of

EndEvent: TypeAlias = RequestCompleted | RequestFailed | StreamInterrupted


class EndKind(IntEnum):
    """Kinds of ends, the one that stands first."""

    COMPLETED = 0
    FAILED = 1
    INTERRUPTED = 2


class Said(IntEnum):
    """What an end says of tokens, the better first. Counts whose source was left out count as reported."""

    REPORTED = 0
    ESTIMATED = 1
    NOTHING = 2


class Ending(msgspec.Struct, frozen=True, order=True, array_like=True):
    """An end as it is compared: the smaller one stands. `completion_tokens` of an interruption is its token offset."""

    kind: EndKind
    said: Said
    lamport: int
    region: str
    event_id: bytes
    prompt_tokens: int
    completion_tokens: int
    ended_at_us: int
    reason: str
    """Finish reason, class of the error, or reason of the interruption."""


_SAID: Final = {UsageSource.REPORTED: Said.REPORTED, UsageSource.ESTIMATED: Said.ESTIMATED}


def ending_of(event: EndEvent) -> Ending:
    """An end as it is compared."""
    if isinstance(event, StreamInterrupted):
        kind, reason = EndKind.INTERRUPTED, event.reason.name.lower()
        prompt_tokens, completion_tokens = 0, event.token_offset
    else:
        prompt_tokens, completion_tokens = event.prompt_tokens, event.completion_tokens
        if isinstance(event, RequestCompleted):
            kind, reason = EndKind.COMPLETED, event.finish_reason
        else:
            kind, reason = EndKind.FAILED, event.error_class
    has_counts = prompt_tokens != 0 or completion_tokens != 0
    said = _SAID.get(event.usage_source, Said.REPORTED if has_counts else Said.NOTHING)
    place = place_of(event)
    return Ending(kind, said, *place, prompt_tokens, completion_tokens, event.event_time_us, reason)


def contradict(one: Ending, other: Ending) -> bool:
    """Whether both can't be true. An estimate contradicts no count."""
    if one.kind is not other.kind:
        return True
    counts = (one.prompt_tokens, one.completion_tokens), (other.prompt_tokens, other.completion_tokens)
    return one.said is other.said is Said.REPORTED and counts[0] != counts[1]
