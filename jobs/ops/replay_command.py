"""`headrace replay` and `headrace explain`: a slice of the log decided again, and one request step by step."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console

from jobs.ops.decision_sides import side_of
from jobs.ops.diff import DecisionDiff, Window, diff_decisions
from jobs.ops.diff_view import print_diff
from jobs.ops.event_sources import EventSource, FileEvents, KafkaEvents
from jobs.ops.explain import explain_request, find_request, the_tenant
from jobs.ops.explain_view import print_explanation
from jobs.ops.explain_words import words_of
from jobs.ops.explanation import as_json as explanation_as_json
from jobs.ops.log_options import (
    ConfigOption,
    EventFilesOption,
    EventsTopicOption,
    JsonOption,
    LogAccess,
    ServersOption,
    log_access,
    time_us,
)
from jobs.ops.replay import Replay, ReplaySummary, ReplayWindow
from jobs.ops.replay_view import print_replay
from jobs.ops.run_command import progress_on
from jobs.wiring.decision_files import write_decisions
from jobs.wiring.decision_reader import read_decisions
from jobs.wiring.kafka_log import TopicReader
from jobs.wiring.policies import load_policies
from schemas.codec import encode_decisions
from schemas.decisions import Decision
from schemas.topics import shard_of
from udfs.domain.limiter import LimiterPolicy
from udfs.domain.policy_log import PolicyLog

PoliciesOption: TypeAlias = Annotated[
    Path | None, typer.Option("--policies", "-p", help="Policy file.", show_default="settings; none: no limits")
]


def replay(
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Decisions from then on.", show_default="the beginning")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Decisions before then.", show_default="the end")
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", "-t", help="This tenant; again for more.", show_default="all")
    ] = None,
    policies: PoliciesOption = None,
    warm_up: Annotated[
        str | None,
        typer.Option(
            "--warm-up",
            metavar="TIME",
            help="Fold from then on, with nothing known before.",
            show_default="the log's beginning",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the decisions: .jsonl or .parquet.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="DECISIONS", help="Compare with what was decided: a file, gen:N or topic:NAME."
        ),
    ] = None,
    events: EventFilesOption = None,
    events_topic: EventsTopicOption = None,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide a slice of the log again, in this process, and show what came of it.

    What a tenant may do depends on what it did before, so the log is folded from its beginning and the decisions of the
    slice are shown. --warm-up starts later: quicker, and exact only once the longest window of the limits has passed
    and all that ran then has ended. Times are those of events, RFC 3339 or in microseconds; --warm-up is compared with
    the times at which records were sent where the log is in Kafka.

    With --against, the exit status is 1 if any decision differs (see headrace diff). A generation that a rollback made
    begins at its snapshot: without --from the comparison is of what it decided, from its first record in each shard.
    """
    window = ReplayWindow(frozenset(tenant or ()), _time(start), _time(end), _time(warm_up))
    if window.from_us is not None and window.to_us is not None and window.from_us >= window.to_us:
        raise typer.BadParameter(f"--from {start} must be before --to {end}")
    access = log_access(config, servers)
    with _source(access, events, events_topic) as source:
        run = Replay(
            source, _policies(access, policies), window, shard_count=access.shard_count, settings=access.settings.fold
        )
        found: DecisionDiff | None = None
        with progress_on(Console(stderr=True)) as steps, ExitStack() as stack:
            recorded = stack.enter_context(side_of(against, access, tuple(window.tenants))) if against else None
            if recorded is not None and start is None and not events:
                run.starts = recorded.starts()
            run.progress = stack.enter_context(steps.step("Replaying", known=True))
            decisions: Iterable[Decision] = run.decisions()
            if output:
                write_decisions(output, _as_records(decisions, access.shard_count))
                # Read again rather than held: a slice may be long.
                decisions = read_decisions(output) if recorded else ()
            if recorded is not None:
                compared = Window(window.from_us, window.to_us, window.tenants)
                found = diff_decisions(recorded.decisions(), decisions, window=compared)
            else:
                for _ in decisions:
                    pass
    _show(run.summary(), found, against, output, as_json=as_json)
    if found is not None and not found.is_same:
        raise typer.Exit(1)


def explain(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id.", show_default=False)],
    *,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Whose it is.", show_default="found")] = None,
    policies: PoliciesOption = None,
    events: EventFilesOption = None,
    events_topic: EventsTopicOption = None,
    config: ConfigOption = None,
    servers: ServersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a request was decided as it was, step by step.

    The tenant's part of the log is folded again from its beginning; for each event of the request it is shown what the
    limiter saw before it, which limit bound and by how much, when it would have fitted and why, and what went back at
    the end. No text of prompts or completions is shown.

    It is the policies of --policies, or those now in the settings, that decide: where others held then, what was
    decided may differ.
    """
    access = log_access(config, servers)
    tenants = (tenant,) if tenant else ()
    with _source(access, events, events_topic) as source, progress_on(Console(stderr=True)) as steps:
        with steps.step("Looking for the request", known=True) as step:
            found = find_request(source, request, tenants, step)
        owner = the_tenant(found, request)
        with steps.step("Replaying its tenant", known=True) as step:
            explanation = explain_request(
                source,
                _policies(access, policies),
                owner,
                request,
                found[owner],
                shard_count=access.shard_count,
                settings=access.settings.fold,
                progress=step,
            )
    if as_json:
        typer.echo(explanation_as_json(explanation, words_of(explanation)).decode())
    else:
        print_explanation(Console(), explanation)


def _time(text: str | None) -> int | None:
    return None if text is None else time_us(text)


def _policies(access: LogAccess, file: Path | None) -> PolicyLog[LimiterPolicy]:
    path = file or access.settings.policies
    return PolicyLog(load_policies(path).policies if path else ())


@contextmanager
def _source(access: LogAccess, files: list[Path] | None, topic: str | None) -> Iterator[EventSource]:
    if files:
        yield FileEvents(files, access.shard_count)
        return
    with TopicReader(access.kafka, topic or access.settings.events_topic) as reader:
        yield KafkaEvents(reader, access.shard_count)


def _as_records(decisions: Iterable[Decision], shard_count: int) -> Iterator[bytes]:
    for decision in decisions:
        yield encode_decisions(shard_of(decision.tenant, shard_count), (decision,))


def _show(
    summary: ReplaySummary, found: DecisionDiff | None, against: str | None, output: Path | None, *, as_json: bool
) -> None:
    if as_json:
        fields = msgspec.to_builtins(summary)
        if found is not None:
            fields["diff"] = msgspec.to_builtins(found)
        typer.echo(msgspec.json.encode(fields).decode())
        return
    console = Console()
    print_replay(console, summary, output)
    if found is not None:
        console.print()
        print_diff(console, found, against or "", "the replay")
