"""Ingest: what gateways and engines write, into the log of events.

flink run -pym jobs.ingest --config ingest.yaml
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.wiring.cluster import submit
from jobs.wiring.foreign_adapters import ForeignAdapterError, adapter_of
from jobs.wiring.job_main import run_main
from jobs.wiring.names import INGEST_JOB, Uid
from jobs.wiring.settings import IngestSettings, SettingsError, load_job_settings
from jobs.wiring.snapshot_check import SnapshotMismatchError

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment


def build_on_kafka(env: "StreamExecutionEnvironment", settings: IngestSettings) -> None:
    """The whole of the job."""
    from jobs.wiring.foreign_io import ForeignTables
    from jobs.wiring.snapshot_check import check_snapshot
    from udfs.domain.ingest.stamping import StampingFold
    from udfs.domain.policy_log import PolicyLog
    from udfs.operators.keyed_fold import DEAD_LETTERS, DECISION_ROW, KeyedFold
    from udfs.operators.stamped import encode_stamped
    from udfs.operators.state_form import current_form

    foreign = ForeignTables(env, settings, adapter_of)
    fold = KeyedFold(
        fold=StampingFold,
        policies=PolicyLog(()),
        encode=encode_stamped,
        shard_of=None,
        settings=settings.fold,
        shard_count=settings.shard_count,
    )
    stamped = foreign.batches().process(fold, DECISION_ROW).uid(Uid.STAMPING.value).name(Uid.STAMPING.value)
    foreign.kafka.write_batches(stamped, Uid.EVENTS, settings.events_topic)
    foreign.kafka.write_dead_letters(stamped.get_side_output(DEAD_LETTERS), Uid.DEAD_LETTERS, "ingest")
    foreign.kafka.write_dead_letters(foreign.dead_letters(), Uid.FOREIGN_DEAD_LETTERS, "ingest")
    check_snapshot(env, StampingFold.name, Uid.STAMPING.value, current_form(StampingFold.version, settings.shard_count))


def main(config: Annotated[Path, typer.Option("--config", "-c", help="YAML file of settings.")]) -> None:
    """Read foreign topics into the log of events, on the cluster that `flink run` chose."""
    settings = load_job_settings(IngestSettings, config)
    if not settings.sources:
        raise SettingsError(f"{config}: sources: name at least one, such as {{topic: otlp_spans, format: otlp}}")
    for source in settings.sources:
        adapter_of(source)
    submit(INGEST_JOB, build_on_kafka, settings)


MISTAKES = (ForeignAdapterError, SettingsError, SnapshotMismatchError)

if __name__ == "__main__":
    run_main(main, MISTAKES)
