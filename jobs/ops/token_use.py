"""When tokens were generated and how many stood in a limit's window: told from the log, without the limiter's code.

The limiter keeps slots, reservations and debt. This module has none of them: it lists each token at the event time at
which it was generated and counts those in (t - window, t], which is what a limit of tokens a window means.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from schemas.events import (
    PromptSubmitted,
    RequestCompleted,
    RequestEvent,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    has_usage,
)
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.limiter.tokens import is_plausible, weighted_prompt_tokens
from udfs.domain.policy_log import FOREVER_US, PolicyLog


class Use(NamedTuple):
    """Tokens generated, or a prompt processed, at one event time."""

    at_us: int
    tokens: int
    is_prompt: bool


class Chunk(NamedTuple):
    """One TokensGenerated, so that sorting brings the tokens into the order in which they were made."""

    at_us: int
    sequence: int
    cumulative: int
    new: int


class RequestLife(msgspec.Struct):
    """What the log tells of one attempt at a request.

    `ran`: the limiter let it run or saw it run. `cut_tokens`: in a recording, what it had used when it was revoked;
    the rest of the recording did not happen. `settled_tokens`: what the limiter says it used in the end.
    """

    prompt: PromptSubmitted | None = None
    chunks: set[Chunk] = msgspec.field(default_factory=set)
    end: StreamInterrupted | RequestCompleted | RequestFailed | None = None
    ran: bool = False
    cut_tokens: int | None = None
    settled_tokens: int | None = None

    def add(self, event: RequestEvent) -> None:
        """Take in an event, in log order: of prompts and of ends the first counts, and a repeated chunk counts once."""
        if isinstance(event, TokensGenerated):
            if is_plausible(event.cumulative) and is_plausible(event.count):
                self.chunks.add(Chunk(event.event_time_us, event.sequence, event.cumulative, event.count))
        elif isinstance(event, PromptSubmitted):
            self.prompt = self.prompt or event
        else:
            self.end = self.end or event


def _prompt_tokens(life: RequestLife, weight_permille: int) -> int:
    prompt = life.prompt
    if prompt is None or not (is_plausible(prompt.prompt_tokens) and is_plausible(prompt.cached_tokens)):
        return 0
    return weighted_prompt_tokens(prompt.prompt_tokens, prompt.cached_tokens, weight_permille)


def _at_the_end(life: RequestLife, streamed: int, weight_permille: int) -> tuple[int, int]:
    """Prompt and completion tokens that the request came to, `streamed` of which were seen in chunks."""
    end = life.end
    if isinstance(end, RequestCompleted | RequestFailed) and has_usage(end):
        cached = end.cached_tokens if isinstance(end, RequestCompleted) else 0
        if all(map(is_plausible, (end.prompt_tokens, end.completion_tokens, cached))):
            return weighted_prompt_tokens(end.prompt_tokens, cached, weight_permille), end.completion_tokens
    prompt = _prompt_tokens(life, weight_permille)
    if isinstance(end, StreamInterrupted):
        return prompt, max(streamed, end.token_offset) if is_plausible(end.token_offset) else streamed
    return prompt if streamed else 0, streamed


def uses_of(life: RequestLife, weight_permille: int = 1000) -> list[Use]:
    """The tokens of one request, in order of time; none where it did not run.

    The prompt counts at the first token, or at the end where none came before it. What the end reports beyond the
    chunks counts at the end. `weight_permille`: what a cached prompt token counts, in thousandths.
    """
    if not life.ran:
        return []
    made: list[Use] = []
    streamed = 0
    for chunk in sorted(life.chunks):
        new = chunk.cumulative - streamed if chunk.cumulative else chunk.new
        if new > 0:
            made.append(Use(chunk.at_us, new, is_prompt=False))
            streamed += new
    prompt, completion = _at_the_end(life, streamed, weight_permille)
    if life.end is not None and completion > streamed:
        made.append(Use(life.end.event_time_us, completion - streamed, is_prompt=False))
        made.sort()
    left = prompt + completion
    if life.cut_tokens is not None:
        left = min(left, life.cut_tokens)
    if prompt:
        times = [use.at_us for use in made] + ([life.end.event_time_us] if life.end is not None else [])
        made.insert(0, Use(min(times), prompt, is_prompt=True))
    kept: list[Use] = []
    for use in made:
        tokens = min(use.tokens, left)
        if tokens > 0:
            kept.append(use._replace(tokens=tokens))
            left -= tokens
    return kept


class LimitPiece(NamedTuple):
    """One limit as it held from `from_us` to `until_us` (exclusive)."""

    from_us: int
    until_us: int
    limit: Limit


def enforced_token_limits(
    policies: PolicyLog[LimiterPolicy], tenant: str, start_us: int, end_us: int
) -> dict[str, list[LimitPiece]]:
    """The enforced tenant-level token limits that held from `start_us` to `end_us`, by name, in order of time."""
    pieces: dict[str, list[LimitPiece]] = {}
    at_us = start_us
    while at_us <= end_us:
        policy, until_us = policies.at(tenant, at_us)
        for limit in policy.limits if policy is not None else ():
            is_ours = limit.level is LimitLevel.TENANT and (not limit.only or tenant in limit.only)
            if is_ours and limit.unit is LimitUnit.TOKENS and limit.mode is DecisionMode.ENFORCE:
                pieces.setdefault(limit.name, []).append(LimitPiece(at_us, until_us, limit))
        if until_us == FOREVER_US:
            break
        at_us = until_us
    return pieces


class RollingUse:
    """Tokens in any window, exactly: two look-ups in the running total of all uses."""

    def __init__(self, uses: Iterable[Use], limit: Limit | None = None) -> None:
        """Count `uses`; with a `limit`, only those tokens that it counts."""
        counted = sorted(
            use for use in uses if limit is None or (limit.counts_prompt if use.is_prompt else limit.counts_completion)
        )
        self.times_us = [use.at_us for use in counted]
        self._totals = [0, *accumulate(use.tokens for use in counted)]

    def between(self, after_us: int, until_us: int) -> int:
        """Tokens used in (after_us, until_us]."""
        return self._totals[bisect_right(self.times_us, until_us)] - self._totals[bisect_right(self.times_us, after_us)]


class PeakUse(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which a tenant came nearest to a limit, or went furthest beyond it.

    `tokens` were used in (at_us - window_us, at_us]. `limit` is the largest that the limit had within that window:
    what was used before a limit was lowered was allowed then.
    """

    limit_name: str
    window_us: int
    at_us: int
    tokens: int
    limit: int
    share: float
    within: bool


