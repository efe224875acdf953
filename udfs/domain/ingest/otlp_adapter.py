"""OTLP requests as events: calls of models from spans, health of backends from gauges."""

from typing import Final

import msgspec

from udfs.domain.ingest.attempt import events_of
from udfs.domain.ingest.backend_health import BackendHealth, tells_health
from udfs.domain.ingest.fields import malformed
from udfs.domain.ingest.genai import ModelCall, model_call, session_of
from udfs.domain.ingest.genai_names import Known, known_attributes
from udfs.domain.ingest.otlp import otlp_items
from udfs.domain.ingest.otlp_items import Attributes, LogRecord, Metric, Span, Unreadable
from udfs.domain.ingest.record import Foreign, Origin, Reading, UnreadableRecordError
from udfs.domain.ingest.refusals import Refusals
from udfs.domain.ingest.span_tree import Spans, key_of, places

LOG_RECORD: Final = "log record"
EMPTY_REQUEST: Final = "empty request"


def read_otlp(record: Foreign, origin: Origin) -> Reading:
    """Read one request of traces, metrics or logs, in protobuf or JSON. Raises UnreadableRecordError.

    An item that can't be read is refused by its index among the items of the request, in order, together with those of
    the same fault; the others become events. Metrics that add up requests, gen_ai.client.token.usage among them, are
    passed over by name: the spans tell the same tokens one by one. So do log records,
    gen_ai.client.inference.operation.details among them, which repeat a span, with its ids, for the sake of the
    messages.
    """
    reader = _Reader(record, origin)
    try:
        for item in otlp_items(record.value):
            reader.read(item)
        return reader.finish()
    except RecursionError:
        raise malformed("nested too deeply") from None


class _Reader:
    def __init__(self, record: Foreign, origin: Origin) -> None:
        self._received_at_us = record.received_at_us
        self._origin = origin
        self._reading = Reading()
        self._refusals = Refusals("item")
        self._index = -1
        self._calls: list[ModelCall] = []
        self._places: list[tuple[int, bytes | msgspec.Raw]] = []
        self._spans = Spans()
        self._resource: Attributes = {}
        self._known: Known = {}
        self._health = BackendHealth(origin)

    def read(self, item: Span | LogRecord | Metric | Unreadable) -> None:
        """Take one item: a call waits for the spans around it, a gauge for the others of its backend."""
        self._index += 1
        if isinstance(item, Unreadable):
            self._refusals.add(item.error, self._index, item.payload)
        elif isinstance(item, Span):
            self._read_span(item)
        elif isinstance(item, Metric):
            self._read_metric(item)
        else:
            name = item.event_name or item.attributes.get("event.name")
            known = isinstance(name, str) and name.startswith("gen_ai.")
            self._reading.passed_over[str(name) if known else LOG_RECORD] += 1

    def finish(self) -> Reading:
        """What came of it, events in the order of the request."""
        reading = self._reading
        for call, place, (index, payload) in zip(
            self._calls, places(self._calls, self._spans), self._places, strict=True
        ):
            if place.passed_over:
                reading.passed_over[place.passed_over] += 1
                continue
            attempt = call.attempt
            if place.session != attempt.session:
                attempt = msgspec.structs.replace(attempt, session=place.session)
            try:
                reading.events.extend(events_of(attempt, self._origin))
            except UnreadableRecordError as unreadable:
                self._refusals.add(unreadable, index, payload)
        reading.events.extend(self._health.samples())
        reading.refused = self._refusals.refused()
        if self._index < 0:
            reading.passed_over[EMPTY_REQUEST] += 1
        return reading

    def _read_span(self, span: Span) -> None:
        if span.parent_span_id:
            self._spans.parents[key_of(span.trace_id, span.span_id)] = key_of(span.trace_id, span.parent_span_id)
        try:
            found = model_call(span, self._resource_of(span), self._received_at_us)
        except UnreadableRecordError as unreadable:
            self._refusals.add(unreadable, self._index, span.payload)
            return
        if isinstance(found, ModelCall):
            self._calls.append(found)
            self._places.append((self._index, span.payload))
            return
        self._reading.passed_over[found] += 1
        session = session_of(span)
        if session:
            self._spans.sessions[key_of(span.trace_id, span.span_id)] = session

    def _resource_of(self, span: Span) -> Known:
        if span.resource is not self._resource:
            self._resource, self._known = span.resource, known_attributes(span.resource)
        return self._known

    def _read_metric(self, metric: Metric) -> None:
        if not tells_health(metric.name) or not metric.points:
            self._reading.passed_over[metric.name[:100] or "metric without a name"] += 1
            return
        first, count = None, 0
        for point in metric.points:
            at_us = point.at_us or self._received_at_us
            try:
                self._health.add(metric.name, point.value, at_us, point.attributes, metric.resource)
            except UnreadableRecordError as unreadable:
                first, count = first or unreadable, count + 1
        if first is not None:
            more = f", and {count - 1:,} more points of the metric" if count > 1 else ""
            self._refusals.add(UnreadableRecordError(first.reason, first.detail + more), self._index, metric.payload)
