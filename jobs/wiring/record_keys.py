"""Keys of records in Kafka: one a shard, such that Kafka's default partitioner spreads them evenly in any client.

Kafka's default partitioner (Java, kafka-python; librdkafka with `partitioner=murmur2`) takes murmur2 of the key modulo
the partitions. With bare shard numbers as keys, 32 shards leave 13 of 32 partitions empty. So a shard's key is its
number and a suffix that is searched for once, such that murmur2 modulo 128 is the shard: shard i then lies in partition
i modulo the count, for every count of partitions that divides 128. The keys are contracts: the order within a tenant
holds as long as its shard stays in one partition.
"""

from itertools import count
from typing import Final

from kafka.partitioner.default import murmur2

KEY_PATTERN: Final = "^([0-9]{1,3})([.]|$)"
"""What a key begins with that names a shard, as a regular expression in an SQL string."""

_MODULUS: Final = 128
"""As many as there can be shards; what divides it are the counts of partitions that are spread evenly."""


def record_keys(shard_count: int) -> tuple[bytes, ...]:
    """The key of each shard's records.

    >>> record_keys(4)
    (b'0.138', b'1.247', b'2.187', b'3.86')
    """
    return tuple(_key(shard) for shard in range(shard_count))


def _key(shard: int) -> bytes:
    for suffix in count():
        key = b"%d" % shard if suffix == 0 else b"%d.%d" % (shard, suffix)
        if partition_of(key, _MODULUS) == shard:
            return key
    raise AssertionError


def partition_of(key: bytes, partition_count: int) -> int:
    """Where Kafka's default partitioner puts `key`."""
    return int((murmur2(key) & 0x7FFFFFFF) % partition_count)


def shard_of_key(key: bytes | None, shard_count: int) -> int | None:
    """The shard that a record's key names; None: it names none.

    >>> shard_of_key(b"17.42", 32), shard_of_key(b"17", 32), shard_of_key(b"99", 32), shard_of_key(None, 32)
    (17, 17, None, None)
    """
    number = (key or b"").split(b".", 1)[0]
    if not (number.isdigit() and len(number) <= 3):
        return None
    shard = int(number)
    return shard if shard < shard_count else None
