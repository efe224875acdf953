from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from jobs.wiring.located_yaml import MAX_DEPTH, MAX_VALUES
from jobs.wiring.policies import MAX_FILE_BYTES, PolicyFileError, load_policies, parse_policies
from jobs.wiring.quantities import QuantityError, parse_count, parse_duration_us, parse_instant_us, parse_permille
from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import Limit, LimiterPolicy

HERE = Path("policies.yaml")


def faults(text: str) -> list[str]:
    """What is said of `text`, without the name of the file."""
    with pytest.raises(PolicyFileError) as caught:
        parse_policies(dedent(text), HERE)
    lines = str(caught.value).splitlines()
    assert lines == [str(problem) for problem in caught.value.problems]
    return [line.removeprefix("policies.yaml:").strip() for line in lines]


def faults_of_limit(fields: str) -> list[str]:
    head = 'version: 1\npolicies:\n  - id: a\n    tenant: "*"\n    limits:\n'
    return faults(head + "      - {name: x, " + fields + "}\n")


def faults_of_policy(fields: str) -> list[str]:
    return faults('version: 1\npolicies:\n  - {id: a, tenant: "*", limits: [], ' + fields + "}\n")


# --- what is read -------------------------------------------------------------------------------------------------


def test_every_field_is_read() -> None:
    text = """\
        version: 1
        policies:
          - id: acme-2
            tenant: acme
            effective_from: 2023-11-16T18:45:00Z
            traffic: recorded
            cached_weight: 0.25
            default_completion_tokens: 2k
            estimate_quantile: 0.9
            estimate_after: 5
            extension_tokens: 128
            silence_timeout: 30s
            remember_requests: 1_000
            max_subjects: 50k
            limits:
              - name: tokens
                level: user
                unit: tokens
                limit: 60k
                window: 1m
                burst: 1.5k
                mode: shadow
                counts: [prompt]
                only: [bob, alice]
              - {name: streams, level: model, unit: streams, limit: 8}
        """
    assert parse_policies(dedent(text), HERE).policies == (
        LimiterPolicy(
            id="acme-2",
            match="acme",
            effective_from_us=1_700_160_300_000_000,
            traffic_is_recorded=True,
            cached_weight_permille=250,
            default_completion_tokens=2_000,
            estimate_quantile=0.9,
            estimate_after=5,
            extension_tokens=128,
            silence_timeout_us=30_000_000,
            remember_requests=1_000,
            max_subjects=50_000,
            limits=(
                Limit(
                    name="tokens",
                    level=LimitLevel.USER,
                    unit=LimitUnit.TOKENS,
                    limit=60_000,
                    window_us=60_000_000,
                    burst=1_500,
                    mode=DecisionMode.SHADOW,
                    counts_completion=False,
                    only=frozenset({"alice", "bob"}),
                ),
                Limit(name="streams", level=LimitLevel.MODEL, unit=LimitUnit.STREAMS, limit=8),
            ),
        ),
    )


def test_what_is_left_out_is_as_policies_have_it_anyway() -> None:
    text = 'version: 1\npolicies: [{id: a, tenant: "*", limits: []}]\n'

    assert parse_policies(text, HERE).policies == (LimiterPolicy(id="a", match="*"),)


@pytest.mark.parametrize("tenant", ["no", "on", "12", "1e3", "2023-11-16", "0x1f", '"null"', "true", "ünï-код"])
def test_a_name_that_looks_like_something_else_is_still_a_name(tenant: str) -> None:
    text = f"version: 1\npolicies: [{{id: a, tenant: {tenant}, limits: []}}]\n"

    assert parse_policies(text, HERE).policies[0].match == tenant.strip('"')


