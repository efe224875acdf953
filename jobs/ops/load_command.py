"""`headrace load`: a gateway that sends a log and obeys its decisions, and how that went."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jobs.ops import azure_trace
from jobs.ops.figures import count
from jobs.ops.load.gateway import Gateway, GatewayRules
from jobs.ops.load.kafka_load import KafkaLoad, LoadTopics, Switch
from jobs.ops.load.load_view import print_outcome
from jobs.ops.load.plan import PlanError, PlannedRequest, SteadyLoad, at_steady_rate, from_recording, until
from jobs.ops.load.recording import Recording
from jobs.ops.load.tally import Tally
from jobs.ops.log_options import ConfigOption, EventsTopicOption, JsonOption, ServersOption, log_access
from jobs.ops.run_command import EventLog
from jobs.wiring.file_log import plan_files
from jobs.wiring.topic_catalog import decisions_topic
from schemas.codec import MAX_NAME_BYTES
from schemas.topics import SHARD_COUNT

SECOND_US: Final = 1_000_000
START_AFTER_US: Final = 200_000
"""Producers connect meanwhile, so that the first prompts are not late."""

LONGEST_SECONDS: Final = 31_536_000
"""A year: more is a slip, and less than what a float's microseconds still tell apart."""

MAX_RUN_ID_BYTES: Final = MAX_NAME_BYTES - 112
"""Ids of requests begin with it, and time, gateway and number come after it."""

NOBODY_SECONDS: Final = 5.0
"""A job that runs decides within a second; a load waits much longer before it counts an answer as lost."""

LOAD_EXAMPLES: Final = (
    "headrace load --speed 20",
    "headrace load --rate 5000 --seconds 60 --tenants 100 --warm-up 10",
    "headrace load monday.jsonl.gz --speed 5 --record load.jsonl --json",
)

Requests: TypeAlias = Callable[[], Iterator[PlannedRequest]]
"""Each call begins anew, with the same requests."""


