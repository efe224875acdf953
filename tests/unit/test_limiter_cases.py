"""What went wrong for others: public reports about limiters and gateways, each with the outcome that would be right.

The reports, with their sources, stand in tests/golden/cases.json. Where the shared collection is at hand it must agree.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.decisions import BoundLimit, DecisionKind, DecisionReason, LimitUnit
from tests.limiter_world import (
    SECOND,
    Direct,
    Shard,
    at,
    chunk,
    completed,
    failed,
    heartbeat,
    interrupted,
    kinds,
    limit,
    policy,
    prompt,
)
from udfs.domain.anomaly import Anomaly
from udfs.domain.policy_log import PolicyLog

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "cases.json"
COLLECTION = ROOT.parent / "shared" / "cases" / "cases.json"

ALLOW, DENY = DecisionKind.ADMIT, DecisionKind.THROTTLE
OUTCOME = {"allow": ALLOW, "deny": DENY}


def cases_in(path: Path) -> dict[str, Any]:
    return {case["id"]: case for case in json.loads(path.read_text())["cases"]}


CASES = cases_in(GOLDEN)


def given_of(name: str) -> Any:
    return CASES[name]["input"]


def expected_of(name: str) -> Any:
    return CASES[name]["expected"]


def level(driver: Direct, at_us: int) -> BoundLimit:
    """The tenant's tightest limit as a request that takes nothing is told, asked without leaving a trace."""
    bound = driver.copy().one(prompt("probe", at_us, without_completion=True)).bound
    assert bound is not None
    return bound


def remaining(driver: Direct, at_us: int) -> int:
    return level(driver, at_us).remaining


def used_in_window(driver: Direct, at_us: int) -> int:
    return level(driver, at_us).limit - level(driver, at_us).remaining


@pytest.mark.skipif(not COLLECTION.exists(), reason="the shared collection is not here")
def test_the_golden_cases_are_those_of_the_collection() -> None:
    collection = cases_in(COLLECTION)
    for name, case in CASES.items():
        assert case == {field: collection[name][field] for field in case}


def test_every_case_says_where_it_comes_from_and_has_a_test() -> None:
    tests = [name.upper() for name in globals() if name.startswith("test_")]
    for name, case in CASES.items():
        assert case["url"].endswith(f"{case['repo']}/{'pull' if case['kind'] == 'pr' else 'issues'}/{case['number']}")
        assert any(test.startswith(f"TEST_{name}_") for test in tests), name


def test_rl01_concurrent_requests_are_charged_before_the_next_is_asked() -> None:
    case = given_of("RL01")
    driver = Direct(policy(limit(case["limit_tpm"])))
    admitted = [
        request["id"]
        for request in case["requests"]
        if driver.one(prompt(str(request["id"]), at(case["admit_at"]), request["tokens"], without_completion=True)).kind
        is ALLOW
    ]
    assert admitted == expected_of("RL01")["admitted"]
    assert used_in_window(driver, at(0)) == expected_of("RL01")["reserved_or_used"]


def test_rl03_an_estimate_never_makes_a_request_impossible() -> None:
    case = given_of("RL03")
    asked, done = case["events"]
    driver = Direct(policy(limit(case["limit"]), default_completion_tokens=asked["reserve_default_floor"]))
    admitted = driver.one(prompt("r", at(asked["t"])))
    assert admitted.kind is OUTCOME[expected_of("RL03")["decisions"][0]]
    assert admitted.reserved_tokens == expected_of("RL03")["reserved_at_t0"]
    driver.tell(completed("r", at(done["t"]), (0, done["actual"])))
    assert remaining(driver, at(done["t"])) == expected_of("RL03")["remaining_after_reconcile"]


def test_rl05_a_window_carries_nothing_over_a_boundary() -> None:
    case = given_of("RL05")
    driver = Direct(policy(limit(case["limit"], window_us=case["window_s"] * SECOND)))
    decided = []
    for number, request in enumerate(case["requests"]):
        asked = prompt(str(number), at(request["t"]), request["tokens"], without_completion=True)
        decided.append(driver.one(asked).kind)
        driver.tell(completed(str(number), at(request["t"]), (request["tokens"], 0)))
    assert decided == [OUTCOME[outcome] for outcome in expected_of("RL05")["decisions"]]
    assert used_in_window(driver, at(60)) == expected_of("RL05")["used_at_60"]


def test_rl07_cached_tokens_count_as_the_policy_says() -> None:
    case = given_of("RL07")
    permille = round(case["cached_weight"] * 1000)
    driver = Direct(policy(limit(case["limit"]), cached_weight_permille=permille))
    admitted = 0
    for number, request in enumerate(case["requests"]):
        asked = prompt(str(number), at(0), request["total"], cached_tokens=request["cached"], without_completion=True)
        admitted += driver.one(asked).kind is ALLOW
        driver.tell(completed(str(number), at(1), (request["total"], 0), cached_tokens=request["cached"]))
    assert admitted == expected_of("RL07")["admitted"]
    assert used_in_window(driver, at(1)) == expected_of("RL07")["used"]


