"""`make jars`: what clusters need from Maven, checked against the digests that were committed."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from jobs.ops.local.layout import CHECKOUT, LocalError
from jobs.wiring.java import JavaNotFoundError, java_home

POM: Final = CHECKOUT / "flink-conf" / "jars" / "pom.xml"
DIGESTS: Final = POM.with_name("SHA256SUMS")
TARGET: Final = POM.with_name("target")
STAMP: Final = TARGET / "made-of"
PROTO: Final = CHECKOUT / "schemas" / "proto"


class JarsError(LocalError):
    """The jars are not there, or not those that were committed."""


class Jars(NamedTuple):
    """Where they are."""

    connectors: tuple[Path, ...]
    broker: tuple[Path, ...]


def find_jars() -> Jars:
    """The jars that `make jars` brought. Raises JarsError if they are missing or older than what they are made of."""
    if not POM.is_file():
        raise JarsError(f"{POM} is not there: the local profile runs from a checkout of the repository")
    if not STAMP.is_file() or STAMP.read_text() != _made_of():
        raise JarsError(f"the jars of {POM.parent} are not there or not current: make jars")
    return Jars(
        (*_in("connectors"), TARGET / "headrace-schemas.jar"),
        (*_in("broker"), *(jar for jar in _in("connectors") if jar.name.startswith("protobuf-java"))),
    )


def fetch_jars() -> Jars:
    """Bring them from Maven, or find them. Raises JarsError without Maven, Java or network, or for a wrong digest."""
    try:
        return find_jars()
    except JarsError:
        if not POM.is_file():
            raise
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsError(
            "Maven (mvn) is not on PATH, and clusters need jars from it (Debian, Ubuntu: apt-get install maven; "
            "macOS: brew install maven); `make run` needs none"
        )
    try:
        home = java_home()
    except JavaNotFoundError as error:
        raise JarsError(str(error)) from error
    shutil.rmtree(TARGET, ignore_errors=True)
    done = subprocess.run(  # noqa: S603 - the pom is ours
        [maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM), "package"],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise JarsError(
            f"Maven could not build {POM}: {said[0] if said else 'it said nothing'}\n"
            "Offline? The first time it needs the network, or a mirror in ~/.m2/settings.xml"
        )
    _check_digests()
    STAMP.write_text(_made_of())
    return find_jars()


def _in(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((TARGET / folder).glob("*.jar")))


def _made_of() -> str:
    digest = hashlib.sha256()
    for path in (POM, DIGESTS, *sorted(PROTO.rglob("*.proto"))):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _digests() -> dict[str, str]:
    found = {}
    for jar in (*_in("connectors"), *_in("broker")):
        found[str(jar.relative_to(TARGET))] = hashlib.sha256(jar.read_bytes()).hexdigest()
    return found


def _check_digests() -> None:
    pairs = (line.split("  ", 1) for line in DIGESTS.read_text().splitlines())
    wanted = {name: digest for digest, name in pairs}
    found = _digests()
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise JarsError(
            f"not what {DIGESTS} says: {', '.join(wrong)}; delete them from ~/.m2 and try again, "
            "or after a change of the pom: python -m jobs.ops.local.jars --lock"
        )


def main() -> int:
    """Fetch, or write the digests of what is there."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--lock", action="store_true", help="write SHA256SUMS anew from what Maven brings")
    lock = arguments.parse_args().lock
    try:
        if lock:
            DIGESTS.write_text("")
        try:
            jars = fetch_jars()
        except JarsError:
            if not (lock and _digests()):
                raise
            DIGESTS.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(_digests().items())))
            jars = fetch_jars()
    except LocalError as error:
        sys.stderr.write(f"make jars: {error}\n")
        return 1
    sys.stdout.write(f"{len(jars.connectors)} jars for Flink, {len(jars.broker)} for the broker: {TARGET}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
