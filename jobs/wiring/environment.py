"""Flink's execution environment for the embedded profile: a MiniCluster in a JVM of our own."""

import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from jobs.wiring.java import java_home
from jobs.wiring.settings import AdmissionSettings
from udfs.operators.shard_keys import MAX_PARALLELISM

WORK_FOLDER = ".headrace"
"""What a job keeps below its output folder: a name that nobody else's folder has, as it is emptied before a run."""


class Folders(NamedTuple):
    """What a run writes below its output folder."""

    plan: Path
    decisions: Path
    dead_letters: Path
    unread: Path
    counts: Path
    checkpoints: Path
    logs: Path
    temporary: Path

    @classmethod
    def below(cls, output: Path) -> "Folders":
        """The folders of one run, absolute."""
        work = output.resolve() / WORK_FOLDER
        return cls(*(work / name for name in cls._fields))


def prepare_process(folders: Folders) -> None:
    """Make Flink start from this process: Java, the interpreter's own folder on PATH, logs out of site-packages.

    Call before pyflink starts its JVM. Raises JavaNotFoundError.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    # The JVM embeds the interpreter that it finds on PATH; it must be this one.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    folders.logs.mkdir(parents=True, exist_ok=True)
    os.environ["FLINK_LOG_DIR"] = str(folders.logs)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def flink_path(path: Path) -> str:
    """A file as Flink names it: without the escapes of a URI, which it would take for part of the name."""
    return f"file://{path}"


def flink_options(settings: AdmissionSettings, folders: Folders, rest_port: int) -> dict[str, str]:
    """Flink's configuration for a run of the embedded profile."""
    options = {
        "python.execution-mode": "thread",
        "parallelism.default": str(settings.parallelism),
        "pipeline.max-parallelism": str(MAX_PARALLELISM),
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "rest.port": str(rest_port),
        # How stale the progress may be.
        "metrics.fetcher.update-interval": "300 ms",
        "execution.buffer-timeout.interval": f"{settings.buffer_timeout_ms} ms",
        "execution.checkpointing.interval": f"{settings.checkpoint_interval_ms} ms",
        "execution.checkpointing.dir": flink_path(folders.checkpoints),
        "io.tmp.dirs": str(folders.temporary),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "state.backend.type": settings.state_backend,
        # A file that can't be read or a fold's state of a newer version won't get better by trying again.
        "restart-strategy.type": "none",
        # Nobody but this process has business with the MiniCluster.
        "web.submit.enable": "false",
        "web.cancel.enable": "false",
    }
    if settings.restore_from is not None:
        options["execution.state-recovery.path"] = flink_path(settings.restore_from.resolve())
    return options
