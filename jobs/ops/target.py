"""Which cluster a command speaks to: the local profile, or another one by its REST endpoint and settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import typer

from jobs.ops.local.cluster import layout_of
from jobs.ops.local.flink import flink_environment
from jobs.ops.submit import SECRETS
from jobs.wiring.flink_rest import Flink
from jobs.wiring.names import job_name
from jobs.wiring.settings import AdmissionSettings, SettingsError, load_settings

FolderOption: TypeAlias = Annotated[
    Path, typer.Option("--folder", help="Folder of the local profile, where no --flink is given.", file_okay=False)
]
GOVERNED: Final = ("admission",)
"""Jobs whose decisions have generations, which these commands stop, restore and roll back."""

FlinkOption: TypeAlias = Annotated[
    str | None, typer.Option("--flink", metavar="URL", help="REST endpoint of another cluster; then --config too.")
]
ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings of the job, with --flink.", dir_okay=False)
]
JobArgument: TypeAlias = Annotated[str, typer.Argument(metavar="JOB", help=f"One of: {', '.join(GOVERNED)}.")]


class Target(NamedTuple):
    """A cluster, the settings of its job, and where its snapshots lie."""

    flink: Flink
    settings_file: Path
    settings: AdmissionSettings
    environment: Mapping[str, str]
    snapshot_folders: tuple[str, ...]
    rest_options: Mapping[str, str]
    """What tells `flink run` where the cluster is, where its configuration does not."""


def target(folder: Path, url: str | None, config: Path | None) -> Target:
    """The cluster that was meant. Raises LocalError, SettingsError."""
    _refuse_environment()
    if url is None:
        layout = layout_of(folder)
        settings_file = config or layout.settings
        return Target(
            Flink(layout.rest_url),
            settings_file,
            load_settings(settings_file),
            flink_environment(layout),
            (str(layout.savepoints), str(layout.checkpoints)),
            {},
        )
    if config is None:
        raise SettingsError("--flink: name the settings of the job too, with --config")
    folders = tuple(filter(None, (os.environ.get("FLINK_SAVEPOINTS"), os.environ.get("FLINK_CHECKPOINTS"))))
    return Target(Flink(url), config, load_settings(config), {}, folders, _rest_options(url))


def _rest_options(url: str) -> dict[str, str]:
    try:
        parts = urlsplit(url)
        port = 8081 if parts.port is None else parts.port
    except ValueError as error:
        raise SettingsError(f"--flink: {url} is no http://HOST:PORT: {error}") from error
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or port == 0:
        raise SettingsError(f"--flink: {url} must be http://HOST:PORT, as `flink run` can't be told of anything else")
    return {"rest.address": parts.hostname, "rest.port": str(port)}


def _refuse_environment() -> None:
    """Settings of a job that runs stand in its file: what a shell has besides would be this command's view alone."""
    for name in sorted(os.environ):
        if name.startswith("HEADRACE_") and not name.startswith(SECRETS):
            raise SettingsError(f"{name}: this command takes settings from the job's file alone; unset it")


def name_of(job: str, generation: int) -> str:
    """Flink's name of a job. Raises SettingsError for a job that we don't have."""
    if job not in GOVERNED:
        raise SettingsError(f"{job}: not a job of this command, only {', '.join(GOVERNED)}")
    return job_name(job, generation)
