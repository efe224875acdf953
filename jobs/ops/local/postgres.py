"""Postgres, for views that people query with SQL: the machine's own, else the one of the package pgserver."""

import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Final

from jobs.ops.local.layout import HOST, Layout, LocalError
from jobs.ops.local.processes import Note, Started, forget, is_listening, start, tail, wait_until

NAME: Final = "postgres"
_REMEDY: Final = (
    "install it (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql), or pip install pgserver"
)


def postgres_folder() -> Path:
    """The folder of Postgres' programs. Raises LocalError."""
    on_path = shutil.which("postgres")
    if on_path and (found := Path(on_path).resolve().parent / "initdb").is_file():
        return found.parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    wheel = importlib.util.find_spec("pgserver")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    raise LocalError(f"Postgres is not here: {_REMEDY}")


def start_postgres(layout: Layout, note: Note = forget) -> Started:
    """Start the database on the data that it had, or make it. Raises LocalError."""
    programs = postgres_folder()
    data = layout.postgres / "data"
    user = _user()
    layout.postgres.mkdir(parents=True, exist_ok=True)
    if user is not None:
        _require_reachable(layout.postgres, user)
        shutil.chown(layout.postgres, user)
    as_user = (
        ["setpriv", f"--reuid={user}", "--regid", str(pwd.getpwnam(user).pw_gid), "--clear-groups"] if user else []
    )
    log = layout.logs / "postgres.log"
    if not (data / "PG_VERSION").is_file():
        make = [
            *as_user,
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "headrace",
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        _run(make, log)
    sockets = ["-c", "unix_socket_directories="]
    place = ["-h", HOST, "-p", str(layout.ports.postgres)]
    started = start(
        NAME, [*as_user, programs / "postgres", "-D", data, *place, *sockets], log, (layout.ports.postgres,), note=note
    )
    wait_until(lambda: is_listening(layout.ports.postgres), started, timeout_s=30)
    return started


def _user() -> str | None:
    """Whom to run it as: Postgres refuses to be root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise LocalError("Postgres does not run as root, and there is no user postgres or nobody here")


def _require_reachable(folder: Path, user: str) -> None:
    for part in (folder, *folder.parents):
        if not part.stat().st_mode & 0o001 and part != folder:
            raise LocalError(
                f"Postgres runs as {user}, who may not enter {part}; choose another --folder, or --no-postgres"
            )


def _run(command: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        done = subprocess.run(command, stdout=out, stderr=out, check=False)  # noqa: S603 - our own
    if done.returncode:
        raise LocalError(f"the database could not be made; the end of {log}:\n{tail(log)}")
