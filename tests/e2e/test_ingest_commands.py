"""`headrace ingest` and `headrace doctor` as a user types them: what gateways wrote becomes a log that can be run."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from jobs.ops.azure_trace import TRACE
from tests.e2e.test_command_line import headrace, mistake

PAYLOAD: dict[str, Any] = {
    "id": "call-1",
    "call_type": "acompletion",
    "stream": True,
    "status": "success",
    "custom_llm_provider": "openai",
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "startTime": 1767225600.0,
    "completionStartTime": 1767225600.5,
    "endTime": 1767225602.0,
    "model": "gpt-4o-mini",
    "metadata": {"user_api_key_team_id": "acme"},
}
SPAN = {
    "traceId": "5b8efff798038103d269b633813fc60c",
    "spanId": "eee19b7ec3c1b174",
    "name": "chat",
    "kind": 3,
    "startTimeUnixNano": "1767225600000000000",
    "endTimeUnixNano": "1767225602500000000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.provider.name", "value": {"stringValue": "openai"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "gpt-4o-mini"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "1000"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "100"}},
    ],
}
REQUEST = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
ANSWER = """data: {"id":"c-1","model":"gpt-4o","created":1767225600,"choices":[{"index":0,"delta":{"content":"Hi"}}]}

data: {"id":"c-1","model":"gpt-4o","created":1767225600,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"c-1","model":"gpt-4o","created":1767225600,"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}

data: [DONE]

"""


@pytest.fixture
def payloads(tmp_path: Path) -> Path:
    path = tmp_path / "payloads.jsonl"
    lines = [PAYLOAD, {**PAYLOAD, "id": "call-2", "prompt_tokens": 7, "total_tokens": 27}, PAYLOAD]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_payloads_become_a_log_that_run_decides(payloads: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.pb.gz"
    done = headrace("ingest", "--from", "litellm", "--to", log, "--json", payloads)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["records"], facts["requests"], facts["completed"], facts["duplicates"]) == (3, 2, 2, 3)
    assert (facts["prompt_tokens"], facts["completion_tokens"], facts["dead_letters"]) == (107, 40, {})
    again = headrace("convert", log, tmp_path / "again.pb", "--json")
    assert json.loads(again.stdout)["dead_letters"] == {}


def test_what_can_not_be_read_is_put_aside_with_its_line(payloads: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    payloads.write_text(payloads.read_text() + '{"id": \n' + json.dumps({**PAYLOAD, "prompt_tokens": -5}) + "\n")
    done = headrace("ingest", "--from", "litellm", "--to", log, payloads)
    assert done.returncode == 1
    assert "dead letters: malformed" in done.stdout
    letters = [json.loads(line) for line in (tmp_path / "log.jsonl.dead-letters.jsonl").read_text().splitlines()]
    assert [letter["reason"] for letter in letters] == ["malformed", "out_of_range"]
    assert [letter["detail"].split(":")[0] for letter in letters] == ["line 4", "line 5"]
    assert len(log.read_text().splitlines()) >= 6


def test_the_azure_trace_has_the_totals_that_its_columns_sum_to(tmp_path: Path) -> None:
    with gzip.open(TRACE, "rt", newline="") as trace:
        rows = list(csv.DictReader(trace))
    given = ("--from", "azure-llm-2023", "--tenant", "azure", "--to", tmp_path / "a.pb")
    done = headrace("ingest", *given, "--json", TRACE)
    facts = json.loads(done.stdout)
    assert facts["requests"] == facts["completed"] == len(rows)
    assert facts["prompt_tokens"] == sum(int(row["ContextTokens"]) for row in rows)
    assert facts["completion_tokens"] == sum(int(row["GeneratedTokens"]) for row in rows)


def test_a_mapping_of_ones_own_reads_ones_own_columns(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(
        "format: csv\ntime: {column: at, unit: seconds}\nprompt_tokens: in\ncompletion_tokens: out\n"
        "tenant: {column: team}\nmodel: {constant: llama}\n"
    )
    (tmp_path / "ours.csv").write_text("at,team,in,out\n1767225600,acme,5,6\n1767225601,globex,7,8\n")
    done = headrace(
        "ingest", "--mapping", tmp_path / "ours.yaml", "--to", tmp_path / "o.jsonl", "--json", tmp_path / "ours.csv"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["format"], facts["prompt_tokens"], facts["completion_tokens"]) == ("ours", 12, 14)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--from: say what the files hold"),
        (("--from", "kongg"), "no such format; known are"),
        (("--from", "kong", "--mapping", "m.yaml"), "leave out either"),
        (("--from", "litellm", "--received-at", "yesterday"), "--received-at is 'yesterday'"),
        (("--mapping", "none.yaml"), "none.yaml: No such file"),
    ],
)
def test_a_mistake_is_told_in_a_line(payloads: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in mistake("ingest", *arguments, payloads)


def test_a_log_is_not_written_over_what_it_is_made_from(payloads: Path) -> None:
    before = payloads.read_bytes()
    assert "is among the files to read" in mistake("ingest", "--from", "litellm", "--to", payloads, payloads)
    assert payloads.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "known_as"),
    [
        ("payloads.jsonl", json.dumps(PAYLOAD) + "\n", "litellm"),
        ("spans.json", json.dumps(REQUEST, indent=1), "otlp"),
        ("answer.sse", ANSWER, "transcript"),
        ("rows.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", "azure-llm-2023"),
        (
            "mooncake.jsonl",
            '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n',
            "mooncake",
        ),
        ("scrape.txt", 'vllm:num_requests_waiting{model_name="m"} 3\nvllm:kv_cache_usage_perc 0.5\n', "prometheus"),
    ],
)
def test_the_doctor_knows_a_file_by_what_is_in_it(tmp_path: Path, name: str, content: str, known_as: str) -> None:
    (tmp_path / name).write_text(content)
    done = headrace("doctor", tmp_path / name, "--json")
    found = json.loads(done.stdout)
    assert found["format"] == known_as
    assert found["events"] > 0 or known_as == "prometheus", "a scrape does not say when it was"


def test_the_doctor_says_what_is_wrong_and_where(payloads: Path) -> None:
    broken = json.dumps({**PAYLOAD, "completion_tokens": "many"})
    payloads.write_text(payloads.read_text() + f"{broken}\n{broken}\nnot json\n")
    done = headrace("doctor", payloads)
    assert done.returncode == 1
    assert "litellm, 6 records" in done.stdout
    assert "out_of_range, 2 times, first in line 4: completion_tokens is 'many'" in done.stdout
    assert "malformed, once in line 6: not JSON" in done.stdout
    assert "headrace ingest --from litellm" in done.stdout


def test_the_doctor_says_that_records_name_no_tenant(tmp_path: Path) -> None:
    (tmp_path / "spans.json").write_text(json.dumps(REQUEST))
    done = headrace("doctor", tmp_path / "spans.json")
    assert done.returncode == 0
    assert "1 name no tenant: give one with --tenant" in done.stdout
    assert "headrace ingest --from otlp --tenant NAME" in done.stdout


@pytest.mark.parametrize(
    ("content", "looks"),
    [
        (b"", "it is empty"),
        (b"a,b,c\n1,2,3\n", "CSV with the columns a, b, c"),
        (b'{"one": 1, "two": 2}\n', "JSON, objects with one, two"),
        (b"hello\n", "text of no format known here"),
        (b"\xff\xfe\x00\x01", "neither text nor a format"),
    ],
)
def test_the_doctor_says_what_an_unknown_file_looks_like(tmp_path: Path, content: bytes, looks: str) -> None:
    (tmp_path / "what").write_bytes(content)
    done = headrace("doctor", tmp_path / "what")
    assert done.returncode == 1
    assert looks in done.stdout
    assert "Traceback" not in done.stderr


def test_a_saved_answer_is_one_request(tmp_path: Path) -> None:
    (tmp_path / "answer.sse").write_text(ANSWER)
    given = ("--from", "transcript", "--tenant", "acme", "--to", tmp_path / "a.pb", "--json")
    facts = json.loads(headrace("ingest", *given, tmp_path / "answer.sse").stdout)
    assert (facts["records"], facts["requests"], facts["completed"], facts["interrupted"]) == (1, 1, 1, 0)
    assert (facts["prompt_tokens"], facts["completion_tokens"]) == (9, 1)


def test_files_whose_rows_have_one_name_are_not_read_together(tmp_path: Path) -> None:
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "azure.csv").write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,3,4\n"
        )
    said = mistake(
        "ingest", "--from", "azure-llm-2023", "--tenant", "a", "--to", tmp_path / "log.pb",
        tmp_path / "monday" / "azure.csv", tmp_path / "tuesday" / "azure.csv",
    )  # fmt: skip
    assert "azure.csv: two files of this name" in said


def test_a_wrong_format_is_no_success(payloads: Path, tmp_path: Path) -> None:
    said = mistake("ingest", "--from", "kong", "--to", tmp_path / "log.pb", payloads)
    assert "no event in 3 records: not kong? headrace doctor FILE" in said


def test_a_tenant_that_no_event_may_have_is_refused(payloads: Path, tmp_path: Path) -> None:
    said = mistake("ingest", "--from", "litellm", "--tenant", "t" * 600, "--to", tmp_path / "log.pb", payloads)
    assert "--tenant has 600 bytes" in said


def test_dead_letters_are_not_written_over_an_input(tmp_path: Path) -> None:
    letters = tmp_path / "z.pb.dead-letters.jsonl"
    letters.write_text(json.dumps(PAYLOAD) + "\n")
    assert "is among the files to read" in mistake("convert", letters, tmp_path / "z.pb")
    assert "is among the files to read" in mistake("ingest", "--from", "litellm", "--to", tmp_path / "z.pb", letters)
    assert letters.exists()


def test_the_doctor_reads_on_where_a_log_begins_with_what_is_no_call(tmp_path: Path) -> None:
    line = {"start_time": "2026-01-01T00:00:00Z", "response_code": 200, "duration": 5}
    call = {**line, "gen_ai.request.model": "gpt-4o", "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 2}
    lines = [line] * 250 + [{**call, "x-request-id": f"r-{number}"} for number in range(5)]
    (tmp_path / "access.log").write_text("".join(json.dumps(it) + "\n" for it in lines))
    found = json.loads(headrace("doctor", tmp_path / "access.log", "--json").stdout)
    assert (found["format"], found["records"]) == ("envoy-ai-gateway", 255)
