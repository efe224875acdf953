"""The Azure LLM inference trace of 2023 as events: what a gateway in front of that service would have logged.

The trace gives, for each request, its arrival and its prompt and completion tokens (Patel et al., Splitwise, ISCA 2024). All
else is assumed, by a rule that a seed fixes:

- **Tenants**: each request goes to one of `tenants`, the i-th of which gets a share proportional to 1 / i (Zipf). Each tenant
  has three API keys and twenty users, drawn evenly.
- **Life**: the prompt at arrival; the first token after 200 ms and 0.25 ms a prompt token; then a token every 30 ms, reported
  in chunks of 16; the completion with the last one. Nobody gives max_tokens, as the trace has none.
- **Delivery**: each event reaches the log after a delay of its own, exponential with a mean of 20 ms, and every fiftieth one
  after another 0 to 2 s, so the log is out of order as real ones are.

Requests that the limiter throttles are not asked again: a recording can't react. The demo's policy says so
(`traffic_is_recorded`).
"""

import csv
import gzip
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from schemas.events import Event, PromptSubmitted, RequestCompleted, TokensGenerated, UsageSource
from schemas.identity import event_id

CHUNK_TOKENS = 16
TOKEN_US = 30_000
FIRST_TOKEN_US = 200_000
PROMPT_TOKEN_US = 250
KEYS_PER_TENANT = 3
USERS_PER_TENANT = 20
MODEL = "azure-conv"
SOURCE = "gateway-1"


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


def tenant_names(count: int) -> list[str]:
    """tenant-01, tenant-02, ..., the busiest first."""
    return [f"tenant-{number:02d}" for number in range(1, count + 1)]


def _life(row: TraceRow, number: int, tenant: str, rng: random.Random) -> Iterator[Event]:
    session = f"session-{number:05d}"
    request_id = f"request-{number:05d}"
    first_us = row.arrival_us + FIRST_TOKEN_US + row.prompt_tokens * PROMPT_TOKEN_US
    total = row.completion_tokens

    def event_at(sequence: int, kind: str, at_us: int) -> tuple[object, ...]:
        id_ = event_id(session, sequence, kind)
        return (id_, tenant, request_id, 0, at_us, 0, sequence, session, MODEL, "", "", SOURCE, None)

    yield PromptSubmitted(
        *event_at(1, "prompt_submitted", row.arrival_us),  # type: ignore[arg-type]
        prompt_tokens=row.prompt_tokens,
        api_key=f"{tenant}-key-{rng.randrange(KEYS_PER_TENANT) + 1}",
        user=f"{tenant}-user-{rng.randrange(USERS_PER_TENANT) + 1:02d}",
        stream=True,
    )
    sequence = 2
    at_us = first_us
    for so_far in range(0, total, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, total - so_far)
        at_us = first_us + (so_far + count - 1) * TOKEN_US
        yield TokensGenerated(
            *event_at(sequence, "tokens_generated", at_us),  # type: ignore[arg-type]
            count=count,
            cumulative=so_far + count,
        )
        sequence += 1
    yield RequestCompleted(
        *event_at(sequence, "request_completed", at_us),  # type: ignore[arg-type]
        prompt_tokens=row.prompt_tokens,
        completion_tokens=total,
        usage_source=UsageSource.REPORTED,
        finish_reason="stop",
    )


def lives(rows: Iterable[TraceRow], tenants: int, seed: int) -> list[Event]:
    """Every request's life, in the order in which the events reach the log."""
    rng = random.Random(seed)
    names = tenant_names(tenants)
    shares = list(accumulate(1 / rank for rank in range(1, tenants + 1)))
    delivered: list[tuple[float, int, Event]] = []
    for number, row in enumerate(rows, start=1):
        tenant = rng.choices(names, cum_weights=shares)[0]
        arrives_us = 0.0
        for event in _life(row, number, tenant, rng):
            delay_us = rng.expovariate(1 / 20_000) + (rng.random() * 2_000_000 if rng.random() < 1 / 50 else 0.0)
            arrives_us = event.event_time_us + delay_us
            delivered.append((arrives_us, len(delivered), event))
    delivered.sort()
    return [event for _, _, event in delivered]
