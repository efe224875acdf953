"""What is known of an attempt becomes its events: every field in its place, ids that never change."""

import msgspec
import pytest

from schemas.codec import NAME_OF_KIND
from schemas.dead_letters import DeadLetterReason
from schemas.events import (
    InterruptReason,
    PromptSubmitted,
    Provenance,
    RequestCompleted,
    RequestFailed,
    StreamInterrupted,
    TokensGenerated,
    UsageSource,
)
from schemas.identity import event_id
from udfs.domain.ingest.attempt import Attempt, Chunk, End, Usage, events_of
from udfs.domain.ingest.record import Origin, UnreadableRecordError

PROVENANCE = Provenance(trace_id=b"\1" * 16)
ORIGIN = Origin(source="gateway", tenant="from-origin", region="eu", backend="pool")
USAGE = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=3, cache_write_tokens=2, source=UsageSource.REPORTED)
FULL = Attempt(
    request_id="r-1",
    started_at_us=1_000,
    ended_at_us=9_000,
    tenant="acme",
    attempt=2,
    session="chat",
    model="m",
    provider="openai",
    backend="b",
    region="us",
    api_key="key",
    user="ada",
    stream=True,
    choices=3,
    max_tokens=64,
    without_completion=True,
    resumed_at_token=5,
    prompt_fact_id=b"fact",
    usage=USAGE,
    chunks=(Chunk(4_000, 4), Chunk(5_000, 7)),
    finish_reason="stop",
    interrupt_reason=InterruptReason.REVOKED,
    error_class="overloaded",
    status=503,
    retryable=True,
    provenance=PROVENANCE,
)
ENVELOPE = {
    "tenant": "acme",
    "request_id": "r-1",
    "attempt": 2,
    "watermark_us": 0,
    "session": "chat",
    "model": "m",
    "backend": "b",
    "region": "us",
    "source": "gateway",
    "provenance": PROVENANCE,
}


def expected_id(sequence: int, kind: type) -> bytes:
    return event_id("acme\x00r-1\x002", sequence, NAME_OF_KIND[kind])


def test_a_completed_attempt_is_its_prompt_its_chunks_and_its_end() -> None:
    assert events_of(FULL, ORIGIN) == [
        PromptSubmitted(
            event_id=expected_id(1, PromptSubmitted),
            event_time_us=1_000,
            sequence=1,
            prompt_tokens=11,
            max_tokens=64,
            cached_tokens=3,
            api_key="key",
            user="ada",
            stream=True,
            choices=3,
            prompt_fact_id=b"fact",
            without_completion=True,
            provider="openai",
            resumed_at_token=5,
            **ENVELOPE,  # type: ignore[arg-type]
        ),
        TokensGenerated(
            event_id=expected_id(2, TokensGenerated),
            event_time_us=4_000,
            sequence=2,
            count=4,
            cumulative=4,
            **ENVELOPE,  # type: ignore[arg-type]
        ),
        TokensGenerated(
            event_id=expected_id(3, TokensGenerated),
            event_time_us=5_000,
            sequence=3,
            count=3,
            cumulative=7,
            **ENVELOPE,  # type: ignore[arg-type]
        ),
        RequestCompleted(
            event_id=expected_id(4, RequestCompleted),
            event_time_us=9_000,
            sequence=4,
            prompt_tokens=11,
            completion_tokens=7,
            cached_tokens=3,
            usage_source=UsageSource.REPORTED,
            finish_reason="stop",
            cache_write_tokens=2,
            **ENVELOPE,  # type: ignore[arg-type]
        ),
    ]


def test_an_interrupted_attempt_ends_at_its_offset() -> None:
    *_, end = events_of(msgspec.structs.replace(FULL, end=End.INTERRUPTED), ORIGIN)
    assert isinstance(end, StreamInterrupted)
    assert (end.token_offset, end.reason, end.usage_source) == (7, InterruptReason.REVOKED, UsageSource.REPORTED)


def test_a_failed_attempt_says_why() -> None:
    *_, end = events_of(msgspec.structs.replace(FULL, end=End.FAILED), ORIGIN)
    assert isinstance(end, RequestFailed)
    assert (end.error_class, end.status, end.retryable) == ("overloaded", 503, True)
    assert (end.prompt_tokens, end.completion_tokens, end.usage_source) == (11, 7, UsageSource.REPORTED)


def test_an_open_attempt_has_no_end_yet() -> None:
    events = events_of(msgspec.structs.replace(FULL, end=End.OPEN, ended_at_us=0), ORIGIN)
    assert [type(event) for event in events] == [PromptSubmitted, TokensGenerated, TokensGenerated]


def test_the_origin_stands_in_for_what_a_record_does_not_say() -> None:
    bare = msgspec.structs.replace(FULL, tenant="", backend="", region="")
    first, *_ = events_of(bare, ORIGIN)
    assert (first.tenant, first.backend, first.region) == ("from-origin", "pool", "eu")
    first, *_ = events_of(bare, Origin(source="s", tenant="t"))
    assert first.backend == "openai", "where nothing else is known, who serves the model is the backend"


@pytest.mark.parametrize(
    ("changes", "reason", "names"),
    [
        ({"tenant": ""}, DeadLetterReason.MISSING_FIELD, "tenant"),
        ({"request_id": ""}, DeadLetterReason.MISSING_FIELD, "request id"),
        ({"ended_at_us": 999}, DeadLetterReason.OUT_OF_RANGE, "before it starts"),
    ],
)
def test_what_can_not_be_an_attempt_is_refused(
    changes: dict[str, object], reason: DeadLetterReason, names: str
) -> None:
    with pytest.raises(UnreadableRecordError, match=names) as refused:
        events_of(msgspec.structs.replace(FULL, **changes), Origin(source="gateway"))
    assert refused.value.reason is reason
