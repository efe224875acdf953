"""Ids that are pure functions of what happened. Test vectors: tests/golden/identity.json.

A field is fed to the hash as its length (8 bytes, big-endian) and its bytes, so that no two different lists of fields
give the same input. Text is UTF-8, integers are 8 bytes, big-endian, two's complement.
"""

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from blake3 import blake3

EVENT_ID_BYTES: Final = 16

FACT_TOKENS: Final = 256
"""How many first tokens of a prompt make its fact id."""

_length = struct.Struct(">Q").pack


def _integer(number: int) -> bytes:
    return _length(number & 0xFFFF_FFFF_FFFF_FFFF)


def _framed(fields: Sequence[bytes]) -> bytes:
    return b"".join(_length(len(field)) + field for field in fields)


def event_id(session: str, sequence: int, kind: str) -> bytes:
    """16 bytes that name the event, however often its producer sends it: BLAKE3 of session, sequence and kind.

    `kind` is the name of the body's field in the schema, such as `tokens_generated`.

    >>> event_id("session-1", 1, "prompt_submitted").hex()
    '015d8fb9ccc15191edec13603fe1362a'
    """
    return event_ids_in(session)(sequence, kind)


def event_ids_in(session: str) -> Callable[[int, str], bytes]:
    """The same for many events of one session: a function of sequence and kind."""
    of_session = _framed((b"headrace.event.v1", session.encode())) + _length(8)

    def event_id(sequence: int, kind: str) -> bytes:
        name = kind.encode()
        return blake3(of_session + _integer(sequence) + _length(len(name)) + name).digest(EVENT_ID_BYTES)

    return event_id


def prompt_fact_id(model: str, first_tokens: Sequence[int], temperature: float) -> bytes:
    """32 bytes that name a prompt: SHA-256 over model, the first 256 token ids and the temperature in millionths.

    >>> prompt_fact_id("gpt-4o", [1, 2, 3], 0.7).hex()[:16]
    '6262ac1205878575'
    """
    tokens = b"".join(map(_integer, first_tokens[:FACT_TOKENS]))
    fields = (b"headrace.prompt.v1", model.encode(), tokens, _integer(round(temperature * 1_000_000)))
    return sha256(_framed(fields)).digest()


def content_hash(canonical_body: bytes) -> bytes:
    """32 bytes that change when the body does: BLAKE3 of its deterministic protobuf serialisation.

    >>> content_hash(b"").hex()[:16]
    'af1349b9f5f9a1a6'
    """
    return blake3(canonical_body).digest()