def test_an_alias_is_read_as_what_it_stands_for() -> None:
    text = """\
        version: 1
        policies:
          - {id: a, tenant: a, limits: [&streams {name: s, level: tenant, unit: streams, limit: 8}]}
          - {id: b, tenant: b, limits: [*streams]}
        """
    first, second = parse_policies(dedent(text), HERE).policies

    assert first.limits == second.limits


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_bytes(b'\xef\xbb\xbfversion: 1\r\npolicies:\r\n  - {id: a, tenant: "*", limits: []}\r\n')

    assert load_policies(path).policies == (LimiterPolicy(id="a", match="*"),)


def test_the_demo_s_policies_are_fine() -> None:
    policies = load_policies(Path(__file__).parents[2] / "data/policies/demo.yaml").policies

    assert {policy.match for policy in policies} >= {"*", "tenant-01", "tenant-02"}
    assert all(policy.traffic_is_recorded for policy in policies)
    assert any(policy.effective_from_us == parse_instant_us("2023-11-16T18:45:00Z") for policy in policies)


# --- what is wrong with a file ------------------------------------------------------------------------------------


def test_each_fault_is_one_line_with_its_place_in_the_order_of_the_file() -> None:
    text = """\
        version: 2
        policies:
          - id: a
            tenant: "*"
            effective_from: 2023-11-16T18:45:00
            limits:
              - name: x
                level: tenat
                unit: tokens
                limit: 60K

                # a comment
                window: 60
              - name: x
                level: tenant
                unit: tokens
                limit: 60k
                burst: 70k
                window: 60s
                moed: shadow
          - id: a
            tenant: b
            limits: all
        """
    count, duration = "must be a count such as 500, 60_000, 60k or 1.5M", "must be a duration such as 500ms, 60s"
    expected = [
        "1: version: is '2', must be 1",
        "5: policies[0].effective_from: is '2023-11-16T18:45:00' without a zone: write 2023-11-16T18:45:00Z for UTC",
        "8: policies[0].limits[0].level: is 'tenat', must be tenant, api_key, user or model; did you mean tenant?",
        f"10: policies[0].limits[0].limit: is '60K', {count}",
        f"13: policies[0].limits[0].window: is '60' without a unit, {duration}",
        "14: policies[0].limits[1].name: is 'x' as on line 7: give it another",
        "20: policies[0].limits[1].moed: is no field that is known here; did you mean mode?",
        "21: policies[1].id: is 'a' as on line 3: give it another",
        "23: policies[1].limits: is 'all', must be a list",
    ]
    found = faults(text)
    assert [line[: len(begin)] for line, begin in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("level: tenant, unit: tokens, window: 60s", "limit: is missing"),
        ("unit: tokens, limit: 1, window: 60s", "level: is missing: it must be tenant, api_key, user or model"),
        ("level: tenant, unit: tokens, limit: 1", "window: is missing: tokens are limited within a window"),
        (
            "level: tenant, unit: tokens, limit: 0, window: 60s",
            "limit: is '0', must be from 1 to 9_007_199_254_740_992",
        ),
        ("level: tenant, unit: tokens, limit: -1, window: 60s", "limit: is '-1', must be a count"),
        ("level: tenant, unit: tokens, limit: 1, window: 32d", "window: is '32d', must be from 60us to 31d"),
        (
            "level: tenant, unit: tokens, limit: 9, burst: 10, window: 1s",
            "burst: is 10, must be at most the limit of 9",
        ),
        ("level: tenant, unit: streams, limit: 1, window: 1s", "window: is not for streams"),
        ("level: tenant, unit: streams, limit: 1, burst: 1", "burst: is not for streams"),
        ("level: tenant, unit: streams, limit: 1, counts: [prompt]", "counts: chooses which tokens count"),
        ("level: tenant, unit: tokens, limit: 1, window: 1s, counts: []", "counts: is an empty list"),
        ("level: tenant, unit: tokens, limit: 1, window: 1s, only: []", "only: is an empty list"),
        ("level: tenant, unit: tokens, limit: 1, window: 1s, only: bob", "only: is 'bob', must be a list"),
        ("level: tenant, unit: streams, limit: [1]", "limit: is a list, must be a count"),
        ("level: tenant, unit: streams, limit: {a: 1}", "limit: is a mapping, must be a count"),
        ("level: tenant, unit: streams, limit: 1, mode: ", "mode: is empty: give it a value or remove the line"),
        ("level: tenant, unit: streams, limit: ", "limit: is empty: give it a value or remove the line"),
        ("level: tenant, unit: streams, limit: 1, limit: 2", "limit: stands here again, first on line 6"),
        ("level: tenant, unit: streams, limit: !!int 1", "limit: has the tag 'tag:yaml.org,2002:int'"),
        (
            "level: tenant, unit: streams, limit: 1, windw: 1s",
            "windw: is no field that is known here; did you mean win",
        ),
    ],
)
def test_a_limit_that_can_t_hold_is_refused(fields: str, said: str) -> None:
    (found,) = faults_of_limit(fields)

    assert found.startswith(f"6: policies[0].limits[0].{said}")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("cached_weight: 25%", "cached_weight: is '25%', must be a share from 0.0 to 1.0"),
        ("cached_weight: 1.01", "cached_weight: is '1.01', must be a share from 0.0 to 1.0"),
        ("cached_weight: 0.0001", "cached_weight: is '0.0001', must have at most three decimals"),
        ("estimate_quantile: 1", "estimate_quantile: is '1', must lie between 0 and 1"),
        ("traffic: recorde", "traffic: is 'recorde', must be live or recorded; did you mean recorded?"),
        ("silence_timeout: 0s", "silence_timeout: is '0s', must be from 1us to 31d"),
        ("remember_requests: 1M", "remember_requests: is '1M', must be from 1 to 100_000"),
        ("default_completion_tokens: 17M", "default_completion_tokens: is '17M', must be from 1 to 16_777_215"),
        ("effective_from: 1969-12-31T23:59:59Z", "effective_from: is '1969-12-31T23:59:59Z', must not be before 1970"),
        ("effective_from: tomorrow", "effective_from: is 'tomorrow', must be a time with its zone"),
        ("? [a, b] : 1", "has a key that is a list or mapping"),
        ('"a\\nb": 1', "['a\\nb']: is no field that is known here; the fields are id, tenant"),
    ],
)
def test_a_policy_that_can_t_hold_is_refused(fields: str, said: str) -> None:
    (found,) = faults_of_policy(fields)

    assert found.removeprefix("3: policies[0]").lstrip(".: ").startswith(said)


