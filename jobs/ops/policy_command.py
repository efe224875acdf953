"""`headrace policy`: what a policy file means, and what is wrong with it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.ops.policy_warnings import warn
from jobs.ops.policy_words import PolicyWords, explain
from jobs.wiring.policies import PolicyFile, PolicyFileError, load_policies

policy_app = typer.Typer(name="policy", help="Check limiter policies and say what they mean.", no_args_is_help=True)

_EXAMPLES = """
Examples:

  headrace policy check data/policies/demo.yaml

  headrace policy check policies.yaml --json | jq '.warnings'

Exit status: 0 the file is fine, 1 it is wrong (one line each on standard error), 2 wrong use of the command.
"""


@policy_app.callback()
def _policy() -> None:
    """Check limiter policies and say what they mean."""


@policy_app.command(epilog=_EXAMPLES)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy file, YAML.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead, for scripts.")] = False,
) -> None:
    """Check a policy file, and say in words what its policies mean."""
    try:
        policy_file = load_policies(file)
    except PolicyFileError as error:
        typer.echo(str(error), err=True)
        if as_json:
            typer.echo(json.dumps(_wrong_as_json(file, error)))
        raise typer.Exit(1) from error
    words = explain(policy_file.policies)
    warnings = warn(policy_file.policies)
    if as_json:
        typer.echo(json.dumps(_fine_as_json(policy_file, words, warnings)))
    else:
        _print(policy_file, words, warnings)


def _print(policy_file: PolicyFile, words: list[PolicyWords], warnings: list[str]) -> None:
    console = Console(highlight=False)
    policies = _counted(len(policy_file.policies), "policy", "policies")
    limits = _counted(sum(len(policy.limits) for policy in policy_file.policies), "limit", "limits")
    console.print(Text(f"{policy_file.path} is fine: {policies}, {limits}"))
    first_with: dict[tuple[str, ...], str] = {}
    for policy in words:
        console.print()
        console.print(Text.assemble((policy.policy_id, "bold"), f". {policy.holds}"))
        console.print(_bullets([*policy.limits, *policy.change], "bold"))
        # Most policies of a file treat requests alike, and an operator looks for what differs.
        alike = first_with.setdefault(tuple(policy.treatment), policy.policy_id)
        treatment = policy.treatment if alike == policy.policy_id else [f"Requests are treated as under {alike}."]
        console.print(_bullets(treatment, "dim"))
    if warnings:
        console.print()
        console.print(Text(_counted(len(warnings), "warning", "warnings"), style="bold yellow"))
        console.print(_bullets(warnings, "yellow"))


def _bullets(lines: list[str], style: str) -> Table:
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text(" -", style=style), Text(line))
    return table


def _counted(amount: int, one: str, many: str) -> str:
    return f"{amount:,} {one if amount == 1 else many}"


def _fine_as_json(policy_file: PolicyFile, words: list[PolicyWords], warnings: list[str]) -> dict[str, object]:
    return {
        "file": str(policy_file.path),
        "ok": True,
        "policies": [
            {
                "id": policy.id,
                "tenant": policy.match,
                "effective_from_us": policy.effective_from_us,
                "holds": said.holds,
                "limits": said.limits,
                "change": said.change,
                "treatment": said.treatment,
            }
            for policy, said in zip(policy_file.policies, words, strict=True)
        ],
        "warnings": warnings,
        "errors": [],
    }


def _wrong_as_json(file: Path, error: PolicyFileError) -> dict[str, object]:
    return {
        "file": str(file),
        "ok": False,
        "policies": [],
        "warnings": [],
        "errors": [
            {"line": problem.line, "field": problem.field, "message": problem.message} for problem in error.problems
        ],
    }
