"""Events to measure with: the shipped trace, and synthetic lives over many tenants."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import Any, TypeVar

from jobs.ops.azure_trace import CHUNK_TOKENS, TRACE, lives, read_trace
from schemas.codec import encode_events
from schemas.decisions import LimitLevel, LimitUnit
from schemas.events import Event, PromptSubmitted, RequestCompleted, TokensGenerated, UsageSource
from schemas.topics import shard_of
from udfs.domain.limiter import Limit, LimiterPolicy

MINUTE_US = 60_000_000
CHUNKS = 8

POLICY = LimiterPolicy(
    id="bench",
    match="*",
    limits=(
        Limit(
            name="tokens-minute",
            level=LimitLevel.TENANT,
            unit=LimitUnit.TOKENS,
            limit=2_000_000,
            window_us=MINUTE_US,
        ),
        Limit(
            name="key-tokens-minute",
            level=LimitLevel.API_KEY,
            unit=LimitUnit.TOKENS,
            limit=1_000_000,
            window_us=MINUTE_US,
        ),
        Limit(
            name="requests-minute",
            level=LimitLevel.TENANT,
            unit=LimitUnit.REQUESTS,
            limit=10_000,
            window_us=MINUTE_US,
        ),
        Limit(name="streams", level=LimitLevel.TENANT, unit=LimitUnit.STREAMS, limit=1_000),
    ),
)
"""Four limits at two levels, wide enough that most requests run: admitted requests cost more than refused ones."""


POLICY_YAML = """\
version: 1
policies:
  - id: bench
    tenant: "*"
    limits:
      - {name: tokens-minute, level: tenant, unit: tokens, limit: 2M, window: 60s}
      - {name: key-tokens-minute, level: api_key, unit: tokens, limit: 1M, window: 60s}
      - {name: requests-minute, level: tenant, unit: requests, limit: 10k, window: 60s}
      - {name: streams, level: tenant, unit: streams, limit: 1k}
"""
"""The same as a file, for the job."""


def azure_events(tenants: int = 12, chunk_tokens: int = CHUNK_TOKENS, rows: int | None = None) -> list[Event]:
    """The shipped trace as events, as `headrace demo` makes them; its first `rows` requests."""
    return lives(islice(read_trace(TRACE), rows), tenants, seed=1, chunk_tokens=chunk_tokens)


def batches(events: Iterable[Event], size: int = 500) -> list[tuple[int, bytes]]:
    """(shard, EventBatch) of at most `size` events, in log order."""
    waiting: dict[int, list[Event]] = {}
    done: list[tuple[int, bytes]] = []
    for event in events:
        shard = shard_of(event.tenant)
        batch = waiting.setdefault(shard, [])
        batch.append(event)
        if len(batch) == size:
            done.append((shard, encode_events(shard, batch)))
            batch.clear()
    done.extend((shard, encode_events(shard, batch)) for shard, batch in waiting.items() if batch)
    return done


EventT = TypeVar("EventT", PromptSubmitted, TokensGenerated, RequestCompleted)


def life(tenant: str, number: int, at_us: int, chunks: int = CHUNKS) -> Iterator[Event]:
    """One request: a prompt, `chunks` chunks of 16 tokens half a second apart, its completion."""
    request_id = f"request-{number}"

    def event(kind: type[EventT], sequence: int, time_us: int, **body: Any) -> EventT:
        return kind(
            event_id=b"",
            tenant=tenant,
            request_id=request_id,
            attempt=0,
            event_time_us=time_us,
            watermark_us=0,
            sequence=sequence,
            session=request_id,
            model="model",
            backend="",
            region="",
            source="bench",
            provenance=None,
            **body,
        )

    yield event(PromptSubmitted, 1, at_us, prompt_tokens=500, api_key="key")
    for chunk in range(1, chunks + 1):
        at_us += 500_000
        yield event(TokensGenerated, chunk + 1, at_us, count=16, cumulative=16 * chunk)
    yield event(
        RequestCompleted,
        chunks + 2,
        at_us,
        prompt_tokens=500,
        completion_tokens=16 * chunks,
        usage_source=UsageSource.REPORTED,
    )


def uniform(keys: int, rng: random.Random) -> Callable[[], int]:
    """Every tenant as likely as any other."""
    return lambda: rng.randrange(keys)


def zipf(keys: int, rng: random.Random) -> Callable[[], int]:
    """Tenant i with a share proportional to 1 / i."""
    shares = list(accumulate(1 / rank for rank in range(1, keys + 1)))
    population = range(keys)
    return lambda: rng.choices(population, cum_weights=shares)[0]


def traffic(pick: Callable[[], int], requests: int, start_us: int, per_second: int = 100) -> list[Event]:
    """Lives of `requests` requests that arrive at a steady rate, interleaved in event time."""
    events = [
        event
        for number in range(requests)
        for event in life(f"tenant-{pick()}", number, start_us + number * 1_000_000 // per_second)
    ]
    events.sort(key=lambda event: event.event_time_us)
    return events
