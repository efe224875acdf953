"""YAML as plain values that know their lines.

Reads what people write in settings: mappings, lists and scalars. A scalar is its text, and whoever reads the value says
what type it has: `tenant: no` is the tenant "no", not false, and `version: 1.10` keeps its nought. An unquoted
null or ~, or nothing at all, is None. No object is ever constructed from a tag.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import yaml

YamlPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys of mappings, and indices of lists from 0."""

YamlValue: TypeAlias = "str | list[YamlValue] | dict[str, YamlValue] | None"

MAX_VALUES: Final = 100_000
"""Aliases counted as often as they stand, so that a small file can't unfold into a huge one."""

MAX_DEPTH: Final = 32

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TAGS: Final = frozenset(
    {
        yaml.BaseLoader.DEFAULT_SCALAR_TAG,
        yaml.BaseLoader.DEFAULT_SEQUENCE_TAG,
        yaml.BaseLoader.DEFAULT_MAPPING_TAG,
    }
)


class YamlProblem(NamedTuple):
    """Something wrong at a line, counted from 1."""

    line: int
    path: YamlPath
    message: str


class UnreadableYamlError(ValueError):
    """Not YAML, or more of it than is read. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class LocatedYaml(NamedTuple):
    """A document: its value, the line of each entry (that of its key, or of its place in a list), and what is wrong."""

    value: YamlValue
    lines: dict[YamlPath, int]
    problems: list[YamlProblem]

    def line(self, path: YamlPath) -> int:
        """The line of `path`, or of the nearest value around it where it is not there."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def read_yaml(text: str) -> LocatedYaml | None:
    r"""Read the one document in `text`; None where there is none.

    Repeated keys, tags and merge keys are problems: the first of the repeated keys counts, and the others are left out.
    Raises UnreadableYamlError.

    >>> read = read_yaml("limit: 60k\nonly:\n- alice\n- bob\n")
    >>> read.value
    {'limit': '60k', 'only': ['alice', 'bob']}
    >>> read.line(("only", 1))
    4
    """
    root = _compose(text)
    if root is None:
        return None
    document = LocatedYaml(None, {(): root.start_mark.line + 1}, [])
    budget = iter(range(MAX_VALUES))
    return document._replace(value=_value(root, (), document, budget))


def _compose(text: str) -> yaml.Node | None:
    # The base loader resolves no types, and composing constructs no objects.
    try:
        return yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UnreadableYamlError(
            line, f"holds a character that YAML does not allow: U+{error.character:04X}"
        ) from error
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error) from error
    except RecursionError:
        raise UnreadableYamlError(1, "is nested too deeply") from None


def _not_yaml(error: yaml.MarkedYAMLError) -> UnreadableYamlError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if error.context == "while scanning an alias":
        return UnreadableYamlError(line, 'is not YAML: a * must be in quotes, as in tenant: "*"')
    began = ""
    if error.context and error.context_mark and error.context_mark.line + 1 != line:
        began = f" ({error.context} that begins on line {error.context_mark.line + 1})"
    return UnreadableYamlError(line, f"is not YAML: {error.problem}{began}")


def _value(node: yaml.Node, path: YamlPath, document: LocatedYaml, budget: Iterator[int]) -> YamlValue:
    line = node.start_mark.line + 1
    if next(budget, None) is None:
        raise UnreadableYamlError(line, f"unfolds into more than {MAX_VALUES:,} values")
    if len(path) > MAX_DEPTH:
        raise UnreadableYamlError(line, f"is nested more than {MAX_DEPTH} deep")
    if node.tag not in _PLAIN_TAGS:
        document.problems.append(YamlProblem(line, path, f"has the tag {node.tag!r}: tags are not read, remove it"))
    match node:
        case yaml.MappingNode():
            return _mapping(node, path, document, budget)
        case yaml.SequenceNode():
            return _sequence(node, path, document, budget)
        case yaml.ScalarNode():
            is_null = node.style is None and node.value in _NULLS
            return None if is_null else node.value
    raise TypeError(f"YAML has no {node}")


def _sequence(node: yaml.SequenceNode, path: YamlPath, document: LocatedYaml, budget: Iterator[int]) -> list[YamlValue]:
    values: list[YamlValue] = []
    for index, value_node in enumerate(node.value):
        here = (*path, index)
        document.lines[here] = value_node.start_mark.line + 1
        values.append(_value(value_node, here, document, budget))
    return values


def _mapping(
    node: yaml.MappingNode, path: YamlPath, document: LocatedYaml, budget: Iterator[int]
) -> dict[str, YamlValue]:
    values: dict[str, YamlValue] = {}
    problems = document.problems
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(YamlProblem(line, path, "has a key that is a list or mapping: a key must be a name"))
            continue
        key = key_node.value
        here = (*path, key)
        if key == "<<" and key_node.style is None:
            problems.append(YamlProblem(line, path, "merges with <<, which is not read: write the fields out"))
        elif key in values:
            first = document.lines[here]
            problems.append(YamlProblem(line, here, f"stands here again, first on line {first}: keep one of them"))
        else:
            document.lines[here] = line
            values[key] = _value(value_node, here, document, budget)
    return values
