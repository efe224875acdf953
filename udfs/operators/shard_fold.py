"""One shard of a keyed fold: batches of events in, decisions out, state paid once a batch. Knows nothing of Flink.

**State.** A decision costs a microsecond or two and writing a key's state costs ten, so states are not written when
they change. What is written for each batch is the batch itself, one append to the shard's log; the fold is
deterministic, so the states can be had again by folding it. Every few thousand events, or when enough keys have
changed, the changed keys are written to the map and the log is emptied (a compaction). Recovery reads the map and folds
the log over it without output. Each key's bytes carry the number of the last record in them, so a log that overlaps the
map, whatever the point at which a compaction was cut off, is never applied twice. docs/adr/0001 has the measurements
and the alternatives.

**Time.** A key's clock is its largest event time; a wake-up that is due by then is applied first. A silent key is woken
when the shard's watermark (the largest `watermark_us` stamped on any of its events, heartbeats included) reaches its
time. Where the stamps hold what they promise, the key's own next event would have woken it at the same time with the
same result, so neither the interleaving of keys nor the cut of batches shows in any decision. docs/adr/0002 has the
reason for the watermark.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from schemas.codec import DecodedBatch, decode_events, event_frame
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position, dead_letter
from udfs.domain.anomaly import Anomaly
from udfs.domain.policy_log import InForce, PolicyLog
from udfs.operators.fold import Fold, Out, Policy, State
from udfs.operators.store import ShardStore
from udfs.operators.stored_key import StoredKey, UnreadableStateError, pack, unpack

KEY_PREFIX: Final = "k:"
META_KEY: Final = "meta"
NOWHERE: Final = Position("", 0, 0)
META_FORM: Final = 1
LOG_FORM: Final = 1
CONFIRMATIONS: Final = 3
"""So many events in a row must agree before a clock far ahead is believed."""

_Form = TypeVar("_Form")


class FoldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard may cost.

    `cache_entries`: keys kept in memory, per shard. A compaction follows after `compact_events` events, `compact_bytes`
    of records or `compact_keys` changed keys. A key without an event for `ttl_us` of event time is forgotten.

    Clocks: an event more than `max_ahead_us` ahead of its own watermark is decided at that bound, and a watermark
    counts no further ahead of its event than that, nor of the shard's until `CONFIRMATIONS` in a row agree. An event
    without a watermark that is more than `max_gap_us` ahead of its key's clock is decided at that clock, until as many
    agree.
    """

    cache_entries: int = 4096
    compact_events: int = 20_000
    compact_bytes: int = 4 << 20
    compact_keys: int = 2_000
    ttl_us: int = 120 * 86_400_000_000
    max_ahead_us: int = 3_600_000_000
    max_gap_us: int = 86_400_000_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")


class BatchResult(NamedTuple, Generic[Out]):
    """What one record led to."""

    outputs: list[Out]
    dead: list[DeadLetter]
    events: int


class _Entry(Generic[State, Policy]):
    """A key in memory."""

    __slots__ = ("applied", "clock_us", "due_us", "in_force", "jumps", "state", "stored_applied")

    def __init__(self, state: State, applied: int, clock_us: int, due_us: int | None, jumps: int = 0) -> None:
        self.state = state
        self.applied = applied
        self.stored_applied = applied
        self.clock_us = clock_us
        self.due_us = due_us
        # Events in a row whose time was too far ahead to be believed.
        self.jumps = jumps
        self.in_force: InForce[Policy] | None = None


class _Meta(msgspec.Struct, array_like=True):
    """What a shard remembers besides its keys, as of its last compaction. A change of it is a new META_FORM."""

    number: int = 0
    watermark_us: int = 0
    jumps: int = 0
    wakes: list[tuple[int, str]] = []


_Place: TypeAlias = tuple[int, int, str]
"""Number of the record, index of the event in it, and the key that was woken, or "" where it was the event itself."""


class _Logged(msgspec.Struct, array_like=True):
    """One record of the log, and where in it the fold failed. A change of it is a new LOG_FORM."""

    number: int
    poisoned: list[_Place]
    record: bytes


def _pack(form: int, value: object) -> bytes:
    return bytes((form,)) + msgspec.msgpack.encode(value)


def _unpack(form: int, raw: bytes, kind: type[_Form]) -> _Form:
    if raw[:1] != bytes((form,)):
        raise UnreadableStateError(f"shard state is of form {raw[:1].hex()}, this code reads {form:02x}")
    return msgspec.msgpack.decode(raw[1:], type=kind)