def test_rl09_prompts_count_as_completions_do() -> None:
    case = given_of("RL09")
    driver = Direct(policy(limit(case["limit"])))
    decided = []
    for number, request in enumerate(case["events"]):
        # Whether the client bounds its completion or not: the prompt alone leaves no room for the second.
        decided.append(driver.one(prompt(str(number), at(number), request["input"])).kind)
        driver.tell(completed(str(number), at(number), (request["input"], request["output"])))
    assert decided == [OUTCOME[outcome] for outcome in expected_of("RL09")["decisions"]]


def test_rl11_a_stream_keeps_its_place_until_it_ends() -> None:
    case, expected = given_of("RL11"), expected_of("RL11")
    streams = limit(case["max_parallel"], name="parallel", unit=LimitUnit.STREAMS)
    driver = Direct(policy(streams, limit(10_000)))
    a, b, end, c = (case["events"][index] for index in (0, 2, 3, 4))
    assert driver.one(prompt("A", at(a["t"]), max_tokens=100, stream=True)).kind is OUTCOME[expected["A"]]
    refused = driver.one(prompt("B", at(b["t"]), max_tokens=100, stream=True))
    assert expected["B"] == f"deny:{refused.bound.name}"  # type: ignore[union-attr]
    assert refused.kind is DENY
    driver.tell(chunk("A", at(3), cumulative=end["tokens"] // 2))
    settled = driver.one(completed("A", at(end["t"]), (0, end["tokens"])))
    assert settled.used_tokens == expected["used"]
    assert driver.one(prompt("C", at(c["t"]), max_tokens=100, stream=True)).kind is OUTCOME[expected["C"]]


def test_rl13_an_answer_without_usage_costs_nothing() -> None:
    case = given_of("RL13")
    driver = Direct(policy(limit(case["limit"])))
    charged, decided = 0, []
    for number in range(len(case["requests"]) + 1):
        decided.append(driver.one(prompt(str(number), at(0), without_completion=True)).kind)
        charged += driver.one(completed(str(number), at(0))).used_tokens
    assert charged == expected_of("RL13")["charged"]
    assert decided[75] is OUTCOME[expected_of("RL13")["decision_76"]]


def test_rl15_a_full_burst_does_not_overspend_a_window() -> None:
    case = given_of("RL15")
    driver = Direct(policy(limit(case["limit"], window_us=case["window_s"] * SECOND, burst=case["burst"])))
    decided = []
    for request in case["requests"]:
        name = str(request["t"])
        decided.append(driver.one(prompt(name, at(request["t"]), request["tokens"], without_completion=True)).kind)
        if decided[-1] is ALLOW:
            driver.tell(completed(name, at(request["t"]), (request["tokens"], 0)))
    assert decided == [OUTCOME[outcome] for outcome in expected_of("RL15")["decisions"]]


def test_rl17_what_was_borrowed_is_not_forgotten_when_the_window_turns() -> None:
    case = given_of("RL17")
    borrowed, asked = case["events"]
    driver = Direct(policy(limit(case["limit"], window_us=case["window_s"] * SECOND)))
    driver.tell(prompt("r", at(borrowed["t"]), max_tokens=case["limit"]))
    overrun = driver.tell(chunk("r", at(borrowed["t"]), cumulative=borrowed["reserve"]))
    assert kinds(overrun) == [DecisionKind.REVOKE]
    settled = driver.one(interrupted("r", at(borrowed["t"]), borrowed["reserve"]))
    assert settled.overdrawn_tokens == borrowed["reserve"] - case["limit"]
    assert asked["t"] == case["window_s"]
    assert remaining(driver, at(asked["t"])) == expected_of("RL17")["available_at_60"]


def test_co01_a_retried_report_is_charged_once() -> None:
    case, expected = given_of("CO01"), expected_of("CO01")
    driver = Direct(policy(limit(case["max_budget"])))
    decided, charged = [], 0
    for event in case["events"]:
        asked = prompt(event["request_id"], at(0), round(event["cost"]), without_completion=True)
        decided += kinds(driver.tell(asked))
        end = completed(event["request_id"], at(1), (round(event["cost"]), 0))
        charged += sum(decision.used_tokens for decision in driver.tell(end))
    assert charged == expected["spend"]
    assert (DENY in decided) == expected["blocked"]
    assert used_in_window(driver, at(1)) == expected["spend"]


def test_co01_an_attempt_that_timed_out_and_its_retry_are_each_charged_what_they_used() -> None:
    driver = Direct(policy(limit(20)))
    driver.tell(prompt("r", at(0), 1, max_tokens=4), failed("r", at(1)))
    assert used_in_window(driver, at(1)) == 0
    driver.tell(prompt("r", at(2), 1, max_tokens=4, attempt=1), completed("r", at(3), (1, 2), attempt=1))
    assert used_in_window(driver, at(3)) == 3


def test_co03_a_client_that_hangs_up_is_charged_what_it_was_sent() -> None:
    case = given_of("CO03")
    driver = Direct(policy(limit(1_000)))
    driver.tell(prompt("r", at(0), case["input_tokens_estimate"], max_tokens=100))
    for number, _ in enumerate(case["deltas"], start=1):
        driver.tell(chunk("r", at(number), 1, cumulative=number))
    settled = driver.one(interrupted("r", at(9), len(case["deltas"])))
    assert case["terminal"] == "interrupted"
    assert settled.reason is DecisionReason.INTERRUPTED
    assert (settled.used_tokens > 0) == expected_of("CO03")["charged"]
    assert settled.used_tokens - case["input_tokens_estimate"] >= expected_of("CO03")["output_tokens_min"]


def test_co09_a_response_that_is_read_again_is_not_charged_again() -> None:
    """In tokens: the case's 0.0023 are 23 of ten thousandths."""
    case = given_of("CO09")
    driver = Direct(policy(limit(1_000)))
    spent = 0
    for number, event in enumerate(case["events"]):
        tokens = round(event["cost"] * 10_000)
        driver.tell(prompt(event["response_id"], at(number), tokens, without_completion=True))
        end = completed(event["response_id"], at(number), (tokens, 0))
        spent += sum(decision.used_tokens for decision in driver.tell(end))
    assert spent == round(expected_of("CO09")["spend"] * 10_000)


def test_et02_a_stream_that_falls_silent_is_closed_without_newer_events_of_its_own() -> None:
    case = given_of("ET02")
    rules = policy(limit(100), silence_timeout_us=case["idle_timeout_s"] * SECOND)
    shard = Shard(PolicyLog([rules]))
    begin, last = case["events"]
    shard.tell([prompt("r", at(begin["t"]), max_tokens=50)])
    shard.tell([chunk("r", at(last["t"]), cumulative=10)])
    closed = [d for second in range(4, case["wall_clock_to"]) for d in shard.tell([heartbeat(at(second))])]
    assert kinds(closed) == [DecisionKind.SETTLE]
    assert closed[0].reason is DecisionReason.SILENT
    assert len(closed) == len(expected_of("ET02")["sessions"])
    assert closed[0].decided_at_us == at(last["t"] + case["idle_timeout_s"])


def test_et04_a_late_event_settles_nothing_twice() -> None:
    case, expected = given_of("ET04"), expected_of("ET04")
    first, newest, late = (event["t"] for event in case["events"])
    rules = policy(limit(100), silence_timeout_us=case["grace_s"] * SECOND)
    shard = Shard(PolicyLog([rules]))
    told = shard.tell([prompt("r", at(first), max_tokens=50)])
    told += shard.tell([completed("r", at(first), (0, 10))])
    told += shard.tell([prompt("newest", at(newest), max_tokens=50)])
    told += shard.tell([chunk("r", at(late), cumulative=10)])
    settled = [decision for decision in told if decision.request_id == "r" and decision.kind is DecisionKind.SETTLE]
    assert len(settled) == expected["window_0_emissions"]
    assert shard.shard.counts["behind_clock"] == expected["late"]
    assert shard.shard.counts[Anomaly.AFTER_END.value] == 1


def test_ten_before_a_second_and_ten_after_it_are_not_twenty_in_a_moment() -> None:
    """Limit 10 a second with a burst of 10: a plain bucket lets 9.9 of the second ten through after 10 ms."""
    driver = Direct(policy(limit(10, window_us=SECOND, burst=10)))
    decided = []
    for number in range(20):
        when = at(0.99 if number < 10 else 1.0)
        decided.append(driver.one(prompt(str(number), when, 1, without_completion=True)).kind)
        if decided[-1] is ALLOW:
            driver.tell(completed(str(number), when, (1, 0)))
    assert decided == [ALLOW] * 10 + [DENY] * 10
    assert driver.one(prompt("later", at(1.99), 1, without_completion=True)).kind is ALLOW


def test_ten_requests_before_a_second_and_ten_after_it_are_not_twenty_in_a_moment() -> None:
    driver = Direct(policy(limit(10, unit=LimitUnit.REQUESTS, window_us=SECOND, burst=10)))
    decided = [
        driver.one(prompt(str(number), at(0.99 if number < 10 else 1.0), 1, max_tokens=1)).kind for number in range(20)
    ]
    assert decided == [ALLOW] * 10 + [DENY] * 10
