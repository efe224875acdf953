"""Everything a job can be told: from a YAML file, the environment (HEADRACE_...) and the command line, in rising order.

`headrace config` shows what results. Unknown keys are refused.
"""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from pydantic_settings import SettingsError as PydanticSettingsError

from jobs.wiring.kafka_settings import KafkaSettings
from schemas.topics import SHARD_COUNT, Topic
from udfs.operators.shard_fold import FoldSettings
from udfs.operators.shard_keys import MAX_PARALLELISM

DAY_US = 86_400_000_000
TOPIC_NAME = r"^[A-Za-z0-9._-]{1,200}$"


class SettingsError(ValueError):
    """Settings that can't be used; one line for each fault, naming the key."""


class AdmissionSettings(BaseSettings):
    """Settings of the admission job."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    profile: Literal["embedded", "cluster"] = Field(
        "embedded", description="embedded: a MiniCluster, files in and out; cluster: Kafka in and out"
    )
    input: tuple[Path, ...] = Field((), description="event files, read one after the other")
    output: Path = Field(Path("out"), description="folder for decisions, dead letters, checkpoints and logs")
    policies: Path | None = Field(None, description="YAML file of limiter policies; none: nothing is limited")

    shard_count: int = Field(SHARD_COUNT, ge=1, le=MAX_PARALLELISM, description="shards of the log, for its whole life")
    parallelism: int = Field(1, ge=1, le=MAX_PARALLELISM, description="subtasks of the fold")
    state_backend: Literal["hashmap", "rocksdb"] = Field("hashmap", description="where Flink keeps state")
    checkpoint_interval_ms: int = Field(5_000, ge=10, description="time between checkpoints")
    buffer_timeout_ms: int = Field(5, ge=0, description="how long a network buffer may wait to fill")
    restore_from: Path | None = Field(None, description="checkpoint or savepoint folder to start from")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="how Kafka is reached")
    events_topic: str = Field(Topic.EVENTS.value, pattern=TOPIC_NAME, description="topic of the log that is decided")
    generation: int = Field(1, ge=1, description="generation of decisions that is written; a rollback writes the next")
    group: str = Field("headrace-admission", pattern=TOPIC_NAME, description="consumer group and transactions")
    start: Literal["earliest-offset", "latest-offset"] = Field(
        "earliest-offset", description="where a job without a savepoint starts to read"
    )
    until_end: bool = Field(False, description="stop at the end that the log has when the job starts")
    delivery: Literal["at-least-once", "exactly-once"] = Field(
        "at-least-once", description="how sinks write; repeats carry the same ids, transactions wait for checkpoints"
    )
    linger_ms: int = Field(1, ge=0, description="how long a producer waits for more records")
    transaction_timeout_seconds: int = Field(900, ge=60, description="longest outage that loses no open transaction")

    cache_entries: int = Field(4_096, ge=1, description="keys kept in memory, per shard")
    compact_events: int = Field(20_000, ge=1, description="events in a shard's log before its keys are written out")
    compact_keys: int = Field(2_000, ge=1, description="changed keys of a shard before they are written out")
    state_ttl_days: int = Field(120, ge=1, description="days of event time after which a silent tenant is forgotten")
    max_ahead_seconds: int = Field(3_600, ge=1, description="how far an event may be ahead of its own watermark")

    @model_validator(mode="after")
    def _parallelism_within_shards(self) -> "AdmissionSettings":
        if self.parallelism > self.shard_count:
            raise ValueError(f"parallelism {self.parallelism} is more than shard_count {self.shard_count}: lower it")
        return self

    @property
    def generation_group(self) -> str:
        """The consumer group and transactional prefix of this generation: no two may share one."""
        return self.group if self.generation == 1 else f"{self.group}-g{self.generation}"

    @property
    def fold(self) -> FoldSettings:
        """What a shard may cost."""
        return FoldSettings(
            cache_entries=self.cache_entries,
            compact_events=self.compact_events,
            compact_keys=self.compact_keys,
            ttl_us=self.state_ttl_days * DAY_US,
            max_ahead_us=self.max_ahead_seconds * 1_000_000,
        )


def load_settings(config: Path | None = None, **given: Any) -> AdmissionSettings:
    """Settings from a file, the environment and what was given, where the last that speaks wins.

    Raises SettingsError for a missing or unreadable file, an unknown key or a value that is not allowed.
    """
    source = _file_source(config)
    _refuse_unknown_environment()

    class FromFile(AdmissionSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            if source is None:
                return init_settings, env_settings
            return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, yaml_file=source)

    try:
        found = FromFile(**{name: value for name, value in given.items() if value is not None})
    except PydanticSettingsError as error:
        raise SettingsError(
            f"environment: {error}; lists are JSON, such as HEADRACE_INPUT='[\"events.pb\"]'"
        ) from error
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}" for fault in error.errors()]
        place = f"{source}: " if source else ""
        raise SettingsError("\n".join(place + line for line in lines)) from error
    return AdmissionSettings.model_validate(found.model_dump())


def _refuse_unknown_environment() -> None:
    """A slip in a variable's name must not leave the default in force."""
    prefix = "HEADRACE_"
    known = [prefix + name.upper() for name in AdmissionSettings.model_fields]
    for name in sorted(os.environ):
        if name.startswith(prefix) and name.split("__")[0] not in known:
            near = get_close_matches(name, known, 1)
            raise SettingsError(f"{name}: no such setting" + (f", did you mean {near[0]}?" if near else ""))


def _file_source(config: Path | None) -> Path | None:
    if config is None:
        return None
    try:
        read = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{config}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{config}: not YAML: {' '.join(str(error).split())}") from error
    if read is not None and not (isinstance(read, dict) and all(isinstance(key, str) for key in read)):
        raise SettingsError(f"{config}: must be a mapping of settings, such as `parallelism: 1`")
    return config
