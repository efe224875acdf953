"""Text, speech and vision of one session side by side: see `aligner` for the rules and docs/alignment.md for use."""

from udfs.domain.alignment.aligner import advance, apply
from udfs.domain.alignment.chunk import ImplausibleChunkError, ModalChunk, Modality
from udfs.domain.alignment.fold import AlignmentFold
from udfs.domain.alignment.outputs import (
    Aligned,
    Alone,
    ClockStep,
    Drift,
    Gap,
    Late,
    LateReason,
    Output,
    Overflow,
    OverflowReason,
    Silent,
)
from udfs.domain.alignment.policy import AlignmentPolicy, InvalidPolicyError
from udfs.domain.alignment.state import SessionState

__all__ = [
    "Aligned",
    "AlignmentFold",
    "AlignmentPolicy",
    "Alone",
    "ClockStep",
    "Drift",
    "Gap",
    "ImplausibleChunkError",
    "InvalidPolicyError",
    "Late",
    "LateReason",
    "ModalChunk",
    "Modality",
    "Output",
    "Overflow",
    "OverflowReason",
    "SessionState",
    "Silent",
    "advance",
    "apply",
]
