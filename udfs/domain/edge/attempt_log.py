"""What several sites wrote of one attempt, as one: no token twice, one prompt, one end.

A chunk is the fact that the completion had come to `cumulative` tokens, so chunks of equal `cumulative` are one fact
whoever tells it, and each adds what it is ahead of the one before. However the sites cut the stream, the counts add up
to the largest `cumulative`.

Chunks without `cumulative` are told apart by their ids alone. That does where one region wrote them and nobody said
`cumulative`; else they may be tokens that are counted already, and are held back.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, TypeAlias, TypeVar

import msgspec

from schemas.codec import canonical_body
from schemas.events import Event, PromptSubmitted, TokensGenerated
from schemas.identity import content_hash
from udfs.domain.events.clocks import Order
from udfs.domain.events.endings import EndEvent, contradict, ending_of
from udfs.domain.events.order import is_stamped, place_of, relation
from udfs.domain.events.session import MAX_TOKENS

AttemptName: TypeAlias = tuple[str, str, int]
"""Tenant, request id and attempt."""

_E = TypeVar("_E", bound=Event)
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode


class Contradiction(msgspec.Struct, frozen=True):
    """Two facts of which one can be true. `kept` stands by the rule, `dropped` is not in the merged log.

    `order` is that of `kept` to `dropped` by vector clock; None: not both have one.
    """

    what: str
    kept: Event
    dropped: Event
    order: Order | None


class HeldBackReason(Enum):
    """Why a chunk is not in the merged log."""

    NOT_TOLD_APART = "not_told_apart"
    """Without `cumulative`, in an attempt whose tokens another region, or another chunk, tells too."""
    IMPLAUSIBLE = "implausible"
    """A count below 0, or above what any request has."""


class HeldBack(msgspec.Struct, frozen=True):
    """A chunk that would be counted by a guess. Write it again with `cumulative`, and merge again."""

    reason: HeldBackReason
    event: TokensGenerated


class AttemptLog:
    """The events of one attempt, added in any order. What is kept depends on the set of them alone."""

    def __init__(self) -> None:
        self.prompt: PromptSubmitted | None = None
        self.end: EndEvent | None = None
        self.contradictions: list[Contradiction] = []
        self.held_back: list[HeldBack] = []
        self.seen: Counter[str] = Counter()
        """Events that were not kept for they were told before: `repeated`, and chunks `covered` by another one's."""
        self._prompts: list[PromptSubmitted] = []
        self._ends: list[EndEvent] = []
        self._by_cumulative: dict[int, TokensGenerated] = {}
        self._without: dict[bytes, TokensGenerated] = {}

    @property
    def streamed_tokens(self) -> int:
        """Tokens of its chunks."""
        return max(self._by_cumulative, default=0) or sum(chunk.count for chunk in self._without.values())

    def add(self, event: PromptSubmitted | TokensGenerated | EndEvent) -> None:
        """Take in one event of the attempt."""
        if isinstance(event, TokensGenerated):
            self._add_chunk(event)
        elif isinstance(event, PromptSubmitted):
            self._prompts.append(event)
        else:
            self._ends.append(event)

    def _add_chunk(self, event: TokensGenerated) -> None:
        if not (0 <= event.cumulative <= MAX_TOKENS and 0 <= event.count <= MAX_TOKENS):
            self.held_back.append(HeldBack(HeldBackReason.IMPLAUSIBLE, event))
        elif event.cumulative:
            known = self._by_cumulative.get(event.cumulative)
            if known is not None:
                self.seen["repeated" if known.event_id == event.event_id else "covered"] += 1
                event = first_of(known, event)
            self._by_cumulative[event.cumulative] = event
        else:
            name = event.event_id or _encode(event)
            known = self._without.get(name)
            if known is not None:
                self.seen["repeated"] += 1
                event = first_of(known, event)
            self._without[name] = event

    def resolve(self) -> Iterator[Event]:
        """Apply the rules; call it once, when all is added. Gives what is kept."""
        if self._prompts:
            self.prompt = self._choose("prompt", self._prompts)
            yield self.prompt
        yield from self._chunks()
        if self._ends:
            self.end = self._choose("end", self._ends)
            yield self.end

    def _chunks(self) -> Iterator[TokensGenerated]:
        by_id: dict[bytes, TokensGenerated] = {}
        for _, chunk in sorted(self._by_cumulative.items()):
            other = by_id.get(chunk.event_id) if chunk.event_id else None
            if other is not None:
                # One id for two facts: readers pass an id once, and the larger count holds the smaller.
                self.contradictions.append(Contradiction("chunk", chunk, other, relation(chunk, other)))
            by_id[chunk.event_id or _encode(chunk)] = chunk
        before = 0
        for chunk in sorted(by_id.values(), key=lambda it: it.cumulative):
            yield with_count(chunk, chunk.cumulative - before)
            before = chunk.cumulative
        if not self._without:
            return
        region = min(chunk.region for chunk in self._without.values())
        for chunk in self._without.values():
            if self._by_cumulative or chunk.region != region:
                self.held_back.append(HeldBack(HeldBackReason.NOT_TOLD_APART, chunk))
            else:
                yield chunk

    def _choose(self, what: str, told: list[_E]) -> _E:
        """The one that stands; the others are repetitions of it, or contradict it."""
        kept = told[0]
        for event in told[1:]:
            kept = _better(kept, event)
        self.seen["repeated"] += len(told) - 1
        reported: set[bytes] = set()
        for event in told:
            name = event.event_id or _encode(event)
            if _contradict(kept, event) and name not in reported:
                reported.add(name)
                self.contradictions.append(Contradiction(what, kept, event, relation(kept, event)))
        return kept


