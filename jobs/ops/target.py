"""Which cluster a command speaks to: the local profile, or another one by its REST endpoint and settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import typer

from jobs.ops.local.cluster import layout_of
from jobs.ops.local.flink import flink_environment
from jobs.ops.local.layout import DEFAULT_FOLDER
from jobs.ops.submit import JOB_MODULES
from jobs.wiring.flink_rest import Flink
from jobs.wiring.names import job_name
from jobs.wiring.settings import AdmissionSettings, SettingsError, load_settings

FolderOption: TypeAlias = Annotated[
    Path, typer.Option("--folder", help="Folder of the local profile, where no --flink is given.", file_okay=False)
]
FlinkOption: TypeAlias = Annotated[
    str | None, typer.Option("--flink", metavar="URL", help="REST endpoint of another cluster; then --config too.")
]
ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings of the job, with --flink.", dir_okay=False)
]
JobArgument: TypeAlias = Annotated[str, typer.Argument(metavar="JOB", help=f"One of: {', '.join(JOB_MODULES)}.")]


class Target(NamedTuple):
    """A cluster, the settings of its job, and where its snapshots lie."""

    flink: Flink
    settings_file: Path
    settings: AdmissionSettings
    environment: Mapping[str, str]
    snapshot_folders: tuple[str, ...]
    work: Path
    """Where settings of further generations are kept."""

    @property
    def savepoints(self) -> str | None:
        """Where savepoints go, None: where the cluster's configuration says."""
        return None


def target(folder: Path, url: str | None, config: Path | None) -> Target:
    """The cluster that was meant. Raises LocalError, SettingsError."""
    if url is None:
        layout = layout_of(folder)
        settings_file = config or layout.settings
        return Target(
            Flink(layout.rest_url),
            settings_file,
            load_settings(settings_file),
            flink_environment(layout),
            (str(layout.savepoints), str(layout.checkpoints)),
            layout.folder,
        )
    if config is None:
        raise SettingsError("--flink: name the settings of the job too, with --config")
    folders = tuple(filter(None, (os.environ.get("FLINK_SAVEPOINTS"), os.environ.get("FLINK_CHECKPOINTS"))))
    return Target(Flink(url), config, load_settings(config), {}, folders, DEFAULT_FOLDER.parent)


def name_of(job: str, generation: int) -> str:
    """Flink's name of a job. Raises SettingsError for a job that we don't have."""
    if job not in JOB_MODULES:
        raise SettingsError(f"{job}: there is no such job, only {', '.join(JOB_MODULES)}")
    return job_name(job, generation)
