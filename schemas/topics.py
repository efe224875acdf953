"""Names of the topics and how tenants are spread over shards: contracts that outlive every deploy."""

from enum import Enum
from hashlib import blake2b
from typing import Final

SHARD_COUNT: Final = 32
"""Virtual shards of the log. Fixed for the life of a log: changing it moves tenants away from their state."""


class Topic(str, Enum):
    """Topics of the log; see docs/architecture.md for keys and retention."""

    EVENTS = "headrace.events"
    DECISIONS = "headrace.decisions"
    OUTCOMES = "headrace.outcomes"
    ROUTES = "headrace.routes"
    POLICIES = "headrace.policies"
    VERDICTS = "headrace.verdicts"
    ALERTS = "headrace.alerts"
    AUDIT = "headrace.audit"
    DEAD_LETTERS = "headrace.dlq"
    GENERATIONS = "headrace.generations"


def shard_of(tenant: str, shard_count: int = SHARD_COUNT) -> int:
    """The shard that all events of `tenant` are in: BLAKE2b-64 of its UTF-8, big-endian, modulo the count.

    >>> shard_of("acme"), shard_of(""), shard_of("tenant-7")
    (1, 20, 22)
    """
    return int.from_bytes(blake2b(tenant.encode(), digest_size=8).digest(), "big") % shard_count
