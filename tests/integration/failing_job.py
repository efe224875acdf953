"""The admission job, which fails once whenever a file appears. Submitted by the tests alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import admission
from jobs.wiring.cluster import submit
from jobs.wiring.settings import load_settings
from udfs.operators import keyed_fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflink.common import Row
    from pyflink.datastream import KeyedProcessFunction

SETTINGS = "FAILING_JOB_SETTINGS"
TRIGGER = "fail"


class FailingFold(keyed_fold.KeyedFold):
    """Fails a task, as no input can."""

    trigger: Path

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if self.trigger.exists():
            self.trigger.unlink()
            raise RuntimeError("failed on purpose")
        yield from super().process_element(value, ctx)


def main() -> None:
    path = Path(os.environ[SETTINGS])

    def with_trigger(*args: Any, **kwargs: Any) -> FailingFold:
        fold = FailingFold(*args, **kwargs)
        fold.trigger = path.with_name(TRIGGER)
        return fold

    keyed_fold.KeyedFold = with_trigger  # type: ignore[misc,assignment]
    submit("headrace-admission", admission.build_on_kafka, load_settings(path))


if __name__ == "__main__":
    main()
