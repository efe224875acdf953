"""`headrace dlq`: look at dead letters, and put them back into the log."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer
from rich.console import Console

from jobs.ops.dlq import (
    Contents,
    DlqError,
    Letter,
    LetterReplay,
    Place,
    Prepared,
    Selection,
    as_fields,
    check_sources,
    grouped,
    letter_at,
    prepare,
    to_replay,
)
from jobs.ops.dlq_look import look
from jobs.ops.dlq_view import print_groups, print_letter, print_plan
from jobs.ops.log_options import (
    ConfigOption,
    EventsTopicOption,
    JsonOption,
    LogAccess,
    ServersOption,
    log_access,
    time_us,
)
from jobs.ops.run_command import progress_on
from jobs.wiring.atomic_file import replacing
from jobs.wiring.kafka_log import TopicReader
from schemas.codec import UnreadableError, wire_event
from schemas.dead_letters import DeadLetter, DeadLetterReason, Position
from schemas.json_lines import decode_line
from schemas.topics import Topic

dlq_app = typer.Typer(name="dlq", help="Look at dead letters, and put them back into the log.", no_args_is_help=True)

Reason = Enum("Reason", {reason.name: reason.name.lower() for reason in DeadLetterReason}, type=str)  # type: ignore[misc]

ReasonOption: TypeAlias = Annotated[
    list[Reason] | None, typer.Option("--reason", help="Only letters of this reason; again for more.")
]
SourceOption: TypeAlias = Annotated[
    str | None, typer.Option("--source", metavar="TOPIC", help="Only letters that come from this topic or file.")
]
SinceOption: TypeAlias = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only letters that were put aside from then on.")
]
TopicOption: TypeAlias = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic of dead letters.")]


def _examples(*lines: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in lines)


@dlq_app.callback()
def _dlq() -> None:
    """Look at dead letters, and put them back into the log."""


@dlq_app.command(
    name="list",
    epilog=_examples("headrace dlq list", "headrace dlq list --reason malformed --since 2026-01-31T18:00:00Z"),
)
def list_letters(
    *,
    reason: ReasonOption = None,
    source: SourceOption = None,
    since: SinceOption = None,
    topic: TopicOption = Topic.DEAD_LETTERS.value,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the letters by reason and source, with the first and the last of each."""
    access = log_access(config, servers)
    with (
        TopicReader(access.kafka, topic) as reader,
        progress_on(Console(stderr=True)) as steps,
        steps.step("Reading letters"),
    ):
        contents = Contents(reader, _selection([], reason, source, since))
        groups = grouped(contents)
    unreadable = [str(place) for place in contents.unreadable]
    if as_json:
        found = {"topic": topic, "groups": msgspec.to_builtins(groups), "unreadable": unreadable}
        typer.echo(msgspec.json.encode(found).decode())
    else:
        print_groups(Console(), topic, groups, unreadable)


