"""Flink's options, read out of its own jars: the names in its code, not in a page about it."""

from __future__ import annotations

import functools
import importlib.util
import re
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATOR_OPTIONS = Path(__file__).parent / "crds" / "flink-operator-options.txt"
# Constants of Java's class files (JVM specification, 4.4): the bytes that follow each tag but that of text.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_TEXT = 1
_TWO_PLACES = (5, 6)


def flatten(path: Path) -> dict[str, Any]:
    """The settings under their full names, as Flink reads them: `a: {b: 1}` is `a.b: 1`."""

    def walk(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    return dict(walk(yaml.safe_load(path.read_text(encoding="utf-8")), ""))


def distribution() -> Path:
    """The Flink that pip installed."""
    spec = importlib.util.find_spec("pyflink")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def texts(class_file: bytes) -> Iterator[str]:
    """Every text in the constant pool of a class."""
    (count,) = struct.unpack_from(">H", class_file, 8)
    offset, index = 10, 1
    while index < count:
        tag = class_file[offset]
        if tag == _TEXT:
            (length,) = struct.unpack_from(">H", class_file, offset + 1)
            yield class_file[offset + 3 : offset + 3 + length].decode("utf-8", "replace")
            offset += 3 + length
        else:
            offset += 1 + _SIZES[tag]
        index += 2 if tag in _TWO_PLACES else 1


@functools.cache
def flink_options() -> frozenset[str]:
    """The texts of Flink's classes that declare options, and the operator's options."""
    home = distribution()
    jars = [*(home / "lib").glob("flink-dist-*.jar"), *(home / "opt").glob("flink-python-*.jar")]
    assert len(jars) == 2
    declaring = re.compile(r"org/apache/flink/(?!.*shaded)[\w/]*Options\.class")
    found: set[str] = set()
    for jar in jars:
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if declaring.fullmatch(name):
                    found.update(texts(opened.read(name)))
    return frozenset(found).union(OPERATOR_OPTIONS.read_text(encoding="utf-8").split())


def is_option(key: str) -> bool:
    """Whether Flink or its operator has an option of this name. Those of a metric reporter have its name in them."""
    reporter = re.fullmatch(r"metrics\.reporter\.\w+\.(factory\.class|port)", key)
    return bool(reporter) or key in flink_options()
