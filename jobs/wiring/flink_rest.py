"""What we ask of a running cluster, by Flink's REST API.

https://nightlies.apache.org/flink/flink-docs-release-2.2/docs/ops/rest_api/
"""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec

from jobs.wiring.environment import flink_path
from jobs.wiring.java_errors import causes_in, innermost_cause

TIMEOUT_S: Final = 10
POLL_S: Final = 0.2
ENDED: Final = frozenset(("FINISHED", "CANCELED", "FAILED"))


class FlinkError(RuntimeError):
    """The cluster does not answer, or refuses; the message says which and why."""


class Job(msgspec.Struct, frozen=True):
    """A job as the overview lists it; `started_ms` is since 1970."""

    id: str
    name: str
    state: str
    started_ms: int

    @property
    def is_over(self) -> bool:
        """Whether it will never run again."""
        return self.state in ENDED


class Flink:
    """A cluster's REST endpoint."""

    def __init__(self, url: str) -> None:
        """`url` such as http://localhost:8081."""
        self.url = url.rstrip("/")

    # --- asking --------------------------------------------------------------------------------------------------

    def overview(self) -> dict[str, Any]:
        """TaskManagers and slots."""
        found: dict[str, Any] = self._call("/overview")
        return found

    def taskmanagers(self) -> frozenset[str]:
        """The resource ids of the TaskManagers that the JobManager knows."""
        return frozenset(it["id"] for it in self._call("/taskmanagers")["taskmanagers"])

    def jobs(self) -> list[Job]:
        """All jobs the cluster knows, the newest first."""
        found = [
            Job(job["jid"], job["name"], job["state"], job["start-time"])
            for job in self._call("/jobs/overview")["jobs"]
        ]
        return sorted(found, key=lambda job: -job.started_ms)

    def running(self, name: str) -> Job | None:
        """The job of that name that is not over. Raises FlinkError where there are two."""
        found = [job for job in self.jobs() if job.name == name and not job.is_over]
        if len(found) > 1:
            ids = ", ".join(job.id for job in found)
            raise FlinkError(f"{name}: {len(found)} such jobs run at {self.url}, cancel all but one of {ids}")
        return found[0] if found else None

    def require_running(self, name: str) -> Job:
        """As `running`. Raises FlinkError where there is none."""
        job = self.running(name)
        if job is None:
            names = sorted({job.name for job in self.jobs() if not job.is_over})
            raise FlinkError(f"{name} does not run at {self.url} (running: {', '.join(names) or 'nothing'})")
        return job

    def state(self, job_id: str) -> str:
        """RUNNING, RESTARTING, FAILED and so on."""
        found: str = self._call(f"/jobs/{job_id}/status")["status"]
        return found

    def tasks_running(self, job_id: str) -> bool:
        """Whether every task of the job runs."""
        counts = self._call(f"/jobs/{job_id}")["status-counts"]
        return bool(counts.pop("RUNNING", 0)) and not any(counts.values())

    def checkpoints(self, job_id: str) -> dict[str, Any]:
        """Counts, sizes and the latest of each kind."""
        found: dict[str, Any] = self._call(f"/jobs/{job_id}/checkpoints")
        return found

    def last_failure(self, job_id: str) -> str | None:
        """What made the job fail last, in a line."""
        entries = self._call(f"/jobs/{job_id}/exceptions?maxExceptions=1")["exceptionHistory"]["entries"]
        return innermost_cause(str(entries[0]["stacktrace"])) if entries else None

    def restarts(self, job_id: str) -> int:
        """How often the job was started again."""
        found = self._call(f"/jobs/{job_id}/metrics?get=numRestarts")
        return int(found[0]["value"]) if found else 0

    # --- changing ------------------------------------------------------------------------------------------------

    def savepoint(self, job_id: str, folder: str | None, timeout_s: float) -> str:
        """Take a savepoint and return its path; the job goes on. Raises FlinkError."""
        body = {"cancel-job": False, "formatType": "CANONICAL", **({"target-directory": folder} if folder else {})}
        return self._await_savepoint(job_id, self._call(f"/jobs/{job_id}/savepoints", body), timeout_s)

    def stop(self, job_id: str, folder: str | None, *, drain: bool, timeout_s: float) -> str:
        """Take a savepoint and end the job; returns its path. `drain` lets event time run out first: for good."""
        body = {"drain": drain, "formatType": "CANONICAL", **({"targetDirectory": folder} if folder else {})}
        path = self._await_savepoint(job_id, self._call(f"/jobs/{job_id}/stop", body), timeout_s)
        self.await_end(job_id, timeout_s)
        return path

    def cancel(self, job_id: str, timeout_s: float = 60) -> None:
        """End the job where it stands. Its retained checkpoints stay."""
        self._call(f"/jobs/{job_id}?mode=cancel", method="PATCH")
        self.await_end(job_id, timeout_s)

    def await_end(self, job_id: str, timeout_s: float) -> str:
        """Wait until the job is over and return its state. Raises FlinkError when time is up."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job_id)) not in ENDED:
            if time.monotonic() > deadline:
                raise FlinkError(f"job {job_id} is still {state} after {timeout_s:.0f} s")
            time.sleep(POLL_S)
        return state

    def await_running(self, job_id: str, timeout_s: float) -> None:
        """Wait until every task runs. Raises FlinkError when the job ends, or time is up, with what made it fail."""
        deadline = time.monotonic() + timeout_s
        while not self.tasks_running(job_id):
            state = self.state(job_id)
            if state in ENDED or time.monotonic() > deadline:
                why = self.last_failure(job_id)
                raise FlinkError(f"job {job_id} does not run, it is {state}" + (f": {why}" if why else ""))
            time.sleep(POLL_S)

    def _await_savepoint(self, job_id: str, accepted: dict[str, Any], timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._call(f"/jobs/{job_id}/savepoints/{accepted['request-id']}")
            if found["status"]["id"] == "COMPLETED":
                break
            if time.monotonic() > deadline:
                raise FlinkError(f"the savepoint of job {job_id} is not complete after {timeout_s:.0f} s")
            time.sleep(POLL_S)
        operation = found["operation"]
        if "location" not in operation:
            trace = str(operation.get("failure-cause", {}).get("stack-trace", "no cause given"))
            raise FlinkError(f"the savepoint failed: {innermost_cause(trace)}")
        location: str = operation["location"]
        return location

    def _call(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the address is the operator's
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - as above
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise FlinkError(f"{self.url}{path}: {_reason(error)}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise FlinkError(f"Flink does not answer at {self.url}: {reason}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        lines = json.load(error)["errors"]
    except (ValueError, KeyError, OSError):
        return f"{error.code} {error.reason}"
    last = next((line for line in reversed(lines) if line.strip()), str(error))
    return (causes_in(last) or [next((line for line in last.splitlines() if line.strip("<> \n")), last)])[-1][:400]


def local_path(location: str) -> Path | None:
    """A savepoint's path on this machine, None where it is elsewhere, such as in S3.

    >>> local_path("file:/tmp/savepoint-1"), local_path("s3://bucket/savepoint-1")
    (PosixPath('/tmp/savepoint-1'), None)
    """
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if "://" in location else Path(location)


def location_of(path: str) -> str:
    """A savepoint as Flink names it: a path of this machine gets its scheme."""
    return path if "://" in path or path.startswith("file:") else flink_path(Path(path).resolve())
