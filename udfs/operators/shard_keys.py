"""Routing keys that spread shards evenly over Flink's subtasks.

Flink sends a key to the subtask `murmur(hash(key)) % max_parallelism * parallelism / max_parallelism`. With the shard
numbers themselves as keys two of four shards can land on one subtask. So each shard is routed by a number that is
searched for once, such that shard i of n falls into key group i * max_parallelism / n (rounded up); the subtask is then
i * parallelism / n. That is even for every parallelism where the shard count divides max_parallelism, as the default 32
does, and as long as parallelism * shards stays below it elsewhere. The keys are contracts: state is stored under them.
"""

from typing import Final

MAX_PARALLELISM: Final = 128
"""Key groups of every keyed job; fixed for the life of its state."""

_MASK: Final = 0xFFFFFFFF


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def murmur_hash(code: int) -> int:
    """Flink's MathUtils.murmurHash: MurmurHash3 (x86, 32 bits) of one integer, made non-negative."""
    code &= _MASK
    code = (code * 0xCC9E2D51) & _MASK
    code = _rotate_left(code, 15)
    code = (code * 0x1B873593) & _MASK
    code = _rotate_left(code, 13)
    code = (code * 5 + 0xE6546B64) & _MASK
    code ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        code ^= code >> shift
        code = (code * factor) & _MASK
    code ^= code >> 16
    signed = code - (1 << 32) if code >> 31 else code
    if signed >= 0:
        return signed
    return -signed if signed != -(1 << 31) else 0


def key_group(routing_key: int, max_parallelism: int = MAX_PARALLELISM) -> int:
    """The key group of an integer key: PyFlink wraps it in a Row, whose hash is 62 + the integer's."""
    return murmur_hash(62 + routing_key) % max_parallelism


def routing_keys(shard_count: int, max_parallelism: int = MAX_PARALLELISM) -> tuple[int, ...]:
    """The routing key of each shard.

    Raises ValueError where there are more shards than key groups: two of them would then have to share one.
    """
    if not 0 < shard_count <= max_parallelism:
        raise ValueError(f"{shard_count} shards do not fit into {max_parallelism} key groups")
    wanted = {-(-shard * max_parallelism // shard_count): shard for shard in range(shard_count)}
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < shard_count:
        shard = wanted.get(key_group(candidate, max_parallelism))
        if shard is not None:
            found.setdefault(shard, candidate)
        candidate += 1
    return tuple(found[shard] for shard in range(shard_count))
