"""A real broker and a real cluster, started on free ports and ended with the tests."""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.ops.local.cluster import Up, down, read_record
from jobs.ops.local.jars import fetch_jars
from jobs.ops.local.kafka import start_kafka
from jobs.ops.local.layout import Layout, Ports
from jobs.ops.local.processes import Started, end

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def free_block() -> Ports:
    """A block of ports that nobody listens on."""
    for base in range(21_000, 32_000, 40):
        if all(_is_free(port) for port in range(base, base + 20)):
            return Ports(base=base)
    raise AssertionError("no twenty free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def kafka_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker without topics."""
    layout = Layout(tmp_path_factory.mktemp("broker"), free_block())
    started = start_kafka(layout, fetch_jars())
    yield layout.kafka_servers
    end(started)


class Cluster:
    """A running local profile."""

    def __init__(self, layout: Layout, taskmanagers: int, options: Mapping[str, str]) -> None:
        self.layout = layout
        self._taskmanagers = taskmanagers
        self._options = options

    def repair(self, policies: Path | None = None, *, submits: bool = True) -> None:
        """Start what does not run, as `headrace up` does."""
        up = Up(self.layout, "latency", print, self._options)
        up.run(taskmanagers=self._taskmanagers, policies=policies, submits=submits, with_postgres=False)

    def started(self, name: str) -> Started:
        """A process that runs."""
        record = read_record(self.layout.folder)
        assert record is not None
        found = record.find(name)
        assert found is not None, name
        return found

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.started(name).process()
        assert process is not None
        process.kill()
        process.wait(10)


@contextmanager
def cluster(
    folder: Path,
    policies: Path,
    *,
    taskmanagers: int = 1,
    options: Mapping[str, str] | None = None,
    submits: bool = True,
) -> Iterator[Cluster]:
    """The local profile, with the admission job on it if `submits`; gone at the end."""
    it = Cluster(Layout(folder, free_block()), taskmanagers, options or {})
    try:
        it.repair(policies, submits=submits)
        yield it
    finally:
        down(folder, print, keep_data=False)


@pytest.fixture(autouse=True, scope="session")
def _quiet_client() -> None:
    """A client tells of every broken connection, and here brokers are stopped on purpose."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