def _loosest(pieces: Sequence[LimitPiece], now: LimitPiece, at_us: int) -> int:
    """The largest value that the limit had at any microsecond of its window up to `at_us`."""
    window_us = now.limit.window_us
    return max(
        piece.limit.limit
        for piece in pieces
        if piece.limit.window_us == window_us and piece.from_us <= at_us and piece.until_us > at_us - window_us + 1
    )


def _moments(pieces: Sequence[LimitPiece], times_us: list[int]) -> Iterator[tuple[int, LimitPiece]]:
    """Where a share of a limit can be highest: at a use, at a change of limits, and when a larger one is past."""
    changes = {piece.from_us for piece in pieces} | {piece.until_us + piece.limit.window_us - 1 for piece in pieces}
    for piece in pieces:
        first, last = bisect_right(times_us, piece.from_us - 1), bisect_right(times_us, piece.until_us - 1)
        moments = set(times_us[first:last]) | {at_us for at_us in changes if piece.from_us <= at_us < piece.until_us}
        for at_us in sorted(moments):
            yield at_us, piece


def peak_use(uses: Sequence[Use], pieces: Sequence[LimitPiece]) -> PeakUse | None:
    """The highest share of one limit that was used in any of its windows; None where the limit never held."""
    best: PeakUse | None = None
    rolling: RollingUse | None = None
    counted_as: Limit | None = None
    for at_us, piece in _moments(pieces, sorted({use.at_us for use in uses})):
        limit = piece.limit
        if rolling is None or counted_as is not limit:
            rolling, counted_as = RollingUse(uses, limit), limit
        tokens = rolling.between(at_us - limit.window_us, at_us)
        allowed = _loosest(pieces, piece, at_us)
        # Whole numbers: a share that is equal must not win by its rounding.
        if best is None or tokens * best.limit > best.tokens * allowed:
            best = PeakUse(
                limit_name=limit.name,
                window_us=limit.window_us,
                at_us=at_us,
                tokens=tokens,
                limit=allowed,
                share=tokens / allowed,
                within=tokens <= allowed,
            )
    return best
