"""One submission at a time: `flink run` outlives a command that is killed, and submits its job seconds later.

The lock is on a file beside the job's settings, and `flink run` inherits it. So it is held until that has ended, even
when nobody waits for it any more, and whoever has the lock sees every job that was submitted from there.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobs.wiring.flink_rest import FlinkError

NAME: Final = ".headrace-submission"
POLL_S: Final = 0.2


@contextmanager
def submission_lock(settings: Path, tell: Callable[[str], None], timeout_s: float = 180) -> Iterator[int | None]:
    """Wait for submissions that are on their way, and hold off others; the number is what `flink run` inherits.

    Raises FlinkError when time is up. In a folder that can't be written to nothing is held off, and there is no number.
    """
    try:
        descriptor = os.open(settings.resolve().parent / NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield None
        return
    try:
        _lock(descriptor, tell, timeout_s)
        yield descriptor
    finally:
        # Closed and not unlocked: where `flink run` goes on, the lock is its own.
        os.close(descriptor)


def _lock(descriptor: int, tell: Callable[[str], None], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FlinkError(
                    f"another `flink run` of this job has been under way for {timeout_s:.0f} s: end it, or try again"
                ) from None
            if not told:
                tell("another `flink run` of this job is under way: waiting until it has ended")
                told = True
            time.sleep(POLL_S)
        else:
            return
