"""A real broker and a real cluster, started on free ports and ended with the tests."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.ops.local.cluster import Up, down
from jobs.ops.local.jars import fetch_jars
from jobs.ops.local.kafka import start_kafka
from jobs.ops.local.layout import Layout, Ports
from jobs.ops.local.processes import end

if TYPE_CHECKING:
    from collections.abc import Iterator


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


@contextmanager
def cluster(folder: Path, policies: Path, *, taskmanagers: int = 1, profile: str = "latency") -> Iterator[Layout]:
    """The local profile with the admission job on it, gone at the end."""
    layout = Layout(folder, free_block())
    try:
        Up(layout, profile, print).run(taskmanagers=taskmanagers, policies=policies, submits=True)
        yield layout
    finally:
        down(folder, print, keep_data=False)
