"""Python's cycle collector, kept from stopping a process that holds much and must answer soon.

A full collection looks at every object that lives, so its pause grows with what a fold keeps or a load has sent: 0.1 s
at some hundred thousand objects. Nothing of ours makes cycles; what others make dies young, and young ones are looked
at as often as ever. https://docs.python.org/3/library/gc.html
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FULL_COLLECTION_EVERY: Final = 1_000
"""Collections of the middle generation between two full ones: seven million objects that stayed. Default: 10."""


def spare_what_lives() -> None:
    """Collect once, then leave alone what is there: modules, classes, a job's plan. May be called again at any time."""
    # Frozen things would never be collected: what an earlier job in this process has left must be let go first.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTION_EVERY)


@contextmanager
def spared() -> Iterator[None]:
    """The same, while the block runs."""
    before = gc.get_threshold()
    spare_what_lives()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
