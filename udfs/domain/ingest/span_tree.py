"""Which of the calls in one request stand for others: a call around a call is the same work, told twice.

Two instrumentations at once (of a framework and of the client below it), gateways that retry, a client and the server
it calls: each writes a span, one around the other, each with the tokens. Reports:
https://github.com/DataDog/dd-trace-js/issues/8936, https://github.com/langfuse/langfuse/issues/9344. Only spans of one
request are looked at: where parent and child come apart, the ids of the response are what tells.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from udfs.domain.ingest.genai import ROLL_UP, ModelCall

NESTED_CALL: Final = "call within a call"

_MAX_LEVELS: Final = 64
"""How far up a parent is looked for: spans that are their own ancestors have no top."""


class Spans(msgspec.Struct):
    """What is kept of all spans of a request: each one's parent, and its session where it names one."""

    parents: dict[bytes, bytes] = {}
    sessions: dict[bytes, str] = {}


class Place(NamedTuple):
    """Where a call stands: what it is passed over as ("" : it counts), and the session it belongs to."""

    passed_over: str
    session: str


def places(calls: Sequence[ModelCall], spans: Spans) -> Sequence[Place]:
    """The place of each call, by one rule: the innermost calls that tell their tokens count, and those that tell none
    beside them; a call around them is a roll-up, and one within a call that alone tells the tokens is nested.
    """
    index = {key_of(call.span.trace_id, call.span.span_id): at for at, call in enumerate(calls) if call.span.span_id}
    above = [_nearest(call, spans.parents, index) for call in calls]
    below = [0] * len(calls)
    told_below = [False] * len(calls)
    for at, call in enumerate(calls):
        upper = above[at]
        if upper is not None:
            below[upper] += 1
        for _ in range(_MAX_LEVELS if call.has_usage else 0):
            if upper is None or told_below[upper]:
                break
            told_below[upper] = True
            upper = above[upper]
    return [
        Place(_passed_over(at, calls, above, below, told_below), call.attempt.session or _session(call, spans))
        for at, call in enumerate(calls)
    ]


def key_of(trace_id: bytes, span_id: bytes) -> bytes:
    """A span among all those of a request."""
    return trace_id + span_id


def _nearest(call: ModelCall, parents: Mapping[bytes, bytes], index: Mapping[bytes, int]) -> int | None:
    own = at = key_of(call.span.trace_id, call.span.span_id)
    for _ in range(_MAX_LEVELS):
        at = parents.get(at, b"")
        if not at or at == own:
            return None
        if at in index:
            return index[at]
    return None


def _passed_over(
    at: int,
    calls: Sequence[ModelCall],
    above: Sequence[int | None],
    below: Sequence[int],
    told_below: Sequence[bool],
) -> str:
    if told_below[at]:
        return ROLL_UP
    if calls[at].has_usage:
        return ""
    upper = above[at]
    for _ in range(_MAX_LEVELS):
        if upper is None or told_below[upper]:
            break
        if calls[upper].has_usage:
            return NESTED_CALL
        upper = above[upper]
    return ROLL_UP if below[at] else ""


def _session(call: ModelCall, spans: Spans) -> str:
    at = key_of(call.span.trace_id, call.span.span_id)
    for _ in range(_MAX_LEVELS):
        at = spans.parents.get(at, b"")
        if not at:
            return ""
        if at in spans.sessions:
            return spans.sessions[at]
    return ""
