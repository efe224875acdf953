"""OTLP's protobuf messages with their parts left unread: `repeated bytes` where OTLP has `repeated Span`, and so on.

Both are the same on the wire. Left as bytes, one broken span does not take its request along, text that is not UTF-8
does not either, and an attribute that a thousand spans repeat is read once. Only fields that are read here are named;
numbers and types are those of https://github.com/open-telemetry/opentelemetry-proto, where numbers don't change.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "headrace.otlp"
_TYPES: Final = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "fixed64": descriptor_pb2.FieldDescriptorProto.TYPE_FIXED64,
    "sfixed64": descriptor_pb2.FieldDescriptorProto.TYPE_SFIXED64,
}

_MESSAGES: Final[Mapping[str, str]] = {
    "Request": "1 repeated ResourceItems resources",
    "ResourceItems": "1 Resource resource, 2 repeated ScopeItems scopes",
    "Resource": "1 repeated bytes attributes",
    "ScopeItems": "1 Scope scope, 2 repeated bytes items",
    "Scope": "1 bytes name",
    "Span": "1 bytes trace_id, 2 bytes span_id, 4 bytes parent_span_id, 5 bytes name, 6 int32 kind, 7 fixed64 start, "
    "8 fixed64 end, 9 repeated bytes attributes, 11 repeated bytes events, 15 Status status",
    "Status": "3 int32 code",
    "SpanEvent": "1 fixed64 time, 2 bytes name, 3 repeated bytes attributes",
    "LogRecord": "1 fixed64 time, 6 repeated bytes attributes, 9 bytes trace_id, 10 bytes span_id, "
    "11 fixed64 observed, 12 bytes event_name",
    "Metric": "1 bytes name, 5 Points gauge, 7 Points sum, 9 bytes histogram, 10 bytes exponential, 11 bytes summary",
    "Points": "1 repeated bytes points",
    "Point": "3 fixed64 time, 4 oneof double as_double, 6 oneof sfixed64 as_int, 7 repeated bytes attributes",
    "KeyValue": "1 bytes key, 2 AnyValue value",
    "AnyValue": "1 oneof bytes string_value, 2 oneof bool bool_value, 3 oneof int64 int_value, "
    "4 oneof double double_value, 5 oneof ArrayValue array_value, 6 oneof Members kvlist_value, "
    "7 oneof bytes bytes_value",
    "ArrayValue": "1 repeated AnyValue values",
    "Members": "1 repeated bytes values",
}


def _compiled() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="headrace/otlp_frames.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for line in fields.split(", "):
            number, *label, kind, name = line.split(" ")
            field = described.field.add(name=name, number=int(number))
            field.label = field.LABEL_REPEATED if "repeated" in label else field.LABEL_OPTIONAL
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            if "oneof" in label:
                if not described.oneof_decl:
                    described.oneof_decl.add(name="value")
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    found = pool.FindFileByName(file.name)  # type: ignore[no-untyped-call]
    return {name: message_factory.GetMessageClass(found.message_types_by_name[name]) for name in _MESSAGES}


_CLASSES: Final = _compiled()

# Their fields are those above; no type checker can know them.
Request: Any = _CLASSES["Request"]
Span: Any = _CLASSES["Span"]
SpanEvent: Any = _CLASSES["SpanEvent"]
LogRecord: Any = _CLASSES["LogRecord"]
Metric: Any = _CLASSES["Metric"]
Point: Any = _CLASSES["Point"]
KeyValue: Any = _CLASSES["KeyValue"]
