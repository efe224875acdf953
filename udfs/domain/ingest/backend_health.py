"""Gauges of inference servers and GPUs, as samples of a backend's health.

vLLM (https://docs.vllm.ai/en/stable/usage/metrics.html), SGLang
(https://docs.sglang.io/references/production_metrics.html), TGI
(https://huggingface.co/docs/text-generation-inference/reference/metrics), llama.cpp's server, and NVIDIA's DCGM
exporter (https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from operator import itemgetter
from typing import Final

from schemas.codec import MAX_TIME_US
from schemas.events import HealthSample
from schemas.identity import event_id
from udfs.domain.ingest.fields import missing, name_text, out_of_range
from udfs.domain.ingest.record import Origin

MAX_BACKENDS: Final = 10_000
"""More backends in one record are refused."""

_MEBIBYTE: Final = 1 << 20
_MAX_QUEUE: Final = 2**32 - 1
_MAX_BYTES: Final = 2**63


_Combine = Callable[[Iterable[float]], float]

_GAUGES: Final[Mapping[str, tuple[str, _Combine]]] = {
    "vllm_num_requests_waiting": ("queue", sum),
    "sglang_num_queue_reqs": ("queue", sum),
    "tgi_queue_size": ("queue", sum),
    "llamacpp_requests_deferred": ("queue", sum),
    "vllm_kv_cache_usage_perc": ("kv_cache", max),
    "vllm_gpu_cache_usage_perc": ("kv_cache", max),
    "sglang_token_usage": ("kv_cache", max),
    "llamacpp_kv_cache_usage_ratio": ("kv_cache", max),
    "dcgm_fi_dev_fb_used": ("used_mebibytes", sum),
    "dcgm_fi_dev_fb_free": ("free_mebibytes", sum),
    "dcgm_fi_dev_fb_reserved": ("reserved_mebibytes", sum),
    "dcgm_fi_dev_fb_total": ("total_mebibytes", sum),
    "dcgm_fi_dev_gpu_temp": ("temperature", max),
}
"""Metric -> what it measures, and how the values of several engines, models or GPUs of one backend come together."""

_INSTANCE_LABELS: Final = ("instance", "service.instance.id", "service_instance_id")
_PLACE_LABELS: Final = ("pod", "k8s.pod.name", "hostname", "Hostname", "host.name")


def tells_health(metric: str) -> bool:
    """Whether samples of this metric go into a HealthSample. Exporters turn vLLM's colon into an underscore."""
    return metric.replace(":", "_").lower() in _GAUGES


class BackendHealth:
    """Collects the gauges of one record. `add` refuses a value that can't be meant; `samples` gives one a backend."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        # Backend -> measure -> series -> its latest time and value.
        self._found: dict[str, dict[str, dict[str, tuple[int, float]]]] = {}

    def add(
        self, metric: str, value: float, at_us: int, labels: Mapping[str, object], *more: Mapping[str, object]
    ) -> None:
        """Add one value; of a series, a metric with its labels, the latest counts.

        The backend is the label `instance`, else the origin's, else the pod or host that labels name, or `more` does.
        Raises UnreadableRecordError where there is no backend or time, or the value is no measure.
        """
        measure, _ = _GAUGES[metric.replace(":", "_").lower()]
        if not (isfinite(value) and 0 <= value <= _MAX_BYTES):
            raise out_of_range(metric, value, "a finite number that is not negative")
        if not at_us:
            raise missing("a time of the sample")
        if at_us > MAX_TIME_US:
            raise out_of_range("the time of a sample", at_us, "before 2255")
        backend = self._backend((labels, *more))
        if backend not in self._found and len(self._found) >= MAX_BACKENDS:
            raise out_of_range("the number of backends", len(self._found) + 1, f"at most {MAX_BACKENDS:,}")
        series = self._found.setdefault(backend, {}).setdefault(measure, {})
        name = f"{metric}{sorted(labels.items(), key=itemgetter(0))}"
        series[name] = max(series.get(name, (0, 0.0)), (at_us, value))

    def samples(self) -> list[HealthSample]:
        """One event a backend, at the latest of its times. Ids are functions of region, backend and time."""
        return [self._sample(backend, found) for backend, found in self._found.items()]

    def _backend(self, labels: Sequence[Mapping[str, object]]) -> str:
        named = _first(labels, _INSTANCE_LABELS) or self._origin.backend or _first(labels, _PLACE_LABELS)
        if not named:
            raise missing("backend", "label `instance`")
        return name_text(named, "instance")

    def _sample(self, backend: str, measured: Mapping[str, Mapping[str, tuple[int, float]]]) -> HealthSample:
        origin = self._origin
        at_us = max(time_us for series in measured.values() for time_us, _ in series.values())
        found = {
            measure: combine(value for _, value in measured[measure].values())
            for measure, combine in _GAUGES.values()
            if measure in measured
        }
        used = found.get("used_mebibytes", 0.0)
        # Until driver 510 what is reserved was part of what is used; a total is not among the exporter's defaults
        # (https://github.com/NVIDIA/dcgm-exporter/issues/271).
        total = found.get("total_mebibytes", 0.0) or (
            used + found.get("free_mebibytes", 0.0) + found.get("reserved_mebibytes", 0.0)
        )
        return HealthSample(
            event_id=event_id(f"{origin.region}\x00{backend}", at_us, "health_sample"),
            tenant="",
            request_id="",
            attempt=0,
            event_time_us=at_us,
            watermark_us=0,
            sequence=0,
            session="",
            model="",
            backend=backend,
            region=origin.region,
            source=origin.source,
            provenance=None,
            gpu_memory_used_bytes=min(round(used * _MEBIBYTE), _MAX_BYTES),
            gpu_memory_total_bytes=min(round(total * _MEBIBYTE), _MAX_BYTES),
            queue_length=min(round(found.get("queue", 0.0)), _MAX_QUEUE),
            kv_cache_use=found.get("kv_cache", 0.0),
            temperature_celsius=found.get("temperature", 0.0),
        )


def _first(labels: Sequence[Mapping[str, object]], names: Sequence[str]) -> object:
    return next((of[name] for name in names for of in labels if of.get(name)), None)
