"""Any policy written to a file and read back is equal, however its quantities are written."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jobs.wiring.policies import PolicyFileError, Problem, parse_policies
from schemas.decisions import DecisionMode, LimitLevel, LimitUnit
from udfs.domain.limiter.policy import MAX_WINDOW_US, SLOTS_PER_WINDOW, Limit, LimiterPolicy
from udfs.domain.limiter.tokens import IMPLAUSIBLE_TOKENS

HERE = Path("policies.yaml")
DURATION_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60 * 10**6, "h": 3_600 * 10**6, "d": 86_400 * 10**6}

names = st.text(min_size=1, max_size=12).filter(str.isprintable)
tokens = st.integers(1, IMPLAUSIBLE_TOKENS - 1)
windows_us = st.one_of(
    st.integers(SLOTS_PER_WINDOW, MAX_WINDOW_US),
    st.builds(lambda seconds: seconds * 10**6, st.integers(1, 31 * 86_400)),
)


@st.composite
def limits(draw: st.DrawFn, name: str) -> Limit:
    unit = draw(st.sampled_from(LimitUnit))
    is_streams = unit is LimitUnit.STREAMS
    limit = draw(st.integers(1, 2**53))
    counts = draw(st.sampled_from([(True, True), (True, False), (False, True)])) if unit == 1 else (True, True)
    return Limit(
        name=name,
        level=draw(st.sampled_from(LimitLevel)),
        unit=unit,
        limit=limit,
        window_us=0 if is_streams else draw(windows_us),
        burst=None if is_streams else draw(st.none() | st.integers(1, limit)),
        mode=draw(st.sampled_from(DecisionMode)),
        counts_prompt=counts[0],
        counts_completion=counts[1],
        only=draw(st.frozensets(names, max_size=3)),
    )


@st.composite
def policies(draw: st.DrawFn) -> list[LimiterPolicy]:
    return [
        LimiterPolicy(
            id=id_,
            match=draw(st.just("*") | names),
            effective_from_us=draw(st.just(0) | st.integers(0, 253_402_300_799_999_999)),
            limits=tuple(draw(limits(name)) for name in draw(st.lists(names, max_size=3, unique=True))),
            cached_weight_permille=draw(st.integers(0, 1000)),
            default_completion_tokens=draw(tokens),
            estimate_quantile=draw(st.integers(1, 10**9 - 1)) / 10**9,
            estimate_after=draw(st.integers(1, 1_000_000)),
            extension_tokens=draw(tokens),
            silence_timeout_us=draw(st.integers(1, MAX_WINDOW_US)),
            remember_requests=draw(st.integers(1, 100_000)),
            max_subjects=draw(st.integers(1, 1_000_000)),
            traffic_is_recorded=draw(st.booleans()),
        )
        for id_ in draw(st.lists(names, max_size=3, unique=True))
    ]


def quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class Writer:
    """Writes policies as YAML flow mappings, each quantity in one of the ways in which it can be written."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def count(self, count: int) -> str:
        forms = [str(count), f"{count:_}", f"{count}.0"]
        forms += [
            f"{count // times}{suffix}" for suffix, times in (("k", 1_000), ("M", 1_000_000)) if count % times == 0
        ]
        forms += [f"{count // 1_000}.{count % 1_000:03}k"]
        return self.draw(st.sampled_from(forms))

    def duration(self, duration_us: int) -> str:
        return self.draw(
            st.sampled_from(
                [
                    f"{duration_us // unit_us}{unit}"
                    for unit, unit_us in DURATION_UNITS.items()
                    if duration_us % unit_us == 0
                ]
            )
        )

    def instant(self, at_us: int) -> str:
        # Far enough from the first and last year that every zone can name it.
        hours = self.draw(st.integers(-12, 14)) if 10**12 < at_us < 2 * 10**17 else 0
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=at_us)
        return at.astimezone(timezone(timedelta(hours=hours))).isoformat()

    def limit(self, limit: Limit) -> str:
        fields = {
            "name": quoted(limit.name),
            "level": limit.level.name.lower(),
            "unit": limit.unit.name.lower(),
            "limit": self.count(limit.limit),
            "mode": limit.mode.name.lower(),
        }
        if limit.unit is not LimitUnit.STREAMS:
            fields["window"] = self.duration(limit.window_us)
        if limit.burst is not None:
            fields["burst"] = self.count(limit.burst)
        counts = ["prompt"] * limit.counts_prompt + ["completion"] * limit.counts_completion
        if limit.unit is LimitUnit.TOKENS:
            fields["counts"] = f"[{', '.join(counts)}]"
        if limit.only:
            fields["only"] = quoted(sorted(limit.only))
        return self.mapping(fields)

    def policy(self, policy: LimiterPolicy) -> str:
        fields = {
            "id": quoted(policy.id),
            "tenant": quoted(policy.match),
            "traffic": "recorded" if policy.traffic_is_recorded else "live",
            "limits": f"[{', '.join(map(self.limit, policy.limits))}]",
            "cached_weight": f"{policy.cached_weight_permille // 1000}.{policy.cached_weight_permille % 1000:03}",
            "default_completion_tokens": self.count(policy.default_completion_tokens),
            "estimate_quantile": f"{policy.estimate_quantile:.9f}",
            "estimate_after": self.count(policy.estimate_after),
            "extension_tokens": self.count(policy.extension_tokens),
            "silence_timeout": self.duration(policy.silence_timeout_us),
            "remember_requests": self.count(policy.remember_requests),
            "max_subjects": self.count(policy.max_subjects),
        }
        if policy.effective_from_us or self.draw(st.booleans()):
            fields["effective_from"] = self.instant(policy.effective_from_us)
        return self.mapping(fields)

    def mapping(self, fields: dict[str, str]) -> str:
        order = self.draw(st.permutations(list(fields)))
        return "{" + ", ".join(f"{name}: {fields[name]}" for name in order) + "}"


@st.composite
def written_policies(draw: st.DrawFn) -> tuple[str, list[LimiterPolicy]]:
    drawn = draw(policies())
    writer = Writer(draw)
    lines = [f"  - {writer.policy(policy)}" for policy in drawn]
    return "\n".join(["version: 1", "policies:" if lines else "policies: []", *lines]), drawn


@given(written_policies())
def test_policies_written_and_read_back_are_equal(written: tuple[str, list[LimiterPolicy]]) -> None:
    text, expected = written

    assert list(parse_policies(text, HERE).policies) == expected


WORDS = [
    *"*&:-,[]{}'\"#!|>~?%@1a\n\t\\",
    "\n  ",
    "\n  - ",
    "version: 1",
    "policies: ",
    "id: ",
    "tenant: ",
    "limits: ",
    "60s",
]


def problems_of(text: str) -> tuple[Problem, ...]:
    try:
        parse_policies(text, HERE)
    except PolicyFileError as error:
        return error.problems
    return ()


@given(st.text() | st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
def test_whatever_stands_in_a_file_each_fault_is_one_line_with_a_line_of_the_file(text: str) -> None:
    for problem in problems_of(text):
        assert str(problem).isprintable()
        assert problem.line is None or 1 <= problem.line <= len(text.splitlines()) + 1
