"""Handing a job to a cluster with `flink run`, as a person would."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from jobs.ops.local.flink import flink_home
from jobs.wiring.flink_rest import FlinkError
from jobs.wiring.java_errors import causes_in

JOB_MODULES: Final = {"admission": "jobs.admission", "ingest": "jobs.ingest"}
"""What can be submitted, by the name that commands take."""

SECRETS: Final = "HEADRACE_KAFKA__SASL_"
"""Beginning of the names of variables that a job may be given by its environment alone."""

_SAYS_NOTHING: Final = re.compile("ProgramAbort|Py4JJavaError")
"""Exceptions that tell of another one; Java's own trace has it."""

FIXED_JOB_ID: Final = "$internal.pipeline.job-id"
"""Flink's option for the id of a job that is submitted; its own operator and application mode set it too."""

_JOB_ID: Final = re.compile(r"Job has been submitted with JobID ([0-9a-f]{32})")


def new_job_id() -> str:
    """An id for a job that is still to be submitted."""
    return uuid4().hex


class SubmitError(FlinkError):
    """`flink run` refused; the message is what it said last."""


def submit(
    job: str,
    settings: Path,
    environment: Mapping[str, str],
    restore_from: str | None = None,
    *,
    parallelism: int = 1,
    rest: Mapping[str, str] | None = None,
    job_id: str | None = None,
    lock: int | None = None,
) -> str:
    """Run `flink run -d` and return the job's id. `rest`: options that name another cluster. Raises SubmitError.

    `job_id`: the id that it gets; Flink refuses a second job of the same id. `lock`: of `submission_lock`, held until
    `flink run` has ended, whatever becomes of us.
    """
    restore = ["--fromSavepoint", restore_from] if restore_from else []
    options = {**(rest or {}), **({FIXED_JOB_ID: job_id} if job_id else {})}
    command = [
        str(flink_home() / "bin" / "flink"),
        "run",
        "--detached",
        "--parallelism",
        str(parallelism),
        *restore,
        *(f"-D{name}={value}" for name, value in options.items()),
        "-pym",
        JOB_MODULES[job],
        "--config",
        str(settings.resolve()),
    ]
    # HEADRACE_... of this shell would win over the file, and the file is what is on record. But for secrets, which
    # need not stand in a file.
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name.startswith(SECRETS)
    }
    done = subprocess.run(  # noqa: S603 - a command of our own
        command,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        pass_fds=() if lock is None else (lock,),
    )
    said = done.stdout + done.stderr
    found = _JOB_ID.search(said)
    if found is None:
        raise SubmitError(f"flink run: {_why(said)}")
    return found[1]


def _why(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line.removeprefix("headrace: ") for line in lines if line.startswith("headrace: ")]
    if ours:
        return "\n".join(ours)
    python = [
        line for line in lines if re.match(r"^[\w.]+(Error|Exception): ", line) and not _SAYS_NOTHING.search(line)
    ]
    return (python[-1:] or causes_in("\n".join(lines))[-1:] or lines[-1:] or ["it said nothing"])[0]
