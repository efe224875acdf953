"""Scrapes of inference servers and GPU exporters as health samples."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.dead_letters import DeadLetterReason
from schemas.events import HealthSample
from tests.ingest_mutations import mutations
from tests.otlp_requests import START_US, as_protobuf, assert_on_the_wire, attributes, read
from udfs.domain.ingest.backend_health import MAX_BACKENDS
from udfs.domain.ingest.prometheus_text import (
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    NOT_A_NUMBER,
    OTHER_SERIES,
    _labels,
    read_prometheus,
)
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError, read_foreign

ORIGIN = Origin(source="scraper", region="eu", backend="gpu-1")

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="facebook/opt-125m"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="facebook/opt-125m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="facebook/opt-125m"} 4.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="facebook/opt-125m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="facebook/opt-125m"} 0.5
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="facebook/opt-125m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="facebook/opt-125m"} 7.0
"""

DCGM = b"""# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="node-7"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2",device="nvidia1",Hostname="node-7"} 63
# HELP DCGM_FI_DEV_FB_FREE Frame buffer memory free (in MB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="node-7"} 1000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",device="nvidia1",Hostname="node-7"} 2000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="node-7"} 100
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",device="nvidia1",Hostname="node-7"} 50
"""


def scrape(text: bytes | str, origin: Origin = ORIGIN, received_at_us: int = START_US) -> Reading:
    value = text.encode() if isinstance(text, str) else text
    return read_prometheus(Foreign(value=value, received_at_us=received_at_us), origin)


def only_sample(reading: Reading) -> HealthSample:
    (event,) = reading.events
    assert isinstance(event, HealthSample)
    return event


def test_vllm_tells_its_queue_and_cache_over_all_engines() -> None:
    reading = scrape(VLLM)
    sample = only_sample(reading)
    assert (sample.backend, sample.region, sample.source) == ("gpu-1", "eu", "scraper")
    assert (sample.event_time_us, sample.tenant, sample.request_id) == (START_US, "", "")
    assert (sample.queue_length, sample.kv_cache_use) == (7, 0.5)
    assert (reading.refused, reading.passed_over) == ([], {OTHER_SERIES: 3})
    assert_on_the_wire(reading.events)


@pytest.mark.parametrize(
    "name", ["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm_kv_cache_usage_perc", "sglang:token_usage"]
)
def test_the_use_of_the_cache_is_known_by_its_old_and_new_names(name: str) -> None:
    # https://github.com/vllm-project/vllm/pull/18354
    # https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1905
    assert only_sample(scrape(f'{name}{{model_name="m"}} 0.75\n')).kv_cache_use == 0.75


def test_a_server_that_writes_both_names_uses_its_cache_once() -> None:
    assert only_sample(scrape("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.5\n")).kv_cache_use == 0.5


@pytest.mark.parametrize(
    "name", ["vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size", "llamacpp:requests_deferred"]
)
def test_the_queue_of_each_server_is_known(name: str) -> None:
    assert only_sample(scrape(f"{name} 12\n")).queue_length == 12


def test_the_memory_of_all_gpus_adds_up_and_the_hottest_counts() -> None:
    sample = only_sample(scrape(DCGM))
    assert sample.gpu_memory_used_bytes == 150 * 2**20
    assert sample.gpu_memory_total_bytes == 3_150 * 2**20
    assert sample.temperature_celsius == 63.0


def test_reserved_memory_is_part_of_the_total() -> None:
    # https://github.com/NVIDIA/dcgm-exporter/issues/271
    lines = "DCGM_FI_DEV_FB_USED 10\nDCGM_FI_DEV_FB_FREE 20\nDCGM_FI_DEV_FB_RESERVED 3\n"
    assert only_sample(scrape(lines)).gpu_memory_total_bytes == 33 * 2**20
    assert only_sample(scrape(lines + "DCGM_FI_DEV_FB_TOTAL 34\n")).gpu_memory_total_bytes == 34 * 2**20


def test_one_sample_a_backend_where_instances_are_named() -> None:
    lines = "".join(f'vllm:num_requests_waiting{{instance="10.0.0.{host}:8000"}} {host}\n' for host in (1, 2))
    samples = [event for event in scrape(lines).events if isinstance(event, HealthSample)]
    assert [(sample.backend, sample.queue_length) for sample in samples] == [("10.0.0.1:8000", 1), ("10.0.0.2:8000", 2)]


