"""The commands as a user types them: what a mistake costs is one clear line and an exit status, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.ops.azure_trace import TRACE
from jobs.wiring.file_log import write_event_file, write_json_lines
from tests.limiter_world import SECOND, at, chunk, completed, prompt

DEMO_POLICIES = TRACE.parents[1] / "policies" / "demo.yaml"


def headrace(
    *arguments: str | Path, environ: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs.ops.cli", *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **(environ or {})}, cwd=cwd
    )


def mistake(*arguments: str | Path, environ: dict[str, str] | None = None) -> str:
    """The one line that a mistake is told in."""
    done = headrace(*arguments, environ=environ)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("headrace: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.pb"
    write_event_file(
        path, [prompt("r", at(0), 5, max_tokens=5), chunk("r", at(1), cumulative=3), completed("r", at(2))]
    )
    return path


@pytest.mark.parametrize("command", [[], ["demo"], ["run"], ["convert"], ["config"], ["policy", "check"]])
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    done = headrace(*command, "--help")
    assert done.returncode == 0
    assert "headrace" in done.stdout
    if command:
        assert "Examples:" in done.stdout


def test_an_unknown_flag_is_wrong_use() -> None:
    done = headrace("demo", "--no-such-flag")
    assert done.returncode == 2
    assert "No such option: --no-such-flag" in done.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nothere.pb" in mistake("run", tmp_path / "nothere.pb", "-o", tmp_path)


def test_a_mistyped_file_costs_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    kept = [tmp_path / ".headrace" / "checkpoints" / "kept", tmp_path / "work" / "mine.txt"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("kept")
    mistake("run", tmp_path / "nothere.pb", "-o", tmp_path)
    assert all(path.exists() for path in kept)


def test_a_file_named_twice_is_refused(log: Path, tmp_path: Path) -> None:
    assert "is named twice" in mistake("run", log, log, "-o", tmp_path)


def test_a_policy_with_a_wrong_field_is_told_with_its_line(log: Path, tmp_path: Path) -> None:
    policies = tmp_path / "policies.yaml"
    policies.write_text('version: 1\npolicies:\n  - id: p\n    tenant: "*"\n    limit: []\n')
    done = headrace("run", log, "-p", policies, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"headrace: {policies}:3: policies[0].limits: is missing",
        f"headrace: {policies}:5: policies[0].limit: is no field that is known here; did you mean limits?",
    ]


def test_a_checkpoint_that_is_none_is_refused(log: Path, tmp_path: Path) -> None:
    assert "is no checkpoint" in mistake("run", log, "-o", tmp_path, "--restore-from", tmp_path)


def test_an_output_that_is_a_file_is_refused(log: Path) -> None:
    assert "can't be written" in mistake("run", log, "-o", log)


def test_settings_of_the_environment_with_a_slip_are_refused() -> None:
    told = mistake("config", environ={"HEADRACE_PARALELISM": "2"})
    assert told.endswith("HEADRACE_PARALELISM: no such setting, did you mean HEADRACE_PARALLELISM?")
    assert "HEADRACE_INPUT" in mistake("config", environ={"HEADRACE_INPUT": "foo"})


@pytest.mark.parametrize(
    "text", ["no_such_key: 1", "parallelism: many", "- a list", "1: 2", "a: 2025-13-45", "[" * 9_999]
)
def test_settings_of_a_file_that_can_not_be_used_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert str(file) in mistake("config", "--config", file)


def test_config_shows_what_wins(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("parallelism: 2\ncompact_keys: 7\n")
    done = headrace("config", "--config", file, "--json", environ={"HEADRACE_PARALLELISM": "4"})
    shown = json.loads(done.stdout)
    assert (shown["parallelism"], shown["compact_keys"], shown["shard_count"]) == (4, 7, 32)


def test_convert_writes_over_nothing_that_it_reads(tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    write_json_lines(lines, [prompt("r", at(0))])
    before = lines.read_bytes()
    assert "named .pb" in mistake("convert", lines, lines)
    log = tmp_path / "events.pb"
    write_event_file(log, [prompt("r", at(0))])
    assert "among the files to read" in mistake("convert", log, log)
    assert lines.read_bytes() == before


def test_convert_tells_of_what_it_passes_over_and_puts_aside(tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    good = {"kind": "prompt_submitted", "tenant": "acme", "request_id": "r", "event_time_us": at(0)}
    slip = json.dumps({**good, "prompt_token": 5, "\u001b[31m": 1})
    lines.write_text(f"{json.dumps(good)}\n{slip}\nnot json\n")
    done = headrace("convert", lines, tmp_path / "log.pb", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["dead_letters"] == {"malformed": 1}
    assert "prompt_token (1)" in done.stderr
    assert "\u001b[31m" not in done.stderr
    aside = [json.loads(line) for line in (tmp_path / "log.pb.dead-letters.jsonl").read_text().splitlines()]
    assert [letter["reason"] for letter in aside] == ["malformed"]


@pytest.mark.slow
def test_a_converted_log_settles_streams_that_fall_silent(tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    others = [prompt(f"o{number}", at(number), 1, tenant="beta") for number in range(2, 600)]
    write_json_lines(lines, [prompt("r", at(0), 5, max_tokens=5), chunk("r", at(1), cumulative=3), *others])
    policies = tmp_path / "policies.yaml"
    policies.write_text(
        'version: 1\npolicies:\n  - id: p\n    tenant: "*"\n    silence_timeout: 60s\n    limits:\n'
        "      - {name: t, level: tenant, unit: tokens, limit: 1M, window: 60s}\n"
    )
    assert headrace("convert", lines, tmp_path / "log.pb").returncode == 0
    done = headrace(
        "run", tmp_path / "log.pb", "-p", policies, "-o", tmp_path / "out", "--json", "--decisions", "jsonl"
    )
    assert done.returncode == 0, done.stderr
    decisions = [json.loads(line) for line in (tmp_path / "out" / "decisions.jsonl").read_text().splitlines()]
    (settled,) = [told for told in decisions if told["kind"] == "settle" and told["tenant"] == "acme"]
    assert (settled["reason"], settled["used_tokens"], settled["refunded_tokens"]) == ("silent", 8, 2)
    assert settled["decided_at_us"] == at(1) + 60 * SECOND


@pytest.mark.slow
def test_the_demo_governs_the_whole_trace_and_says_so(tmp_path: Path) -> None:
    done = headrace("demo", "--output", tmp_path / "sp ace ü#%20", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    total = summary["total"]
    assert (total["requests"], summary["job"]["events"], total["unreconciled"]) == (19_366, 303_234, 0)
    assert min(total[kind] for kind in ("admitted", "throttled", "rejected", "extended", "revoked", "shadow")) > 0
    assert total["reserved_tokens"] + total["overdrawn_tokens"] == total["used_tokens"] + total["refunded_tokens"]
    assert all(tenant["peak"]["within"] for tenant in summary["tenants"] if tenant["peak"])
    for name in ("report.html", "decisions.parquet", "summary.json"):
        assert (tmp_path / "sp ace ü#%20" / name).stat().st_size > 10_000


@pytest.mark.slow
def test_flink_run_submits_the_job(log: Path, tmp_path: Path) -> None:
    import pyflink

    from jobs.wiring.java import java_home

    flink = Path(pyflink.__file__).parent / "bin" / "flink"
    done = subprocess.run(
        [
            *("bash", flink, "run", "-t", "local", "-pyexec", sys.executable, "-pyclientexec", sys.executable),
            *("-pym", "jobs.admission", "--input", log, "--policies", DEMO_POLICIES, "--output", tmp_path / "out"),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "FLINK_LOG_DIR": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 events decided" in done.stdout
