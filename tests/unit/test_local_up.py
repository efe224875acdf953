"""`headrace up`, `down` and `status` where no server is started: who may work in a folder, and what is on record."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from jobs.ops import local_command
from jobs.ops.cli import app
from jobs.ops.generations import Generations
from jobs.ops.local import cluster, flink, kafka, postgres
from jobs.ops.local.alone import NOTE, alone_in
from jobs.ops.local.cluster import Up, down, policies_of, read_record
from jobs.ops.local.jars import Jars
from jobs.ops.local.layout import CHECKOUT, Layout, LocalError, Ports
from jobs.ops.local.processes import Started, forget, servers_in, start
from jobs.ops.local_command import LOCAL_POLICIES, show_jobs
from jobs.wiring.flink_rest import Flink, FlinkError, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobs.ops.local.processes import Note

SLEEP = "import time; time.sleep(60)"
POLICIES = """
version: 1
policies:
  - id: p1
    tenant: "*"
    limits:
      - {name: tokens, level: tenant, unit: tokens, limit: 1k, window: 60s}
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "local", Ports(base=40_000))


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ended whatever a test does."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def ran(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    # Mistakes are put into words by main(), which the runner passes by.
    return result.exit_code, result.output + str(result.exception or "")


def no_servers(monkeypatch: pytest.MonkeyPatch, begins: Callable[[str, Note], None] = lambda *_: None) -> None:
    """`up` starts nothing of its own: `begins` is called for each server."""

    def begin(name: str) -> Callable[..., Started]:
        def started(*arguments: Any) -> Started:
            begins(name, arguments[-1])
            return Started(name, 2**22 + 1, 0.0, (), "")

        return started

    monkeypatch.setattr(cluster, "fetch_jars", lambda: Jars((), ()))
    monkeypatch.setattr(cluster, "require_free", lambda *_: None)
    monkeypatch.setattr(cluster, "create_catalog", lambda *_: [])
    monkeypatch.setattr(flink, "prepare_flink", lambda *_: None)
    monkeypatch.setattr(kafka, "start_kafka", begin("kafka"))
    monkeypatch.setattr(postgres, "start_postgres", begin("postgres"))
    for name in ("zookeeper", "jobmanager", "taskmanager"):
        monkeypatch.setattr(flink, f"start_{name}", begin(name))


# --- one at a time ---------------------------------------------------------------------------------------------------


