"""Hypothesis strategies for events and decisions of every kind, over the whole range of each field."""

from collections.abc import Callable

from hypothesis import strategies as st

from schemas import events as ev
from schemas.decisions import (
    BoundLimit,
    Decision,
    DecisionKind,
    DecisionMode,
    DecisionReason,
    LimitLevel,
    LimitUnit,
)

_text = st.text(st.characters(codec="utf-8"), max_size=12)
_name = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_int64 = st.integers(-(2**63), 2**63 - 1)
_uint64 = st.integers(0, 2**64 - 1)
_uint32 = st.integers(0, 2**32 - 1)
_time_us = st.integers(1, 2**53)
_double = st.floats(allow_nan=False, allow_infinity=False)
_float = st.floats(allow_nan=False, allow_infinity=False, width=32)
_bytes = st.binary(min_size=1, max_size=16)

# Never the default: an event without provenance and one with an empty one are the same on a line.
provenances = st.builds(
    ev.Provenance,
    trace_id=_bytes,
    span_id=st.binary(max_size=8),
    lamport=_uint64,
    vector_clock=st.dictionaries(_text, _uint64, max_size=3),
    content_hash=st.binary(max_size=32),
)


def _of_kind(
    kind: Callable[..., ev.Event],
    with_provenance: bool,
    tenant: st.SearchStrategy[str],
    request_id: st.SearchStrategy[str],
    **body: st.SearchStrategy[object],
) -> st.SearchStrategy[ev.Event]:
    return st.builds(
        kind,
        event_id=_bytes,
        tenant=tenant,
        request_id=request_id,
        attempt=_uint32,
        event_time_us=_time_us,
        watermark_us=st.integers(0, 2**53),
        sequence=_uint64,
        session=_text,
        model=_text,
        backend=_text,
        region=_text,
        source=_text,
        provenance=(st.none() | provenances) if with_provenance else st.none(),
        **body,
    )


def events(
    *, with_provenance: bool = False, tenants: st.SearchStrategy[str] = _name, heartbeats: bool = True
) -> st.SearchStrategy[ev.Event]:
    """Any event that a reader accepts."""
    kinds = [
        _of_kind(
            ev.PromptSubmitted,
            with_provenance,
            tenants,
            _name,
            prompt_tokens=_int64,
            max_tokens=_int64,
            cached_tokens=_int64,
            api_key=_text,
            user=_text,
            stream=st.booleans(),
            choices=_uint32,
            prompt_fact_id=st.binary(max_size=32),
            without_completion=st.booleans(),
            provider=_text,
            resumed_at_token=_int64,
        ),
        _of_kind(ev.TokensGenerated, with_provenance, tenants, _name, count=_int64, cumulative=_int64, text=_text),
        _of_kind(
            ev.StreamInterrupted,
            with_provenance,
            tenants,
            _name,
            token_offset=_int64,
            reason=st.sampled_from(ev.InterruptReason),
            usage_source=st.sampled_from(ev.UsageSource),
        ),
        _of_kind(
            ev.RequestCompleted,
            with_provenance,
            tenants,
            _name,
            prompt_tokens=_int64,
            completion_tokens=_int64,
            cached_tokens=_int64,
            usage_source=st.sampled_from(ev.UsageSource),
            finish_reason=_text,
            cache_write_tokens=_int64,
        ),
        _of_kind(
            ev.RequestFailed,
            with_provenance,
            tenants,
            _name,
            error_class=_text,
            status=_uint32,
            retryable=st.booleans(),
            prompt_tokens=_int64,
            completion_tokens=_int64,
            usage_source=st.sampled_from(ev.UsageSource),
        ),
        _of_kind(
            ev.HealthSample,
            with_provenance,
            _text,
            _text,
            gpu_memory_used_bytes=_uint64,
            gpu_memory_total_bytes=_uint64,
            queue_length=_uint32,
            kv_cache_use=_double,
            temperature_celsius=_double,
        ),
        _of_kind(
            ev.ExpertsRouted,
            with_provenance,
            _text,
            _text,
            layer=_uint32,
            experts=st.lists(_uint32, max_size=4).map(tuple),
            weights=st.lists(_float, max_size=4).map(tuple),
        ),
    ]
    if heartbeats:
        kinds.append(_of_kind(ev.Heartbeat, with_provenance, st.just(""), st.just("")))
    return st.one_of(kinds)


_bounds = st.builds(
    BoundLimit,
    name=_text,
    level=st.sampled_from(LimitLevel),
    subject=_text,
    unit=st.sampled_from(LimitUnit),
    limit=_int64,
    remaining=_int64,
    reset_at_us=_int64,
)

decisions = st.builds(
    Decision,
    decision_id=_name,
    kind=st.sampled_from(DecisionKind),
    mode=st.sampled_from(DecisionMode),
    reason=st.sampled_from(DecisionReason),
    tenant=_name,
    request_id=_name,
    attempt=_uint32,
    decided_at_us=st.integers(1, 2**63 - 1),
    bound=st.none() | _bounds,
    reserved_tokens=_int64,
    used_tokens=_int64,
    refunded_tokens=_int64,
    overdrawn_tokens=_int64,
    retry_at_us=_int64,
    policy_id=_text,
    caused_by=st.binary(max_size=16),
    trace_id=st.binary(max_size=16),
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` with a few bytes changed, cut out, put in, or its end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("flip", "remove", "insert", "cut"))):
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "remove":
                del data[at : at + draw(st.integers(1, 8))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case _:
                del data[at:]
    return bytes(data)
