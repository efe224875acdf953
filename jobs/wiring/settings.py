"""Everything a job can be told: from a YAML file, the environment (HEADRACE_...) and the command line, in rising order.

`headrace config` shows what results. Unknown keys are refused.
"""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from pydantic_settings import SettingsError as PydanticSettingsError
from typing_extensions import Self

from jobs.wiring.kafka_settings import KafkaSettings
from schemas.codec import MAX_NAME_BYTES
from schemas.topics import SHARD_COUNT, Topic
from udfs.operators.shard_fold import FoldSettings
from udfs.operators.shard_keys import MAX_PARALLELISM

DAY_US = 86_400_000_000
NAME_CHARACTERS = MAX_NAME_BYTES // 4
TOPIC_NAME = r"^[A-Za-z0-9._-]{1,200}$"


class SettingsError(ValueError):
    """Settings that can't be used; one line for each fault, naming the key."""


class JobSettings(BaseSettings):
    """What every job can be told."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    shard_count: int = Field(SHARD_COUNT, ge=1, le=MAX_PARALLELISM, description="shards of the log, for its whole life")
    parallelism: int = Field(1, ge=1, le=MAX_PARALLELISM, description="subtasks of the fold")
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="how Kafka is reached")
    events_topic: str = Field(Topic.EVENTS.value, pattern=TOPIC_NAME, description="topic of the log of events")
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
    def _parallelism_within_shards(self) -> Self:
        if self.parallelism > self.shard_count:
            raise ValueError(f"parallelism {self.parallelism} is more than shard_count {self.shard_count}: lower it")
        return self

    @property
    def consumer_group(self) -> str:
        """The consumer group and transactional prefix: no two jobs may share one."""
        return self.group

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


class AdmissionSettings(JobSettings):
    """Settings of the admission job."""

    profile: Literal["embedded", "cluster"] = Field(
        "embedded", description="embedded: a MiniCluster, files in and out; cluster: Kafka in and out"
    )
    input: tuple[Path, ...] = Field((), description="event files, read one after the other")
    output: Path = Field(Path("out"), description="folder for decisions, dead letters, checkpoints and logs")
    policies: Path | None = Field(None, description="YAML file of limiter policies; none: nothing is limited")
    state_backend: Literal["hashmap", "rocksdb"] = Field("hashmap", description="where Flink keeps state")
    checkpoint_interval_ms: int = Field(5_000, ge=10, description="time between checkpoints")
    buffer_timeout_ms: int = Field(5, ge=0, description="how long a network buffer may wait to fill")
    restore_from: Path | None = Field(None, description="checkpoint or savepoint folder to start from")
    generation: int = Field(1, ge=1, description="generation of decisions that is written; a rollback writes the next")

    @property
    def consumer_group(self) -> str:
        """The consumer group and transactional prefix of this generation: no two may share one."""
        return self.group if self.generation == 1 else f"{self.group}-g{self.generation}"


class ForeignSource(BaseModel):
    """A topic that something else writes, and how it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: str = Field(pattern=TOPIC_NAME, description="topic to read")
    format: str = Field(description="what its records are; `headrace ingest --help` lists them")
    name: str = Field(
        "", pattern=r"^[a-z0-9-]{0,40}$", description="of the source, for its watermark and state; else the topic's"
    )
    tenant: str = Field("", max_length=NAME_CHARACTERS, description="tenant of records that name none")
    region: str = Field("", max_length=NAME_CHARACTERS, description="region of records that name none")
    backend: str = Field("", max_length=NAME_CHARACTERS, description="backend of records that name none")

    @property
    def source(self) -> str:
        """What its events name as their source."""
        return self.name or self.topic


class IngestSettings(JobSettings):
    """Settings of the ingest job."""

    group: str = Field("headrace-ingest", pattern=TOPIC_NAME, description="consumer group and transactions")
    # Heartbeats keep a shard alive; by event time yesterday's log would make it forget what it has seen.
    state_ttl_days: int = Field(36_500, ge=1, description="days of event time after which a silent shard is forgotten")
    sources: tuple[ForeignSource, ...] = Field((), description="topics to read, each with its format")
    heartbeat_seconds: int = Field(1, ge=1, le=60, description="time between heartbeats into every shard")

    @model_validator(mode="after")
    def _sources_are_told_apart(self) -> Self:
        names = [source.source for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources: {', '.join(twice)} stands there twice, give each a name of its own")
        written = {self.events_topic, Topic.DEAD_LETTERS.value}
        loops = sorted(written & {source.topic for source in self.sources})
        if loops:
            raise ValueError(f"sources: {', '.join(loops)} is what this job writes")
        return self


SettingsT = TypeVar("SettingsT", bound=JobSettings)
JOB_SETTINGS: tuple[type[JobSettings], ...] = (AdmissionSettings, IngestSettings)
"""Of every job: a variable of the environment may be for another one."""


def load_settings(config: Path | None = None, **given: Any) -> AdmissionSettings:
    """Settings of the admission job; see `load_job_settings`."""
    return load_job_settings(AdmissionSettings, config, **given)


def load_job_settings(kind: type[SettingsT], config: Path | None = None, **given: Any) -> SettingsT:
    """Settings from a file, the environment and what was given, where the last that speaks wins.

    Raises SettingsError for a missing or unreadable file, an unknown key or a value that is not allowed.
    """
    source = _file_source(config)
    _refuse_unknown_environment()

    class FromFile(kind):  # type: ignore[valid-type, misc]
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
    return kind.model_validate(found.model_dump())


def _refuse_unknown_environment() -> None:
    """A slip in a variable's name must not leave the default in force."""
    prefix = "HEADRACE_"
    known = sorted({prefix + name.upper() for kind in JOB_SETTINGS for name in kind.model_fields})
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
