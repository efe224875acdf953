"""Admission: events in, decisions out. `flink run -pym jobs.admission`, or `python -m jobs.admission`.

python -m jobs.admission --input events.pb.gz --policies policies.yaml --output out
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jobs.wiring.file_log import plan_files
from jobs.wiring.names import ADMISSION_JOB, Uid
from jobs.wiring.policies import load_policies
from jobs.wiring.settings import AdmissionSettings, load_settings

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

    from jobs.wiring.environment import Folders


def build(env: "StreamExecutionEnvironment", settings: AdmissionSettings, folders: "Folders") -> None:
    """The whole of the job."""
    from functools import partial

    from jobs.wiring.file_io import UNREAD, read_files, write_records
    from pyflink.common import Types
    from schemas.codec import encode_decisions
    from schemas.topics import shard_of
    from udfs.domain.limiter import LimiterFold
    from udfs.domain.policy_log import PolicyLog
    from udfs.operators.keyed_fold import COUNTS, DEAD_LETTERS, DECISION_ROW, KeyedFold

    policies = load_policies(settings.policies).policies if settings.policies else ()
    records = read_files(env, folders.plan, settings.shard_count)
    decided = (
        records.key_by(lambda row: row[0], Types.INT())
        .process(
            KeyedFold(
                fold=LimiterFold,
                policies=PolicyLog(policies),
                encode=encode_decisions,
                shard_of=partial(shard_of, shard_count=settings.shard_count),
                settings=settings.fold,
            ),
            DECISION_ROW,
        )
        .uid(Uid.LIMITER.value)
        .name(Uid.LIMITER.value)
    )
    write_records(decided, folders.decisions, Uid.DECISIONS, column=1)
    write_records(decided.get_side_output(DEAD_LETTERS), folders.dead_letters, Uid.DEAD_LETTERS)
    write_records(decided.get_side_output(COUNTS), folders.counts, Uid.COUNTS)
    write_records(records.get_side_output(UNREAD), folders.unread, Uid.UNREAD)
