"""What a load plays: requests with the time at which each is due, from a recording or made up at a steady rate."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec

from jobs.ops import azure_trace
from schemas.events import (
    Envelope,
    InterruptReason,
    PromptSubmitted,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)

Ending: TypeAlias = RequestCompleted | RequestFailed | StreamInterrupted


class PlanError(ValueError):
    """A load that can't be played; the message is one line."""


class PlannedRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request: when it is due, and what its backend would do once it is admitted.

    `due_us` counts from the start of the load. `prompt` and `ending` are templates: the gateway gives them ids and
    times of its own. `offsets_us` and `cumulatives`: when each chunk is there, from the admission on, and how many
    tokens there are then; both rise. `end_offset_us` is not before the last chunk.
    """

    due_us: int
    prompt: PromptSubmitted
    offsets_us: tuple[int, ...]
    cumulatives: tuple[int, ...]
    ending: Ending
    end_offset_us: int

    def __post_init__(self) -> None:
        if len(self.offsets_us) != len(self.cumulatives):
            raise PlanError("a stream needs one offset for each cumulative count")
        in_time = all(earlier <= later for earlier, later in pairwise((0, *self.offsets_us, self.end_offset_us)))
        if not (in_time and all(fewer < more for fewer, more in pairwise((0, *self.cumulatives)))):
            raise PlanError("the chunks of a stream must come in order, and its end after them")
        if self.due_us < 0:
            raise PlanError(f"due_us is {self.due_us}, it counts from the start of the load")


# --- from a recording ------------------------------------------------------------------------------------------------


class _Recorded:
    """What a recording says of one attempt."""

    __slots__ = ("chunks", "ending")

    def __init__(self) -> None:
        self.chunks: list[TokensGenerated] = []
        self.ending: Ending | None = None


class _Life:
    """What a recording says of one request."""

    __slots__ = ("attempts", "prompts")

    def __init__(self) -> None:
        self.prompts: list[PromptSubmitted] = []
        self.attempts: dict[int, _Recorded] = {}


def from_recording(events: Iterable[Envelope], *, speed: float) -> list[PlannedRequest]:
    """The requests of a recording, `speed` times as fast, in the order in which they are due.

    A request that was tried several times is played once, from its first prompt on; its stream is that of the attempt
    that streamed most. One whose prompt is missing is left out. One whose end is missing loses its connection at the
    last chunk. Raises PlanError where nothing is left.
    """
    if not 0 < speed < math.inf:
        raise PlanError(f"speed is {speed}, it must be above 0 and finite")
    lives: dict[tuple[str, str], _Life] = {}
    for event in events:
        if not isinstance(
            event, PromptSubmitted | TokensGenerated | RequestCompleted | RequestFailed | StreamInterrupted
        ):
            continue
        life = lives.setdefault((event.tenant, event.request_id), _Life())
        if isinstance(event, PromptSubmitted):
            life.prompts.append(event)
            continue
        recorded = life.attempts.setdefault(event.attempt, _Recorded())
        if isinstance(event, TokensGenerated):
            recorded.chunks.append(event)
        else:
            recorded.ending = recorded.ending or event
    played = [life for life in lives.values() if life.prompts]
    if not played:
        raise PlanError("the recording has no prompt, so there is nothing to play")
    began_us = min(prompt.event_time_us for life in played for prompt in life.prompts)
    return sorted((_planned(life, began_us, speed) for life in played), key=lambda request: request.due_us)


def _planned(life: _Life, began_us: int, speed: float) -> PlannedRequest:
    prompt = min(life.prompts, key=lambda prompt: (prompt.attempt, prompt.event_time_us))
    streams = [(_stream(recorded.chunks), attempt) for attempt, recorded in life.attempts.items()]
    stream, attempt = max(streams, key=lambda found: found[0][-1][1] if found[0] else 0, default=([], 0))
    # The attempt's own prompt is what its backend began with.
    asked_us = min((asked.event_time_us for asked in life.prompts if asked.attempt == attempt), default=0)
    asked_us = asked_us or prompt.event_time_us

    def offset_us(at_us: int) -> int:
        return max(round((at_us - asked_us) / speed), 0)

    ending = life.attempts[attempt].ending if streams else None
    last_us = stream[-1][0] if stream else asked_us
    return PlannedRequest(
        due_us=round((prompt.event_time_us - began_us) / speed),
        prompt=prompt,
        offsets_us=tuple(offset_us(at_us) for at_us, _ in stream),
        cumulatives=tuple(cumulative for _, cumulative in stream),
        ending=_ending(ending, prompt),
        end_offset_us=offset_us(max(last_us, ending.event_time_us if ending else 0)),
    )


def _stream(chunks: list[TokensGenerated]) -> list[tuple[int, int]]:
    """Time and cumulative tokens of each chunk that brought something new."""
    stream: list[tuple[int, int]] = []
    total = 0
    for chunk in sorted(chunks, key=lambda chunk: (chunk.event_time_us, chunk.sequence)):
        cumulative = chunk.cumulative or total + max(chunk.count, 0)
        if cumulative > total:
            total = cumulative
            stream.append((chunk.event_time_us, total))
    return stream


def _ending(recorded: Ending | None, prompt: PromptSubmitted) -> Ending:
    if recorded is None:
        return _interruption(prompt, InterruptReason.CONNECTION_LOST)
    if isinstance(recorded, StreamInterrupted) and recorded.reason is InterruptReason.REVOKED:
        # Whether it is revoked is decided anew; where it is not, its client goes away at the same token.
        return _interruption(recorded, InterruptReason.CLIENT_DISCONNECTED)
    return recorded


def _interruption(like: Envelope, reason: InterruptReason) -> StreamInterrupted:
    envelope = {name: getattr(like, name) for name in Envelope.__struct_fields__}
    return StreamInterrupted(**envelope, reason=reason)


# --- made up at a steady rate ----------------------------------------------------------------------------------------


class SteadyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load of `events_per_second`, if all is admitted, for `seconds`.

    Prompts and completions are as long as those of the Azure trace, in an order that `seed` fixes, and stream at the
    pace of jobs.ops.azure_trace, `speed` times as fast; requests come at even distances. The i-th of `tenants` gets a
    share proportional to 1 / i.
    """

    events_per_second: float
    seconds: float
    tenants: int = 12
    speed: float = 1.0
    seed: int = 1
    chunk_tokens: int = azure_trace.CHUNK_TOKENS

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name != "seed" and not 0 < getattr(self, name) < math.inf:
                raise PlanError(f"{name} is {getattr(self, name)}, it must be above 0 and finite")


