"""Processes that go on when the command that started them has ended, and how they are found again.

A process is known by its pid and the time it started, so one that got an old pid is never taken for ours.
"""

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import psutil

from jobs.ops.local.layout import HOST, LocalError

END_TIMEOUT_S: Final = 20

_PROGRAMS: Final = frozenset(("java", "postgres", "setpriv"))
_SCRIPTS: Final = frozenset(("jobmanager.sh", "taskmanager.sh", "flink-console.sh"))
"""What Flink's servers are before they become Java."""


class Started(msgspec.Struct, frozen=True):
    """One process of ours."""

    name: str
    pid: int
    started_at: float
    ports: tuple[int, ...]
    log: str

    def process(self) -> psutil.Process | None:
        """The process, None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            pass
        return None


Note: TypeAlias = Callable[[Started], None]
"""Is told of a process as soon as there is one, long before it is ready."""


def forget(_: Started) -> None:
    """A Note of nothing."""


def start(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    ports: Sequence[int],
    env: Mapping[str, str] | None = None,
    note: Note = forget,
) -> Started:
    """Start a process that outlives us; what it prints is appended to `log`. It is ended where `note` raises."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(  # noqa: S603 - commands of our own
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        started = Started(name, process.pid, psutil.Process(process.pid).create_time(), tuple(ports), str(log))
        note(started)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return started


def end(started: Started, timeout_s: float = END_TIMEOUT_S) -> None:
    """End it and what it started, gently first."""
    process = started.process()
    if process is not None:
        end_family(process, timeout_s)


def end_family(process: psutil.Process, timeout_s: float = END_TIMEOUT_S) -> None:
    """End a process and what it started, gently first."""
    family = [process]
    with suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
    for member in family:
        _signal(member.terminate)
    _, alive = psutil.wait_procs(family, timeout=timeout_s)
    for member in alive:
        _signal(member.kill)
    psutil.wait_procs(alive, timeout=timeout_s)


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()


def servers_in(folder: Path) -> list[psutil.Process]:
    """Servers that work with files of `folder`, whatever any record says of them.

    Broker, database, ZooKeeper and Flink's processes name their files in their command lines, Flink's scripts their
    configuration in the environment. What only looks on, such as an editor, is none; nor are we and who started us.
    """
    inside = re.compile(rf"(?:^|[=:,]){re.escape(str(folder))}/")
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            command = process.cmdline()
            if process.pid in ours or not command:
                continue
            said = list(command) if Path(command[0]).name in _PROGRAMS else []
            if any(Path(word).name in _SCRIPTS for word in command[:3]):
                said += [*command, process.environ().get("FLINK_CONF_DIR", "")]
            if any(map(inside.search, said)):
                found.append(process)
    return found


def wait_until(ready: Callable[[], bool], started: Started, timeout_s: float) -> None:
    """Wait for `ready`. Ends the process and raises LocalError when it ends or time is up, with the end of its log."""
    try:
        _wait(ready, started, time.monotonic() + timeout_s)
    except BaseException:
        # It is on record, and the next command would take it for one that is ready.
        end(started)
        raise


def _wait(ready: Callable[[], bool], started: Started, deadline: float) -> None:
    while not ready():
        if started.process() is None:
            raise LocalError(
                f"{started.name} ended as it started; the end of {started.log}:\n{tail(Path(started.log))}"
            )
        if time.monotonic() > deadline:
            raise LocalError(f"{started.name} takes too long to be ready; see {started.log}")
        time.sleep(0.1)


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def is_listening(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def require_free(name: str, ports: Sequence[int]) -> None:
    """Raise LocalError where a port is taken."""
    for port in ports:
        if is_listening(port):
            raise LocalError(
                f"port {port}, which {name} needs, is taken{_holder(port)}; end that, or choose others: --base-port"
            )


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return ""
