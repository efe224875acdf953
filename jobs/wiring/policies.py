"""Limiter policies from YAML files, and what is wrong with a file, line by line.

    version: 1
    policies:
      - id: everyone
        tenant: "*"
        limits:
          - {name: tokens-per-minute, level: tenant, unit: tokens, limit: 60k, window: 60s}

`policy_entries` has the fields.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jobs.wiring.located_yaml import LocatedYaml, UnreadableYamlError, YamlPath, YamlProblem, YamlValue, read_yaml
from jobs.wiring.policy_entries import FieldsError, LimitEntry, PolicyDocument, PolicyEntry
from jobs.wiring.quantities import shown
from udfs.domain.limiter.policy import LimiterPolicy

MAX_FILE_BYTES: Final = 2**20

_BEGINS: Final = "a policy file begins with version: 1 and policies:"
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LITERAL = re.compile(r"'([^']*)'")


class Problem(NamedTuple):
    """One thing wrong with a policy file; `line` counts from 1, and is None where the file can't be read at all."""

    path: Path
    line: int | None
    field: str
    message: str

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return ": ".join(part for part in (place, self.field, self.message) if part)


class PolicyFileError(ValueError):
    """A policy file that can't be used: everything that is wrong with it, one line each, in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The policies of a file, in its order, which decides between two that hold for one tenant from the same time."""

    path: Path
    policies: tuple[LimiterPolicy, ...]


def load_policies(path: Path) -> PolicyFile:
    """Read and check a policy file. Raises PolicyFileError."""
    return parse_policies(_read(path), path)


def parse_policies(text: str, path: Path) -> PolicyFile:
    """Check the policies in `text`; `path` is what they are said to come from. Raises PolicyFileError."""
    try:
        source = read_yaml(text)
    except UnreadableYamlError as error:
        raise PolicyFileError((Problem(path, error.line, "", str(error)),)) from error
    if source is None or source.value is None:
        raise PolicyFileError((Problem(path, None, "", f"is empty: {_BEGINS}"),))
    if not isinstance(source.value, dict):
        raise PolicyFileError((Problem(path, source.line(()), "", f"is not a mapping: {_BEGINS}"),))
    found = [*source.problems, *_repeated(source)]
    try:
        policies = tuple(entry.to_policy() for entry in PolicyDocument.model_validate(source.value).policies)
    except ValidationError as error:
        found += [problem for details in error.errors() for problem in _in_words(details, source)]
        policies = ()
    if found:
        ordered = sorted(found, key=lambda problem: problem.line)
        raise PolicyFileError(tuple(Problem(path, line, field_path(at), what) for line, at, what in ordered))
    return PolicyFile(path, policies)


def field_path(path: YamlPath) -> str:
    """A path as a person reads it; indices count from 0.

    >>> field_path(("policies", 0, "limits", 2, "burst"))
    'policies[0].limits[2].burst'
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _FIELD_NAME.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{shown(step)}]"
    return text


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # One byte more than is allowed tells too much from just enough, even where the size is not known before.
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise PolicyFileError((Problem(path, None, "", "there is no such file"),)) from error
    except IsADirectoryError as error:
        raise PolicyFileError((Problem(path, None, "", "is a directory, must be a YAML file"),)) from error
    except OSError as error:
        raise PolicyFileError((Problem(path, None, "", f"can't be read: {error.strerror}"),)) from error
    if len(content) > MAX_FILE_BYTES:
        raise PolicyFileError((Problem(path, None, "", "is larger than 1 MiB, the most that is read"),))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PolicyFileError((Problem(path, line, "", f"is not UTF-8: {error.reason}"),)) from error


# --- checks across entries ----------------------------------------------------------------------------------------
# Made on the plain values, so that one wrong field does not hide them.


def _repeated(source: LocatedYaml) -> Iterator[YamlProblem]:
    policies = _field(source.value, "policies")
    yield from _repeated_in(policies, ("policies",), "id", source, "decisions name their policy by it")
    for index, policy in enumerate(policies if isinstance(policies, list) else ()):
        at = ("policies", index, "limits")
        yield from _repeated_in(_field(policy, "limits"), at, "name", source, "decisions name their limit by it")


def _field(value: YamlValue, name: str) -> YamlValue:
    return value.get(name) if isinstance(value, dict) else None


def _repeated_in(
    entries: YamlValue, path: YamlPath, name: str, source: LocatedYaml, reason: str
) -> Iterator[YamlProblem]:
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        value = _field(entry, name)
        if not isinstance(value, str):
            continue
        at = (*path, index, name)
        line = source.line(at)
        if value in seen:
            yield YamlProblem(line, at, f"is {shown(value)} as on line {seen[value]}: give it another, {reason}")
        seen.setdefault(value, line)


# --- pydantic's findings in our words -----------------------------------------------------------------------------


def _in_words(details: ErrorDetails, source: LocatedYaml) -> Iterator[YamlProblem]:
    path: YamlPath = details["loc"]
    context: Mapping[str, Any] = details.get("ctx", {})
    error = context.get("error")
    if isinstance(error, FieldsError):
        for field, message in error.faults:
            yield YamlProblem(source.line((*path, *field)), (*path, *field), message)
        return
    yield YamlProblem(source.line(path), path, _message(details, path, error, str(context.get("expected", ""))))


def _message(details: ErrorDetails, path: YamlPath, error: object, expected: str) -> str:
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        return _unknown_field(path)
    if kind == "missing":
        return f"is missing{_allowed(path)}"
    if value is None:
        return "is empty: give it a value or remove the line"
    if kind == "literal_error":
        allowed = _LITERAL.findall(expected)
        return f"is {_described(value)}, must be {_either(allowed)}{_nearest(value, allowed)}"
    if kind == "tuple_type":
        return f"is {_described(value)}, must be a list"
    if kind in {"model_type", "model_attributes_type"}:
        return f"is {_described(value)}, must be a mapping of fields"
    return str(error or details["msg"])


def _model_at(path: YamlPath) -> type[BaseModel]:
    """The model that the last step of `path` is a field of."""
    # policies, index, limits, index: two steps a level
    return (PolicyDocument, PolicyEntry, LimitEntry)[(len(path) - 1) // 2]


def _unknown_field(path: YamlPath) -> str:
    known = [field.alias or name for name, field in _model_at(path).model_fields.items()]
    nearest = _nearest(path[-1], known)
    return "is no field that is known here" + (nearest or f"; the fields are {', '.join(known)}")


def _allowed(path: YamlPath) -> str:
    values = getattr(_model_at(path).model_fields[str(path[-1])].annotation, "__args__", ())
    names = [value for value in values if isinstance(value, str)]
    return f": it must be {_either(names)}" if names else ""


def _nearest(value: object, known: list[str]) -> str:
    near = get_close_matches(value[:40], known, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near else ""


def _either(values: list[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}" if len(values) > 1 else values[0]


def _described(value: object) -> str:
    if isinstance(value, str):
        return shown(value)
    return "a list" if isinstance(value, list) else "a mapping"
