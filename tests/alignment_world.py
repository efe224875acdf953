"""Sessions of text, speech and vision chunks, and a driver that feeds them to the aligner as the keyed fold does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from schemas.events import Event, PromptSubmitted
from udfs.domain.alignment import (
    Aligned,
    AlignmentPolicy,
    Alone,
    Late,
    ModalChunk,
    Modality,
    Output,
    Overflow,
    SessionState,
    advance,
    apply,
)
from udfs.domain.alignment.state import dump, load
from udfs.domain.anomaly import Anomaly

MS: Final = 1_000
SECOND: Final = 1_000_000
START_US: Final = 1_700_000_000 * SECOND
SESSION: Final = "call-1"
TEXT, SPEECH, VISION = Modality


def chunk(
    modality: Modality,
    sequence: int,
    at_us: int,
    *,
    duration_us: int = 20 * MS,
    offset_us: int | None = None,
    ahead_us: int = 0,
) -> ModalChunk:
    """A chunk that begins `at_us` after the session's start; its producer's clock is `ahead_us` ahead."""
    return ModalChunk(
        session=SESSION,
        modality=modality,
        sequence=sequence,
        offset_us=at_us if offset_us is None else offset_us,
        duration_us=duration_us,
        captured_at_us=START_US + at_us + ahead_us,
        event_time_us=START_US + at_us,
    )


def stream(modality: Modality, every_us: int, until_us: int, *, from_us: int = 0) -> list[ModalChunk]:
    """A steady stream, chunks one after the other without a hole."""
    times_us = range(from_us, until_us, every_us)
    return [chunk(modality, number, at_us, duration_us=every_us) for number, at_us in enumerate(times_us)]


def arriving(*streams: Iterable[ModalChunk], lag_us: Sequence[int] = (0, 0, 0)) -> list[ModalChunk]:
    """The streams in one log, each so much behind its media time; `lag_us` is that of text, speech and vision."""
    found = [one for each in streams for one in each]
    return sorted(found, key=lambda one: (one.event_time_us + lag_us[one.modality - 1], one.modality, one.sequence))


class Session:
    """One session with its clock."""

    def __init__(self, policy: AlignmentPolicy | None = None) -> None:
        self.policy = policy or AlignmentPolicy()
        self.state = SessionState(SESSION)
        self.clock_us = 0
        self.anomalies: list[Anomaly] = []

    def restart(self) -> None:
        self.state = load(dump(self.state))

    def tell(self, *chunks: ModalChunk) -> list[Output]:
        out: list[Output] = []
        for one in chunks:
            self.clock_us = max(self.clock_us, one.event_time_us)
            for found in apply(self.state, one, self.policy, self.clock_us):
                if isinstance(found, Anomaly):
                    self.anomalies.append(found)
                else:
                    out.append(found)
        return out

    def wake(self, at_us: int) -> list[Output]:
        """Let the session's clock stand `at_us` after the start."""
        self.clock_us = max(self.clock_us, START_US + at_us)
        return advance(self.state, self.policy, self.clock_us)

    def finish(self) -> list[Output]:
        return self.wake(1_000_000 * SECOND)


def run(chunks: Iterable[ModalChunk], policy: AlignmentPolicy | None = None) -> list[Output]:
    """All that a session tells, to its end."""
    session = Session(policy)
    return session.tell(*chunks) + session.finish()


def chunks_in(output: Output) -> tuple[ModalChunk, ...]:
    if isinstance(output, Aligned):
        return output.chunks
    if isinstance(output, (Alone, Late, Overflow)):
        return (output.chunk,)
    return ()


def in_place(outputs: Iterable[Output]) -> Iterator[Aligned | Alone]:
    """What was told in its place in media time."""
    return (one for one in outputs if isinstance(one, (Aligned, Alone)))


# --- chunks as events, so that the keyed fold can carry them --------------------------------------------------------


def event_of(one: ModalChunk, *, session: str = SESSION, watermark_us: int = 0) -> PromptSubmitted:
    """An event that holds the chunk's numbers: what carries them does not matter to the fold."""
    return PromptSubmitted(
        event_id=bytes(16),
        tenant=session,
        request_id=one.modality.name,
        attempt=0,
        event_time_us=one.event_time_us,
        watermark_us=watermark_us,
        sequence=one.sequence,
        session=session,
        model="",
        backend="",
        region="",
        source="",
        provenance=None,
        prompt_tokens=one.offset_us,
        max_tokens=one.duration_us,
        cached_tokens=one.captured_at_us,
    )


def chunk_of(event: Event) -> ModalChunk | None:
    if not isinstance(event, PromptSubmitted):
        return None
    return ModalChunk(
        session=event.session,
        modality=Modality[event.request_id],
        sequence=event.sequence,
        offset_us=event.prompt_tokens,
        duration_us=event.max_tokens,
        captured_at_us=event.cached_tokens,
        event_time_us=event.event_time_us,
    )
