"""Bytes and ids that were written once and must read the same for ever. See tests/conftest.py for the switch."""

import json
from typing import Any

from schemas.codec import canonical_body, decode_events
from schemas.dead_letters import DeadLetter, Position
from schemas.identity import content_hash, event_id, prompt_fact_id
from schemas.json_lines import decode_line, encode_line
from schemas.topics import shard_of
from tests.conftest import Golden

WHERE = Position("golden", 0, 0)


def _input(golden: Golden) -> dict[str, str]:
    found: Any = golden.read("event_v1_0.input.json")
    return {"wire_hex": found["wire_hex"], "line": found["line"]}


def test_an_event_of_schema_1_0_in_bytes_is_upcast(golden: Golden) -> None:
    decoded = decode_events(bytes.fromhex(_input(golden)["wire_hex"]), WHERE, with_provenance=True)
    (event,) = decoded.events
    golden.check("event_v1_0.expected.json", json.loads(encode_line(event)))


def test_an_event_of_schema_1_0_in_json_is_upcast_to_the_same(golden: Golden) -> None:
    event = decode_line(_input(golden)["line"].encode(), WHERE).result
    assert not isinstance(event, DeadLetter)
    golden.check("event_v1_0.expected.json", json.loads(encode_line(event)))


def test_ids_are_those_that_other_implementations_compute(golden: Golden) -> None:
    """Anyone who writes a producer in another language checks it against these."""
    (event,) = decode_events(bytes.fromhex(_input(golden)["wire_hex"]), WHERE).events
    body = canonical_body(event)
    prompts: list[tuple[str, list[int], float]] = [
        ("gpt-4o", [1, 2, 3], 0.7),
        ("gpt-4o", [1, 2, 3], 0.0),
        ("", [], 1.0),
        ("llama-3", list(range(300)), 0.1),
        ("llama-3", list(range(256)), 0.1),
    ]
    events = [
        ("session-1", 1, "prompt_submitted"),
        ("session-1", 2, "prompt_submitted"),
        ("session-1", 1, "tokens_generated"),
        ("", 0, "heartbeat"),
        ("sitzung-ü", 2**63 - 1, "request_completed"),
        ("s", 2**64 - 1, "request_failed"),
    ]
    tenants = ["", "acme", "tenant-7", "globex", "mieter-ü", "a" * 512]
    golden.check(
        "identity.json",
        {
            "event_id": [
                {"session": session, "sequence": sequence, "kind": kind, "id": event_id(session, sequence, kind).hex()}
                for session, sequence, kind in events
            ],
            "prompt_fact_id": [
                {
                    "model": model,
                    "tokens": tokens,
                    "temperature": temperature,
                    "id": prompt_fact_id(model, tokens, temperature).hex(),
                }
                for model, tokens, temperature in prompts
            ],
            "content_hash": [
                {"body": found.hex(), "hash": content_hash(found).hex()} for found in (b"", b"headrace", body)
            ],
            "shard_of": [
                {"tenant": tenant, "shards": count, "shard": shard_of(tenant, count)}
                for tenant in tenants
                for count in (1, 32, 1_000)
            ],
        },
    )
