"""Admission: events in, decisions out. `flink run -pym jobs.admission`, or `python -m jobs.admission`.

python -m jobs.admission --input events.pb.gz --policies policies.yaml --output out
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.wiring.cluster import submit
from jobs.wiring.embedded import JobFailedError, run
from jobs.wiring.environment import Folders
from jobs.wiring.file_log import EventFileError
from jobs.wiring.java import JavaNotFoundError
from jobs.wiring.job_main import run_main
from jobs.wiring.names import ADMISSION_JOB, Uid, job_name
from jobs.wiring.policies import PolicyFileError, load_policies
from jobs.wiring.settings import DAY_US, AdmissionSettings, SettingsError, load_settings
from jobs.wiring.snapshot_check import SnapshotMismatchError
from jobs.wiring.topic_catalog import decisions_topic
from udfs.domain.limiter import LimiterPolicy

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment


def build(env: "StreamExecutionEnvironment", settings: AdmissionSettings, folders: "Folders") -> None:
    """The whole of the job on files."""
    from pyflink.common import Types

    from jobs.wiring.file_io import UNREAD, read_files, write_records
    from udfs.operators.keyed_fold import COUNTS, DEAD_LETTERS

    records = read_files(env, folders.plan, settings.shard_count)
    decided = _decide(records.key_by(lambda row: row[0], Types.INT()), settings, with_counts=True)
    write_records(decided, folders.decisions, Uid.DECISIONS, column=1)
    write_records(decided.get_side_output(DEAD_LETTERS), folders.dead_letters, Uid.DEAD_LETTERS)
    write_records(decided.get_side_output(COUNTS), folders.counts, Uid.COUNTS)
    write_records(records.get_side_output(UNREAD), folders.unread, Uid.UNREAD)


def build_on_kafka(env: "StreamExecutionEnvironment", settings: AdmissionSettings) -> None:
    """The whole of the job on a cluster."""
    from jobs.wiring.kafka_io import KafkaTables
    from jobs.wiring.snapshot_check import check_snapshot
    from udfs.domain.limiter import LimiterFold
    from udfs.operators.keyed_fold import DEAD_LETTERS
    from udfs.operators.state_form import current_form

    kafka = KafkaTables(env, settings)
    decided = _decide(kafka.read_events(settings.events_topic), settings, with_counts=False)
    kafka.write_batches(decided, Uid.DECISIONS, decisions_topic(settings.generation))
    kafka.write_dead_letters(decided.get_side_output(DEAD_LETTERS), Uid.DEAD_LETTERS, settings.events_topic)
    form = current_form(LimiterFold.version, settings.shard_count)
    check_snapshot(env, LimiterFold.name, Uid.LIMITER.value, form)


def _decide(keyed: "KeyedStream", settings: AdmissionSettings, *, with_counts: bool) -> "DataStream":
    from functools import partial

    from schemas.codec import encode_decisions
    from schemas.topics import shard_of
    from udfs.domain.limiter import LimiterFold
    from udfs.domain.policy_log import PolicyLog
    from udfs.operators.keyed_fold import DECISION_ROW, KeyedFold

    policies = load_policies(settings.policies).policies if settings.policies else ()
    _require_memory(policies, settings)
    fold = KeyedFold(
        fold=LimiterFold,
        policies=PolicyLog(policies),
        encode=encode_decisions,
        shard_of=partial(shard_of, shard_count=settings.shard_count),
        settings=settings.fold,
        shard_count=settings.shard_count,
        with_counts=with_counts,
    )
    return keyed.process(fold, DECISION_ROW).uid(Uid.LIMITER.value).name(Uid.LIMITER.value)


def _require_memory(policies: tuple[LimiterPolicy, ...], settings: AdmissionSettings) -> None:
    """A tenant must not be forgotten while a window of it, debt included, still counts, or a request of it runs."""
    windows_us = [limit.window_us * 3 for policy in policies for limit in policy.limits]
    longest_us = max((*windows_us, *(policy.silence_timeout_us for policy in policies)), default=0)
    needed_days = -(-longest_us // DAY_US) + 1
    if settings.state_ttl_days < needed_days:
        raise SettingsError(
            f"state_ttl_days: {settings.state_ttl_days} is too short for the windows and silence timeouts of the "
            f"policies, set it to at least {needed_days}"
        )


def main(
    *,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings.")] = None,
    input: Annotated[list[Path] | None, typer.Option("--input", "-i", help="Event file; may be repeated.")] = None,  # noqa: A002
    policies: Annotated[Path | None, typer.Option("--policies", "-p", help="Policy file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for all output.")] = None,
    restore_from: Annotated[Path | None, typer.Option(help="Checkpoint folder to go on from.")] = None,
) -> None:
    """Decide event files; `headrace run` does the same and sums up."""
    given = {"policies": policies, "output": output, "restore_from": restore_from}
    settings = load_settings(config, input=tuple(input) if input else None, **given)
    if settings.profile == "cluster":
        submit(job_name("admission", settings.generation), build_on_kafka, settings)
        return
    if not settings.input:
        raise SettingsError("input: name at least one event file with --input, or in the settings")
    job = run(ADMISSION_JOB, build, settings)
    decisions = Folders.below(settings.output).decisions
    typer.echo(f"{job.counts.get('events', 0):,} events decided in {job.seconds:.1f} s: {decisions}")


MISTAKES = (EventFileError, JavaNotFoundError, JobFailedError, PolicyFileError, SettingsError, SnapshotMismatchError)

if __name__ == "__main__":
    run_main(main, MISTAKES)
