"""Programs that do the job's work without Flink, in an environment of their own."""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from jobs.ops.local.layout import CHECKOUT

VENV = CHECKOUT / "build" / "bench-venv"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SHARED = ("msgspec", "protobuf", "blake3")
"""What our code needs there, in our versions: the same work at the same cost."""


def python() -> Path:
    """The peers' interpreter; its environment is made on the first call."""
    found = VENV / "bin" / "python"
    wanted = REQUIREMENTS.read_text() + "".join(f"{name}=={version(name)}\n" for name in SHARED)
    stamp = VENV / "made-of.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return found
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(VENV)], check=True)
    subprocess.run([*uv, "pip", "install", "--python", str(found), "-r", "-"], input=wanted, text=True, check=True)
    stamp.write_text(wanted)
    return found


def run(module: str, arguments: list[str], environment: Mapping[str, str], timeout_s: float) -> tuple[str, float]:
    """Run a module there to its end; returns what it printed and the seconds of a core that it took.

    Raises CalledProcessError, TimeoutExpired.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(
        [str(python()), "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        check=True,
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
