"""W3C trace context: what a header says, and what events take from it."""

import msgspec
import pytest

from schemas.events import HealthSample, Provenance
from udfs.domain.ingest.record import Foreign, Origin, Reading, read_foreign
from udfs.domain.ingest.trace_context import TraceContext, in_trace, trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
EVENT = HealthSample(b"", "acme", "", 0, 1, 0, 0, "", "", "", "", "", None)


def test_a_traceparent_is_taken_apart() -> None:
    found = trace_context(f"00-{TRACE}-{SPAN}-01".encode())
    assert found == TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), is_sampled=True)
    unsampled = trace_context(f"00-{TRACE}-{SPAN}-02".encode())
    assert unsampled is not None
    assert not unsampled.is_sampled


def test_of_a_later_version_what_is_known_is_read() -> None:
    assert trace_context(f"cc-{TRACE}-{SPAN}-01-what-the-future-adds".encode()) is not None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        "\x00" * 55,
    ],
)
def test_what_breaks_the_rules_is_as_good_as_absent(header: str) -> None:
    assert trace_context(header.encode()) is None


def test_an_event_of_a_trace_stays_in_it() -> None:
    own = msgspec.structs.replace(EVENT, provenance=Provenance(trace_id=b"\1" * 16, lamport=7))
    assert in_trace(own, TraceContext(b"\2" * 16, b"\3" * 8, is_sampled=True)) is own


def test_an_event_without_one_gets_that_of_its_record_and_keeps_its_clocks() -> None:
    clocked = msgspec.structs.replace(EVENT, provenance=Provenance(lamport=7, vector_clock={"eu": 3}))

    def adapter(record: Foreign, origin: Origin) -> Reading:
        del record, origin
        return Reading(events=[EVENT, clocked])

    record = Foreign(value=b"", headers={"traceparent": f"00-{TRACE}-{SPAN}-01".encode()})
    plain, kept = read_foreign(adapter, record, Origin(source="s")).events
    assert plain.provenance == Provenance(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN))
    assert kept.provenance == Provenance(
        trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), lamport=7, vector_clock={"eu": 3}
    )