PROMPT_AND_END: Final = 2
"""Events of a request besides its chunks."""


def at_steady_rate(load: SteadyLoad, rows: Sequence[azure_trace.TraceRow]) -> Iterator[PlannedRequest]:
    """The requests of a steady load, made while it runs. `rows` have the lengths."""
    rng = random.Random(load.seed)
    names = azure_trace.tenant_names(load.tenants)
    shares = list(accumulate(1 / rank for rank in range(1, load.tenants + 1)))
    lengths = list(rows)
    rng.shuffle(lengths)
    chunks = sum(-(-row.completion_tokens // load.chunk_tokens) for row in lengths)
    events_per_request = PROMPT_AND_END + chunks / len(lengths)
    every_us = 1e6 * events_per_request / load.events_per_second
    for number in range(int(load.seconds * 1e6 / every_us) + 1):
        row = lengths[number % len(lengths)]
        tenant = rng.choices(names, cum_weights=shares)[0]
        yield _made_up(round(number * every_us), row, tenant, load, rng)


def _made_up(
    due_us: int, row: azure_trace.TraceRow, tenant: str, load: SteadyLoad, rng: random.Random
) -> PlannedRequest:
    total = row.completion_tokens
    first_us = azure_trace.FIRST_TOKEN_US + row.prompt_tokens * azure_trace.PROMPT_TOKEN_US
    cumulatives = (*range(load.chunk_tokens, total, load.chunk_tokens), total) if total else ()
    offsets_us = tuple(round((first_us + (so_far - 1) * azure_trace.TOKEN_US) / load.speed) for so_far in cumulatives)
    envelope = (b"", tenant, "", 0, 0, 0, 0, "", azure_trace.MODEL, "", "", "", None)
    return PlannedRequest(
        due_us=due_us,
        prompt=PromptSubmitted(
            *envelope,
            prompt_tokens=row.prompt_tokens,
            api_key=f"{tenant}-key-{rng.randrange(azure_trace.KEYS_PER_TENANT) + 1}",
            user=f"{tenant}-user-{rng.randrange(azure_trace.USERS_PER_TENANT) + 1:02d}",
            stream=True,
        ),
        offsets_us=offsets_us,
        cumulatives=cumulatives,
        ending=RequestCompleted(
            *envelope,
            prompt_tokens=row.prompt_tokens,
            completion_tokens=total,
            usage_source=UsageSource.REPORTED,
            finish_reason="stop",
        ),
        end_offset_us=offsets_us[-1] if offsets_us else round(first_us / load.speed),
    )


# --- either ----------------------------------------------------------------------------------------------------------


def until(requests: Iterable[PlannedRequest], end_us: int) -> Iterator[PlannedRequest]:
    """Those that are due before `end_us`."""
    for request in requests:
        if request.due_us >= end_us:
            return
        yield request
