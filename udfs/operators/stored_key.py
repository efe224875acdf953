"""The bytes that one key of a fold is stored as.

A fixed header before the fold's own bytes: the form of the header, the fold's version, the number of the last record
that is in it, and the key's clock. The number makes recovery idempotent (the page LSN of ARIES, Mohan et al. 1992): a
record of the log is applied to a key only if the key's bytes do not hold it yet.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

HEADER_FORM: Final = 1
_HEADER: Final = struct.Struct(">BHQqB")


class StoredKey(NamedTuple):
    """One key as it is stored. `applied` is the number of the last record in it; `jumps` counts events not believed."""

    version: int
    applied: int
    clock_us: int
    jumps: int
    state: bytes


class UnreadableStateError(ValueError):
    """State bytes that this version of the code can't read: a restart with them must fail, not start from nothing."""


def pack(stored: StoredKey) -> bytes:
    """The bytes of a key."""
    return _HEADER.pack(HEADER_FORM, stored.version, stored.applied, stored.clock_us, stored.jumps) + stored.state


def unpack(raw: bytes, name: str, version: int, upgrades: Mapping[int, Callable[[bytes], bytes]]) -> StoredKey:
    """Read a key of fold `name` and bring its state to `version`, a step at a time.

    Raises UnreadableStateError for bytes of a newer version, or of one that no step leads on from.
    """
    if len(raw) < _HEADER.size or raw[0] != HEADER_FORM:
        raise UnreadableStateError(f"state of {name}: unknown form, the first byte is {raw[:1].hex() or 'missing'}")
    _, found, applied, clock_us, jumps = _HEADER.unpack_from(raw)
    state = raw[_HEADER.size :]
    if found > version:
        raise UnreadableStateError(
            f"state of {name} is of version {found}, this code reads up to {version}: "
            "start the newer release, or restore a savepoint from before it"
        )
    while found < version:
        step = upgrades.get(found)
        if step is None:
            raise UnreadableStateError(f"state of {name}: no upgrade leads on from version {found}")
        state = step(state)
        found += 1
    return StoredKey(found, applied, clock_us, jumps, state)
