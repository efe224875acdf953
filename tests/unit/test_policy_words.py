from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.ops.policy_command import policy_app
from jobs.ops.policy_warnings import warn
from jobs.ops.policy_words import explain, limit_words, rate_words
from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import Limit, LimiterPolicy
from udfs.domain.policy_log import PolicyLog

DEMO = Path(__file__).parents[2] / "data/policies/demo.yaml"
MINUTE_US = 60_000_000
AT_NOON_US = 1_700_136_000_000_000  # 2023-11-16T12:00:00Z


def tokens(name: str = "tokens", **fields: Any) -> Limit:
    given = {"level": LimitLevel.TENANT, "unit": LimitUnit.TOKENS, "limit": 60_000, "window_us": MINUTE_US}
    return Limit(name=name, **(given | fields))


def policy(id_: str = "everyone", match: str = "*", **fields: Any) -> LimiterPolicy:
    return LimiterPolicy(id=id_, match=match, **({"limits": (tokens(),)} | fields))


# --- what a policy means ------------------------------------------------------------------------------------------


def test_a_policy_is_told_in_words() -> None:
    (words,) = explain([policy(limits=(tokens(burst=10_000),), cached_weight_permille=250)])

    assert words.policy_id == "everyone"
    assert words.holds == "From the beginning: every tenant without a policy of its own."
    assert words.limits == [
        (
            "tokens: at most 60,000 tokens in any 60 s for each tenant (enforced); "
            "a burst of at most 10,000 at once, refilled at 1,000 a second; prompts and completions count."
        )
    ]
    assert words.change == []
    assert words.treatment == [
        "Cached prompt tokens count 25 %.",
        (
            "Requests without max_tokens are reserved at the 95 % quantile of the tenant's recent completions for the "
            "model (1,024 tokens until 20 have ended)."
        ),
        (
            "A stream that needs more than it reserved grows 256 tokens at a time, or by what room there is; where "
            "there is none, it is revoked."
        ),
        "A request without an event for 120 s is settled, and what it did not use is refunded.",
        (
            "What a running request has reserved and not used counts until it is used or refunded, also beyond the "
            "window: a request that falls silent holds its part of tokens (60 s) for 120 s."
        ),
        "The traffic is live: every token that flows is charged, allowed or not.",
        (
            "The last 512 ended requests of a tenant are remembered, so that their events are known again; beyond "
            "10,000 counters, further ones share a counter for each limit."
        ),
    ]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (
            tokens(mode=DecisionMode.SHADOW, counts_completion=False),
            (
                "at most 60,000 tokens in any 60 s for the whole tenant (shadow: reported, not enforced); "
                "prompts count, completions do not."
            ),
        ),
        (
            tokens(counts_prompt=False, level=LimitLevel.USER, only=frozenset({"bob", "alice"})),
            (
                "at most 60,000 tokens in any 60 s for each of the users alice, bob only (enforced); "
                "completions count, prompts do not."
            ),
        ),
        (
            tokens(unit=LimitUnit.REQUESTS, limit=1, level=LimitLevel.API_KEY, window_us=86_400_000_000),
            "at most 1 request in any 24 h for each API key (enforced).",
        ),
        (
            tokens(unit=LimitUnit.STREAMS, limit=8, level=LimitLevel.MODEL, window_us=0, only=frozenset({"m"})),
            "at most 8 streams running at once for model m only (enforced).",
        ),
    ],
)
def test_a_limit_says_what_whom_and_whether_it_binds(limit: Limit, said: str) -> None:
    assert limit_words(limit, policy(match="acme")) == f"tokens: {said}"


def test_what_does_not_matter_to_a_policy_is_not_told() -> None:
    (words,) = explain([policy(limits=(tokens(unit=LimitUnit.REQUESTS),), traffic_is_recorded=True)])

    said = " ".join(words.treatment)
    assert "max_tokens" not in said
    assert "Cached" not in said
    assert "reserved" not in said
    assert "a recording" in said


def test_a_policy_without_limits_says_that_nothing_is_limited() -> None:
    (words,) = explain([policy(limits=())])

    assert words.treatment[0] == "Nothing is limited: requests are followed and settled."


def test_policies_for_one_tenant_say_when_each_holds_and_what_goes_on_counting() -> None:
    first = policy("a", "acme", limits=(tokens("kept"), tokens("dropped")))
    second = policy("b", "acme", effective_from_us=AT_NOON_US, limits=(tokens("kept", limit=9_000), tokens("fresh")))

    # The order of the file does not matter, and other tenants' policies do not come between.
    later, _, earlier = explain([second, policy(effective_from_us=1), first])

    assert earlier.holds == "From the beginning until 2023-11-16T12:00:00Z, when b takes over: tenant acme."
    assert later.holds == "From 2023-11-16T12:00:00Z: tenant acme."
    assert earlier.change == []
    assert later.change == [
        "It takes over from a: what was counted under kept goes on counting; fresh starts from zero; dropped ends."
    ]


def test_a_limit_of_another_kind_under_the_same_name_starts_from_zero() -> None:
    first = policy("a", limits=(tokens(),))
    second = policy("b", limits=(tokens(counts_prompt=False),), effective_from_us=AT_NOON_US)

    assert explain([first, second])[1].change == ["It takes over from a: tokens starts from zero."]


