from __future__ import annotations

import msgspec

from jobs.ops.lateness import LatenessWatch
from tests.unit.test_file_log import chunk, heartbeat
from udfs.domain.watermark import NO_WATERMARK, WatermarkPolicy, WatermarkState, observe


def test_each_source_is_stamped_by_its_own_watermark() -> None:
    policy = WatermarkPolicy(confirmations=2)
    events = [chunk(number, source=f"gateway-{number % 2}") for number in range(40)]
    stamped = list(LatenessWatch(policy).stamped(events))
    for source in ("gateway-0", "gateway-1"):
        state = WatermarkState()
        for event, found in zip(events, stamped, strict=True):
            if event.source == source:
                expected = observe(state, policy, event.event_time_us).watermark_us
                assert found.watermark_us == (0 if expected == NO_WATERMARK else expected)
    assert [event.watermark_us for event in stamped[:2]] == [0, 0]
    assert all(event.watermark_us for event in stamped[2:])
    assert [msgspec.structs.replace(event, watermark_us=0) for event in stamped] == events


def test_stamping_goes_on_from_what_was_seen_before() -> None:
    events = [chunk(number * 37 % 50) for number in range(50)]
    in_two = LatenessWatch()
    assert [*in_two.stamped(events[:20]), *in_two.stamped(events[20:])] == list(LatenessWatch().stamped(events))


def test_what_was_stamped_before_and_heartbeats_pass_as_they_are_and_teach_nothing() -> None:
    stamped = msgspec.structs.replace(chunk(1), watermark_us=7)
    watch = LatenessWatch()
    assert list(watch.stamped([stamped, heartbeat(5)])) == [stamped, heartbeat(5)]
    assert watch.statistics() == ()