def first_of(one: _E, other: _E) -> _E:
    """The one that stands first in the total order, one that is stamped before one that is not."""
    mine, theirs = (not is_stamped(one), place_of(one)), (not is_stamped(other), place_of(other))
    if mine != theirs:
        return one if mine < theirs else other
    # The same id twice: equal as a rule, and where it is not, the choice must not depend on who came first.
    return one if one == other or _encode(one) <= _encode(other) else other


def _better(one: _E, other: _E) -> _E:
    if isinstance(one, PromptSubmitted) or isinstance(other, PromptSubmitted):
        return first_of(one, other)
    # Of requests, only ends are left.
    mine, theirs = ending_of(one), ending_of(other)  # type: ignore[arg-type]
    if (mine.kind, mine.said) != (theirs.kind, theirs.said):
        return one if mine < theirs else other
    return first_of(one, other)


def _contradict(kept: Event, other: Event) -> bool:
    if isinstance(kept, PromptSubmitted) and isinstance(other, PromptSubmitted):
        return (kept.prompt_tokens, kept.resumed_at_token) != (other.prompt_tokens, other.resumed_at_token)
    return contradict(ending_of(kept), ending_of(other))  # type: ignore[arg-type]


def with_count(chunk: TokensGenerated, count: int) -> TokensGenerated:
    """The chunk as one that adds `count` tokens; a hash of its content is made anew."""
    if chunk.count == count:
        return chunk
    changed = msgspec.structs.replace(chunk, count=count)
    provenance = chunk.provenance
    if provenance is None or not provenance.content_hash:
        return changed
    hashed = msgspec.structs.replace(provenance, content_hash=content_hash(canonical_body(changed)))
    return msgspec.structs.replace(changed, provenance=hashed)


def sum_of_counts(events: Iterable[Event]) -> dict[AttemptName, int]:
    """Tokens of each attempt, as a reader adds them up that knows nothing of `cumulative`."""
    total: Counter[AttemptName] = Counter()
    for event in events:
        if isinstance(event, TokensGenerated):
            total[event.tenant, event.request_id, event.attempt] += event.count
    return dict(total)
