"""A scrape of an inference server or a GPU exporter, in Prometheus' text format or OpenMetrics, as health samples.

https://prometheus.io/docs/instrumenting/exposition_formats/ and https://prometheus.io/docs/specs/om/open_metrics_spec/.
Only gauges that tell health are read (see backend_health); of the other lines no more than their form is looked at.
"""

import re
from math import isnan
from typing import Final

from schemas.dead_letters import DeadLetterReason
from udfs.domain.ingest.backend_health import BackendHealth, tells_health
from udfs.domain.ingest.fields import malformed, time_of_milliseconds, time_of_seconds
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError
from udfs.domain.ingest.refusals import Refusals

OTHER_SERIES: Final = "series of another metric"
NOT_A_NUMBER: Final = "no value (NaN)"
MAX_LINES: Final = 200_000
MAX_LINE_CHARACTERS: Final = 65_536
MAX_UNREADABLE_LINES: Final = 1_000
"""A scrape with more samples that can't be meant is refused as a whole."""


_NAME: Final = re.compile(r"[a-zA-Z_:][\w:.]*", re.ASCII)
_QUOTED: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_LABELS: Final = re.compile(rf'\{{([^"}}]*(?:{_QUOTED}[^"}}]*)*)\}}')
_LABEL: Final = re.compile(rf"\s*([a-zA-Z_][\w.]*|{_QUOTED})\s*=\s*({_QUOTED})\s*(?:,|$)", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED: Final = {"n": "\n"}


def read_prometheus(record: Foreign, origin: Origin) -> Reading:
    """Read one scrape: a HealthSample for each backend in it, at its samples' time or when the scrape was received.

    As by Prometheus, a scrape with a line that is none is refused as a whole: UnreadableRecordError names the line. So
    is one that tells of no backend's health, counting its series, and of no backend or time by which to name a sample.
    """
    lines = record.value.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    if len(lines) > MAX_LINES:
        raise malformed(f"the scrape has {len(lines):,} lines, at most {MAX_LINES:,} are read")
    is_open_metrics = "# EOF" in lines[-2:]
    reading, health = Reading(), BackendHealth(origin)
    refusals = Refusals("line")
    samples = 0
    for index, raw in enumerate(lines):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        samples += 1
        if len(line) > MAX_LINE_CHARACTERS:
            detail = f"the line has {len(line):,} characters, at most {MAX_LINE_CHARACTERS:,} are read"
            refusals.add(UnreadableRecordError(DeadLetterReason.TOO_LARGE, detail), index, raw.encode())
            continue
        name, labels, (value, *more) = _split(line, index)
        if not tells_health(name):
            reading.passed_over[OTHER_SERIES] += 1
            continue
        measured, named = _number(value, index), _labels(labels, index)
        if isnan(measured):
            reading.passed_over[NOT_A_NUMBER] += 1
            continue
        try:
            at_us = _time(more, is_open_metrics=is_open_metrics) or record.received_at_us
            health.add(name, measured, at_us, named)
        except UnreadableRecordError as unreadable:
            if refusals.count >= MAX_UNREADABLE_LINES:
                raise
            refusals.add(unreadable, index, raw.encode())
    if not samples:
        raise malformed("no sample of the Prometheus text format in it")
    reading.refused = refusals.refused()
    reading.events.extend(health.samples())
    return reading


def _split(line: str, index: int) -> tuple[str, str, list[str]]:
    """A line's metric, what is within its braces, and what comes after: the value, and maybe a time and an exemplar."""
    name = _NAME.match(line)
    after_name = line[name.end() :] if name else line
    after = after_name.lstrip()
    labels = _LABELS.match(after)
    after_labels = after[labels.end() :] if labels else after
    parts = after_labels.split(None, 2)
    # Of names that are quoted within the braces, as Prometheus 3 allows, none tells health.
    is_sample = labels is not None if name is None else labels is not None or after != after_name
    if not is_sample or not parts or after_labels.startswith("{"):
        raise malformed(f"line {index + 1} is no sample of the Prometheus text format")
    return name[0] if name else "", labels[1] if labels else "", parts


def _number(text: str, index: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise malformed(f"the value in line {index + 1} is no number") from None


def _time(after_value: list[str], *, is_open_metrics: bool) -> int:
    if not after_value or after_value[0].startswith("#"):
        return 0
    return (time_of_seconds if is_open_metrics else time_of_milliseconds)(after_value[0], "a sample's timestamp") or 0


def _labels(text: str, index: int) -> dict[str, str]:
    found: dict[str, str] = {}
    at, end = 0, len(text.rstrip())
    while at < end:
        label = _LABEL.match(text, at)
        if label is None:
            raise malformed(f"the labels in line {index + 1} can't be read")
        found[label[1].strip('"')] = _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[1]), label[2][1:-1])
        at = label.end()
    return found
