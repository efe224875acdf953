"""Ids of the events of one attempt, the same whoever writes them: what adapters of `udfs.domain.ingest` give too."""

from typing import Final

from schemas.identity import event_id

PROMPT_SEQUENCE: Final = 1
"""The prompt is the first event of its attempt, and has this number even where it is written late."""


def attempt_event_id(tenant: str, request_id: str, attempt: int, sequence: int, kind: str) -> bytes:
    """The id of the event with that number. `kind` is the name of the body's field in the schema."""
    return event_id(life_of(tenant, request_id, attempt), sequence, kind)


def life_of(tenant: str, request_id: str, attempt: int) -> str:
    """What stands for the session in the ids of an attempt's events."""
    return f"{tenant}\x00{request_id}\x00{attempt}"
