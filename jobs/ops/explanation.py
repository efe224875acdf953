"""What there is to say of one request: plain figures, that the view and `--json` show."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas.decisions import Decision
from schemas.json_lines import decision_line

SILENCE: Final = "silence"
"""Kind of a step that no event caused: the request said nothing for too long."""


class LimitSeen(msgspec.Struct, kw_only=True):
    """One limit as the request met it.

    `reserved` is set aside by requests that run, `unbooked` the part of it that they have used already; `left` is the
    room before, `left_after` after what was decided. `asked` is what the request needs of it, `short` how much of that
    does not fit. `fits_at_us`: the first time at which it would, were nothing else to happen; None: it fits, or never
    will. By then `leaving` tokens, requests or streams will have left the window, and `lapsing` will have been given
    back by requests that stay silent.
    """

    name: str
    level: str
    subject: str
    unit: str
    mode: str
    limit: int
    capacity: int
    window_us: int
    burst: int | None
    burst_left: int | None
    used: int
    reserved: int
    unbooked: int
    debt: int
    left: int
    left_after: int | None = None
    asked: int = 0
    short: int = 0
    fits_at_us: int | None = None
    leaving: int = 0
    lapsing: int = 0
    is_shared: bool = False


class Asked(msgspec.Struct, kw_only=True):
    """What a prompt asks for, and where the completion's length comes from.

    `basis`: "client" (max_tokens), "learned" (a quantile of `learned_from` completions), "default" (too few to learn
    from), or "none" (there is no completion). `is_cut`: more was expected than the limits could ever allow.
    """

    prompt_tokens: int
    completion_tokens: int
    basis: str
    quantile: float = 0.0
    learned_from: int = 0
    is_cut: bool = False


class Account(msgspec.Struct, kw_only=True):
    """The request's own tokens: granted + overdrawn = used + left + refunded."""

    phase: str = "unknown"
    granted_tokens: int = 0
    used_tokens: int = 0
    left_tokens: int = 0
    refunded_tokens: int = 0
    overdrawn_tokens: int = 0
    streamed_tokens: int = 0


class Step(msgspec.Struct, kw_only=True):
    """One event of the request, `events` chunks of it that decided nothing, or time alone (`kind` is "silence").

    `at_us` is the tenant's clock, at which it is decided; `event_time_us` is behind it for an event that came late.
    """

    attempt: int
    kind: str
    at_us: int
    event_time_us: int
    facts: dict[str, int | str]
    policy: str
    before: Account
    after: Account
    events: int = 1
    until_us: int = 0
    asked: Asked | None = None
    limits: list[LimitSeen] = []
    decisions: list[Decision] = []
    noticed: list[str] = []


class Explanation(msgspec.Struct, kw_only=True):
    """All that happened to a request, in log order."""

    tenant: str
    request_id: str
    steps: list[Step]
    is_running: bool
    warnings: list[str]


def as_json(explanation: Explanation, words: Sequence[Sequence[str]]) -> bytes:
    """One JSON object; each step with its sentences."""
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(explanation, steps=[]), enc_hook=str)
    steps = []
    for step, said in zip(explanation.steps, words, strict=True):
        one: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(step, decisions=[]))
        one["decisions"] = [msgspec.json.decode(decision_line(decision)) for decision in step.decisions]
        one["words"] = list(said)
        steps.append(one)
    return msgspec.json.encode({**fields, "steps": steps})
