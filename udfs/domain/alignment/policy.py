"""How the streams of a session are aligned, as data: frozen, and impossible to build wrong."""

from typing import Final

import msgspec

from udfs.domain.alignment.chunk import Modality

ALL_MODALITIES: Final = tuple(Modality)
MAX_SPAN_US: Final = 86_400_000_000
MAX_BUFFERED_CHUNKS: Final = 65_536
MAX_DRIFT_POINTS: Final = 64


class InvalidPolicyError(ValueError):
    """A policy that can't hold; the message names the field and the remedy."""


class AlignmentPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one session's alignment. Times are microseconds of event time.

    `match` is the key of a session, or `*`.

    Chunks of different modalities are put together if they begin within `tolerance_us` of the first of them. A group
    is held open for at most `wait_us` after that, which is also how far ahead of the session's clock a chunk may lie,
    and thereby the bound of the buffer in time. `buffer_chunks` is its bound in chunks, for each modality.

    `expected` modalities are waited for from the session's first chunk on, others from their own first. One of which
    nothing has come for `silent_after_us` is no longer waited for until it speaks again. A hole of more than
    `gap_after_us` in a stream is reported even if no sequence number is missing.

    A producer's clock whose rate differs from the session's by more than `drift_bound_ppm` is reported. The rate is
    measured over the last `drift_points` intervals of `drift_interval_us`; a clock that jumps by more than
    `clock_step_us` from one of them to the next was set, and is measured anew. `remembered_holes` bounds the memory of
    which sequence numbers came: so many holes of a stream are told from what came, older ones are forgotten.
    """

    id: str = "default"
    match: str = "*"
    effective_from_us: int = 0
    tolerance_us: int = 40_000
    wait_us: int = 500_000
    buffer_chunks: int = 512
    expected: tuple[Modality, ...] = ALL_MODALITIES
    silent_after_us: int = 2_000_000
    gap_after_us: int = 200_000
    drift_bound_ppm: int = 100
    drift_interval_us: int = 2_000_000
    drift_points: int = 32
    clock_step_us: int = 250_000
    remembered_holes: int = 256

    def __post_init__(self) -> None:
        where = f"policy {self.id!r}"
        if not self.id or not self.match:
            raise InvalidPolicyError(f"{where}: id and match must not be empty; match names a session or is *")
        if len(set(self.expected)) != len(self.expected):
            raise InvalidPolicyError(f"{where}: expected names a modality twice, name each once")
        for name, lowest, highest in (
            ("tolerance_us", 0, MAX_SPAN_US),
            ("wait_us", 0, MAX_SPAN_US),
            ("buffer_chunks", 1, MAX_BUFFERED_CHUNKS),
            ("silent_after_us", 1, MAX_SPAN_US),
            ("gap_after_us", 0, MAX_SPAN_US),
            ("drift_bound_ppm", 1, 1_000_000),
            ("drift_interval_us", 100_000, MAX_SPAN_US),
            ("drift_points", LEAST_DRIFT_POINTS, MAX_DRIFT_POINTS),
            ("clock_step_us", 1, MAX_SPAN_US),
            ("remembered_holes", 1, 65_536),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise InvalidPolicyError(f"{where}: {name} is {value}, it must be from {lowest} to {highest}")


LEAST_DRIFT_POINTS: Final = 8
"""Fewer points of a clock are no measurement of its rate."""

DEFAULT_POLICY: Final = AlignmentPolicy()
"""What holds where no policy matches."""