class _FoldFailedError(Exception):
    """The fold raised at one place."""

    def __init__(self, place: _Place, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.place = place


class ShardFold(Generic[State, Policy, Out]):
    """Folds the records of one shard, in log order.

    `owns` says whether a key belongs to this shard; events of a key that does not are dead letters, because its state
    would be in two places.
    """

    def __init__(
        self,
        fold: Fold[State, Policy, Out],
        policies: PolicyLog[Policy],
        store: ShardStore,
        settings: FoldSettings | None = None,
        owns: Callable[[str], bool] | None = None,
        *,
        with_provenance: bool = False,
    ) -> None:
        """Recover from what is in `store`. `with_provenance`: the fold passes events on, trace ids and clocks too."""
        self._fold = fold
        self._policies = policies
        self._store = store
        self._settings = settings or FoldSettings()
        self._owns = owns
        self._with_provenance = with_provenance
        self.counts: Counter[str] = Counter()
        self._poisoned: set[_Place] = set()
        self._number = 0
        self._watermark_us = 0
        self._newest_us = 0
        self._logged_events = 0
        self._logged_bytes = 0
        self._jumps = 0
        self._is_recovering = False
        self._wakes: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}
        self._cache: OrderedDict[str, _Entry[State, Policy]] = OrderedDict()
        self._dirty: set[str] = set()
        self._recover_around_failures()

    @property
    def watermark_us(self) -> int:
        """The shard's watermark, 0 where no event brought one yet."""
        return self._watermark_us

    @property
    def newest_us(self) -> int:
        """Event time of the last event that was folded, 0 before the first."""
        return self._newest_us

    # --- a batch -------------------------------------------------------------------------------------------------

    def process(self, record: bytes, where: Position) -> BatchResult[Out]:
        """Decide one EventBatch. Never raises on what is in it."""
        batch = decode_events(record, where, with_provenance=self._with_provenance)
        number = self._number + 1
        dead = batch.dead
        counts = self.counts.copy()
        outputs: list[Out] = []
        misplaced: list[tuple[int, str]] | None = None
        failures: list[_Place] = []
        while misplaced is None:
            try:
                misplaced = self._apply(batch, number, outputs)
            except _FoldFailedError as failed:
                # The key is half changed: go back to before this batch, and fold it again without that event. The log
                # is emptied first, so that the next failure in this batch finds nothing to fold again.
                index = batch.indexes[failed.place[1]]
                frame = event_frame(record, index)
                dead.append(dead_letter(where, index, DeadLetterReason.FOLD_FAILED, str(failed), frame))
                self.counts = counts.copy()
                outputs.clear()
                self._recover_around_failures()
                self.compact()
                failures.append(failed.place)
                self._poisoned.update(failures)
        for index, key in misplaced:
            detail = f"{key!r} belongs to another shard than {batch.shard}"
            frame = event_frame(record, batch.indexes[index])
            dead.append(dead_letter(where, batch.indexes[index], DeadLetterReason.WRONG_SHARD, detail, frame))
        if batch.events:
            self._newest_us = batch.events[-1].event_time_us
            self._log(number, record)
            self._logged_events += len(batch.events)
        decided = len(batch.events) - len(misplaced) - sum(1 for place in failures if not place[2])
        self.counts["events"] += decided
        self.counts["batches"] += 1
        for letter in dead:
            self.counts[f"dead_letters_{letter.reason.name.lower()}"] += 1
        settings = self._settings
        if (
            self._logged_events >= settings.compact_events
            or self._logged_bytes >= settings.compact_bytes
            or len(self._dirty) >= settings.compact_keys
        ):
            self.compact()
        self._evict()
        return BatchResult(outputs, dead, decided)

    # One loop, the hot path: a call for each of its steps would double its cost.
    def _apply(  # noqa: C901, PLR0912, PLR0915
        self, batch: DecodedBatch, number: int, outputs: list[Out]
    ) -> list[tuple[int, str]]:
        """Fold the events of one record; returns index and key of those that belong to another shard."""
        fold = self._fold
        fold_key, apply, due = fold.key, fold.apply, fold.due
        cache, dirty = self._cache, self._dirty
        settings = self._settings
        max_ahead_us, max_gap_us, ttl_us = settings.max_ahead_us, settings.max_gap_us, settings.ttl_us
        misplaced: list[tuple[int, str]] = []
        for index, event in enumerate(batch.events):
            watermark_us = event.watermark_us
            if (
                watermark_us > self._watermark_us
                and self._believe(min(watermark_us, event.event_time_us + max_ahead_us))
                and self._wakes
                and self._wakes[0][0] <= self._watermark_us
            ):
                self._wake_silent(number, index, outputs)
            key = fold_key(event)
            if key is None:
                continue
            entry = cache.get(key)
            if entry is None:
                if self._owns is not None and not self._owns(key):
                    misplaced.append((index, key))
                    continue
                entry = self._load(key)
            if number <= entry.stored_applied or (self._poisoned and (number, index, "") in self._poisoned):
                continue
            time_us = event.event_time_us
            if watermark_us > 0 and time_us > watermark_us + max_ahead_us:
                time_us = watermark_us + max_ahead_us
                self.counts["clock_ahead"] += 1
            clock_us = entry.clock_us
            if watermark_us <= 0 and clock_us and time_us - clock_us > max_gap_us:
                entry.jumps += 1
                if entry.jumps < CONFIRMATIONS:
                    time_us = clock_us
                    self.counts["clock_ahead"] += 1
                else:
                    entry.jumps = 0
            elif entry.jumps:
                entry.jumps = 0
            if time_us > clock_us:
                if entry.due_us is not None and entry.due_us <= time_us:
                    self._wake(key, entry, time_us, (number, index, key), outputs)
                    clock_us = entry.clock_us
                if clock_us and time_us - clock_us >= ttl_us:
                    entry.state = fold.new(key)
                    entry.due_us = None
                    self.counts["keys_expired"] += 1
                entry.clock_us = clock_us = time_us
            elif time_us < clock_us:
                self.counts["behind_clock"] += 1
            in_force = entry.in_force
            if in_force is None or clock_us >= in_force.until_us:
                in_force = entry.in_force = self._policies.at(key, clock_us)
            try:
                found = apply(entry.state, event, in_force.policy, clock_us)
            except Exception as error:  # whatever a fold does, its batch goes on
                raise _FoldFailedError((number, index, ""), error) from error
            if found:
                self._sort_out(found, outputs)
            if key not in dirty or entry.applied != number:
                dirty.add(key)
                entry.applied = number
                cache.move_to_end(key)
            due_us = due(entry.state)
            if due_us != entry.due_us:
                entry.due_us = due_us
                if due_us is not None and due_us <= clock_us:
                    self._wake(key, entry, clock_us, (number, index, key), outputs)
                self._schedule(key, entry.due_us)
        return misplaced

    def _believe(self, watermark_us: int) -> bool:
        """Move the shard's watermark, unless the stamp is too far ahead and stands alone."""
        if watermark_us <= self._watermark_us:
            return False
        if self._watermark_us and watermark_us - self._watermark_us > self._settings.max_ahead_us:
            self._jumps += 1
            if self._jumps < CONFIRMATIONS:
                self.counts["watermark_ahead"] += 1
                return False
        self._jumps = 0
        self._watermark_us = watermark_us
        return True

    def _sort_out(self, found: Sequence[Out | Anomaly], outputs: list[Out]) -> None:
        for output in found:
            if isinstance(output, Anomaly):
                self.counts[output.value] += 1
            else:
                outputs.append(output)

    # --- wake-ups ------------------------------------------------------------------------------------------------

    def _wake(self, key: str, entry: _Entry[State, Policy], until_us: int, place: _Place, outputs: list[Out]) -> None:
        """Apply the wake-ups of one key that are due by `until_us`, each at its own time."""
        fold = self._fold
        while entry.due_us is not None and entry.due_us <= until_us:
            if place in self._poisoned:
                # Asked again after the key's next event.
                entry.due_us = None
                return
            now_us = max(entry.due_us, entry.clock_us)
            entry.clock_us = now_us
            entry.in_force = self._policies.at(key, now_us)
            try:
                found = fold.wake(entry.state, entry.in_force.policy, now_us)
                later_us = fold.due(entry.state)
                if later_us is not None and later_us <= now_us:
                    raise AssertionError(f"wake at {now_us} left due at {later_us}")  # noqa: TRY301
            except Exception as error:  # as for an event
                raise _FoldFailedError(place, error) from error
            self._sort_out(found, outputs)
            self.counts["wakes"] += 1
            entry.due_us = later_us

    def _wake_silent(self, number: int, index: int, outputs: list[Out]) -> None:
        """Wake the keys whose time the shard's watermark has reached."""
        wakes, scheduled = self._wakes, self._scheduled
        later: list[tuple[str, int | None]] = []
        while wakes and wakes[0][0] <= self._watermark_us:
            at_us, key = heappop(wakes)
            if scheduled.get(key) != at_us:
                continue
            del scheduled[key]
            entry = self._cache.get(key) or self._load(key)
            if number <= entry.stored_applied:
                # Recovery: what this record did to the key is in its bytes already.
                later.append((key, entry.due_us))
                continue
            if entry.due_us is not None and entry.due_us <= self._watermark_us:
                self._wake(key, entry, self._watermark_us, (number, index, key), outputs)
                entry.applied = max(entry.applied, number)
                self._dirty.add(key)
            later.append((key, entry.due_us))
        for key, due_us in later:
            self._schedule(key, due_us)

    def _schedule(self, key: str, due_us: int | None) -> None:
        """Have the shard's watermark wake the key. A later time than is scheduled already is found out then."""
        if due_us is not None:
            scheduled_us = self._scheduled.get(key)
            if scheduled_us is None or due_us < scheduled_us:
                self._scheduled[key] = due_us
                heappush(self._wakes, (due_us, key))

    # --- state ---------------------------------------------------------------------------------------------------

    def _load(self, key: str) -> _Entry[State, Policy]:
        fold = self._fold
        raw = self._store.get(KEY_PREFIX + key)
        if raw is None:
            entry: _Entry[State, Policy] = _Entry(fold.new(key), 0, 0, None)
            self.counts["keys_new"] += 1
        else:
            stored = unpack(raw, fold.name, fold.version, fold.upgrades)
            if stored.applied > self._number and not self._is_recovering:
                raise UnreadableStateError(
                    f"state of {fold.name}: key {key!r} holds record {stored.applied}, its shard is at {self._number}; "
                    "a part of the shard's state is missing, restore an older savepoint"
                )
            state = fold.load(stored.state)
            entry = _Entry(state, stored.applied, stored.clock_us, fold.due(state), stored.jumps)
            self.counts["keys_loaded"] += 1
        self._cache[key] = entry
        self._schedule(key, entry.due_us)
        return entry

    def compact(self) -> None:
        """Write the changed keys to the map and empty the log. May be cut off anywhere: see the module's docstring."""
        fold, cache = self._fold, self._cache
        if self._dirty:
            self._store.put_all(
                {
                    KEY_PREFIX + key: pack(
                        StoredKey(fold.version, entry.applied, entry.clock_us, entry.jumps, fold.dump(entry.state))
                    )
                    for key, entry in ((key, cache[key]) for key in sorted(self._dirty))
                }
            )
        wakes = sorted((due_us, key) for key, due_us in self._scheduled.items())
        meta = _Meta(self._number, self._watermark_us, self._jumps, wakes)
        self._store.put_all({META_KEY: _pack(META_FORM, meta)})
        self._store.clear_log()
        self._dirty.clear()
        self._poisoned.clear()
        self._logged_events = self._logged_bytes = 0
        self.counts["compactions"] += 1

    def _evict(self) -> None:
        cache = self._cache
        if len(cache) <= self._settings.cache_entries:
            return
        if self._dirty:
            self.compact()
        while len(cache) > self._settings.cache_entries:
            cache.popitem(last=False)

    # --- recovery ------------------------------------------------------------------------------------------------

    def _recover_around_failures(self) -> None:
        counts = self.counts.copy()
        while True:
            try:
                self._recover()
                break
            except _FoldFailedError as failed:
                self._poisoned.add(failed.place)
        self.counts = counts

    def _log(self, number: int, record: bytes) -> None:
        """Make the record durable, with the places in it where the fold failed, so that recovery need not find them."""
        poisoned = [place for place in self._poisoned if place[0] == number] if self._poisoned else []
        logged = _pack(LOG_FORM, _Logged(number, poisoned, record))
        self._store.append(logged)
        self._logged_bytes += len(logged)
        self._number = number

    def _recover(self) -> None:
        raw = self._store.get(META_KEY)
        meta = _Meta() if raw is None else _unpack(META_FORM, raw, _Meta)
        self._number = meta.number
        self._watermark_us = meta.watermark_us
        self._jumps = meta.jumps
        # A sorted list is a heap.
        self._wakes = meta.wakes
        self._scheduled = {key: due_us for due_us, key in meta.wakes}
        self._cache = OrderedDict()
        self._dirty = set()
        self._logged_events = self._logged_bytes = 0
        self._is_recovering = True
        for raw_record in self._store.log():
            logged = _unpack(LOG_FORM, raw_record, _Logged)
            if logged.number <= meta.number:
                continue
            self._poisoned.update(logged.poisoned)
            batch = decode_events(logged.record, NOWHERE)
            self._apply(batch, logged.number, [])
            self._number = logged.number
            self._logged_events += len(batch.events)
            self._logged_bytes += len(raw_record)
        self._is_recovering = False

    def keys_in_memory(self) -> Iterator[str]:
        """Keys that are cached now."""
        return iter(self._cache)