@pytest.mark.parametrize(
    ("tenant", "said"),
    [
        ('""', "is '', must be a name of printable characters"),
        ('"a\\nb"', "is 'a\\nb', must be a name of printable characters"),
        ('"\\ud800"', "is '\\ud800', must be a name of printable characters"),
        ("[a]", "is a list, must be a name"),
        ("~", "is empty: give it a value or remove the line"),
    ],
)
def test_a_tenant_must_be_a_name(tenant: str, said: str) -> None:
    text = f"version: 1\npolicies:\n  - id: a\n    limits: []\n    tenant: {tenant}\n"

    assert faults(text) == [f"5: policies[0].tenant: {said}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty: a policy file begins with version: 1 and policies:"),
        ("# nothing but a comment\n", "is empty: a policy file begins with version: 1 and policies:"),
        ("~\n", "is empty: a policy file begins with version: 1 and policies:"),
        ("\n- a\n", "2: is not a mapping: a policy file begins with version: 1 and policies:"),
        ("hello\n", "1: is not a mapping: a policy file begins with version: 1 and policies:"),
        ("policies: []\n", "1: version: is missing: it must be 1"),
        ("version: 1\npolicies: {a: 1}\n", "2: policies: is a mapping, must be a list"),
        ("version: 1\npolicies:\n", "2: policies: is empty: give it a value or remove the line"),
        ("version: 1\npolicies:\n  - a\n", "3: policies[0]: is 'a', must be a mapping of fields"),
        ("version: 1\npolicies: []\n---\nversion: 1\n", "3: is not YAML: but found another document"),
        ("version: 1\npolicies: [}\n", "2: is not YAML: expected the node content, but found '}'"),
        ("version: 1\n\tpolicies: []\n", "2: is not YAML: found character '\\t' that cannot start any token"),
        ("version: 1\npolicies: \x07\n", "2: holds a character that YAML does not allow: U+0007"),
        ("a: 1\n" * 2 + "tenant: *\n", '3: is not YAML: a * must be in quotes, as in tenant: "*"'),
        ("version: 1\npolicies: []\n<<: {a: 1}\n", "3: merges with <<, which is not read: write the fields out"),
        ("version: 1\npolicies: []\nversion: 1\n", "3: version: stands here again, first on line 1: keep one of them"),
    ],
)
def test_a_file_of_another_form_is_one_clear_line(text: str, said: str) -> None:
    (found,) = faults(text)

    assert found.startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "policies: " + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2),
        "policies: &loop [*loop]\n",
    ],
    ids=["unclosed", "closed", "loop"],
)
def test_nesting_has_an_end(text: str) -> None:
    (found,) = faults(text)

    assert found.startswith("1: is nested ")


