"""Where the local profile keeps its things, and which ports it takes."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

CHECKOUT: Final = Path(__file__).resolve().parents[3]
DEFAULT_FOLDER: Final = Path("out/local")
HOST: Final = "127.0.0.1"


class LocalError(RuntimeError):
    """The local profile can't do what was asked; the message says why and what helps."""


class Ports(BaseModel):
    """Ports of the loopback interface, in one block: `base` and the ones above it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int = Field(19_090, ge=1_024, le=65_500)

    @property
    def kafka(self) -> int:
        """Kafka's clients."""
        return self.base + 2

    @property
    def kafka_controller(self) -> int:
        """KRaft's quorum of one."""
        return self.base + 3

    @property
    def rest(self) -> int:
        """Flink's REST endpoint and web UI."""
        return self.base + 1

    @property
    def jobmanager(self) -> int:
        """What TaskManagers speak to."""
        return self.base + 4

    @property
    def blob(self) -> int:
        """Where TaskManagers get jars from."""
        return self.base + 5

    @property
    def zookeeper(self) -> int:
        """Flink's high availability."""
        return self.base + 6

    @property
    def postgres(self) -> int:
        """SQL clients."""
        return self.base + 7

    @property
    def metrics(self) -> range:
        """Prometheus reporters: one a Flink process."""
        return range(self.base + 10, self.base + 20)


class Layout:
    """Folders and files below one folder. Two layouts with other ports can run side by side."""

    def __init__(self, folder: Path, ports: Ports) -> None:
        """`folder` need not exist."""
        self.folder = folder.resolve()
        self.ports = ports

    @property
    def record(self) -> Path:
        """What was started."""
        return self.folder / "started.json"

    @property
    def settings(self) -> Path:
        """Settings of jobs and commands that use this cluster."""
        return self.folder / "headrace.yaml"

    @property
    def logs(self) -> Path:
        """One log a process."""
        return self.folder / "logs"

    @property
    def kafka(self) -> Path:
        """The broker's data."""
        return self.folder / "kafka"

    @property
    def postgres(self) -> Path:
        """The database."""
        return self.folder / "postgres"

    @property
    def zookeeper(self) -> Path:
        """Where Flink remembers which jobs run."""
        return self.folder / "zookeeper"

    @property
    def flink(self) -> Path:
        """Configuration, libraries and temporary files of the cluster."""
        return self.folder / "flink"

    @property
    def checkpoints(self) -> Path:
        """Flink's checkpoints."""
        return self.folder / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Savepoints, unless a command names another place."""
        return self.folder / "savepoints"

    @property
    def ha(self) -> Path:
        """What ZooKeeper only points to."""
        return self.folder / "ha"

    @property
    def kafka_servers(self) -> str:
        """Bootstrap servers."""
        return f"{HOST}:{self.ports.kafka}"

    @property
    def rest_url(self) -> str:
        """Flink's REST endpoint."""
        return f"http://{HOST}:{self.ports.rest}"

    @property
    def postgres_url(self) -> str:
        """The database, for psql."""
        return f"postgresql://headrace@{HOST}:{self.ports.postgres}/headrace"
