"""Replay, explain, diff and dead letters on a real broker."""

import json
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import typer
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError
from msgspec.structs import replace as replace_fields
from typer.testing import CliRunner

from jobs.ops import dlq
from jobs.ops.diff_command import diff
from jobs.ops.dlq import DlqError, LetterReplay, Place, Prepared, letter_at, prepare
from jobs.ops.dlq_command import dlq_app
from jobs.ops.event_sources import KafkaEvents
from jobs.ops.replay_command import explain, replay
from jobs.wiring import kafka_log
from jobs.wiring.event_file_writer import batches
from jobs.wiring.kafka_log import (
    BeyondLogError,
    BrokerUnreachableError,
    LogTruncatedError,
    TopicMissingError,
    TopicReader,
)
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.record_keys import partition_of, record_keys
from schemas.codec import decode_events, encode_dead_letter, encode_decisions, encode_events, wire_event
from schemas.dead_letters import WHOLE_RECORD, DeadLetter, DeadLetterReason, Position
from schemas.topics import shard_of
from tests.limiter_world import at, chunk, prompt
from tests.unit.test_replay import POLICY_FILE, SHARDS, expected, world

pytestmark = pytest.mark.slow

PARTITIONS = 2
KEYS = record_keys(SHARDS)


class Log(NamedTuple):
    """Topics of one test."""

    servers: str
    name: str

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(servers=self.servers)

    def topic(self, kind: str, partitions: int = PARTITIONS) -> str:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        admin.create_topics([NewTopic(f"{self.name}.{kind}", partitions, 1)])
        admin.close()
        return f"{self.name}.{kind}"

    def send(self, topic: str, *records: tuple[bytes | None, bytes | None], sent_ms: int | None = None) -> None:
        producer = KafkaProducer(bootstrap_servers=self.servers)
        for key, value in records:
            producer.send(topic, key=key, value=value, timestamp_ms=sent_ms)
        producer.flush()
        producer.close()

    def records(self, topic: str) -> list[kafka_log.LogRecord]:
        with TopicReader(self.kafka, topic) as reader:
            return list(reader.records(reader.slices()))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        admin.delete_records({TopicPartition(topic, partition): offset})
        admin.close()

    def run(self, app: typer.Typer, *arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--servers", self.servers])


@pytest.fixture
def log(kafka_servers: str, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("HEADRACE_SHARD_COUNT", str(SHARDS))
    return Log(kafka_servers, f"t{uuid4().hex[:12]}")


@pytest.fixture
def events(log: Log) -> str:
    """The topic of the world that tests/unit/test_replay.py tells of."""
    topic = log.topic("events")
    made = batches(world(), shard_count=SHARDS, batch_events=500, batch_age_us=2_000_000)
    log.send(topic, *((KEYS[shard], encode_events(shard, batch)) for shard, batch in made))
    return topic


@pytest.fixture
def policies(tmp_path: Path) -> str:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICY_FILE)
    return str(path)


def app_of(command: Any) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)
    return app


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_read_ends_where_the_log_ended_when_it_began(log: Log) -> None:
    topic = log.topic("plain")
    log.send(topic, *((b"%d" % n, b"value") for n in range(40)))
    with TopicReader(log.kafka, topic) as reader:
        slices = reader.slices()
        log.send(topic, (b"late", b"value"))
        found = list(reader.records(slices))
    assert sorted(int(record.key or b"-1") for record in found) == list(range(40))
    for partition in range(PARTITIONS):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_aborted_records_are_left_out_and_do_not_hold_a_read_up(log: Log) -> None:
    topic = log.topic("transactions", 1)
    producer = KafkaProducer(bootstrap_servers=log.servers, transactional_id=log.name)
    producer.init_transactions()
    for value, is_kept in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.send(topic, value=value)
        producer.flush()
        (producer.commit_transaction if is_kept else producer.abort_transaction)()
    producer.close()
    assert [record.value for record in log.records(topic)] == [b"kept"]