def test_of_two_policies_from_the_same_time_the_later_in_the_file_holds() -> None:
    policies = [policy(id_, effective_from_us=at_us) for id_, at_us in (("a", 0), ("b", 5), ("c", 5), ("d", 9))]

    a, b, c, d = explain(policies)

    assert "when c takes over" in a.holds
    assert b.holds == "Never holds for every tenant without a policy of its own: c holds from the same time on."
    assert "when d takes over" in c.holds
    assert "until" not in d.holds
    # So does the log that the jobs ask.
    log = PolicyLog(policies)
    assert [log.at("acme", at_us).policy for at_us in (0, 4, 5, 8, 9)] == [policies[i] for i in (0, 0, 2, 2, 3)]


def test_a_rate_is_told_in_the_unit_in_which_it_comes_to_one_or_more() -> None:
    assert rate_words(1, 31 * 86_400_000_000) == "about 0.032 a day"
    assert rate_words(3, 3_600_000_000) == "3 an hour"
    assert rate_words(100, 7_000_000) == "about 14.3 a second"


# --- what is seldom meant -----------------------------------------------------------------------------------------


def test_a_usual_policy_has_no_warnings() -> None:
    assert warn([policy()]) == []


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ([], "there is no policy: nothing is limited"),
        (
            [policy("a", "acme"), policy("b", "beta")],
            'no policy for tenant "*": tenants other than acme, beta are not limited',
        ),
        (
            [policy(effective_from_us=AT_NOON_US)],
            (
                'before 2023-11-16T12:00:00Z no policy for tenant "*" holds: '
                "tenants without one of their own are not limited"
            ),
        ),
        ([policy(limits=())], "policy everyone: has no limits"),
        (
            [policy(limits=(tokens(mode=DecisionMode.SHADOW),))],
            "policy everyone: all limits are in shadow: nothing is enforced",
        ),
        (
            [policy("a"), policy("b")],
            "policy a: never holds, as b is for the same tenant from the same time; the later in the file wins",
        ),
        (
            [policy(limits=(tokens(counts_prompt=False, limit=1_000),))],
            (
                "policy everyone, limit tokens: default_completion_tokens is 1,024, more than the 1,000 that can be "
                "taken at once: until completions have been learned, a request without max_tokens reserves all of it"
            ),
        ),
        (
            [policy(limits=(tokens(burst=2_000),))],
            (
                "policy everyone, limit tokens: its burst of 2,000 is smaller than many prompts: a request that needs "
                "more tokens at once is rejected, not throttled"
            ),
        ),
        (
            [policy(), policy("a", "acme", limits=(tokens(only=frozenset({"beta"})),))],
            "policy a, limit tokens: is only for beta, and the policy is for acme: it limits nobody",
        ),
    ],
)
def test_what_is_seldom_meant_is_warned_of(policies: list[LimiterPolicy], said: str) -> None:
    assert warn(policies) == [said]


def test_a_tenant_whose_first_policy_begins_late_is_unlimited_before_it() -> None:
    late = policy("a", "acme", effective_from_us=AT_NOON_US)

    assert warn([policy(), late]) == []
    assert warn([policy(effective_from_us=5), late])[-1] == (
        "before 1970-01-01T00:00:00.000005Z no policy holds for tenant acme: it is not limited"
    )


def test_limits_in_shadow_are_not_warned_of_for_what_they_would_refuse() -> None:
    small = tokens("small", limit=100, mode=DecisionMode.SHADOW)

    assert warn([policy(limits=(tokens(), small))]) == []


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner()


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.yaml"
    path.write_text("version: 1\npolicies:\n  - {id: a, tenant: b, limits: [], trafic: live}\n  - {}\n")
    return path


def test_a_fine_file_is_told_with_its_warnings(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "fine.yaml"
    path.write_text("version: 1\npolicies:\n  - {id: '[red]', tenant: acme, limits: []}\n")

    result = run.invoke(policy_app, ["check", str(path)])

    assert result.exit_code == 0
    assert result.stderr == ""
    assert "fine.yaml is fine: 1 policy, 0 limits" in result.stdout.replace("\n", "")
    assert "[red]. From the beginning: tenant acme." in result.stdout
    assert "2 warnings" in result.stdout


def test_the_demo_s_policies_pass_without_a_warning(run: CliRunner) -> None:
    result = run.invoke(policy_app, ["check", str(DEMO), "--json"])

    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["ok"] is True
    assert said["warnings"] == []
    assert [policy["tenant"] for policy in said["policies"]][:2] == ["*", "tenant-01"]
    assert all(policy["limits"] for policy in said["policies"])


def test_a_wrong_file_is_one_line_for_each_fault_and_status_1(run: CliRunner, wrong: Path) -> None:
    result = run.invoke(policy_app, ["check", str(wrong)])

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{wrong}:3: policies[0].trafic: is no field that is known here; did you mean traffic?",
        f"{wrong}:4: policies[1].id: is missing",
        f"{wrong}:4: policies[1].tenant: is missing",
        f"{wrong}:4: policies[1].limits: is missing",
    ]


def test_a_wrong_file_as_json_names_line_and_field(run: CliRunner, wrong: Path) -> None:
    result = run.invoke(policy_app, ["check", str(wrong), "--json"])

    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["ok"] is False
    assert said["errors"][0] == {
        "line": 3,
        "field": "policies[0].trafic",
        "message": "is no field that is known here; did you mean traffic?",
    }
    assert len(said["errors"]) == 4


@pytest.mark.parametrize("arguments", [["check"], ["check", "a", "b"], ["check", "a", "--jsn"], ["chek", "a"]])
def test_wrong_use_of_the_command_is_status_2(run: CliRunner, arguments: list[str]) -> None:
    assert run.invoke(policy_app, arguments).exit_code == 2


def test_help_has_examples(run: CliRunner) -> None:
    result = run.invoke(policy_app, ["check", "--help"])

    assert result.exit_code == 0
    assert "headrace policy check data/policies/demo.yaml" in result.stdout
