"""How a command is told which log to read: servers, settings, times."""

from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import typer
from pydantic import ValidationError

from jobs.ops.local.layout import DEFAULT_FOLDER, Layout, Ports
from jobs.wiring.kafka_log import BrokerUnreachableError
from jobs.wiring.kafka_settings import DEFAULT_SERVERS, KafkaSettings
from jobs.wiring.kafka_topics import KafkaUnavailableError
from jobs.wiring.quantities import QuantityError, parse_instant_us
from jobs.wiring.settings import AdmissionSettings, SettingsError, load_settings
from schemas.codec import MAX_TIME_US


class LogAccess(NamedTuple):
    """Where the log is, and the settings of the job that folds it."""

    kafka: KafkaSettings
    settings: AdmissionSettings

    @property
    def shard_count(self) -> int:
        """Shards of the log."""
        return self.settings.shard_count


def log_access(config: Path | None, servers: str | None) -> LogAccess:
    """Where the log is: as the settings say, at `servers` where they are given. Raises SettingsError."""
    settings = load_settings(config)
    return LogAccess(settings.kafka if servers is None else _at(settings.kafka, servers), settings)


def _at(kafka: KafkaSettings, servers: str) -> KafkaSettings:
    # A copy with an update would be checked by nobody.
    try:
        return KafkaSettings.model_validate(kafka.model_dump() | {"servers": servers})
    except ValidationError as error:
        raise SettingsError(f"--servers: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def with_hint(mistake: Exception) -> str:
    """What a mistake says, and where nobody answers at the default servers, how the local profile is meant instead."""
    settings = Layout(DEFAULT_FOLDER, Ports()).settings
    nobody = isinstance(mistake, BrokerUnreachableError | KafkaUnavailableError) and DEFAULT_SERVERS in str(mistake)
    if not (nobody and settings.is_file()):
        return str(mistake)
    return f"{mistake} (the local profile: --config {DEFAULT_FOLDER / settings.name})"


def time_us(text: str) -> int:
    """A time as a person gives it, or in microseconds as `--json` shows it.

    >>> time_us("2023-11-16T18:45:00Z"), time_us("1700160300000000")
    (1700160300000000, 1700160300000000)
    """
    if text.isascii() and text.isdigit() and len(text) >= 16 and int(text) <= MAX_TIME_US:
        return int(text)
    try:
        return parse_instant_us(text)
    except QuantityError as error:
        raise typer.BadParameter(f"{error}, or microseconds since 1970") from error


ConfigOption: TypeAlias = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file of settings.")]
ServersOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--servers", metavar="HOST:PORT,...", help="Kafka's bootstrap servers.", show_default="settings"),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
EventsTopicOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--events-topic", metavar="TOPIC", help="The topic of events.", show_default="settings"),
]
EventFilesOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--events",
        "-e",
        metavar="FILE",
        help="Event file instead of Kafka (.pb, .jsonl); again for more, in log order.",
    ),
]
