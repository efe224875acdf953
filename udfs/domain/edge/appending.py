"""What an upload adds to a log that can only be appended to.

The merged log is the truth, but what is written stays written. So a chunk is appended where it is ahead of all that is
written of its attempt, and counts what it is ahead; one that is behind is covered. The counts in the log thereby add
up to the largest `cumulative` after each upload, however the uploads are cut.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from schemas.events import Event, TokensGenerated
from udfs.domain.edge.attempt_log import AttemptName, with_count
from udfs.domain.edge.merge import Merged, merge

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


class _Written:
    """Tokens that the log tells of an attempt: by `cumulative`, by counts without it, and in which regions those."""

    def __init__(self) -> None:
        self.cumulative = 0
        self.without = 0
        self.regions: set[str] = set()


class Addition(msgspec.Struct, frozen=True):
    """Events to append, in the total order, and how the merge went. `covered`: chunks that add no token to the log."""

    events: list[Event]
    covered: int
    merged: Merged


def additions(written: Iterable[Event], uploaded: Iterable[Event]) -> Addition:
    """What to append of `uploaded` to a log that holds `written`: all that it holds of the streams spoken of.

    An end or a prompt that the rules prefer to the one written is appended too: readers choose by the same rules.
    """
    written = list(written)
    merged = merge(written, uploaded)
    ids = {_name(event) for event in written}
    told: dict[AttemptName, _Written] = {}
    for event in written:
        if isinstance(event, TokensGenerated):
            attempt = told.setdefault((event.tenant, event.request_id, event.attempt), _Written())
            if event.cumulative > 0:
                attempt.cumulative = max(attempt.cumulative, event.cumulative)
            elif event.count > 0:
                attempt.without += event.count
                attempt.regions.add(event.region)
    news: list[Event] = []
    covered = 0
    ahead: dict[int, TokensGenerated] = {}
    chunks = [event for event in merged.events if isinstance(event, TokensGenerated)]
    for chunk in sorted(chunks, key=lambda it: it.cumulative):
        attempt = told.setdefault((chunk.tenant, chunk.request_id, chunk.attempt), _Written())
        before = max(attempt.cumulative, attempt.without)
        is_written = _name(chunk) in ids
        if chunk.cumulative > before:
            ahead[id(chunk)] = with_count(chunk, chunk.cumulative - before)
            attempt.cumulative = chunk.cumulative
        elif not (chunk.cumulative or is_written or attempt.cumulative) and attempt.regions <= {chunk.region}:
            ahead[id(chunk)] = chunk
        else:
            covered += not is_written
    for event in merged.events:
        if isinstance(event, TokensGenerated):
            if id(event) in ahead:
                news.append(ahead[id(event)])
        elif _name(event) not in ids:
            news.append(event)
    return Addition(news, covered, merged)


def _name(event: Event) -> bytes:
    return event.event_id or _encode(event)
