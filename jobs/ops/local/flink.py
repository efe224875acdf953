"""The Flink cluster that pip's apache-flink carries: ZooKeeper, a JobManager and TaskManagers."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from jobs.ops.local.jars import Jars
from jobs.ops.local.layout import CHECKOUT, HOST, Layout, LocalError
from jobs.ops.local.processes import Note, Started, forget, is_listening, start, wait_until
from jobs.wiring.environment import flink_path
from jobs.wiring.flink_rest import Flink, FlinkError
from jobs.wiring.java import java_home

ZOOKEEPER: Final = "zookeeper"
JOBMANAGER: Final = "jobmanager"
TASKMANAGER: Final = "taskmanager"


def flink_home() -> Path:
    """Where pip put Flink."""
    found = importlib.util.find_spec("pyflink")
    if found is None or found.origin is None:
        raise LocalError("apache-flink is not installed in this environment: make setup")
    return Path(found.origin).parent


def require_usable(layout: Layout, profile: str) -> None:
    """Raise LocalError for a folder or a profile that `prepare_flink` can do nothing with."""
    if any(character.isspace() for character in str(layout.folder)):
        raise LocalError(
            f"{layout.folder}: Flink's start scripts can't take a path with a space; choose another folder"
        )
    if not (_folder_of(profile) / "config.yaml").is_file():
        raise LocalError(f"{_folder_of(profile)} has no config.yaml: choose --profile latency or throughput")


def _folder_of(profile: str) -> Path:
    return CHECKOUT / "flink-conf" / profile


def prepare_flink(layout: Layout, jars: Jars, profile: str, options: Mapping[str, str]) -> None:
    """Lay out configuration and libraries, both anew each time. `options` are Flink's own, and win."""
    require_usable(layout, profile)
    conf, lib = layout.flink / "conf", layout.flink / "lib"
    for folder in (conf, lib):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    home = flink_home()
    # flink-python belongs into lib/: a job that brings it itself can't be deployed twice into one TaskManager.
    for jar in (*(home / "lib").glob("*.jar"), *(home / "opt").glob("flink-python-*.jar"), *jars.connectors):
        (lib / jar.name).symlink_to(jar)
    ours = _folder_of(profile)
    for file in ours.glob("log4j*.properties"):
        shutil.copy(file, conf / file.name)
    shared = _flat(yaml.safe_load((ours / "config.yaml").read_text()))
    (conf / "config.yaml").write_text(yaml.safe_dump(shared | _of_this_machine(layout) | dict(options)))
    for folder in (layout.checkpoints, layout.savepoints, layout.ha, layout.flink / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _of_this_machine(layout: Layout) -> dict[str, Any]:
    ports = layout.ports
    return {
        "jobmanager.rpc.address": HOST,
        "jobmanager.bind-host": HOST,
        "jobmanager.rpc.port": ports.jobmanager,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "blob.server.port": str(ports.blob),
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "rest.port": ports.rest,
        "rest.bind-port": str(ports.rest),
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": f"{HOST}:{ports.zookeeper}",
        "high-availability.storageDir": flink_path(layout.ha),
        # With high availability a JobManager takes this range, and the leader's address comes from ZooKeeper.
        "high-availability.jobmanager.port": str(ports.jobmanager),
        "execution.checkpointing.dir": flink_path(layout.checkpoints),
        "execution.checkpointing.savepoint-dir": flink_path(layout.savepoints),
        "io.tmp.dirs": str(layout.flink / "tmp"),
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "metrics.reporter.prom.port": f"{ports.metrics.start}-{ports.metrics.stop - 1}",
        # A laptop's share: three JVMs beside a broker and a database.
        "jobmanager.memory.process.size": "1g",
        "taskmanager.memory.process.size": "2g",
        # The throughput profile's gigabyte for the interpreter does not fit that; with it no TaskManager starts.
        "taskmanager.memory.task.off-heap.size": "384m",
        # How stale `headrace status` may be; the default is 10 s.
        "metrics.fetcher.update-interval": "1000",
        # As soon does a new JobManager take over from one that was killed; the default is a minute.
        "high-availability.zookeeper.client.session-timeout": "12 s",
    }


def flink_environment(layout: Layout) -> dict[str, str]:
    """What Flink's scripts are told."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {
        "JAVA_HOME": str(java_home()),
        # The JVM embeds the interpreter that it finds on PATH; it must be this one.
        "PATH": path,
        "FLINK_CONF_DIR": str(layout.flink / "conf"),
        "FLINK_LIB_DIR": str(layout.flink / "lib"),
        "FLINK_LOG_DIR": str(layout.logs),
        "FLINK_PID_DIR": str(layout.flink / "pids"),
        "PYTHONPATH": str(CHECKOUT),
    }


def start_zookeeper(layout: Layout, note: Note = forget) -> Started:
    """Start ZooKeeper. Raises LocalError."""
    layout.zookeeper.mkdir(parents=True, exist_ok=True)
    conf = layout.zookeeper / "zoo.cfg"
    conf.write_text(
        f"tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={layout.zookeeper / 'data'}\n"
        f"clientPortAddress={HOST}\nclientPort={layout.ports.zookeeper}\nadmin.enableServer=false\n"
    )
    peer = "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer"
    command: list[str | Path] = [java_home() / "bin" / "java", "-Xmx128m", "-cp", f"{layout.flink / 'lib'}/*"]
    logging = f"-Dlog4j.configurationFile={layout.flink / 'conf' / 'log4j-console.properties'}"
    log = f"-Dlog.file={layout.logs / 'zookeeper.json'}"
    started = start(
        ZOOKEEPER,
        [*command, logging, log, peer, "--zkConfigFile", conf, "--peerId", "1"],
        layout.logs / "zookeeper.log",
        (layout.ports.zookeeper,),
        note=note,
    )
    wait_until(lambda: is_listening(layout.ports.zookeeper), started, timeout_s=30)
    return started


def start_jobmanager(layout: Layout, note: Note = forget) -> Started:
    """Start the JobManager, which goes on with the jobs that ZooKeeper remembers. Raises LocalError."""
    started = start(
        JOBMANAGER,
        [flink_home() / "bin" / "jobmanager.sh", "start-foreground"],
        layout.logs / "jobmanager.log",
        (layout.ports.rest, layout.ports.jobmanager, layout.ports.blob),
        flink_environment(layout),
        note,
    )
    wait_until(lambda: _answers(Flink(layout.rest_url)), started, timeout_s=60)
    return started


def start_taskmanager(layout: Layout, number: int, note: Note = forget) -> Started:
    """Start the TaskManager of that number; it is ready when the JobManager knows it."""
    name = f"{TASKMANAGER}-{number}"
    # A name of its own each time: the JobManager may still count on one that has just died.
    resource_id = f"{name}-{os.urandom(4).hex()}"
    script = flink_home() / "bin" / "taskmanager.sh"
    started = start(
        name,
        [script, "start-foreground", "-D", f"taskmanager.resource-id={resource_id}"],
        layout.logs / f"{name}.log",
        (),
        flink_environment(layout),
        note,
    )
    wait_until(lambda: _knows(Flink(layout.rest_url), resource_id), started, timeout_s=60)
    return started


def _answers(flink: Flink) -> bool:
    try:
        flink.overview()
    except FlinkError:
        return False
    return True


def _knows(flink: Flink, resource_id: str) -> bool:
    try:
        return resource_id in flink.taskmanagers()
    except FlinkError:
        return False
