"""Server-sent events out of bytes, as they come: in pieces of any size.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from typing import Final

import msgspec

MAX_LINE_BYTES: Final = 1 << 20
"""Longest line by default: a chunk with a picture or a whole answer in it fits, a stream without lines does not."""

MAX_EVENT_BYTES: Final = 1 << 22
"""Largest event by default, all its lines of data together."""

_BOM: Final = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: `data` are its data lines joined by a line feed. `event` is "" where the stream names none."""

    data: str
    event: str = ""
    id: str = ""


class EventStreamLimitError(ValueError):
    """A line or an event is larger than allowed. `events` are those that the same piece held before it."""

    def __init__(self, what: str, limit: int, events: list[ServerSentEvent]) -> None:
        super().__init__(f"{what} of the event stream has more than {limit:,} bytes")
        self.events = events


class EventStreamParser:
    r"""Reads one event stream. Whatever pieces the bytes come in, the events are the same.

    Lines end with CR, LF or both, an event as soon as its blank line is there. Bytes that are no UTF-8 become U+FFFD.
    It holds at most one line and one event; after an EventStreamLimitError it reads no further.

    >>> parser = EventStreamParser()
    >>> parser.feed(b"event: delta\r\ndata: a\r\n: keep-alive\r\ndata: b\r")
    []
    >>> parser.feed(b"\n\r\ndata: [DONE]")
    [ServerSentEvent(data='a\nb', event='delta', id='')]
    >>> parser.close()
    [ServerSentEvent(data='[DONE]', event='', id='')]
    """

    __slots__ = (
        "_after_cr",
        "_begun",
        "_data",
        "_event",
        "_id",
        "_line",
        "_max_event_bytes",
        "_max_line_bytes",
        "_overflow",
        "_size",
        "comments",
        "retries",
        "unknown_lines",
    )

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.comments = 0
        self.retries = 0
        self.unknown_lines = 0
        """Lines with a field that the specification does not know; it says to ignore them."""
        self._max_line_bytes = max_line_bytes
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id = ""
        self._begun = False
        self._after_cr = False
        self._overflow: tuple[str, int] | None = None

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that end within this piece. Raises EventStreamLimitError."""
        found: list[ServerSentEvent] = []
        if self._overflow is not None:
            raise EventStreamLimitError(*self._overflow, found)
        if self._after_cr and piece:
            # The second half of a CRLF whose first half ended its line already.
            self._after_cr = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if end:
            self._after_cr = piece[end - 1] == 0x0D and end == len(piece)
            self._line += piece[:end]
            # Of bytes, unlike of text, splitlines takes CR, LF and CRLF alone for line ends.
            lines = bytes(self._line).splitlines()
            self._line = bytearray(piece[end:])
            if not self._begun:
                self._begun = True
                lines[0] = lines[0].removeprefix(_BOM)
            for line in lines:
                if line:
                    self._read(line, found)
                elif self._data or self._event:
                    self._dispatch(found)
        else:
            self._line += piece
        if len(self._line) > self._max_line_bytes + (0 if self._begun else len(_BOM)):
            self._stop("a line", self._max_line_bytes, found)
        return found

    def close(self) -> list[ServerSentEvent]:
        """What a stream that ends without a blank line left behind: at most one event, perhaps cut off in its middle.

        The specification drops it; a last chunk with the usage in it is worth more than that. Raises
        EventStreamLimitError.
        """
        found: list[ServerSentEvent] = []
        if self._overflow is not None:
            raise EventStreamLimitError(*self._overflow, found)
        if self._line:
            line = bytes(self._line)
            self._line = bytearray()
            line = line if self._begun else line.removeprefix(_BOM)
            if line:
                self._read(line, found)
        self._dispatch(found)
        return found

    def _read(self, line: bytes, found: list[ServerSentEvent]) -> None:
        if len(line) > self._max_line_bytes:
            self._stop("a line", self._max_line_bytes, found)
        if line.startswith(b"data:"):
            self._append(line[6:] if line[5:6] == b" " else line[5:], found)
        elif line[0] == 0x3A:
            self.comments += 1
        else:
            self._read_field(line, found)

    def _read_field(self, line: bytes, found: list[ServerSentEvent]) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"data":
            self._append(value, found)
        elif name == b"id":
            if b"\x00" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry":
            self.retries += 1
        else:
            self.unknown_lines += 1

    def _append(self, value: bytes, found: list[ServerSentEvent]) -> None:
        self._data.append(value)
        self._size += len(value) + 1
        if self._size > self._max_event_bytes:
            self._stop("an event", self._max_event_bytes, found)

    def _dispatch(self, found: list[ServerSentEvent]) -> None:
        data = self._data
        if data:
            text = (data[0] if len(data) == 1 else b"\n".join(data)).decode("utf-8", "replace")
            found.append(ServerSentEvent(text, self._event, self._id))
            data.clear()
            self._size = 0
        self._event = ""

    def _stop(self, what: str, limit: int, found: list[ServerSentEvent]) -> None:
        self._overflow = (what, limit)
        self._line = bytearray()
        self._data = []
        raise EventStreamLimitError(what, limit, found)
