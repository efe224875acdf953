"""A schema with a critical field: no version has one yet, and what holds for one has to work the day it comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from schemas.versions import ADDED, CRITICAL, AddedField, critical_in


@contextmanager
def added_as_critical(message: str, name: str) -> Iterator[None]:
    """Within it, 1.2 has added this field, which is there in truth since 1.0, and it is critical."""
    field = AddedField(message, name, is_critical=True, why="made up")
    with patch.dict(ADDED, {"1.2": (*ADDED["1.2"], field)}), patch.dict(CRITICAL, critical_in({"1.2": (field,)})):
        yield
