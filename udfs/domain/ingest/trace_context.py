"""The trace that a record belongs to, as its producer's headers tell it.

W3C Trace Context, https://www.w3.org/TR/trace-context/: `traceparent` is version, trace id, parent's span id and flags,
in lower-case hexadecimal. Of a later version what this one knows is read; what breaks its rules is as good as absent.
"""

import re
from typing import Final, NamedTuple, TypeVar

import msgspec

from schemas.events import Envelope, Provenance

TRACEPARENT: Final = "traceparent"

_FORM: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_EventT = TypeVar("_EventT", bound=Envelope)


class TraceContext(NamedTuple):
    """16 bytes of trace id, 8 of the span that sent the record, and whether that one was sampled."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool


def trace_context(header: bytes) -> TraceContext | None:
    """What a `traceparent` says; None where it is none.

    >>> trace_context(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is_sampled
    True
    >>> trace_context(b"00-00000000000000000000000000000000-00f067aa0ba902b7-01")
    """
    found = _FORM.fullmatch(header.strip())
    if found is None or (found[1] == b"00" and found[5]):
        return None
    return TraceContext(bytes.fromhex(found[2].decode()), bytes.fromhex(found[3].decode()), bool(int(found[4], 16) & 1))


def in_trace(event: _EventT, context: TraceContext) -> _EventT:
    """The event as part of a trace. One that names a trace already stays in it: it knows better than its carrier."""
    known = event.provenance
    if known is not None and known.trace_id:
        return event
    provenance = msgspec.structs.replace(known or Provenance(), trace_id=context.trace_id, span_id=context.span_id)
    return msgspec.structs.replace(event, provenance=provenance)
