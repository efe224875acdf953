"""OTLP requests of traces, metrics and logs, in protobuf or JSON: which of them one is, its bytes tell.

Protobuf: https://opentelemetry.io/docs/specs/otlp/#binary-protobuf-encoding. JSON: .../#json-protobuf-encoding, also
one request a line, as the Collector's file exporter writes them.
"""

from collections.abc import Iterator

from udfs.domain.ingest.otlp_items import Item
from udfs.domain.ingest.otlp_json import json_items
from udfs.domain.ingest.otlp_protobuf import protobuf_items
from udfs.domain.ingest.record import UnreadableRecordError


def otlp_items(value: bytes) -> Iterator[Item]:
    """The items of a request in its order. Raises UnreadableRecordError where it is none, at the latest at the end."""
    if not looks_like_json(value):
        return protobuf_items(value)
    try:
        return json_items(value)
    except UnreadableRecordError:
        # A protobuf request whose first part has 123 bytes begins with a line feed and a brace.
        if value[:1] != b"\n":
            raise
        try:
            return protobuf_items(value)
        except UnreadableRecordError:
            pass
        raise


def looks_like_json(value: bytes) -> bool:
    """Whether the first character is a JSON object's."""
    return value[:64].removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
