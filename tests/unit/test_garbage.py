"""The collector leaves alone what lives, and still takes what is dead."""

import gc
import weakref

import pytest

from udfs.operators.garbage import FULL_COLLECTION_EVERY, spare_what_lives, spared


class Loop:
    """Holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _afterwards_as_before() -> object:
    with spared():
        yield


def test_full_collections_are_rare_and_young_ones_as_frequent_as_before() -> None:
    young, middle, _ = gc.get_threshold()
    spare_what_lives()
    assert gc.get_threshold() == (young, middle, FULL_COLLECTION_EVERY)


def test_what_lives_is_no_longer_looked_at() -> None:
    kept = [Loop() for _ in range(10)]
    spare_what_lives()
    assert gc.get_freeze_count() > 0
    assert not any(found is kept for found in gc.get_objects())


def test_what_died_since_the_last_call_is_freed_by_the_next() -> None:
    loop = Loop()
    gone = weakref.ref(loop)
    spare_what_lives()
    del loop
    gc.collect()
    assert gone() is not None, "frozen things are not collected"
    spare_what_lives()
    assert gone() is None


def test_after_the_block_all_is_as_before() -> None:
    before = gc.get_threshold()
    with spared():
        pass
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
