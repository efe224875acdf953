"""Where two sides of a comparison begin. The topics here are lists of batches."""

from collections.abc import Iterable, Iterator
from types import TracebackType

import pytest
import typer
from typer.testing import CliRunner
from typing_extensions import Self

from jobs.ops import decision_sides
from jobs.ops.decision_sides import common_starts, side_of
from jobs.ops.diff_command import diff
from jobs.ops.log_options import LogAccess
from jobs.wiring.kafka_log import LogRecord, Slice
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.settings import AdmissionSettings
from schemas.codec import encode_decisions
from schemas.decisions import Decision
from tests.unit.test_replay import SHARDS, expected

ACCESS = LogAccess(KafkaSettings(), AdmissionSettings(shard_count=SHARDS))
DECIDED: list[Decision] = expected("acme")
TOPICS: dict[str, list[bytes]] = {}


class Reader:
    """As much of a TopicReader as is asked of it."""

    def __init__(self, _: KafkaSettings, topic: str) -> None:
        self.topic = topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return

    def partitions_of(self, tenants: Iterable[str], shard_count: int) -> tuple[int, ...]:  # noqa: ARG002 - as the reader's
        return (0,)

    def slices(self, _: Iterable[int] | None = None) -> list[Slice]:
        return [Slice(0, 0, 1, 0)]

    def records(self, _: Iterable[Slice]) -> Iterator[LogRecord]:
        return (LogRecord(0, at, 1, b"1", value, ()) for at, value in enumerate(TOPICS[self.topic]))


def topic(decided: list[Decision], first: int, shard: int = 1) -> list[bytes]:
    """One batch a decision, from the records `first` on."""
    return [encode_decisions(shard, [it], (0, at)) for at, it in enumerate(decided, first)]


@pytest.fixture(autouse=True)
def two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_sides, "TopicReader", Reader)
    monkeypatch.setenv("HEADRACE_SHARD_COUNT", str(SHARDS))
    TOPICS.clear()
    # The second begins at record 5, and has not seen shard 2.
    TOPICS["headrace.decisions"] = topic(DECIDED, 0) + topic(DECIDED[:1], 100, shard=2)
    TOPICS["headrace.decisions.g2"] = topic(DECIDED[5:], 5)


def test_generations_have_the_first_records_in_common_that_both_decided() -> None:
    with side_of("gen:1", ACCESS) as a, side_of("gen:2", ACCESS) as b:
        assert common_starts(a, b) == {(1, 0): 5}
        assert list(a.decisions({(1, 0): 5})) == list(b.decisions()) == DECIDED[5:]
        assert len(list(a.decisions())) == len(DECIDED) + 1


def test_sides_that_begin_together_or_have_no_places_are_not_cut() -> None:
    TOPICS["headrace.decisions.g3"] = []
    with side_of("gen:1", ACCESS) as a, side_of("topic:headrace.decisions.g2", ACCESS) as other:
        assert common_starts(a, a) is None
        assert common_starts(a, other) is None
        with side_of("gen:3", ACCESS) as nothing:
            assert common_starts(a, nothing) is None


def test_the_command_compares_what_both_decided_and_says_so() -> None:
    app = typer.Typer()
    app.command()(diff)
    same = CliRunner().invoke(app, ["gen:1", "gen:2"])
    assert same.exit_code == 0, same.output
    assert "From the first record that both decided" in same.output
    whole = CliRunner().invoke(app, ["gen:1", "gen:2", "--since", "1970-01-01T00:00:00Z", "--json"])
    assert whole.exit_code == 1
    assert '"only_a":5' in whole.stdout


def test_a_side_that_decided_nothing_is_not_the_same_as_one_that_did() -> None:
    TOPICS["headrace.decisions.g2"] = []
    app = typer.Typer()
    app.command()(diff)
    assert CliRunner().invoke(app, ["gen:1", "gen:2"]).exit_code == 1