def test_a_host_names_the_backend_where_nothing_else_does() -> None:
    assert only_sample(scrape(DCGM, Origin(source="s"))).backend == "node-7"


def test_a_sample_of_no_backend_is_refused_with_the_remedy() -> None:
    reading = scrape("tgi_queue_size 1\n", Origin(source="s"))
    assert [(part.reason, part.index) for part in reading.refused] == [(DeadLetterReason.MISSING_FIELD, 0)]
    assert "without backend" in reading.refused[0].detail


def test_the_time_of_a_sample_is_in_milliseconds_and_in_openmetrics_in_seconds() -> None:
    line = f"tgi_queue_size 1 {START_US // 1_000 + 5}\n"
    assert only_sample(scrape(line, received_at_us=1)).event_time_us == START_US + 5_000
    in_seconds = f"tgi_queue_size 1 {START_US / 1e6 + 0.25} # exemplar\n# EOF\n"
    assert only_sample(scrape(in_seconds, received_at_us=1)).event_time_us == START_US + 250_000


def test_a_scrape_without_a_time_is_refused() -> None:
    (one,) = scrape(VLLM, received_at_us=0).refused
    assert one.reason is DeadLetterReason.MISSING_FIELD
    assert "(4 lines of this record, the first at index " in one.detail


def test_ids_are_functions_of_region_backend_and_time() -> None:
    first = only_sample(scrape(VLLM)).event_id
    assert first.hex() == only_sample(scrape(VLLM)).event_id.hex()
    others = [
        scrape(VLLM, Origin(source="scraper", region="eu", backend="gpu-2")),
        scrape(VLLM, Origin(source="scraper", region="us", backend="gpu-1")),
        scrape(VLLM, received_at_us=START_US + 1),
    ]
    assert len({first, *(only_sample(reading).event_id for reading in others)}) == 4


def test_labels_may_have_anything_in_quotes() -> None:
    line = r'tgi_queue_size{path="C:\\a\"}{,=#\n", instance = "b" ,} 1 # {a="}"} 2' + "\n"
    assert only_sample(scrape(line)).backend == "b"


def test_a_line_that_is_too_long_is_refused_alone() -> None:
    label = 'a="' + "x" * MAX_LINE_CHARACTERS + '"'
    reading = scrape(f"tgi_queue_size{{{label}}} 1\ntgi_queue_size 2\n")
    assert only_sample(reading).queue_length == 2
    assert [(one.reason, one.index) for one in reading.refused] == [(DeadLetterReason.TOO_LARGE, 0)]


def test_the_work_for_each_label_does_not_grow_with_the_line() -> None:
    copies = []

    class Watched(str):
        __slots__ = ()

        def rstrip(self, characters: str | None = None, /) -> str:
            copies.append(len(self))
            return super().rstrip(characters)

    labels = Watched(",".join(f'a{number}="x"' for number in range(1_000)) + " ")
    assert len(_labels(labels, 0)) == 1_000
    assert copies == [len(labels)]


def test_an_empty_label_is_none() -> None:
    assert only_sample(scrape('tgi_queue_size{instance=""} 1\n')).backend == "gpu-1"


def test_no_value_is_no_measure() -> None:
    reading = scrape("DCGM_FI_DEV_GPU_TEMP NaN\ntgi_queue_size 2\n")
    assert (only_sample(reading).queue_length, reading.passed_over) == (2, {NOT_A_NUMBER: 1})


@pytest.mark.parametrize("value", ["-1", "+Inf", "1e300"])
def test_a_value_that_can_not_be_meant_is_refused_by_its_line(value: str) -> None:
    reading = scrape(f"# HELP\ntgi_queue_size {value}\nvllm:num_requests_waiting 2\n")
    assert only_sample(reading).queue_length == 2
    assert [(part.reason, part.index) for part in reading.refused] == [(DeadLetterReason.OUT_OF_RANGE, 1)]
    assert reading.refused[0].payload == f"tgi_queue_size {value}".encode()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "a",
        "1 a",
        'a{b="c} 1',
        "tgi_queue_size{b=c} 1",
        'tgi_queue_size{b="c"d="e"} 1',
        "tgi_queue_size one",
        "a{}",
        "<html>",
    ],
)
def test_a_line_that_is_no_sample_refuses_the_scrape(line: str) -> None:
    with pytest.raises(UnreadableRecordError, match="line 2"):
        scrape(f"tgi_queue_size 1\n{line}\n")


