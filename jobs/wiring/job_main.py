"""How the module of a job is run: by `flink run -pym`, or by `python -m`."""

import sys
from collections.abc import Callable
from typing import Any

import typer


def run_main(main: Callable[..., Any], mistakes: tuple[type[Exception], ...]) -> None:
    """Run `main` with the arguments of this process. One of `mistakes` is told in a line and ends it with status 1."""
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(main)
    try:
        command()
    except mistakes as mistake:
        sys.stderr.write("".join(f"headrace: {line}\n" for line in str(mistake).splitlines()))
        raise SystemExit(1) from None
