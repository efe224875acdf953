"""What each topic is made with. Retention decides how far back a log can be replayed, so it is set here."""

from typing import Final, NamedTuple

from schemas.topics import Topic

DAY_MS: Final = 86_400_000


class TopicSpec(NamedTuple):
    """A topic's make. `per_shard`: it has the log's partitions; else one."""

    per_shard: bool
    cleanup: str
    retention_ms: int | None

    @property
    def options(self) -> dict[str, str]:
        """Kafka's options for it."""
        found = {"cleanup.policy": self.cleanup, "message.timestamp.type": "CreateTime"}
        if self.retention_ms is not None:
            found["retention.ms"] = str(self.retention_ms)
        return found


def _log(days: int | None, *, per_shard: bool = True) -> TopicSpec:
    return TopicSpec(per_shard, "delete", -1 if days is None else days * DAY_MS)


_COMPACTED: Final = TopicSpec(per_shard=False, cleanup="compact", retention_ms=None)

CATALOG: Final[dict[Topic, TopicSpec]] = {
    # The log itself and what was decided: kept until an operator decides otherwise (tiered storage, a shorter time).
    Topic.EVENTS: _log(None),
    Topic.DECISIONS: _log(None),
    Topic.OUTCOMES: _log(7),
    Topic.ROUTES: _COMPACTED,
    Topic.POLICIES: _COMPACTED,
    Topic.VERDICTS: _log(7),
    Topic.ALERTS: _log(None, per_shard=False),
    Topic.AUDIT: _log(None),
    Topic.DEAD_LETTERS: _log(28, per_shard=False),
    Topic.GENERATIONS: _COMPACTED,
}


def decisions_topic(generation: int) -> str:
    """The topic that a generation of decisions is written to. A rollback writes the next one.

    >>> decisions_topic(1), decisions_topic(3)
    ('headrace.decisions', 'headrace.decisions.g3')
    """
    return Topic.DECISIONS.value if generation == 1 else f"{Topic.DECISIONS.value}.g{generation}"
