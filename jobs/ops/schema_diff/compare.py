"""Two versions of a schema against each other.

A change breaks `wire` if bytes that were written under the one version are read wrongly under the other, in either
direction, and `json` if the same holds for protobuf's JSON. A log outlives its readers and its writers, so both
directions count.

Covered are the rules of buf's category WIRE_JSON (https://buf.build/docs/breaking/rules/), and beyond them packages,
messages, enums, services and methods that are gone, and int32 against uint32 and their like, which buf takes for the
same: a negative number is read as a large one. Not looked at: extensions, features of editions that decide about JSON
alone, and options that change neither bytes nor JSON.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jobs.ops.schema_diff.change import BOTH, NOTHING, Change
from jobs.ops.schema_diff.enums import enum_changes
from jobs.ops.schema_diff.messages import message_changes


class Schema(NamedTuple):
    """Messages, enums and services by full name, those within messages too, and the packages that there are."""

    messages: Mapping[str, Any]
    enums: Mapping[str, Any]
    services: Mapping[str, Any]
    packages: frozenset[str]


def compare(old: Schema, new: Schema) -> list[Change]:
    """Everything that changed, in the order of the old schema, and of each kind what is new at the end."""
    found = list(_packages(old, new))
    for kind, before, after, changes_of in (
        ("message", old.messages, new.messages, message_changes),
        ("enum", old.enums, new.enums, enum_changes),
        ("service", old.services, new.services, _service_changes),
    ):
        found += _elements(kind, before, after, changes_of, new.packages)
    return found


def _packages(old: Schema, new: Schema) -> Iterator[Change]:
    added = ", ".join(sorted(new.packages - old.packages))
    for package in sorted(old.packages - new.packages):
        detail = f"the package is gone{f'; new is {added}' if added else ''}: every name in it changes"
        yield Change("package-removed", package or "(no package)", BOTH, detail)


def _elements(
    kind: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    changes_of: Callable[[Any, Any], Iterator[Change]],
    packages: frozenset[str],
) -> Iterator[Change]:
    for name, element in before.items():
        if name in after:
            yield from changes_of(element, after[name])
        elif element.file.package in packages:
            # Else it is told of the package.
            yield Change(f"{kind}-removed", name, BOTH, f"the {kind} is gone; what was written with it is not")
    for name in after:
        if name not in before:
            yield Change(f"{kind}-added", name, NOTHING, f"a new {kind}")


def _service_changes(old: Any, new: Any) -> Iterator[Change]:
    for method in old.methods:
        where = f"{old.full_name}.{method.name}"
        found = new.methods_by_name.get(method.name)
        if found is None:
            yield Change("method-removed", where, BOTH, "the method is gone")
        elif _signature(method) != _signature(found):
            yield Change("method-changed", where, BOTH, f"{_signature(method)} is now {_signature(found)}")
    for method in new.methods:
        if method.name not in old.methods_by_name:
            yield Change("method-added", f"{new.full_name}.{method.name}", NOTHING, "a new method")


def _signature(method: Any) -> str:
    asked, answered = ("stream " if streams else "" for streams in (method.client_streaming, method.server_streaming))
    return f"({asked}{method.input_type.full_name}) returns ({answered}{method.output_type.full_name})"