def test_times_select_by_when_records_were_sent(log: Log) -> None:
    topic = log.topic("times", 1)
    for second in range(4):
        log.send(topic, (None, b"%d" % second), sent_ms=at(second) // 1000)
    with TopicReader(log.kafka, topic) as reader:
        found = [record.value for record in reader.records(reader.slices(from_us=at(1), until_us=at(3)))]
        assert found == [b"1", b"2"]
        with pytest.raises(BeyondLogError):
            reader.slices(from_us=at(9))


def test_what_retention_has_deleted_is_an_error_and_not_a_gap(log: Log) -> None:
    topic = log.topic("cut", 1)
    log.send(topic, *((None, b"%d" % n) for n in range(5)))
    with TopicReader(log.kafka, topic) as reader:
        before = reader.slices()
        log.delete_before(topic, 0, 3)
        with pytest.raises(LogTruncatedError, match="retention has deleted"):
            list(reader.records(before))
        with pytest.raises(LogTruncatedError):
            reader.record_at(0, 1)
        assert reader.record_at(0, 3).value == b"3"
        with pytest.raises(TopicMissingError, match="ends at 5"):
            reader.record_at(0, 5)
        assert not KafkaEvents(reader, SHARDS).reach(()).is_whole


def test_a_topic_that_is_not_there_is_named(log: Log) -> None:
    with pytest.raises(TopicMissingError, match="nowhere: there is no such topic"):
        TopicReader(log.kafka, "nowhere")


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "CONNECT_MS", 500)
    with pytest.raises(BrokerUnreachableError, match=r"127\.0\.0\.1:1: no broker answers"):
        TopicReader(KafkaSettings(servers="127.0.0.1:1"), "any")


# --- replay, explain, diff ----------------------------------------------------------------------------------------


