from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from jobs.ops.local import jars
from jobs.ops.local.layout import Layout, LocalError, Ports
from jobs.ops.local.processes import Started, end, require_free, start, wait_until

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
time.sleep(60)
"""


def test_a_process_is_ended_with_those_it_started(tmp_path: Path) -> None:
    started = start("sleeper", [sys.executable, "-c", SLEEPER], tmp_path / "log", ())
    process = started.process()
    assert process is not None
    deadline = time.monotonic() + 10
    while not (children := process.children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    end(started)
    assert started.process() is None
    assert not any(child.is_running() and child.status() != "zombie" for child in children)
    end(started)


def test_a_process_that_will_not_end_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    started = start("stubborn", [sys.executable, "-c", stubborn], tmp_path / "log", ())
    wait_until(lambda: "ready" in (tmp_path / "log").read_text(), started, timeout_s=10)
    end(started, timeout_s=0.2)
    assert started.process() is None


def test_a_pid_that_somebody_else_has_now_is_not_ours() -> None:
    assert Started("ours", os.getpid(), 12345.0, (), "").process() is None


def test_a_process_that_ends_as_it_starts_is_told_with_what_it_said(tmp_path: Path) -> None:
    started = start("broken", [sys.executable, "-c", "raise SystemExit('no such disk')"], tmp_path / "log", ())
    with pytest.raises(LocalError, match=r"(?s)broken ended as it started.*no such disk"):
        wait_until(lambda: False, started, timeout_s=10)


def test_a_port_that_is_taken_is_named_with_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            LocalError, match=rf"port {port}, which kafka needs, is taken.*pid {os.getpid()}.*--base-port"
        ):
            require_free("kafka", [port])
    require_free("kafka", [port])


def test_two_profiles_with_other_base_ports_share_none(tmp_path: Path) -> None:
    def ports(base: int) -> set[int]:
        it = Layout(tmp_path, Ports(base=base)).ports
        named = {it.kafka, it.kafka_controller, it.rest, it.jobmanager, it.blob, it.zookeeper, it.postgres}
        assert len(named) == 7
        return named | set(it.metrics)

    assert not ports(19_090) & ports(19_110)


def test_without_maven_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jars, "STAMP", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.JarsError, match=r"apt-get install maven.*make run"):
        jars.fetch_jars()


def test_a_maven_that_fails_is_quoted_and_the_network_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] Could not transfer artifact x:y:1'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setattr(jars, "STAMP", tmp_path / "none")
    monkeypatch.setattr(jars, "TARGET", tmp_path / "target")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(jars.JarsError, match=r"(?s)Could not transfer artifact x:y:1.*Offline"):
        jars.fetch_jars()


def test_a_jar_that_is_not_the_one_that_was_committed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "connectors").mkdir()
    (tmp_path / "connectors" / "connector.jar").write_bytes(b"not what it was")
    digests = tmp_path / "SHA256SUMS"
    digests.write_text(f"{'0' * 64}  connectors/connector.jar\n")
    monkeypatch.setattr(jars, "TARGET", tmp_path)
    monkeypatch.setattr(jars, "DIGESTS", digests)
    with pytest.raises(jars.JarsError, match=r"connectors/connector\.jar"):
        jars._check_digests()


def test_ending_what_was_killed_meanwhile_is_no_fault(tmp_path: Path) -> None:
    started = start("gone", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", ())
    os.kill(started.pid, signal.SIGKILL)
    end(started)
    assert started.process() is None
