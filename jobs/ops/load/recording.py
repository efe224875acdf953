"""What a load sent and read, one JSON object a line: so that a later check can compare with a replay of the log."""

from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from jobs.wiring.atomic_file import OutputFileError
from schemas.codec import NAME_OF_KIND
from schemas.decisions import Decision
from schemas.events import Event, Heartbeat, TokensGenerated


class LoadBegan(msgspec.Struct, frozen=True, tag="began", tag_field="what"):
    """The first line. Both maps: partition -> the offset at which it ended then."""

    run_id: str
    events_topic: str
    decisions_topic: str
    events_from: dict[int, int]
    decisions_from: dict[int, int]


class EventSent(msgspec.Struct, frozen=True, tag="sent", tag_field="what", omit_defaults=True):
    """An event that was handed to the producer. `cumulative`: of a chunk of tokens."""

    request_id: str
    attempt: int
    kind: str
    event_time_us: int
    tenant: str
    event_id: str
    cumulative: int = 0


class DecisionRead(msgspec.Struct, frozen=True, tag="read", tag_field="what"):
    """A decision as it was read, and where: every delivery of it, repeats included."""

    partition: int
    offset: int
    index: int
    read_at_us: int
    decision: Decision


class Recording:
    """Writes the lines. Not atomic: what was recorded before a crash is what is wanted after one."""

    def __init__(self, path: Path) -> None:
        """Raises OutputFileError where the file can't be written."""
        try:
            self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        except OSError as error:
            raise OutputFileError(f"{path}: {(error.strerror or str(error)).lower()}") from error
        self._encode = msgspec.json.Encoder().encode

    def began(self, began: LoadBegan) -> None:
        """Write the first line."""
        self._write(began)
        self._file.flush()

    def sent(self, event: Event) -> None:
        """Note an event of a request; heartbeats are passed over."""
        if isinstance(event, Heartbeat):
            return
        self._write(
            EventSent(
                event.request_id,
                event.attempt,
                NAME_OF_KIND[type(event)],
                event.event_time_us,
                event.tenant,
                event.event_id.hex(),
                event.cumulative if isinstance(event, TokensGenerated) else 0,
            )
        )

    def read(self, read: DecisionRead) -> None:
        """Note a decision."""
        self._write(read)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()

    def _write(self, line: LoadBegan | EventSent | DecisionRead) -> None:
        self._file.write(self._encode(line) + b"\n")


RecordedLine: TypeAlias = LoadBegan | EventSent | DecisionRead
_LINE: Final[msgspec.json.Decoder[RecordedLine]] = msgspec.json.Decoder(RecordedLine)


def recorded_line(line: bytes) -> RecordedLine:
    """Read a line that a Recording wrote. Raises msgspec.ValidationError."""
    return _LINE.decode(line)