def test_a_replay_of_a_tenant_reads_its_partition_and_finds_what_was_decided(
    log: Log, events: str, policies: str
) -> None:
    recorded = log.topic("decisions")
    tenants = ("acme", "bloom", "corex")
    decided = [decision for tenant in tenants for decision in expected(tenant)]
    log.send(
        recorded,
        *((KEYS[shard], encode_decisions(shard, [it])) for it in decided for shard in [shard_of(it.tenant, SHARDS)]),
    )
    found = log.run(
        app_of(replay), "-t", "acme", "-p", policies, "--from", str(at(60)), "--to", str(at(150)),
        "--events-topic", events, "--against", f"topic:{recorded}", "--json",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["decisions"] == len(expected("acme", at(60), at(150))) == summary["diff"]["all"]["same"]
    assert summary["warnings"] == []


def test_a_replay_of_a_log_whose_beginning_is_gone_says_so(log: Log, events: str, policies: str) -> None:
    with TopicReader(log.kafka, events) as reader:
        (partition,) = reader.partitions_of(["acme"], SHARDS)
    log.delete_before(events, partition, 5)
    found = log.run(app_of(replay), "-t", "acme", "-p", policies, "--events-topic", events, "--json")
    assert found.exit_code == 0, found.output
    assert f"partition {partition} before offset 5" in json.loads(found.stdout)["warnings"][0]


def test_a_request_is_found_and_explained_from_the_topic(log: Log, events: str, policies: str) -> None:
    found = log.run(app_of(explain), "acme-8", "-p", policies, "--events-topic", events, "--json")
    assert found.exit_code == 0, found.output
    explanation = json.loads(found.stdout)
    mine = [decision for decision in expected("acme") if decision.request_id == "acme-8"]
    told = [decision["decision_id"] for step in explanation["steps"] for decision in step["decisions"]]
    assert told == [decision.decision_id for decision in mine]


def test_a_request_in_a_partition_that_is_not_its_shards_is_explained_with_the_rest(log: Log, policies: str) -> None:
    shard = shard_of("acme", SHARDS)
    # Another key that names the shard, as a producer may make one up.
    odd = next(
        key
        for key in (b"%d.%d" % (shard, number) for number in range(1_000))
        if partition_of(key, PARTITIONS) != partition_of(KEYS[shard], PARTITIONS)
    )
    topic = log.topic("events")
    with KafkaProducer(bootstrap_servers=log.servers) as producer:
        for event in world():
            key = odd if event.request_id == "acme-8" else KEYS[shard_of(event.tenant, SHARDS)]
            record = encode_events(shard_of(event.tenant, SHARDS), [event])
            producer.send(topic, key=key, value=record, timestamp_ms=event.event_time_us // 1_000)
    found = log.run(app_of(explain), "acme-8", "-t", "acme", "-p", policies, "--events-topic", topic, "--json")
    assert found.exit_code == 0, found.output
    explanation = json.loads(found.stdout)
    mine = [decision for decision in expected("acme") if decision.request_id == "acme-8"]
    told = [decision["decision_id"] for step in explanation["steps"] for decision in step["decisions"]]
    assert told == [decision.decision_id for decision in mine]
    assert f"shard {shard} lie in partitions 0, 1" in explanation["warnings"][0]


def test_topics_are_compared_repeats_and_order_aside(log: Log) -> None:
    decided = expected("acme")
    a, b = log.topic("a"), log.topic("b")
    log.send(a, *((KEYS[1], encode_decisions(1, [decision])) for decision in decided))
    log.send(b, *((KEYS[1], encode_decisions(1, [decision])) for decision in [*decided[5:], *decided[:10]]))
    app = app_of(diff)
    same = log.run(app, f"topic:{a}", f"topic:{b}", "--json")
    assert same.exit_code == 0, same.output
    assert json.loads(same.stdout)["repeats_b"] == 5
    log.send(b, (KEYS[1], encode_decisions(1, [replace_fields(decided[0], policy_id="another")])))
    different = log.run(app, f"topic:{a}", f"topic:{b}", "--json")
    assert different.exit_code == 1
    assert json.loads(different.stdout)["all"]["conflicts_b"] == 1
    assert log.run(app, f"topic:{a}", "topic:nowhere").exit_code == 2


# --- dead letters -------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(log: Log, events: str) -> str:
    """Four letters: a whole record that could be read again, two events, and bytes that never can be."""
    topic = log.topic("dlq", 1)
    good = prompt("back", at(300), 10, max_tokens=5)
    texted = chunk("back", at(301), cumulative=3, text="my secret")
    whole = encode_events(shard_of("acme", SHARDS), [good])
    for reason, index, payload in (
        (DeadLetterReason.FOLD_FAILED, WHOLE_RECORD, whole),
        (DeadLetterReason.WRONG_SHARD, 3, wire_event(good).SerializeToString()),
        (DeadLetterReason.FOLD_FAILED, 4, wire_event(texted).SerializeToString()),
        (DeadLetterReason.MALFORMED, WHOLE_RECORD, b"\xff\xff not a batch"),
    ):
        letter = DeadLetter(events, 1, 7, index, reason, "why it was put aside", payload)
        log.send(topic, (events.encode(), encode_dead_letter(letter)))
    return topic


def test_letters_are_counted_by_reason(log: Log, letters: str) -> None:
    found = json.loads(log.run(dlq_app, "list", "--topic", letters, "--json").stdout)
    assert [(group["reason"], group["letters"]) for group in found["groups"]] == [
        ("fold_failed", 2),
        ("malformed", 1),
        ("wrong_shard", 1),
    ]
    (one,) = json.loads(log.run(dlq_app, "list", "--topic", letters, "--reason", "malformed", "--json").stdout)[
        "groups"
    ]
    assert (one["first"], one["last"], one["replayed"]) == ("0:3", "0:3", 0)


def test_records_that_are_no_letters_are_told_and_hold_nothing_up(log: Log, letters: str) -> None:
    log.send(letters, (None, b"\xff not a letter"))
    found = json.loads(log.run(dlq_app, "list", "--topic", letters, "--json").stdout)
    assert found["unreadable"] == ["0:4"]
    assert sum(group["letters"] for group in found["groups"]) == 4


def test_text_of_a_letter_is_hidden_unless_it_is_asked_for(log: Log, letters: str) -> None:
    hidden = log.run(dlq_app, "show", "0:2", "--topic", letters)
    assert hidden.exit_code == 0, hidden.output
    assert "secret" not in hidden.output
    assert b"secret".hex() not in log.run(dlq_app, "show", "0:2", "--topic", letters, "--json").output
    assert "my secret" in log.run(dlq_app, "show", "0:2", "--topic", letters, "--show-text").output


def test_letters_go_back_once_each_in_its_shard(log: Log, letters: str, events: str) -> None:
    options = ("replay", "--topic", letters, "--events-topic", events)
    before = len(log.records(events))

    dry = log.run(dlq_app, *options, "--all", "--json")
    assert json.loads(dry.stdout)["sent"] is None
    assert len(log.records(events)) == before

    done = log.run(dlq_app, *options, "--all", "--yes", "--json")
    # The malformed one would fail again.
    assert done.exit_code == 1
    assert json.loads(done.stdout)["sent"] == 3
    back = [record for record in log.records(events) if record.headers]
    assert len(back) == 3
    assert {dict(record.headers)["headrace-replayed-from"] for record in back} == {b"dlq/0/0", b"dlq/0/1", b"dlq/0/2"}
    for record in back:
        assert record.key == KEYS[shard_of("acme", SHARDS)]
        decoded = decode_events(record.value or b"", Position(events, record.partition, record.offset))
        assert [event.request_id for event in decoded.events] == ["back"]
        assert not decoded.dead

    again = log.run(dlq_app, *options, "0:0", "0:1", "0:2", "--yes", "--json")
    assert (again.exit_code, json.loads(again.stdout)["sent"]) == (0, 0)
    assert json.loads(again.stdout)["replayed_before"] == ["0:0", "0:1", "0:2"]
    listed = json.loads(log.run(dlq_app, "list", "--topic", letters, "--json").stdout)
    assert sum(group["replayed"] for group in listed["groups"]) == 3


def test_a_repaired_letter_goes_back_with_its_new_bytes(log: Log, letters: str, events: str, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired.bin"
    repaired.write_bytes(encode_events(shard_of("bloom", SHARDS), [prompt("mended", at(300), 1, tenant="bloom")]))
    options = ("replay", "0:3", "--topic", letters, "--events-topic", events, "--yes", "--json")
    assert log.run(dlq_app, *options).exit_code == 1
    found = log.run(dlq_app, *options, "--payload", str(repaired))
    assert (found.exit_code, json.loads(found.stdout)["sent"]) == (0, 1)
    (back,) = [record for record in log.records(events) if record.headers]
    assert back.value == repaired.read_bytes()
    assert back.key == KEYS[shard_of("bloom", SHARDS)]


def test_a_letter_that_would_fail_again_goes_back_where_it_is_forced(log: Log, letters: str, events: str) -> None:
    options = ("replay", "0:3", "--topic", letters, "--events-topic", events, "--yes", "--json")
    assert json.loads(log.run(dlq_app, *options).stdout)["sent"] == 0
    assert json.loads(log.run(dlq_app, *options, "--force").stdout)["sent"] == 1
    (back,) = [record for record in log.records(events) if record.headers]
    assert (back.key, back.partition) == (None, 1)


def test_a_second_replay_puts_an_end_to_the_first(log: Log, letters: str, events: str) -> None:
    with TopicReader(log.kafka, events) as to, TopicReader(log.kafka, letters) as reader:
        prepared: list[Prepared] = [prepare(letter_at(reader, Place(0, 0)), SHARDS)]
        with (
            LetterReplay(log.kafka, letters, to, SHARDS) as first,
            LetterReplay(log.kafka, letters, to, SHARDS) as later,
        ):
            with pytest.raises(DlqError, match="another replay has begun"):
                first.send(prepared)
            assert later.send(prepared) == 1
    assert len([record for record in log.records(events) if record.headers]) == 1


def test_a_replay_that_breaks_off_leaves_neither_record_nor_mark(
    log: Log, letters: str, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: KafkaProducer) -> None:
        raise KafkaTimeoutError("the broker went away")

    options = ("replay", "0:0", "--topic", letters, "--events-topic", events, "--yes", "--json")
    with monkeypatch.context() as patched:
        patched.setattr(KafkaProducer, "commit_transaction", broken)
        assert isinstance(log.run(dlq_app, *options).exception, BrokerUnreachableError)
    assert not [record for record in log.records(events) if record.headers]
    assert json.loads(log.run(dlq_app, *options).stdout)["sent"] == 1
    assert json.loads(log.run(dlq_app, *options).stdout)["sent"] == 0
    assert len([record for record in log.records(events) if record.headers]) == 1


def test_marks_behind_an_open_transaction_are_waited_for(
    log: Log, letters: str, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = KafkaProducer(bootstrap_servers=log.servers, transactional_id=f"{log.name}.job")
    job.init_transactions()
    job.begin_transaction()
    job.send(letters, value=b"letters of a checkpoint that is not complete")
    job.flush()
    options = ("replay", "0:0", "--topic", letters, "--events-topic", events, "--yes", "--json")
    with monkeypatch.context() as patched:
        patched.setattr(dlq, "_SETTLE_SECONDS", 0.0)
        found = log.run(dlq_app, *options)
    assert isinstance(found.exception, DlqError)
    assert "a transaction has been open" in str(found.exception)
    job.commit_transaction()
    job.close()
    assert json.loads(log.run(dlq_app, *options).stdout)["sent"] == 1


def test_letters_of_another_topic_are_not_put_on_this_one(log: Log, letters: str) -> None:
    other = log.topic("other")
    found = log.run(dlq_app, "replay", "0:0", "--topic", letters, "--events-topic", other, "--yes")
    assert isinstance(found.exception, DlqError)
    assert log.records(other) == []
