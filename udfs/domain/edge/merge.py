"""Logs of several sites as one, in the total order of events.

What comes out depends on the set of events that went in alone: not on which site told them, on their order, on how
often they were told, or on how they were cut into uploads. A merged log can be merged again with what came later.
See `attempt_log` for what is kept of an attempt that two sites wrote.

All events of the logs are held in memory: merge the streams that an upload speaks of, not a whole topic.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from schemas.events import (
    Event,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
)
from udfs.domain.edge.attempt_log import AttemptLog, AttemptName, Contradiction, HeldBack, first_of
from udfs.domain.events.endings import EndKind, Said, ending_of
from udfs.domain.events.order import in_total_order

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


class Unlinked(msgspec.Struct, frozen=True):
    """An attempt that says it goes on from the one before it, where that one does not bear it out."""

    attempt: AttemptName
    detail: str


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The merged log and what became of the rest: `read` is the sum of `events`, `not_kept` and `held_back`."""

    events: list[Event]
    read: int
    not_kept: Counter[str]
    """`repeated`: told before, or contradicted. `covered`: a chunk that another one of equal `cumulative` tells."""
    contradictions: list[Contradiction]
    held_back: list[HeldBack]
    unlinked: list[Unlinked]


def merge(*logs: Iterable[Event]) -> Merged:
    """Bring logs together. Events that are not of a request are kept once each, by their id."""
    attempts: dict[AttemptName, AttemptLog] = {}
    others: dict[bytes, Event] = {}
    not_kept: Counter[str] = Counter()
    read = 0
    for log in logs:
        for event in log:
            read += 1
            if isinstance(
                event, (PromptSubmitted, TokensGenerated, StreamInterrupted, RequestCompleted, RequestFailed)
            ):
                name = (event.tenant, event.request_id, event.attempt)
                attempt = attempts.get(name)
                if attempt is None:
                    attempt = attempts[name] = AttemptLog()
                attempt.add(event)
            else:
                key = event.event_id or _encode(event)
                known = others.get(key)
                not_kept["repeated"] += known is not None
                others[key] = event if known is None else first_of(known, event)
    kept = list(others.values())
    contradictions: list[Contradiction] = []
    held_back: list[HeldBack] = []
    for _, attempt in sorted(attempts.items()):
        kept += attempt.resolve()
        not_kept.update(attempt.seen)
        not_kept["repeated"] += sum(1 for found in attempt.contradictions if found.what == "chunk")
        contradictions += attempt.contradictions
        held_back += attempt.held_back
    return Merged(
        events=in_total_order(kept),
        read=read,
        not_kept=+not_kept,
        contradictions=contradictions,
        held_back=held_back,
        unlinked=[found for name in sorted(attempts) if (found := _unlinked(name, attempts)) is not None],
    )


def _unlinked(name: AttemptName, attempts: dict[AttemptName, AttemptLog]) -> Unlinked | None:
    tenant, request_id, number = name
    prompt = attempts[name].prompt
    if prompt is None or not prompt.resumed_at_token:
        return None
    resumed_at = prompt.resumed_at_token
    before = attempts.get((tenant, request_id, number - 1))
    if before is None:
        return Unlinked(name, f"goes on at token {resumed_at} of attempt {number - 1}, of which nothing is told")
    if before.end is None:
        # The site may have gone down before it could tell the end.
        return None
    ending = ending_of(before.end)
    if ending.kind is not EndKind.INTERRUPTED:
        return Unlinked(
            name, f"goes on at token {resumed_at} of attempt {number - 1}, which {ending.kind.name.lower()}"
        )
    reached = before.streamed_tokens if ending.said is Said.NOTHING else ending.completion_tokens
    ended_at = reached + (before.prompt.resumed_at_token if before.prompt else 0)
    if ended_at != resumed_at:
        return Unlinked(name, f"goes on at token {resumed_at}; attempt {number - 1} was interrupted at {ended_at}")
    return None
