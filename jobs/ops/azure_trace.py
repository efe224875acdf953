"""The Azure LLM inference trace of 2023 as events: what a gateway in front of that service would have logged.

The trace gives, for each request, its arrival and its prompt and completion tokens (Patel et al., Splitwise, ISCA
2024). All else is assumed, by a rule that a seed fixes:

- **Tenants**: each request goes to one of `tenants`, the i-th of which gets a share proportional to 1 / i (Zipf). Each
  tenant has three API keys and twenty users, drawn evenly.
- **Life**: the prompt at arrival; the first token after 200 ms and 0.25 ms a prompt token; then a token every 30 ms,
  reported in chunks of 16; the completion with the last one. Nobody gives max_tokens, as the trace has none.
- **Delivery**: each event reaches the log after a delay of its own, exponential with a mean of 20 ms, and every
  fiftieth one after another 0 to 2 s, so the log is out of order as real ones are.

Requests that the limiter throttles are not asked again: a recording can't react. The demo's policy says so
(`traffic: recorded`).
"""

import csv
import gzip
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from schemas.codec import NAME_OF_KIND
from schemas.events import Event, PromptSubmitted, RequestCompleted, TokensGenerated, UsageSource
from schemas.identity import event_id

CHUNK_TOKENS = 16
TOKEN_US = 30_000
FIRST_TOKEN_US = 200_000
PROMPT_TOKEN_US = 250
KEYS_PER_TENANT = 3
USERS_PER_TENANT = 20
MODEL = "azure-conv"
TRACE = Path(__file__).parents[2] / "data" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.gz"
SPREADING = (
    "Each request goes to one of the tenants, the i-th with a share proportional to 1 / i, and to one of its three "
    "API keys and twenty users, drawn evenly. First token after 200 ms and 0.25 ms a prompt token, then one every "
    "30 ms, in chunks of 16. Each event reaches the log after an exponential delay of 20 ms in the mean, every "
    "fiftieth up to 2 s later."
)
SOURCE = "gateway-1"


SPAN_US = 3_600_000_000
"""More than the trace spans, by which a copy of it can be shifted to follow it."""


EventT = TypeVar("EventT", PromptSubmitted, TokensGenerated, RequestCompleted)


class TraceRow(NamedTuple):
    """One request of the trace."""

    arrival_us: int
    prompt_tokens: int
    completion_tokens: int


class TraceError(ValueError):
    """A trace file that can't be read; the message names the line."""


def _row(path: Path, line: int, fields: list[str]) -> TraceRow:
    try:
        stamp, prompt_tokens, completion_tokens = fields
        # Seven fraction digits, one more than datetime reads.
        whole, fraction = stamp.split(".")
        at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
        arrival_us = int(at.timestamp()) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
        return TraceRow(arrival_us, int(prompt_tokens), int(completion_tokens))
    except ValueError as error:
        raise TraceError(f"{path}, line {line}: {error}") from error


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Rows in order of arrival. Raises TraceError for a line that is not of the trace's form."""
    with gzip.open(path, "rt", newline="") as lines:
        reader = csv.reader(lines)
        header = next(reader, None)
        if header != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
            raise TraceError(f"{path}, line 1: not the header of the Azure LLM inference trace")
        for line, fields in enumerate(reader, start=2):
            yield _row(path, line, fields)


def shifted(event: Event, by_us: int, copy: int) -> Event:
    """The same event later, as part of the `copy`-th round: other requests and sessions, the same tenants."""
    return msgspec.structs.replace(
        event,
        event_time_us=event.event_time_us + by_us,
        watermark_us=event.watermark_us + by_us if event.watermark_us else 0,
        request_id=f"{event.request_id}-{copy}",
        session=f"{event.session}-{copy}",
    )


def tenant_names(count: int) -> list[str]:
    """tenant-01, tenant-02, ..., the busiest first."""
    return [f"tenant-{number:02d}" for number in range(1, count + 1)]


def _life(row: TraceRow, number: int, tenant: str, rng: random.Random, chunk_tokens: int) -> Iterator[Event]:
    session = f"session-{number:05d}"
    request_id = f"request-{number:05d}"
    first_us = row.arrival_us + FIRST_TOKEN_US + row.prompt_tokens * PROMPT_TOKEN_US
    total = row.completion_tokens

    def event(kind: type[EventT], sequence: int, at_us: int, **body: Any) -> EventT:
        return kind(
            event_id=event_id(session, sequence, NAME_OF_KIND[kind]),
            tenant=tenant,
            request_id=request_id,
            attempt=0,
            event_time_us=at_us,
            watermark_us=0,
            sequence=sequence,
            session=session,
            model=MODEL,
            backend="",
            region="",
            source=SOURCE,
            provenance=None,
            **body,
        )

    yield event(
        PromptSubmitted,
        1,
        row.arrival_us,
        prompt_tokens=row.prompt_tokens,
        api_key=f"{tenant}-key-{rng.randrange(KEYS_PER_TENANT) + 1}",
        user=f"{tenant}-user-{rng.randrange(USERS_PER_TENANT) + 1:02d}",
        stream=True,
    )
    sequence = 2
    at_us = first_us
    for so_far in range(0, total, chunk_tokens):
        count = min(chunk_tokens, total - so_far)
        at_us = first_us + (so_far + count - 1) * TOKEN_US
        yield event(TokensGenerated, sequence, at_us, count=count, cumulative=so_far + count)
        sequence += 1
    yield event(
        RequestCompleted,
        sequence,
        at_us,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=total,
        usage_source=UsageSource.REPORTED,
        finish_reason="stop",
    )


def lives(rows: Iterable[TraceRow], tenants: int, seed: int, chunk_tokens: int = CHUNK_TOKENS) -> list[Event]:
    """Every request's life, in the order in which the events reach the log."""
    rng = random.Random(seed)
    names = tenant_names(tenants)
    shares = list(accumulate(1 / rank for rank in range(1, tenants + 1)))
    delivered: list[tuple[float, int, Event]] = []
    for number, row in enumerate(rows, start=1):
        tenant = rng.choices(names, cum_weights=shares)[0]
        arrives_us = 0.0
        for event in _life(row, number, tenant, rng, chunk_tokens):
            delay_us = rng.expovariate(1 / 20_000) + (rng.random() * 2_000_000 if rng.random() < 1 / 50 else 0.0)
            arrives_us = event.event_time_us + delay_us
            delivered.append((arrives_us, len(delivered), event))
    delivered.sort()
    return [event for _, _, event in delivered]
