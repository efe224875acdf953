"""Submitting a job to a cluster: what Flink is told beside the cluster's own configuration."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.wiring.settings import SettingsError, SettingsT
from udfs.operators.shard_keys import MAX_PARALLELISM

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment


def submit(name: str, build: Callable[["StreamExecutionEnvironment", SettingsT], None], settings: SettingsT) -> None:
    """Hand the job to the cluster that `flink run` or the operator chose. Raises SettingsError."""
    for given in ("input", "restore_from"):
        if getattr(settings, given, None):
            raise SettingsError(f"{given}: is for runs on files; on a cluster savepoints are given to `flink run -s`")

    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    configuration = Configuration()
    # The key groups are part of the state; whatever the cluster's default, they stay.
    configuration.set_string("pipeline.max-parallelism", str(MAX_PARALLELISM))
    configuration.set_string("python.execution-mode", "thread")
    configuration.set_string("execution.runtime-mode", "STREAMING")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(env, settings)
    env.execute_async(name)