@dlq_app.command(epilog=_examples("headrace dlq show 0:17", "headrace dlq show 0:17 --save letter.bin"))
def show(
    place: Annotated[
        str, typer.Argument(metavar="PARTITION:OFFSET", help="Where the letter lies.", show_default=False)
    ],
    *,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Show text of prompts and completions: it is personal data.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the payload as it is, text included.")
    ] = None,
    topic: TopicOption = Topic.DEAD_LETTERS.value,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one letter: where it comes from, why it was put aside, and its payload as far as it can be decoded."""
    access = log_access(config, servers)
    with TopicReader(access.kafka, topic) as reader:
        letter = letter_at(reader, Place.parse(place))
    view = look(letter, show_text=show_text)
    if save is not None:
        with replacing(save) as file:
            file.write(letter.letter.payload)
    if as_json:
        typer.echo(msgspec.json.encode(view).decode())
    else:
        print_letter(Console(), view)


@dlq_app.command(
    epilog=_examples(
        "headrace dlq replay --reason fold_failed",
        "headrace dlq replay --reason fold_failed --yes",
        "headrace dlq replay 0:17 --payload repaired.bin --yes",
    )
)
def replay(
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[PARTITION:OFFSET]...", help="These letters.", show_default=False)
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All letters.")] = False,
    reason: ReasonOption = None,
    source: SourceOption = None,
    since: SinceOption = None,
    payload: Annotated[
        Path | None,
        typer.Option(
            "--payload",
            metavar="FILE",
            help="Repaired bytes of one letter; an event may be a JSON line (.json, .jsonl).",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Do it; else only say what would be done.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also letters that would fail again.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also letters that were replayed before.")] = False,
    topic: TopicOption = Topic.DEAD_LETTERS.value,
    events_topic: EventsTopicOption = None,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put letters back on the topic that they come from, once what failed is repaired.

    A whole record goes back as it was, a single event in a batch of its tenant's shard. Each letter goes back once: a
    mark in the dead-letter topic, written in one transaction with it, remembers. A letter whose bytes would fail again
    is left out. What goes back is decided when it is read: late, at its tenant's clock.

    Exit status: 0 all that were selected go back or have gone back before, 1 some are left out.
    """
    access = log_access(config, servers)
    selection = _selection(places or [], reason, source, since)
    to = events_topic or access.settings.events_topic
    if selection == Selection() and not every:
        raise typer.BadParameter("name letters, or choose them with --reason, --source or --since, or take --all")
    with TopicReader(access.kafka, to) as events, TopicReader(access.kafka, topic) as letters:
        if not yes:
            plan, done = _plan(letters, selection, access, to, payload, again=again)
            sent = None
        else:
            with LetterReplay(access.kafka, topic, events, access.shard_count) as out:
                # First, so that no other replay goes on while it is looked what has gone back.
                out.wait_for_marks(letters)
                plan, done = _plan(letters, selection, access, to, payload, again=again)
                sent = out.send(one for one in plan if force or not one.problem)
    left_out = [] if force else [one for one in plan if one.problem]
    missing = sorted(selection.places - {one.letter.place for one in plan} - {letter.place for letter in done})
    if as_json:
        fields: dict[str, Any] = {
            "topic": to,
            "sent": sent,
            "letters": [as_fields(one) for one in plan],
            "replayed_before": [str(letter.place) for letter in done],
            "missing": [str(place) for place in missing],
        }
        typer.echo(msgspec.json.encode(fields).decode())
    else:
        print_plan(Console(), plan, done, missing, sent=sent, force=force, topic=to)
    if left_out or missing:
        raise typer.Exit(1)


def _selection(places: list[str], reasons: "list[Reason] | None", source: str | None, since: str | None) -> Selection:
    return Selection(
        frozenset(map(Place.parse, places)),
        frozenset(DeadLetterReason[reason.name] for reason in reasons or ()),
        source,
        None if since is None else time_us(since),
    )


def _plan(
    reader: TopicReader,
    selection: Selection,
    access: LogAccess,
    events_topic: str,
    payload: Path | None,
    *,
    again: bool,
) -> tuple[list[Prepared], list[Letter]]:
    contents = Contents(reader, selection)
    with progress_on(Console(stderr=True)) as steps, steps.step("Reading letters"):
        found = list(contents.letters())
    check_sources(found, events_topic)
    letters, done = to_replay(found, contents.replayed, again=again)
    repaired = None
    if payload is not None:
        if len(letters) != 1:
            raise DlqError(f"--payload repairs one letter, {len(letters)} are selected: name it as PARTITION:OFFSET")
        repaired = _repaired(payload, letters[0])
    return [prepare(letter, access.shard_count, repaired) for letter in letters], done


def _repaired(path: Path, letter: Letter) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DlqError(f"{path}: {error.strerror}") from error
    if path.suffix.lower() not in {".json", ".jsonl"}:
        return content
    if letter.letter.index < 0:
        raise DlqError(f"{path}: letter {letter.place} is a whole record; repair its bytes, a JSON line is one event")
    result = decode_line(content.strip(), Position(str(path), 0, 0)).result
    if isinstance(result, DeadLetter):
        raise DlqError(f"{path}: not an event: {result.detail}")
    try:
        return wire_event(result).SerializeToString()
    except (UnreadableError, ValueError) as error:
        raise DlqError(f"{path}: not an event: {error}") from error
