"""Files as source and sink of a job: blocks of event files in, text lines of records out.

Flink's FileSource hands out one line a block, so a checkpoint holds how many blocks have been read, and a restored job
reads the same blocks again.
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pyflink.common import Row, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.datastream import DataStream, OutputTag, ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)

from jobs.wiring.environment import flink_path
from jobs.wiring.file_log import Block, BlockReader
from jobs.wiring.names import Uid
from schemas.codec import encode_dead_letter
from udfs.operators.keyed_fold import BYTES, RECORD_ROW
from udfs.operators.shard_keys import routing_keys

UNREAD: Final = OutputTag("unread", BYTES)
"""Dead letters of what could not be read from a file, as opposed to what could not be decided."""


class ReadBlocks(ProcessFunction):
    """A block's line in; its records out, each with its position."""

    def __init__(self, shard_count: int) -> None:
        """`shard_count` is that of the log the files hold."""
        self._shard_count = shard_count

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: ARG002 - Flink's signature
        """Make what can't travel."""
        self._reader = BlockReader(shard_count=self._shard_count)
        self._routing_keys = routing_keys(self._shard_count)

    def process_element(self, value: str, ctx: ProcessFunction.Context) -> Iterator[Any]:  # noqa: ARG002 - as above
        """Read one block."""
        block = Block.from_line(value)
        read = self._reader.read(block)
        for letter in read.dead:
            yield UNREAD, encode_dead_letter(letter)
        source = str(block.path)
        for shard, record, offset in read.batches:
            yield Row(self._routing_keys[shard], shard, record, source, 0, offset)


def read_files(env: StreamExecutionEnvironment, plan: Path, shard_count: int) -> DataStream:
    """Records of the planned blocks, in order; the side output UNREAD holds what could not be read."""
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), flink_path(plan)).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), Uid.BLOCKS.value)
    # One reader, whatever the parallelism: the order of the files is the order of the log.
    return (
        lines.uid(Uid.BLOCKS.value)
        .set_parallelism(1)
        .process(ReadBlocks(shard_count), RECORD_ROW)
        .uid(Uid.READ_BLOCKS.value)
        .name(Uid.READ_BLOCKS.value)
        .set_parallelism(1)
    )


def write_records(records: DataStream, folder: Path, uid: Uid, column: int | None = None) -> None:
    """Write byte records, or one such column of rows, exactly once, as one base64 line each."""

    def line(value: Any) -> str:
        return b64encode(value if column is None else value[column]).decode()

    lines = records.map(line, Types.STRING()).uid(f"{uid.value}-lines").name(f"{uid.value}-lines")
    sink = (
        FileSink.for_row_format(flink_path(folder), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_output_file_config(OutputFileConfig(f"part-{time.time_ns():020d}", ""))
        .build()
    )
    lines.sink_to(sink).uid(uid.value).name(uid.value)


def written_records(folder: Path) -> Iterator[bytes]:
    """What `write_records` has committed, part by part."""
    for part in _committed(folder):
        with part.open("rb") as lines:
            for line in lines:
                yield b64decode(line)


def _committed(folder: Path) -> Iterable[Path]:
    # part-<start of the run>-<subtask>-<count>; names of parts that are still being written start with a dot.
    return sorted(folder.glob("part-*"), key=_in_order_of_writing)


def _in_order_of_writing(part: Path) -> tuple[str, int, str]:
    _, began, *_, count = part.name.split("-")
    return began, int(count), part.name
