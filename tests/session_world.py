"""Events of sessions for tests: made by hand, without the code under test."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from schemas.events import (
    Event,
    PromptSubmitted,
    Provenance,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)

T0_US = 1_700_000_000_000_000
TENANT = "acme"
SESSION = "s1"
_E = TypeVar("_E", bound=Event)


def envelope(name: str, request_id: str = "r1", attempt: int = 0, **fields: Any) -> dict[str, Any]:
    """The envelope of an event whose id is `name`."""
    return {
        "event_id": name.encode(),
        "tenant": TENANT,
        "request_id": request_id,
        "attempt": attempt,
        "event_time_us": T0_US,
        "watermark_us": 0,
        "sequence": 1,
        "session": SESSION,
        "model": "",
        "backend": "",
        "region": "",
        "source": "",
        "provenance": None,
        **fields,
    }


def prompt(name: str, request_id: str = "r1", attempt: int = 0, tokens: int = 10, **fields: Any) -> PromptSubmitted:
    return PromptSubmitted(**envelope(name, request_id, attempt, **fields), prompt_tokens=tokens)


def resumed(name: str, at: int, attempt: int = 1, request_id: str = "r1", **fields: Any) -> PromptSubmitted:
    return PromptSubmitted(**envelope(name, request_id, attempt, **fields), prompt_tokens=10, resumed_at_token=at)


def chunk(
    name: str, cumulative: int, count: int = 0, request_id: str = "r1", attempt: int = 0, **fields: Any
) -> TokensGenerated:
    return TokensGenerated(**envelope(name, request_id, attempt, **fields), count=count, cumulative=cumulative)


def interrupted(
    name: str,
    offset: int,
    request_id: str = "r1",
    attempt: int = 0,
    usage_source: UsageSource = UsageSource.REPORTED,
    **fields: Any,
) -> StreamInterrupted:
    return StreamInterrupted(
        **envelope(name, request_id, attempt, **fields), token_offset=offset, usage_source=usage_source
    )


def completed(
    name: str,
    tokens: int,
    request_id: str = "r1",
    attempt: int = 0,
    usage_source: UsageSource = UsageSource.REPORTED,
    **fields: Any,
) -> RequestCompleted:
    return RequestCompleted(
        **envelope(name, request_id, attempt, **fields),
        prompt_tokens=10,
        completion_tokens=tokens,
        usage_source=usage_source,
    )


def failed(name: str, request_id: str = "r1", attempt: int = 0, **fields: Any) -> RequestFailed:
    return RequestFailed(**envelope(name, request_id, attempt, **fields), error_class="timeout")


def stamped(event: _E, region: str, lamport: int, clock: Mapping[str, int]) -> _E:
    """The event with the time that a region would have given it."""
    provenance = Provenance(lamport=lamport, vector_clock=dict(clock))
    return msgspec.structs.replace(event, region=region, provenance=provenance)


def names(events: Iterable[Event]) -> list[str]:
    return [event.event_id.decode() for event in events]
