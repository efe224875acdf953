"""Kafka as source and sink of a job, by way of SQL tables: PyFlink's own builder gives a record's value only.

A savepoint finds the offsets by the uid of the table's source, so tables get uids too: Flink is told to make them from
our own alone.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyflink.common import Types
from pyflink.datastream import DataStream, KeyedStream
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment

from jobs.wiring.names import Uid
from jobs.wiring.record_keys import KEY_PATTERN, record_keys
from jobs.wiring.settings import JobSettings
from schemas.topics import Topic
from udfs.operators.keyed_fold import RECORD_ROW
from udfs.operators.shard_keys import routing_keys

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment


class KafkaTables:
    """Tables over topics in one job."""

    def __init__(self, env: "StreamExecutionEnvironment", settings: JobSettings) -> None:
        """`settings` say where Kafka is and how surely sinks write."""
        self._settings = settings
        self.tables = StreamTableEnvironment.create(env)
        self._statements = self.tables.create_statement_set()
        self.tables.get_config().set("table.exec.uid.generation", "ALWAYS")

    def read_events(self, topic: str) -> KeyedStream:
        """Records of a topic of events as RECORD_ROWs, keyed by their routing keys, each partition in its order."""
        options = {
            **self.reading(),
            "key.format": "raw",
            "key.fields": "key",
            "value.fields-include": "EXCEPT_KEY",
            # A topic without new records still has to let checkpoints through, and new partitions are none of a log.
            "scan.topic-partition-discovery.interval": "0",
        }
        self.create(
            Uid.EVENTS_SOURCE.value,
            topic,
            "`key` BYTES, `record` BYTES, `partition` INT METADATA VIRTUAL, `offset` BIGINT METADATA VIRTUAL",
            options,
        )
        # The shard is in the key. A key that names none goes to shard 0, which puts aside what is not its own.
        keys = ", ".join(map(str, routing_keys(self._settings.shard_count)))
        shards = self._settings.shard_count
        rows = self.tables.sql_query(f"""
            SELECT routing_key,
                   ROW(routing_key, shard, COALESCE(`record`, x''), '{topic}', `partition`, `offset`)
            FROM (
              SELECT *, ARRAY[{keys}][shard + 1] AS routing_key
              FROM (
                SELECT *, CASE WHEN number BETWEEN 0 AND {shards - 1} THEN number ELSE 0 END AS shard
                FROM (SELECT *, TRY_CAST(REGEXP_EXTRACT(DECODE(`key`, 'US-ASCII'), '{KEY_PATTERN}', 1) AS INT) AS number
                      FROM `{Uid.EVENTS_SOURCE.value}`)
              )
            )""")  # noqa: S608 - numbers and names of our own
        self.name_uids(Uid.EVENTS_SOURCE.value)
        return keyed(self.tables.to_data_stream(rows))

    def reading(self) -> dict[str, str]:
        """Options of a table that is read."""
        options = {
            "value.format": "raw",
            "properties.group.id": self._settings.consumer_group,
            "properties.client.id.prefix": self._settings.consumer_group,
            # What a producer takes back must not be decided.
            "properties.isolation.level": "read_committed",
            "scan.startup.mode": self._settings.start,
        }
        if self._settings.until_end:
            options["scan.bounded.mode"] = "latest-offset"
        return options

    def write_batches(self, rows: DataStream, uid: Uid, topic: str) -> None:
        """Rows of shard and record to a topic, under the keys of their shards."""
        keys = ", ".join(f"'{key.decode()}'" for key in record_keys(self._settings.shard_count))
        self._write(rows, uid, topic, f"ENCODE(ARRAY[{keys}][`shard` + 1], 'US-ASCII'), `record`")

    def write_dead_letters(self, letters: DataStream, uid: Uid, source: str) -> None:
        """Encoded dead letters of `source` to their topic."""
        self._write(letters, uid, Topic.DEAD_LETTERS.value, f"ENCODE('{source}', 'US-ASCII'), `f0`")

    def _write(self, rows: DataStream, uid: Uid, topic: str, columns: str) -> None:
        settings = self._settings
        options = {
            "value.format": "raw",
            "key.format": "raw",
            "key.fields": "key",
            "value.fields-include": "EXCEPT_KEY",
            "sink.partitioner": "default",
            "sink.delivery-guarantee": settings.delivery,
            "properties.acks": "all",
            "properties.linger.ms": str(settings.linger_ms),
        }
        if settings.delivery == "exactly-once":
            options["sink.transactional-id-prefix"] = f"{settings.consumer_group}-{uid.value}"
            options["properties.transaction.timeout.ms"] = str(settings.transaction_timeout_seconds * 1_000)
        self.create(uid.value, topic, "`key` BYTES, `record` BYTES", options)
        view = f"`{uid.value}-rows`"
        self.tables.create_temporary_view(view, self.tables.from_data_stream(rows))
        self.name_uids(uid.value)
        self._statements.add_insert_sql(f"INSERT INTO `{uid.value}` SELECT {columns} FROM {view}")  # noqa: S608
        self._statements.attach_as_datastream()

    def create(self, name: str, topic: str, columns: str, options: Mapping[str, str]) -> None:
        """A table over a topic."""
        kafka = {f"properties.{name}": value for name, value in self._settings.kafka.flink_properties().items()}
        given = {"connector": "kafka", "topic": topic, **kafka, **options}
        quoted = ", ".join(f"'{name}' = {_literal(value)}" for name, value in given.items())
        self.tables.execute_sql(f"CREATE TEMPORARY TABLE `{name}` ({columns}) WITH ({quoted})")

    def name_uids(self, uid: str) -> None:
        """Operators made from here on have uids that begin with `uid`."""
        self.tables.get_config().set("table.exec.uid.format", f"{uid}-<transformation>")


def _literal(value: str) -> str:
    """A string as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def keyed(rows: DataStream) -> KeyedStream:
    """Rows of (key, RECORD_ROW), keyed without Python.

    PyFlink's own key_by takes each record into Python and back for its key, on the lock that the
    fold needs. It is made of the same parts, after a map that makes the rows we have already.
    """
    stream = rows._j_data_stream  # noqa: SLF001 - PyFlink has no other way
    stream.getTransformation().setOutputType(Types.ROW([Types.INT(), RECORD_ROW]).get_java_type_info())
    key_type = Types.ROW([Types.INT()]).get_java_type_info()
    return KeyedStream(stream.keyBy(get_gateway().jvm.KeyByKeySelector(), key_type), RECORD_ROW, rows)