def test_a_metric_whose_name_is_quoted_is_one_of_the_others() -> None:
    assert scrape('{"my.metric",a="b"} 1\n').passed_over == {OTHER_SERIES: 1}


@pytest.mark.parametrize("text", ["", "\n", "# HELP a b\n", "# EOF\n"])
def test_a_scrape_without_samples_is_refused(text: str) -> None:
    with pytest.raises(UnreadableRecordError):
        scrape(text)


@pytest.mark.parametrize(
    "record",
    [
        b"a 1\n" * (MAX_LINES + 1),
        b"".join(b'tgi_queue_size{instance="%d"} 1\n' % host for host in range(MAX_BACKENDS + 1_002)),
    ],
)
def test_a_scrape_without_end_is_refused(record: bytes) -> None:
    reading = read_foreign(read_prometheus, Foreign(value=record, received_at_us=START_US), ORIGIN)
    assert len(reading.refused) == 1
    assert not reading.events


# --- the same gauges by way of OpenTelemetry's Collector --------------------------------------------------------------


def gauge(name: str, points: list[tuple[float, int, dict[str, Any]]], resource: dict[str, Any]) -> dict[str, Any]:
    data = [
        {"asDouble": value, "timeUnixNano": str(at_us * 1_000), "attributes": attributes(labels)}
        for value, at_us, labels in points
    ]
    metrics = [{"name": name, "gauge": {"dataPoints": data}}]
    return {
        "resourceMetrics": [{"resource": {"attributes": attributes(resource)}, "scopeMetrics": [{"metrics": metrics}]}]
    }


def test_a_gauge_in_otlp_is_a_health_sample() -> None:
    request = gauge(
        "vllm:num_requests_waiting",
        [(9.0, START_US, {"engine": "0"}), (2.0, START_US + 5, {"engine": "0"}), (1.0, START_US, {"engine": "1"})],
        {"service.instance.id": "10.0.0.1:8000"},
    )
    reading = read(request)
    sample = only_sample(reading)
    assert (sample.backend, sample.event_time_us, sample.queue_length) == ("10.0.0.1:8000", START_US + 5, 3)
    assert reading.events == read(as_protobuf(request)).events


def test_a_gauge_in_otlp_and_its_scrape_are_the_same_event() -> None:
    scraped = only_sample(scrape("tgi_queue_size 4\n", Origin(source="s", backend="b")))
    told = only_sample(read(gauge("tgi_queue_size", [(4.0, START_US, {})], {}), Origin(source="s", backend="b")))
    assert told == scraped


def test_a_gauge_that_can_not_be_meant_is_refused_by_its_index() -> None:
    reading = read(gauge("tgi_queue_size", [(-4.0, START_US, {})], {"service.instance.id": "b"}))
    assert [(part.reason, part.index) for part in reading.refused] == [(DeadLetterReason.OUT_OF_RANGE, 0)]


# --- whatever the bytes ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 10**6)), min_size=1))
def test_queues_add_up_over_the_series_of_a_backend(found: list[tuple[str, int, int]]) -> None:
    latest = {(backend, engine): queue for backend, engine, queue in found}
    lines = [
        f'vllm:num_requests_waiting{{engine="{engine}",instance="{backend}"}} {queue}\n'
        for (backend, engine), queue in latest.items()
    ]
    expected = {backend: sum(queue for (of, _), queue in latest.items() if of == backend) for backend, _ in latest}
    samples = [event for event in scrape("".join(lines)).events if isinstance(event, HealthSample)]
    assert {sample.backend: sample.queue_length for sample in samples} == expected


def read_or_refuse(record: bytes) -> list[Any]:
    try:
        return list(scrape(record).events)
    except UnreadableRecordError:
        return []


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(record: bytes) -> None:
    assert_on_the_wire(read_or_refuse(record))


def fuzz(count: int, seed: int) -> int:
    events = 0
    for record in mutations([VLLM, DCGM, VLLM + DCGM + b"# EOF\n"], count, seed):
        found = read_or_refuse(record)
        assert_on_the_wire(found)
        events += len(found)
    return events


def test_broken_scrapes_are_read_or_refused() -> None:
    assert fuzz(2_000, seed=7) > 500


@pytest.mark.slow
def test_a_hundred_thousand_broken_scrapes_are_read_or_refused() -> None:
    assert fuzz(100_000, seed=8) > 25_000
