"""Which decisions differ between two sets: generations of a topic, files, a replay and what was decided.

Decisions are matched by tenant, request, attempt and decision id. Within a side an equal repeat counts once, as
at-least-once delivery makes them; the same id with another content is a fault of that side, a conflict.

Both sides are spread by a hash of their request over files on disk, and then compared file by file (a Grace hash join:
Kitsuregawa, Tanaka, Moto-oka 1983), so the order of the sides does not matter, and memory holds one part in
`PARTS` of them, and some hundred bytes a tenant. Small sides never reach the disk.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
from msgspec.structs import replace

from schemas.decisions import Decision, DecisionKind, DecisionMode, DecisionReason
from schemas.json_lines import decision_line

PARTS: Final = 64
IN_MEMORY_BYTES: Final = 256 << 10
"""Of each part of a side, before it goes to disk."""

MOST_TENANTS_WITH_EXAMPLES: Final = 1_000

COMPARABLE: Final = tuple(
    name for name in Decision.__struct_fields__ if name not in {"tenant", "request_id", "attempt", "decision_id"}
)
"""Fields that may differ between two decisions with the same id."""

Key: TypeAlias = tuple[str, str, int, str]
"""Tenant, request, attempt and decision id."""

TOKEN_FIELDS: Final = ("reserved_tokens", "used_tokens", "refunded_tokens", "overdrawn_tokens")


class Settled(msgspec.Struct):
    """Tokens of what was settled, summed. A request that was settled twice counts with its last totals."""

    reserved_tokens: int = 0
    used_tokens: int = 0
    refunded_tokens: int = 0
    overdrawn_tokens: int = 0


class Example(msgspec.Struct, frozen=True):
    """One decision that differs: as JSON fields, None where the side has none. `fields`: those that differ."""

    kind: str
    tenant: str
    decision_id: str
    fields: tuple[str, ...]
    a: dict[str, Any] | None
    b: dict[str, Any] | None


class TenantDiff(msgspec.Struct):
    """How the decisions of one tenant differ.

    `transitions`: "admit -> throttle" and the like, where the kind changed; `changed_fields`: how often each field did.
    A conflict is the same id with more than one content within a side; it counts as nothing else.
    """

    tenant: str
    same: int = 0
    only_a: int = 0
    only_b: int = 0
    changed: int = 0
    conflicts_a: int = 0
    conflicts_b: int = 0
    only_a_kinds: Counter[str] = msgspec.field(default_factory=Counter)
    only_b_kinds: Counter[str] = msgspec.field(default_factory=Counter)
    transitions: Counter[str] = msgspec.field(default_factory=Counter)
    changed_fields: Counter[str] = msgspec.field(default_factory=Counter)
    settled_a: Settled = msgspec.field(default_factory=Settled)
    settled_b: Settled = msgspec.field(default_factory=Settled)
    examples: list[Example] = []

    @property
    def differences(self) -> int:
        """Ids that are not the same on both sides."""
        return self.only_a + self.only_b + self.changed + self.conflicts

    @property
    def conflicts(self) -> int:
        """Faults of either side."""
        return self.conflicts_a + self.conflicts_b


class DecisionDiff(msgspec.Struct):
    """How two sets of decisions differ. `tenants`: those with differences, the most first; `all`: the sums.

    `decisions_a` and `decisions_b` count what was read, `repeats_*` how many of it were equal repeats.
    """

    all: TenantDiff
    tenants: list[TenantDiff]
    decisions_a: int
    decisions_b: int
    repeats_a: int
    repeats_b: int
    same_tenants: int

    @property
    def is_same(self) -> bool:
        """Whether both sides decide the same, and neither contradicts itself."""
        return self.all.differences == 0


class Window(NamedTuple):
    """Decisions that are compared: those decided at `since_us` or later and before `until_us`, of these tenants."""

    since_us: int | None = None
    until_us: int | None = None
    tenants: Collection[str] = ()

    def holds(self, decision: Decision) -> bool:
        """Whether the decision is compared."""
        return (
            (self.since_us is None or decision.decided_at_us >= self.since_us)
            and (self.until_us is None or decision.decided_at_us < self.until_us)
            and (not self.tenants or decision.tenant in self.tenants)
        )


EVERYTHING: Final = Window()


def diff_decisions(
    a: Iterable[Decision],
    b: Iterable[Decision],
    *,
    window: Window = EVERYTHING,
    ignore: Collection[str] = (),
    examples: int = 3,
) -> DecisionDiff:
    """Compare two sides, each in any order. `ignore`: fields that may differ; `examples`: so many a tenant.

    Raises ValueError for a field that decisions do not have or are matched by.
    """
    unknown = [name for name in ignore if name not in COMPARABLE]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not a field that can be ignored; those are {', '.join(COMPARABLE)}")
    with ExitStack() as stack:
        spilled_a, spilled_b = (_Spilled(stack), _Spilled(stack))
        for spilled, side in ((spilled_a, a), (spilled_b, b)):
            for decision in side:
                if window.holds(decision):
                    spilled.add(decision)
        comparison = _Comparison(_eraser(ignore), examples)
        for part in range(PARTS):
            comparison.compare(spilled_a.part(part), spilled_b.part(part))
    return comparison.result(spilled_a.count, spilled_b.count)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode


class _Spilled:
    """One side, spread over parts by request."""

    def __init__(self, stack: ExitStack) -> None:
        self._files: list[IO[bytes]] = [
            stack.enter_context(SpooledTemporaryFile(IN_MEMORY_BYTES, prefix="headrace-diff-"))  # noqa: SIM115 - it is
            for _ in range(PARTS)
        ]
        self.count = 0

    def add(self, decision: Decision) -> None:
        part = crc32(f"{decision.tenant}\x00{decision.request_id}".encode()) % PARTS
        record = _encode(decision)
        self._files[part].write(len(record).to_bytes(4, "big") + record)
        self.count += 1

    def part(self, number: int) -> Iterator[Decision]:
        file = self._files[number]
        file.seek(0)
        while length := file.read(4):
            yield _decode(file.read(int.from_bytes(length, "big")))


def _eraser(ignore: Collection[str]) -> Callable[[Decision], Decision]:
    if not ignore:
        return lambda decision: decision
    erased: dict[str, Any] = {
        "kind": DecisionKind.ADMIT,
        "mode": DecisionMode.ENFORCE,
        "reason": DecisionReason.WITHIN_LIMITS,
        "bound": None,
        "policy_id": "",
        "caused_by": b"",
        "trace_id": b"",
    }
    unset = {name: erased.get(name, 0) for name in ignore}
    return lambda decision: replace(decision, **unset)


class _Comparison:
    def __init__(self, erase: Callable[[Decision], Decision], examples: int) -> None:
        self._erase = erase
        self._examples = examples
        self._tenants: dict[str, TenantDiff] = {}
        # tenant -> its earliest examples, each with what they are sorted by
        self._earliest: dict[str, list[tuple[int, Key, Example]]] = {}
        self._repeats = [0, 0]

    def compare(self, a: Iterable[Decision], b: Iterable[Decision]) -> None:
        """Compare one part of both sides: all decisions of some requests."""
        contents_a, contents_b = self._contents(a, 0), self._contents(b, 1)
        for key in contents_a.keys() | contents_b.keys():
            self._classify(key, contents_a.get(key, []), contents_b.get(key, []))
        for side, contents in (("settled_a", contents_a), ("settled_b", contents_b)):
            self._sum_up(side, contents)

    def _contents(self, side: Iterable[Decision], number: int) -> dict[Key, list[Decision]]:
        contents: dict[Key, list[Decision]] = {}
        for decision in side:
            key = (decision.tenant, decision.request_id, decision.attempt, decision.decision_id)
            known = contents.setdefault(key, [])
            if any(self._erase(decision) == self._erase(other) for other in known):
                self._repeats[number] += 1
            else:
                known.append(decision)
        return contents

    def _of(self, tenant: str) -> TenantDiff:
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = TenantDiff(tenant)
        return found

    def _classify(self, key: Key, a: list[Decision], b: list[Decision]) -> None:
        of_tenant = self._of(key[0])
        if len(a) > 1 or len(b) > 1:
            of_tenant.conflicts_a += len(a) > 1
            of_tenant.conflicts_b += len(b) > 1
            # One side's contradiction is enough of an example.
            kind, contents = ("conflict_a", a) if len(a) > 1 else ("conflict_b", b)
            one, other, *_ = sorted(contents, key=_encode)
            self._keep(key, _example(kind, key, _differing(one, other), one, other), one)
        elif not b:
            of_tenant.only_a += 1
            of_tenant.only_a_kinds[_kind(a[0])] += 1
            self._keep(key, _example("only_a", key, (), a[0], None), a[0])
        elif not a:
            of_tenant.only_b += 1
            of_tenant.only_b_kinds[_kind(b[0])] += 1
            self._keep(key, _example("only_b", key, (), None, b[0]), b[0])
        elif self._erase(a[0]) == self._erase(b[0]):
            of_tenant.same += 1
        else:
            of_tenant.changed += 1
            fields = _differing(self._erase(a[0]), self._erase(b[0]))
            of_tenant.changed_fields.update(fields)
            if "kind" in fields or "mode" in fields:
                of_tenant.transitions[f"{_kind(a[0])} -> {_kind(b[0])}"] += 1
            self._keep(key, _example("changed", key, fields, a[0], b[0]), a[0])

    def _keep(self, key: Key, example: Example, decision: Decision) -> None:
        kept = self._earliest.get(key[0])
        if kept is None:
            if len(self._earliest) >= MOST_TENANTS_WITH_EXAMPLES:
                return
            kept = self._earliest[key[0]] = []
        # The earliest: which ones they are depends on the decisions alone, not on the order in which they were read.
        insort(kept, (decision.decided_at_us, key, example), key=lambda item: item[:2])
        del kept[self._examples :]

    def _sum_up(self, side: str, contents: dict[Key, list[Decision]]) -> None:
        last: dict[tuple[str, str, int], Decision] = {}
        for (tenant, request_id, attempt, _), decisions in contents.items():
            # Of contents that contradict each other any will do, but always the same.
            decision = min(decisions, key=_encode)
            if decision.kind is DecisionKind.SETTLE and decision.mode is DecisionMode.ENFORCE:
                known = last.get((tenant, request_id, attempt))
                if known is None or _ordinal(known) < _ordinal(decision):
                    last[tenant, request_id, attempt] = decision
        for (tenant, _, _), decision in last.items():
            sums: Settled = getattr(self._of(tenant), side)
            for name in TOKEN_FIELDS:
                setattr(sums, name, getattr(sums, name) + getattr(decision, name))

    def result(self, decisions_a: int, decisions_b: int) -> DecisionDiff:
        total = TenantDiff("")
        for of_tenant in self._tenants.values():
            _add(total, of_tenant)
            of_tenant.examples = [example for *_, example in self._earliest.get(of_tenant.tenant, [])]
        differing = [of_tenant for of_tenant in self._tenants.values() if of_tenant.differences]
        differing.sort(key=lambda of_tenant: (-of_tenant.differences, of_tenant.tenant))
        return DecisionDiff(
            all=total,
            tenants=differing,
            decisions_a=decisions_a,
            decisions_b=decisions_b,
            repeats_a=self._repeats[0],
            repeats_b=self._repeats[1],
            same_tenants=len(self._tenants) - len(differing),
        )


def _add(total: TenantDiff, one: TenantDiff) -> None:
    for name in ("same", "only_a", "only_b", "changed", "conflicts_a", "conflicts_b"):
        setattr(total, name, getattr(total, name) + getattr(one, name))
    for name in ("only_a_kinds", "only_b_kinds", "transitions", "changed_fields"):
        getattr(total, name).update(getattr(one, name))
    for side in ("settled_a", "settled_b"):
        for name in TOKEN_FIELDS:
            sums = getattr(total, side)
            setattr(sums, name, getattr(sums, name) + getattr(getattr(one, side), name))


def _kind(decision: Decision) -> str:
    shadow = " (shadow)" if decision.mode is DecisionMode.SHADOW else ""
    return decision.kind.name.lower() + shadow


def _ordinal(decision: Decision) -> tuple[int, int, str]:
    """Where a decision stands among those of its attempt: generation and ordinal of its id."""
    number = decision.decision_id.rsplit("/", 1)[-1]
    generation, _, ordinal = number.rpartition("-")
    try:
        return int(generation or 0), int(ordinal), number
    except ValueError:
        return -1, -1, number


def _differing(a: Decision, b: Decision) -> tuple[str, ...]:
    return tuple(name for name in COMPARABLE if getattr(a, name) != getattr(b, name))


def _example(kind: str, key: Key, fields: tuple[str, ...], a: Decision | None, b: Decision | None) -> Example:
    return Example(kind, key[0], key[3], fields, _as_fields(a), _as_fields(b))


def _as_fields(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    found: dict[str, Any] = msgspec.json.decode(decision_line(decision))
    return found