def test_a_second_command_in_the_same_folder_is_told_who_holds_it(layout: Layout, tmp_path: Path) -> None:
    with alone_in(layout.folder, "headrace up", makes=True):
        for command in ("up", "down"):
            status, said = ran(command, "--folder", str(layout.folder))
            assert status == 1
            assert f"headrace up (pid {os.getpid()}) is at work there; wait until it has ended" in said
        with alone_in(tmp_path, "headrace up"):
            pass
    with alone_in(layout.folder, "headrace down", makes=True):
        pass
    # Neither the lock nor what says who holds it stays behind.
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_was_killed_holds_nothing(layout: Layout, started: list[subprocess.Popen[bytes]]) -> None:
    holds = (
        "import sys, time; from pathlib import Path; from jobs.ops.local.alone import alone_in\n"
        "with alone_in(Path(sys.argv[1]), 'headrace up', makes=True): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holds, str(layout.folder)], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(LocalError, match=rf"headrace up \(pid {process.pid}\)"), alone_in(layout.folder, "second"):
        pass
    process.kill()
    process.wait()
    with alone_in(layout.folder, "second"):
        assert (layout.folder / NOTE).read_text() == f"second (pid {os.getpid()})"


def test_a_folder_that_can_not_be_made_is_told_with_what_helps() -> None:
    status, said = ran("up", "--folder", "/proc/x")
    assert status == 1
    assert "/proc/x can't be made" in said
    assert "--folder" in said


def test_a_base_port_that_leaves_no_room_is_wrong_use(tmp_path: Path) -> None:
    for port in ("80", "65501"):
        status, said = ran("up", "--folder", str(tmp_path / "x"), "--base-port", port)
        assert status == 2
        assert "--base-port" in said


# --- what is on record -----------------------------------------------------------------------------------------------


def test_a_server_is_on_record_before_it_is_ready(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    def killed_while_it_waits(name: str, note: Note) -> None:
        note(Started(name, os.getpid(), psutil.Process().create_time(), (), ""))
        if name == "zookeeper":
            raise KeyboardInterrupt

    no_servers(monkeypatch, killed_while_it_waits)
    with pytest.raises(KeyboardInterrupt):
        Up(layout, "latency", print).run(submits=False, with_postgres=False)
    record = read_record(layout.folder)
    assert record is not None
    assert [it.name for it in record.processes] == ["kafka", "zookeeper"]


def test_a_process_that_can_not_be_noted_does_not_go_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def no_disk(it: Started) -> None:
        seen.append(it.pid)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        start("sleeper", [sys.executable, "-c", SLEEP], tmp_path / "log", (), note=no_disk)
    assert not psutil.pid_exists(seen[0])
    forget(Started("x", 1, 0.0, (), ""))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt, match=number.name), local_command._interrupted_by_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with local_command._interrupted_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(number, before)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_up_broken_off_keeps_its_policies(monkeypatch: pytest.MonkeyPatch, layout: Layout, tmp_path: Path) -> None:
    def broken_off(name: str, _: Note) -> None:
        if name == "kafka":
            raise KeyboardInterrupt

    mine = tmp_path / "mine.yaml"
    mine.write_text(POLICIES)
    no_servers(monkeypatch, broken_off)
    options = ("--folder", str(layout.folder), "--no-jobs", "--no-postgres")
    assert ran("up", *options, "-p", str(mine))[0] != 0
    no_servers(monkeypatch)
    status, said = ran("up", *options)
    assert status == 0, said
    assert policies_of(layout) == str(mine)
    assert f"policies  {mine}" in said
    assert "metrics" in said


def test_a_first_up_takes_the_shipped_policies_and_says_so(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> None:
    no_servers(monkeypatch)
    status, said = ran("up", "--folder", str(layout.folder), "--no-jobs")
    assert status == 0
    assert f"policies  {LOCAL_POLICIES}" in said


def test_a_profile_that_is_none_leaves_nothing_behind(layout: Layout) -> None:
    status, said = ran("up", "--folder", str(layout.folder), "--profile", "nonesuch")
    assert status == 1
    assert "choose --profile latency or throughput" in said
    assert not layout.folder.exists()


# --- what no record knows --------------------------------------------------------------------------------------------


def sleeper(
    started: list[subprocess.Popen[bytes]], program: str, *words: str, **environment: str
) -> subprocess.Popen[bytes]:
    """A process that goes by another name."""
    process = subprocess.Popen(
        [program, "-c", SLEEP, *words], executable=sys.executable, env={**os.environ, **environment}
    )
    started.append(process)
    return process


def test_servers_of_a_folder_are_told_from_what_only_looks_on(
    layout: Layout, started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    folder = str(layout.folder)
    script = tmp_path / "taskmanager.sh"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)
    with_conf = {**os.environ, "FLINK_CONF_DIR": f"{folder}/flink/conf"}
    starting = subprocess.Popen([str(script)], env=with_conf, start_new_session=True)
    started.append(starting)
    servers = [
        sleeper(started, "/opt/jdk/bin/java", "org.example.Main", "--configDir", f"{folder}/flink/conf"),
        sleeper(started, "java", f"-Dlog4j.configuration=file:{folder}/flink/conf/log4j.properties"),
        sleeper(started, "postgres", "-D", f"{folder}/postgres/data"),
        starting,
    ]
    sleeper(started, "tail", "-f", f"{folder}/logs/kafka.log")
    sleeper(started, "java", f"{folder}-2/flink/conf")
    sleeper(started, "java", f"/elsewhere{folder}/flink/conf")
    sleeper(started, "java", "org.example.Other", FLINK_CONF_DIR=f"{folder}/flink/conf")
    ours = {process.pid for process in started}

    def found() -> set[int]:
        return {process.pid for process in servers_in(layout.folder)} & ours

    # A process has another name only once it has begun.
    deadline = time.monotonic() + 10
    while found() != {process.pid for process in servers}:
        assert time.monotonic() < deadline, found()
        time.sleep(0.05)
    for child in psutil.Process(starting.pid).children():
        child.kill()


def test_down_ends_what_no_record_knows(layout: Layout, started: list[subprocess.Popen[bytes]]) -> None:
    stray = sleeper(started, "java", "--configDir", f"{layout.folder}/flink/conf")
    while not servers_in(layout.folder):
        time.sleep(0.05)
    said: list[str] = []
    # Its folder may be gone already.
    down(layout.folder, said.append, keep_data=False)
    assert said == [f"a process on no record: ended (pid {stray.pid})"]
    assert not psutil.pid_exists(stray.pid)


def test_down_ends_what_runs_though_the_record_can_not_be_read(
    layout: Layout, started: list[subprocess.Popen[bytes]]
) -> None:
    stray = sleeper(started, "java", "--configDir", f"{layout.folder}/flink/conf")
    while not servers_in(layout.folder):
        time.sleep(0.05)
    layout.folder.mkdir()
    layout.record.write_text("half a rec")
    with pytest.raises(LocalError, match=r"started\.json can't be read"):
        down(layout.folder, print, keep_data=False)
    assert not psutil.pid_exists(stray.pid)
    assert layout.record.exists()


# --- status ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, layout: Layout) -> Layout:
    """On record, with a JobManager that answers and no job."""
    no_servers(monkeypatch)
    assert ran("up", "--folder", str(layout.folder), "--no-jobs", "--base-port", "40000")[0] == 0
    monkeypatch.setattr(Flink, "jobs", lambda _: [])
    monkeypatch.setattr(local_command, "read_generations", lambda *_: Generations())
    return layout


def test_status_without_a_job_says_what_starts_it(profile: Layout) -> None:
    options = ("--folder", str(profile.folder))
    status, said = ran("status", *options)
    assert status == 1
    assert f"no job runs; it is submitted by: headrace up --folder {profile.folder}" in said
    (profile.savepoints / "savepoint-1").mkdir(parents=True)
    (profile.savepoints / "savepoint-1" / "_metadata").touch()
    assert "no job runs; it goes on with: headrace restore admission --from latest" in ran("status", *options)[1]
    assert json.loads(ran("status", *options, "--json")[1].splitlines()[0])["jobmanager_answers"] is True


def test_status_tells_a_jobmanager_that_is_silent_from_one_without_jobs(
    profile: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: Flink) -> list[Job]:
        raise FlinkError("connection refused")

    monkeypatch.setattr(Flink, "jobs", silent)
    options = ("--folder", str(profile.folder))
    said = ran("status", *options)[1]
    assert f"the JobManager does not answer at {profile.rest_url}: headrace up" in said
    assert "no job runs" not in said
    assert json.loads(ran("status", *options, "--json")[1].splitlines()[0])["jobmanager_answers"] is False


def test_status_says_where_metrics_are(profile: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "is_listening", lambda port: port in (40_010, 40_012))
    assert (
        "metrics: http://127.0.0.1:40010, http://127.0.0.1:40012" in ran("status", "--folder", str(profile.folder))[1]
    )


def test_a_narrow_terminal_breaks_no_name_of_a_job() -> None:
    out = io.StringIO()
    facts: dict[str, Any] = {
        "name": "headrace-admission-g12",
        "state": "RESTARTING",
        "restarts": 12_345,
        "checkpoints": 123_456,
        "checkpoints_failed": 1_234,
        "last_checkpoint_bytes": 1_234_567_890,
        "last_checkpoint_ms": 123_456,
        "last_failure": None,
    }
    show_jobs(Console(file=out, width=80), [facts])
    assert "headrace-admission-g12  RESTARTING" in out.getvalue()


def test_other_policies_of_a_job_that_runs_are_told_to_hold_later(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(POLICIES)
    no_servers(monkeypatch)
    monkeypatch.setattr(Flink, "running", lambda _, name: Job("1f", name, "RUNNING", 0))
    options = ("--folder", str(layout.folder))
    assert ran("up", *options)[0] == 0
    assert "the other policies hold once it is stopped and restored" in ran("up", *options, "-p", str(mine))[1]
    assert "the other policies" not in ran("up", *options)[1]
    assert yaml.safe_load(layout.settings.read_text())["policies"] == str(mine)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_up_hands_options_on() -> None:
    def make(*words: str) -> str:
        return subprocess.run(["make", *words], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout

    assert "headrace up --taskmanagers 1 --no-jobs" in make("-n", "up", "UP_ARGS=--taskmanagers 1 --no-jobs")
    assert "UP_ARGS" in make("help")