def test_a_small_file_can_t_unfold_into_a_huge_one() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))

    (found,) = faults(bomb)

    assert found.endswith(f"unfolds into more than {MAX_VALUES:,} values")


# --- files that can't be read -------------------------------------------------------------------------------------


def said_of(path: Path) -> str:
    with pytest.raises(PolicyFileError) as caught:
        load_policies(path)
    return str(caught.value)


def test_a_missing_file_and_a_directory_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"

    assert said_of(missing) == f"{missing}: there is no such file"
    assert said_of(tmp_path) == f"{tmp_path}: is a directory, must be a YAML file"
    assert said_of(tmp_path / ("x" * 5_000)).endswith(": can't be read: File name too long")


def test_bytes_that_are_not_utf_8_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"version: 1\npolicies:\n  - id: caf\xe9\n")

    assert said_of(path) == f"{path}:3: is not UTF-8: invalid continuation byte"


def test_a_file_at_the_size_limit_is_read_and_one_beyond_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    head = b"version: 1\npolicies: []\n#"
    path.write_bytes(head.ljust(MAX_FILE_BYTES, b"x"))
    assert load_policies(path).policies == ()

    path.write_bytes(head.ljust(MAX_FILE_BYTES + 1, b"x"))
    assert said_of(path) == f"{path}: is larger than 1 MiB, the most that is read"


# --- quantities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "k", "1_", "_1", "1__0", "+1", "1e3", "٣", "1.5", "1.2345k", "9" * 30, "1 kk", "nan"]
)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_count(text)


@pytest.mark.parametrize("text", ["", "s", "60", "1:30", "-1s", "1y", "1M", "0.1us", "1h30m", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_duration_us(text)


@pytest.mark.parametrize("text", ["", ".5", "-0.1", "1.001", "0.5 ", "1e-1", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_permille(text)


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-16",
        "2023-11-16T18:45Z",
        "2023-02-29T00:00:00Z",
        "2023-01-01T24:00:00Z",
        "2023-01-01T00:00:60Z",
        "2023-01-01T00:00:00+25:00",
        "2023-01-01T00:00:00.0000001Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
    ],
)
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_instant_us(text)


def test_an_instant_is_read_to_the_microsecond_in_any_zone() -> None:
    assert parse_instant_us("1970-01-01T00:00:00Z") == 0
    assert parse_instant_us("1970-01-01 01:00:00.000001+01:00") == 1
    assert parse_instant_us("1969-12-31t23:30:00.500-00:30") == 500_000
    assert parse_instant_us("2023-11-16T18:45:00.1234560z") == 1_700_160_300_123_456
