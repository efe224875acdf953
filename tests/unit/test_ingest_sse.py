"""The event stream parser against the specification's own examples, and what has broken others.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import pytest

from udfs.domain.ingest.sse import EventStreamLimitError, EventStreamParser, ServerSentEvent


def events(stream: bytes) -> list[tuple[str, str]]:
    return [(event.event, event.data) for event in EventStreamParser().feed(stream)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The examples of the specification, section 9.2.6.
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("", "YHOO\n+2\n10")]),
        (b"data\n\ndata\ndata\n\n", [("", ""), ("", "\n")]),
        (b"data:test\n\ndata: test\n\n", [("", "test"), ("", "test")]),
        # Line ends.
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("", "a"), ("", "b"), ("", "c")]),
        (b"data: a\n\r\ndata: b\r\n\n", [("", "a"), ("", "b")]),
        # Characters that Python takes for line ends, and the specification does not.
        ("data: a\u2028b\x0bc\x85d\n\n".encode(), [("", "a\u2028b\x0bc\x85d")]),
        # Fields.
        (b"event: ping\ndata: {}\n\n", [("ping", "{}")]),
        (b"event: a\nevent: b\ndata: x\n\ndata: y\n\n", [("b", "x"), ("", "y")]),
        (b"event: lost\n\ndata: x\n\n", [("", "x")]),
        (b'data:{"a":1}\n\n', [("", '{"a":1}')]),
        (b" data: x\nDATA: y\nfoo\n\n", []),
        (b"data: a:b\n\n", [("", "a:b")]),
        # Encoding.
        (b"\xef\xbb\xbfdata: x\n\n", [("", "x")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", []),
        (b"data: \xff\xe2\x82\n\n", [("", "\ufffd\ufffd")]),
        (b"data: \x00\n\n", [("", "\x00")]),
        # Nothing.
        (b"", []),
        (b"\n\n\n", []),
        (b":\n:keep-alive\n\n", []),
    ],
)
def test_a_stream_is_read_as_the_specification_says(stream: bytes, expected: list[tuple[str, str]]) -> None:
    assert events(stream) == expected


def test_the_fourth_example_of_the_specification() -> None:
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event"
    parser = EventStreamParser()
    assert parser.feed(stream) == [ServerSentEvent("first event", id="1"), ServerSentEvent("second event")]
    assert parser.comments == 1
    assert parser.close() == [ServerSentEvent(" third event")], "kept, where the specification would drop it"


def test_an_id_lasts_until_the_next_and_one_with_a_null_is_ignored() -> None:
    parser = EventStreamParser()
    found = parser.feed(b"id: 7\ndata: a\n\ndata: b\n\nid: 8\x00\ndata: c\n\n")
    assert [event.id for event in found] == ["7", "7", "7"]


def test_an_event_is_there_with_its_carriage_return_and_does_not_wait_for_a_line_feed() -> None:
    # https://github.com/openai/openai-agents-python/issues/4214
    parser = EventStreamParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent("a")]
    assert parser.feed(b"\ndata: b\r") == []
    assert parser.feed(b"\ndata: c\r\n\r\n") == [ServerSentEvent("b\nc")]


def test_a_character_split_between_pieces_stays_whole() -> None:
    # https://github.com/api7/aisix/issues/111
    parser = EventStreamParser()
    stream = "data: 你好 😀\n\n".encode()
    found = [event for byte in stream for event in parser.feed(bytes([byte]))]
    assert found == [ServerSentEvent("你好 😀")]


def test_comments_and_lines_without_a_known_field_are_counted() -> None:
    # https://openrouter.ai/docs/api-reference/streaming
    parser = EventStreamParser()
    parser.feed(b": OPENROUTER PROCESSING\n\nretry: 10\nfoo: bar\ndata: x\n\n")
    assert (parser.comments, parser.retries, parser.unknown_lines) == (1, 1, 1)


def test_close_gives_what_a_stream_without_its_last_blank_line_left() -> None:
    parser = EventStreamParser()
    assert parser.feed(b'data: {"usage": 1}\ndata: x') == []
    assert parser.close() == [ServerSentEvent('{"usage": 1}\nx')]
    assert parser.close() == []


@pytest.mark.parametrize(
    "pieces", [[b"data: 1\n\ndata: " + b"x" * 100 + b"\n\n"], [b"data: 1\n\n", b"d" * 60, b"a" * 60]]
)
def test_a_line_that_is_too_long_ends_the_reading_and_keeps_what_came_before(pieces: list[bytes]) -> None:
    parser = EventStreamParser(max_line_bytes=100)
    found = [event for piece in pieces[:-1] for event in parser.feed(piece)]
    with pytest.raises(EventStreamLimitError, match="more than 100 bytes") as caught:
        parser.feed(pieces[-1])
    assert found + caught.value.events == [ServerSentEvent("1")]
    with pytest.raises(EventStreamLimitError):
        parser.feed(b"data: 2\n\n")
    with pytest.raises(EventStreamLimitError):
        parser.close()


def test_an_event_of_many_lines_is_bounded_too() -> None:
    parser = EventStreamParser(max_event_bytes=100)
    for _ in range(10):
        assert parser.feed(b"data: 123456789\n") == []
    with pytest.raises(EventStreamLimitError, match="an event"):
        parser.feed(b"data: 123456789\n")


def test_lines_of_exactly_the_limit_pass_in_one_piece_as_in_many() -> None:
    stream = b"data: " + b"x" * 94 + b"\n\n"
    assert len(EventStreamParser(max_line_bytes=100).feed(stream)) == 1
    parser = EventStreamParser(max_line_bytes=100)
    assert sum(len(parser.feed(bytes([byte]))) for byte in stream) == 1
