from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeadLetterReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_REASON_UNSPECIFIED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_MALFORMED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_MISSING_FIELD: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_UNKNOWN_KIND: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_UNSUPPORTED_VERSION: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_TOO_LARGE: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_FOLD_FAILED: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_WRONG_SHARD: _ClassVar[DeadLetterReason]
    DEAD_LETTER_REASON_OUT_OF_RANGE: _ClassVar[DeadLetterReason]
DEAD_LETTER_REASON_UNSPECIFIED: DeadLetterReason
DEAD_LETTER_REASON_MALFORMED: DeadLetterReason
DEAD_LETTER_REASON_MISSING_FIELD: DeadLetterReason
DEAD_LETTER_REASON_UNKNOWN_KIND: DeadLetterReason
DEAD_LETTER_REASON_UNSUPPORTED_VERSION: DeadLetterReason
DEAD_LETTER_REASON_TOO_LARGE: DeadLetterReason
DEAD_LETTER_REASON_FOLD_FAILED: DeadLetterReason
DEAD_LETTER_REASON_WRONG_SHARD: DeadLetterReason
DEAD_LETTER_REASON_OUT_OF_RANGE: DeadLetterReason

class DeadLetter(_message.Message):
    __slots__ = ("source", "partition", "offset", "index", "reason", "detail", "payload")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    source: str
    partition: int
    offset: int
    index: int
    reason: DeadLetterReason
    detail: str
    payload: bytes
    def __init__(self, source: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., index: _Optional[int] = ..., reason: _Optional[_Union[DeadLetterReason, str]] = ..., detail: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...
