"""Where the network splits a stream changes nothing, and what comes out is what the specification says."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from udfs.domain.ingest.sse import EventStreamLimitError, EventStreamParser, ServerSentEvent

LINES = st.one_of(
    st.sampled_from(
        [b"", b":", b"data", b"data:", b"event: e", b"id: 1", b"id: \x00", b"retry: 1", b"\xef\xbb\xbfdata: b"]
    ),
    st.text(max_size=8).map(lambda text: b"data: " + text.encode("utf-8", "replace")),
    st.binary(max_size=8),
)
STREAMS = st.lists(
    st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"])), max_size=20
).map(lambda lines: b"".join(line + end for line, end in lines))


def by_definition(stream: bytes) -> list[tuple[str, str, str]]:
    """The specification's algorithm word by word, on the whole of the decoded text."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    found: list[tuple[str, str, str]] = []
    data, kind, last_id = "", "", ""
    for line in re.split("\r\n|\r|\n", text)[:-1]:
        if line == "":
            if data != "":
                found.append((data.removesuffix("\n"), kind, last_id))
            data, kind = "", ""
            continue
        if line.startswith(":"):
            continue
        name, colon, value = line.partition(":")
        if colon and value.startswith(" "):
            value = value[1:]
        if name == "event":
            kind = value
        elif name == "data":
            data += value + "\n"
        elif name == "id" and "\x00" not in value:
            last_id = value
    return found


def read(pieces: list[bytes], parser: EventStreamParser) -> list[ServerSentEvent]:
    return [event for piece in pieces for event in parser.feed(piece)]


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(places)]


@given(STREAMS)
@example(b"data: a\r\rdata: b\n\r\n")
def test_a_stream_gives_the_events_of_the_specification(stream: bytes) -> None:
    found = EventStreamParser().feed(stream)
    assert [(event.data, event.event, event.id) for event in found] == by_definition(stream)


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    whole, split = EventStreamParser(), EventStreamParser()
    assert read(pieces_of(stream, cuts), split) == read([stream], whole)
    assert split.close() == whole.close()
    assert (split.comments, split.unknown_lines) == (whole.comments, whole.unknown_lines)


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 20))
def test_any_split_meets_the_same_limit_after_the_same_events(stream: bytes, cuts: list[int], limit: int) -> None:
    def outcome(pieces: list[bytes]) -> tuple[list[ServerSentEvent], bool]:
        parser = EventStreamParser(max_line_bytes=limit, max_event_bytes=limit)
        found: list[ServerSentEvent] = []
        try:
            for piece in pieces:
                found += parser.feed(piece)
            found += parser.close()
        except EventStreamLimitError as error:
            return found + error.events, True
        return found, False

    assert outcome(pieces_of(stream, cuts)) == outcome([stream])
