"""Foreign records gone wrong: samples changed as bytes and as JSON, by a seed, for the fuzz tests of adapters."""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

_MAX_BYTES: Final = 200_000
"""Duplications on duplications may not let a sample grow without end."""

SWAPPED_IN: Final[Sequence[object]] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.5,
    -0.5,
    1e300,
    -1e300,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\x00",
    "-3",
    "12",
    "1e9",
    "9" * 30,
    "NaN",
    "data: [DONE]\n\n",
    "2026-13-45T99:99:99Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "\ud800",
    "a\udfffb",
    "\u2028\U0001f600",
    "<|endoftext|>",
    "n" * 5_000,
    [],
    {},
    [None],
    [[]],
    [[[[[[1]]]]]],
    {"": {"": {"": []}}},
    [{}, None, 3, "x"],
)
"""Values that stand where others were expected. What JSON itself can't say, NaN, is written as Python writes it."""

_BYTES: Final = (b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n", b"\n\n", b":", b'"', b"{", b"}", b"[", b",")


def mutations(samples: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` changed samples, the same ones for the same seed. A sample that is JSON is changed as such half the time.

    >>> list(mutations([b'{"a": 1}'], 3, seed=7)) == list(mutations([b'{"a": 1}'], 3, seed=7))
    True
    """
    random = Random(seed)
    parsed = [_json_or_none(sample) for sample in samples]
    for _ in range(count):
        which = random.randrange(len(samples))
        changed = samples[which]
        if parsed[which] is not None and random.random() < 0.5:
            changed = _with_json_changed(changed, random)
            if random.random() < 0.8:
                yield changed
                continue
        for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
            changed = random.choice(_CHANGES)(changed, random)[:_MAX_BYTES]
        yield changed


def _json_or_none(sample: bytes) -> object:
    try:
        return json.loads(sample)
    except ValueError:
        return None


def _with_json_changed(sample: bytes, random: Random) -> bytes:
    document = json.loads(sample)
    for _ in range(random.choice((1, 1, 2, 5))):
        document = _one_value_changed(document, random)
    return json.dumps(document, ensure_ascii=random.random() < 0.9).encode("utf-8", "surrogatepass")


def _one_value_changed(document: Any, random: Random) -> Any:
    places = list(_places(document))
    if not places or random.random() < 0.01:
        return deepcopy(random.choice(SWAPPED_IN))
    holder, key = random.choice(places)
    kind = random.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        # What belongs to one field turns up in another: the types are right and the meaning is not.
        other, other_key = random.choice(places)
        holder[key] = json.loads(json.dumps(other[other_key]))
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(holder[key])))
    elif kind == 3 and isinstance(holder[key], (int, float)):
        holder[key] = random.choice(
            (-holder[key], str(holder[key]), [holder[key]], float(max(-1e300, min(holder[key], 1e300))))
        )
    elif kind == 4 and isinstance(holder[key], str) and holder[key]:
        holder[key] = holder[key][: random.randrange(len(holder[key]))]
    else:
        # A copy: the next change may put something into it, even itself.
        holder[key] = deepcopy(random.choice(SWAPPED_IN))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        keys: Any = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            waiting.append(holder[key])


def _flip(sample: bytes, random: Random) -> bytes:
    if not sample:
        return b"\x00"
    at = random.randrange(len(sample))
    return sample[:at] + bytes([sample[at] ^ (1 << random.randrange(8))]) + sample[at + 1 :]


def _delete(sample: bytes, random: Random) -> bytes:
    start, end = _slice(sample, random)
    return sample[:start] + sample[end:]


def _insert(sample: bytes, random: Random) -> bytes:
    at = random.randint(0, len(sample))
    piece = random.choice(_BYTES) if random.random() < 0.5 else random.randbytes(random.randint(1, 8))
    return sample[:at] + piece + sample[at:]


def _truncate(sample: bytes, random: Random) -> bytes:
    return sample[: random.randint(0, len(sample))]


def _duplicate(sample: bytes, random: Random) -> bytes:
    start, end = _slice(sample, random)
    at = random.randint(0, len(sample))
    return sample[:at] + sample[start:end] + sample[at:]


def _number(sample: bytes, random: Random) -> bytes:
    """Digits grow or turn round, wherever they stand: also within text that is no JSON."""
    digits = [at for at, byte in enumerate(sample) if 0x30 <= byte <= 0x39]
    if not digits:
        return _insert(sample, random)
    at = random.choice(digits)
    return sample[:at] + random.choice((b"-1", b"9" * 25, b"1e400", b"0.5", b"null", b'"7"', b"")) + sample[at + 1 :]


def _slice(sample: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(sample))
    return start, min(len(sample), start + random.choice((1, 4, 16, 64, 256, 4096)))


_CHANGES: Final[Sequence[Callable[[bytes, Random], bytes]]] = (_flip, _delete, _insert, _truncate, _duplicate, _number)