def load(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Event files to play (.pb, .jsonl; gzip or not); none: the shipped Azure trace."),
    ] = None,
    *,
    speed: Annotated[
        float, typer.Option(help="So many times as fast, arrivals and streams.", min=0.001, max=1e6)
    ] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Events a second of a steady load instead, if all is admitted.", min=0.1, max=1e9),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Send prompts for so long; needed with --rate.", min=0.1, max=LONGEST_SECONDS),
    ] = None,
    tenants: Annotated[int, typer.Option(help="Tenants of the trace or steady load.", min=1, max=1_000_000)] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the spreading over tenants.")] = 1,
    gateways: Annotated[int, typer.Option(help="Gateways to be, each with its own producer.", min=1, max=64)] = 1,
    max_attempts: Annotated[int, typer.Option(help="Attempts of a request that is throttled.", min=1)] = 3,
    max_wait: Annotated[
        float,
        typer.Option(
            help="Seconds that a throttled client waits at most before it gives up.",
            min=0,
            max=LONGEST_SECONDS,
        ),
    ] = 60.0,
    decision_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds after which an answer or a settlement counts as lost.",
            min=0.001,
            max=LONGEST_SECONDS,
        ),
    ] = 30.0,
    warm_up: Annotated[
        float,
        typer.Option(help="Seconds at the start whose latencies do not count.", min=0, max=LONGEST_SECONDS),
    ] = 0.0,
    linger: Annotated[
        float,
        typer.Option(
            help="Seconds at the end in which repeats and contradictions are looked for.",
            min=0,
            max=LONGEST_SECONDS,
        ),
    ] = 1.0,
    generation: Annotated[
        int | None, typer.Option(help="Generation of decisions to obey.", min=1, show_default="settings")
    ] = None,
    events_topic: EventsTopicOption = None,
    decisions_topic_name: Annotated[
        str | None,
        typer.Option("--decisions-topic", metavar="TOPIC", help="Topic of decisions.", show_default="by generation"),
    ] = None,
    run_id: Annotated[str, typer.Option(help="Requests are named after it and the time.")] = "load",
    record: Annotated[
        Path | None, typer.Option(help="JSON lines file of all that was sent and read.", dir_okay=False)
    ] = None,
    servers: ServersOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Be a gateway on Kafka: send requests, obey the decisions on them, and measure.

    An admitted request streams, a throttled one is asked again when it may be, a revoked one stops. Latency counts from
    the moment at which a prompt was due, whether or not the system was ready for it. The exit status is 1 if a request
    has no final decision or two, or if an event did not get into the log. Ctrl-C ends running streams and reports;
    a second one does not wait for them.
    """
    _require_usable(run_id)
    access = log_access(config, servers)
    requests = _requests(files or [], speed=speed, rate=rate, seconds=seconds, tenants=tenants, seed=seed)
    rules = GatewayRules(
        max_attempts=max_attempts,
        max_wait_us=round(max_wait * SECOND_US),
        decision_timeout_us=round(decision_timeout * SECOND_US),
        warm_up_us=round(warm_up * SECOND_US),
    )
    topics = LoadTopics(
        events_topic or access.settings.events_topic,
        decisions_topic_name or decisions_topic(generation or access.settings.generation),
        access.shard_count,
    )
    tally, switch = Tally(), Switch()
    with ExitStack() as closing:
        recording = Recording(record) if record else None
        if recording:
            closing.callback(recording.close)
        link = closing.enter_context(KafkaLoad(access.kafka, topics, recording))
        start_us = link.clock() + START_AFTER_US
        run_id = f"{run_id}-{start_us // 1000:x}"
        playing = [
            Gateway(f"{run_id}-{number}", islice(requests(), number, None, gateways), rules, tally, start_us)
            for number in range(gateways)
        ]
        with _asked_by_signals(switch), _progress(Console(stderr=True)) as tell:
            outcome = link.run(playing, tally, run_id, switch, round(linger * SECOND_US), tell)
    if as_json:
        typer.echo(msgspec.json.encode(outcome).decode())
    else:
        print_outcome(Console(), outcome)
    if not outcome.is_ok:
        raise typer.Exit(1)


def _require_usable(run_id: str) -> None:
    """Events with a name that is too long would all be dead letters. Raises PlanError."""
    try:
        length = len(run_id.encode())
    except UnicodeEncodeError as error:
        raise PlanError("--run-id is no text in UTF-8; choose another one") from error
    if not 0 < length <= MAX_RUN_ID_BYTES:
        raise PlanError(f"--run-id has {length} bytes, it must have 1 to {MAX_RUN_ID_BYTES}")


def _requests(
    files: list[Path], *, speed: float, rate: float | None, seconds: float | None, tenants: int, seed: int
) -> Requests:
    """What is to be played. Raises PlanError, TraceError and EventFileError."""
    if rate is not None:
        if files:
            raise PlanError("--rate makes its own requests: leave out either it or the files")
        if seconds is None:
            raise PlanError("--rate needs --seconds, for how long")
        steady = SteadyLoad(events_per_second=rate, seconds=seconds, tenants=tenants, speed=speed, seed=seed)
        rows = list(azure_trace.read_trace(azure_trace.TRACE))
        return lambda: at_steady_rate(steady, rows)
    with _waiting("Reading what to play"):
        if files:
            log = EventLog(plan_files(files), SHARD_COUNT)
            recorded = from_recording(log.events(), speed=speed)
            if log.dead:
                typer.echo(f"{count(len(log.dead))} events could not be read and are left out", err=True)
        else:
            rows = list(azure_trace.read_trace(azure_trace.TRACE))
            recorded = from_recording(azure_trace.lives(rows, tenants, seed), speed=speed)
    end_us = None if seconds is None else round(seconds * SECOND_US)
    return lambda: iter(recorded) if end_us is None else until(recorded, end_us)


@contextmanager
def _asked_by_signals(switch: Switch) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the load to stop instead of breaking it off."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda *_: switch.ask())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _waiting(title: str) -> Iterator[None]:
    with Console(stderr=True).status(title):
        yield


@contextmanager
def _progress(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[Tally], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    began = clock()
    has_warned = False
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("Sending")

        def tell(tally: Tally) -> None:
            nonlocal has_warned
            nobody = tally.requests > 0 and not tally.has_decisions and clock() - began >= NOBODY_SECONDS
            if nobody and not has_warned:
                # A line of its own too: without a terminal there is no progress to see.
                has_warned = True
                console.print(
                    f"Nobody has decided anything in {NOBODY_SECONDS:.0f} s: does the admission job run, on these "
                    "topics? (headrace status)",
                    soft_wrap=True,
                    highlight=False,
                )
            ended = sum(tally.outcomes.values())
            decisions = "nobody decides yet" if nobody else f"{count(sum(tally.decisions.values()))} decisions"
            progress.update(
                task,
                description=f"{count(tally.requests)} requests sent, {count(ended)} ended, {decisions}, "
                f"{count(tally.missing)} lost",
                refresh=True,
            )

        yield tell
