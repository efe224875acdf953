"""Foreign topics as sources of a job: each is read and parsed in a vectorised UDF and comes out as batches by shard.

UDFs of this kind run in a process of their own: what a bad record costs it, time or memory, it costs nobody else.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyflink.datastream import DataStream, KeyedStream
from pyflink.table import DataTypes
from pyflink.table.udf import udf

from jobs.wiring.kafka_io import KafkaTables, keyed
from jobs.wiring.names import Uid
from jobs.wiring.settings import ForeignSource, IngestSettings
from udfs.domain.ingest.record import Adapter, Origin
from udfs.domain.ingest.trace_context import TRACEPARENT
from udfs.operators.packer import (
    NO_SHARD,
    OFFSET_DIGITS,
    PARTITION_DIGITS,
    PREFIX_BYTES,
    SHARD_DIGITS,
    SOURCE_DIGITS,
    ForeignRow,
    Packer,
    packed_heartbeats,
)
from udfs.operators.shard_keys import routing_keys

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

AdapterMaker = Callable[[ForeignSource], Adapter]
"""Makes the adapter of a source where it runs."""

ROWS_A_BATCH: Final = 100
"""Records that are read at once. What they become is one value of Arrow: of a hundred large ones it is 100 MB."""

_BYTES: Final = "ISO-8859-1"
"""Each byte is one character in it: how SQL cuts bytes."""


class ForeignTables:
    """Foreign topics of one job, and heartbeats into every shard where their input has no end."""

    def __init__(self, env: "StreamExecutionEnvironment", settings: IngestSettings, adapter_of: AdapterMaker) -> None:
        self._settings = settings
        self._adapter_of = adapter_of
        self.kafka = KafkaTables(env, settings)
        # The times of records come as UTC.
        tables = self.kafka.tables
        tables.get_config().set("table.local-time-zone", "UTC")
        tables.get_config().set("python.fn-execution.arrow.batch.size", str(ROWS_A_BATCH))
        streams = [self._read(source) for source in settings.sources]
        if not settings.until_end:
            streams.append(self._heartbeats())
        packed = streams[0].union(*streams[1:]) if streams[1:] else streams[0]
        tables.create_temporary_view("packed_bytes", tables.from_data_stream(packed))
        tables.execute_sql(
            f"CREATE TEMPORARY VIEW packed AS SELECT DECODE(entry, '{_BYTES}') AS entry FROM packed_bytes"  # noqa: S608
        )

    def _read(self, source: ForeignSource) -> DataStream:
        kafka, tables = self.kafka, self.kafka.tables
        uid = f"{Uid.FOREIGN_SOURCE.value}-{source.source}"
        columns = (
            "`record` BYTES, `received` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', `partition` INT METADATA VIRTUAL, "
            "`offset` BIGINT METADATA VIRTUAL, `headers` MAP<STRING, BYTES> METADATA"
        )
        kafka.create(uid, source.topic, columns, kafka.reading())
        number = self._settings.sources.index(source)
        function = f"pack_{number}"
        packing = _packing(source, number, self._adapter_of, self._settings.shard_count)
        tables.create_temporary_function(function, packing)
        records = tables.sql_query(
            "SELECT `record`, CAST(`received` AS TIMESTAMP(3)) AS received, `partition`, `offset`, "  # noqa: S608
            f"`headers`['{TRACEPARENT}'] AS trace FROM `{uid}`"
        )
        # The offsets are found by the name of the source, so it gets one apart from all that follows.
        kafka.name_uids(uid)
        view = f"{uid}-records"
        tables.create_temporary_view(f"`{view}`", tables.from_data_stream(tables.to_data_stream(records)))
        return self._taken_apart(f"{function}(`record`, `received`, `partition`, `offset`, `trace`)", view)

    def _heartbeats(self) -> DataStream:
        tables = self.kafka.tables
        uid = Uid.HEARTBEATS.value
        every_s = self._settings.heartbeat_seconds
        # A record a second, of which only that it came matters.
        tables.execute_sql(
            f"CREATE TEMPORARY TABLE `{uid}` (`tick` BIGINT) WITH ('connector' = 'datagen', 'rows-per-second' = '1')"
        )
        tables.create_temporary_function("heartbeats", _heartbeats(self._settings.shard_count, every_s))
        return self._taken_apart("heartbeats(`tick`)", uid)

    def _taken_apart(self, call: str, rows_of: str) -> DataStream:
        tables = self.kafka.tables
        rows = tables.sql_query(
            f"SELECT entry FROM (SELECT {call} AS packed FROM `{rows_of}`) AS batches "  # noqa: S608 - names of our own
            "CROSS JOIN UNNEST(batches.packed) AS entries(entry)"
        )
        # None of these has state, so a number may be part of their names.
        self.kafka.name_uids(f"{rows_of}-<id>")
        return tables.to_data_stream(rows)

    def batches(self) -> KeyedStream:
        """Batches of events and heartbeats, as RECORD_ROWs keyed by their routing keys."""
        keys = ", ".join(map(str, routing_keys(self._settings.shard_count)))
        tables = self.kafka.tables
        source_at = SHARD_DIGITS + 1
        partition_at = source_at + SOURCE_DIGITS
        offset_at = partition_at + PARTITION_DIGITS
        topics = ", ".join(f"'{source.topic}'" for source in self._settings.sources)
        rows = tables.sql_query(f"""
            SELECT ARRAY[{keys}][shard + 1] AS routing_key,
                   ROW(ARRAY[{keys}][shard + 1], shard, ENCODE(SUBSTRING(entry, {PREFIX_BYTES + 1}), '{_BYTES}'),
                       ARRAY[{topics}][CAST(SUBSTRING(entry, {source_at}, {SOURCE_DIGITS}) AS INT) + 1],
                   CAST(SUBSTRING(entry, {partition_at}, {PARTITION_DIGITS}) AS INT),
                       CAST(SUBSTRING(entry, {offset_at}, {OFFSET_DIGITS}) AS BIGINT))
            FROM (SELECT CAST(SUBSTRING(entry, 1, {SHARD_DIGITS}) AS INT) AS shard, entry FROM packed)
            WHERE shard <> {NO_SHARD}""")  # noqa: S608 - numbers of our own
        self.kafka.name_uids(f"{Uid.STAMPING.value}-<id>")
        return keyed(tables.to_data_stream(rows))

    def dead_letters(self) -> DataStream:
        """What no adapter could read, as rows of one encoded dead letter."""
        rows = self.kafka.tables.sql_query(
            f"SELECT ENCODE(SUBSTRING(entry, {PREFIX_BYTES + 1}), '{_BYTES}') AS f0 FROM packed "  # noqa: S608
            f"WHERE SUBSTRING(entry, 1, {SHARD_DIGITS}) = '{NO_SHARD}'"
        )
        self.kafka.name_uids(f"{Uid.FOREIGN_DEAD_LETTERS.value}-<id>")
        return self.kafka.tables.to_data_stream(rows)


def _packing(source: ForeignSource, number: int, adapter_of: AdapterMaker, shard_count: int) -> Any:
    packers: list[Packer] = []

    def pack(record: Any, received: Any, partition: Any, offset: Any, trace: Any) -> Any:
        import pandas as pd

        if not packers:
            origin = Origin(source=source.source, tenant=source.tenant, region=source.region, backend=source.backend)
            packers.append(Packer(source.topic, adapter_of(source), origin, shard_count, number))
        times_us = received.to_numpy().astype("datetime64[us]").astype("int64")
        headers = ({} if header is None else {TRACEPARENT: header} for header in trace)
        rows = map(ForeignRow, record, map(int, times_us), map(int, partition), map(int, offset), headers)
        return pd.Series(_at_first(packers[0].pack(rows), len(record)), dtype=object)

    return udf(pack, result_type=DataTypes.ARRAY(DataTypes.BYTES()), func_type="pandas")


def _heartbeats(shard_count: int, every_s: int) -> Any:
    beaten: list[int] = []

    def heartbeats(tick: Any) -> Any:
        import pandas as pd

        now_us = time.time_ns() // 1_000
        # A tick comes once a second or a little later, and is not skipped for it.
        is_due = not beaten or now_us - beaten[-1] >= every_s * 1_000_000 - _EARLY_US
        beats = packed_heartbeats(now_us, shard_count) if is_due else []
        if is_due:
            beaten[:] = [now_us]
        return pd.Series(_at_first(beats, len(tick)), dtype=object)

    return udf(heartbeats, result_type=DataTypes.ARRAY(DataTypes.BYTES()), func_type="pandas")


_EARLY_US: Final = 500_000


def _at_first(packed: list[bytes], rows: int) -> list[list[bytes] | None]:
    """All at the first row; the others have nothing."""
    return [packed, *([None] * (rows - 1))]
