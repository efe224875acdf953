"""The pages against what they speak of: commands that parse, links that lead somewhere, a page for each alert."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer
import yaml

from jobs.ops.cli import app
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.settings import AdmissionSettings
from udfs.operators.metric_names import known_names

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "k8s").rglob("*.md"),
    ]
)
ALERTS: dict[str, str] = {
    rule["alert"]: rule["annotations"]["runbook_url"].rpartition("/")[2]
    for group in yaml.safe_load((REPOSITORY / "k8s/monitoring/alerts.yaml").read_text(encoding="utf-8"))["spec"][
        "groups"
    ]
    for rule in group["rules"]
}

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
# Whole names: the beginning of one stands in a pattern, before a bracket.
_METRIC = re.compile(r"\bflink_(?:jobmanager|taskmanager)_\w*[A-Za-z0-9](?![\w(<])")


class Quoted(NamedTuple):
    """A command as a page quotes it. `whole`: it stands in a block and is meant to be run as it stands."""

    page: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def commands(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The simple commands of a page, in blocks and in the text, and whether each is meant as it stands."""
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for words in _simple_commands(line.removeprefix("$ ")):
                yield words, True
    for code in _INLINE.findall(_FENCE.sub("", text)):
        for words in _simple_commands(code):
            yield words, False


def _simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """What a shell would run: a line taken apart at pipes and the like, assignments and redirections left out."""
    if not re.search(r"(^|[\s;&|=(])(headrace|kubectl) ", line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:
        # Prose in code font, or output with a lone quote.
        return
    skip = False
    for token in [*tokens, ";"]:
        if skip:
            skip = False
        elif set(token) <= set("<>"):
            skip = True
        elif set(token) <= set(";&|()"):
            if words:
                yield tuple(words)
            words = []
        elif words or not _ASSIGNMENT.match(token):
            words.append(token)


QUOTED = [
    Quoted(str(page.relative_to(REPOSITORY)), words, whole)
    for page in PAGES
    for words, whole in commands(page.read_text(encoding="utf-8"))
]
OURS = [quoted for quoted in QUOTED if quoted.words[0] == "headrace"]
KUBECTL = [quoted for quoted in QUOTED if quoted.words[0] == "kubectl"]


def parse(words: tuple[str, ...], *, whole: bool) -> None:
    """Raise UsageError, or KeyError for an unknown command, unless Typer takes the words; nothing is run."""
    command: Any = typer.main.get_command(app)
    left = list(words[1:])
    context = command.context_class(command, info_name="headrace")
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        command = command.commands[left.pop(0)]
        context = command.context_class(command, info_name=words[-1], parent=context)
    if whole and not hasattr(command, "commands"):
        command.make_context("headrace", left, parent=context.parent)
    else:
        command.make_parser(context).parse_args(args=left)


def test_commands_are_found_in_blocks_and_in_the_text() -> None:
    page = (
        "Run `headrace status --json` or `make up`.\n```sh\n$ headrace status | grep x  # why\n"
        "A=1 headrace diff gen:1 \\\n  gen:2 > out.txt && kubectl get pods\nnot a command: headrace\n```\n"
    )

    assert list(commands(page)) == [
        (("headrace", "status"), True),
        (("grep", "x"), True),
        (("headrace", "diff", "gen:1", "gen:2"), True),
        (("kubectl", "get", "pods"), True),
        (("headrace", "status", "--json"), False),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "headrace statsu",
        "headrace status --jsn",
        "headrace dlq lst",
        "headrace restore admission",
        "headrace diff gen:1",
    ],
)
def test_a_slip_in_a_command_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"."):
        parse(tuple(wrong.split()), whole=True)


@pytest.mark.parametrize("quoted", OURS, ids=str)
def test_a_command_that_is_quoted_exists_with_its_options(quoted: Quoted) -> None:
    parse(quoted.words, whole=quoted.whole)


@pytest.mark.parametrize("quoted", KUBECTL, ids=str)
def test_manifests_that_a_command_names_are_there(quoted: Quoted) -> None:
    named = [word for word in quoted.words if word.startswith("k8s/")]

    assert all((REPOSITORY / word).exists() for word in named)


def test_pages_quote_commands() -> None:
    assert {quoted.words[1] for quoted in OURS if len(quoted.words) > 1} >= {"up", "status", "rollback", "restore"}
    assert KUBECTL


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _INLINE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize(("alert", "page"), ALERTS.items())
def test_an_alert_opens_a_page_that_knows_it(alert: str, page: str) -> None:
    assert f"`{alert}`" in (RUNBOOKS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(("alert", "page"), ALERTS.items())
def test_the_index_sends_an_alert_to_the_page_that_it_opens(alert: str, page: str) -> None:
    rows = [line for line in (RUNBOOKS / "README.md").read_text(encoding="utf-8").splitlines() if f"`{alert}`" in line]

    assert [f"({page})" in row for row in rows] == [True]


def test_every_page_is_in_the_index() -> None:
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")

    assert all(f"({page.name})" in index for page in RUNBOOKS.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_metrics_that_a_page_names_exist(page: Path) -> None:
    assert set(_METRIC.findall(page.read_text(encoding="utf-8"))) <= known_names()


@pytest.mark.parametrize("name", [*AdmissionSettings.model_fields, *KafkaSettings.model_fields])
def test_every_setting_is_in_the_reference(name: str) -> None:
    assert f"`{name}`" in (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")


def test_every_command_is_in_the_reference() -> None:
    reference = (REPOSITORY / "docs" / "reference.md").read_text(encoding="utf-8")
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    assert [name for name in names if f"`headrace {name}" not in reference] == []
