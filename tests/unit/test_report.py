"""The report: one file, whole in itself, safe with foreign names, the same for the same run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from jobs.ops.report import Origin, render
from jobs.ops.report_run import ANOMALY_MEANINGS
from jobs.ops.report_tenants import MOST_LISTED, MOST_PLOTTED
from jobs.ops.summary import (
    Counts,
    JobFacts,
    LimitStep,
    RunSummary,
    SourceLateness,
    TenantSummary,
    WatermarkPoint,
)
from jobs.ops.token_use import PeakUse
from udfs.domain.anomaly import Anomaly

SECOND = 1_000_000
START = 1_700_158_540 * SECOND
ORIGIN = Origin(
    trace="Azure LLM inference trace 2023",
    licence="CC-BY 4.0",
    citation="Patel et al., Splitwise, ISCA 2024",
    spreading="tenant i gets a share proportional to 1 / i",
    seed=1,
    version="0.1.0",
)
VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "<script>alert(1)</script>\"'&</title>"


def tenant(name: str, *, buckets: int = 6, tokens: int = 900, limit: int = 1000) -> TenantSummary:
    return TenantSummary(
        tenant=name,
        counts=Counts(
            requests=5, admitted=3, throttled=2, settled=3, reserved_tokens=1200, used_tokens=900, refunded_tokens=300
        ),
        peak=PeakUse(
            limit_name="tokens",
            window_us=60 * SECOND,
            at_us=START + 20 * SECOND,
            tokens=tokens,
            limit=limit,
            share=tokens / limit,
            within=tokens <= limit,
        ),
        steps=(LimitStep(START, limit, 60 * SECOND), LimitStep(START + 30 * SECOND, limit * 2, 60 * SECOND)),
        rolling_tokens=tuple(tokens * index // buckets for index in range(buckets)),
        refused=(0, 1, 3, 9, *[0] * (buckets - 4)),
        revoked=(0, 0, 1, *[0] * (buckets - 3)),
    )


def run(*tenants: TenantSummary, buckets: int = 6, job: JobFacts | None = None) -> RunSummary:
    kinds = ("admit", "throttle", "reject", "extend", "revoke", "settle")
    return RunSummary(
        start_us=START,
        end_us=START + buckets * 10 * SECOND - 1,
        bucket_us=10 * SECOND,
        buckets=buckets,
        total=Counts(requests=5 * len(tenants), admitted=3 * len(tenants), throttled=2 * len(tenants)),
        tenants=tenants,
        decisions={kind: tuple([1] * buckets) for kind in kinds},
        job=job
        or JobFacts(
            events=300,
            wall_seconds=1.5,
            events_per_second=200.0,
            dead_letters={"MALFORMED": 2},
            anomalies={"void": 7, "behind_clock": 9},
            lateness=(
                SourceLateness(
                    source="gateway-1", events=300, late_events=3, p50_us=0, p95_us=40_000, p99_us=900_000,
                    max_lateness_us=2_000_000, delta_us=900_000,
                ),
            ),
            watermark=(WatermarkPoint(START, 50_000, 0.0), WatermarkPoint(START + 15 * SECOND, 900_000, 0.02)),
        ),
    )  # fmt: skip


class Page(HTMLParser):
    """Every element with its attributes; fails where one is not closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_every_element_is_closed_and_every_id_is_unique() -> None:
    page = Page(render(run(tenant("acme"), tenant("bolt")), ORIGIN))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_from_elsewhere() -> None:
    html = render(run(tenant("acme")), ORIGIN)
    page = Page(html)
    assert [attributes.get("href") for attributes in page.attributes("link")] == ["data:,"]
    assert not any("src" in attributes or "srcset" in attributes for _, attributes in page.elements)
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", html)


def test_the_content_security_policy_allows_the_one_script() -> None:
    html = render(run(tenant("acme")), ORIGIN)
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = next(a["content"] for a in Page(html).attributes("meta") if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("place", ["tenant", "source", "anomaly", "dead letter", "trace", "citation"])
def test_foreign_text_is_text(place: str) -> None:
    calm = run(tenant("acme"))
    job, origin = calm.job, ORIGIN
    summary = calm
    match place:
        case "tenant":
            summary = run(tenant(HOSTILE))
        case "source":
            lateness = tuple(msgspec.structs.replace(source, source=HOSTILE) for source in job.lateness)
            summary = run(tenant("acme"), job=msgspec.structs.replace(job, lateness=lateness))
        case "anomaly":
            summary = run(tenant("acme"), job=msgspec.structs.replace(job, anomalies={HOSTILE: 1}))
        case "dead letter":
            summary = run(tenant("acme"), job=msgspec.structs.replace(job, dead_letters={HOSTILE: 1}))
        case "trace":
            origin = msgspec.structs.replace(ORIGIN, trace=HOSTILE)
        case _:
            origin = msgspec.structs.replace(ORIGIN, citation=HOSTILE)
    page = Page(render(summary, origin))
    assert len(page.attributes("script")) == 2
    assert [name for name, _ in page.elements if name == "title"] == ["title"]
    assert any("alert(1)" in text for text in page.texts)


def test_control_and_direction_characters_are_shown_as_unknown() -> None:
    html = render(run(tenant("a\x1b[2J\u202eb\ud800")), ORIGIN)
    assert "a\ufffd[2J\ufffdb\ufffd" in html
    html.encode()


def test_the_same_run_gives_the_same_bytes() -> None:
    summary = run(tenant("acme"))
    turned = msgspec.structs.replace(
        summary,
        decisions=dict(reversed(summary.decisions.items())),
        job=msgspec.structs.replace(summary.job, anomalies=dict(reversed(summary.job.anomalies.items()))),
    )
    assert render(summary, ORIGIN) == render(turned, ORIGIN)


def test_the_series_can_be_read_by_the_script() -> None:
    html = render(run(tenant("acme")), ORIGIN)
    found = re.search(r'<script type="application/json" id="series">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    series = json.loads(found[1])
    assert series["buckets"] == 6
    assert series["figures"]["t0"][1] == ["limit", [1000, 1000, 1000, 2000, 2000, 2000], " tokens"]
    figures = {a["data-series"] for a in Page(html).attributes("figure")}
    assert figures == set(series["figures"])
    assert all(len(values) == 6 for figure in series["figures"].values() for _, values, _ in figure)


def test_a_change_of_the_limit_is_a_step_in_the_plot() -> None:
    html = render(run(tenant("acme", tokens=900, limit=1000)), ORIGIN)
    step = re.search(r'<path class="step limit" d="M0 (\S+?)H500V(\S+?)H1000"/>', html)
    assert step is not None
    assert float(step[1]) > float(step[2])


def test_tables_and_plots_say_what_they_are() -> None:
    page = Page(render(run(tenant("acme")), ORIGIN))
    assert all(a.get("scope") in {"row", "col", "colgroup"} for a in page.attributes("th"))
    assert all(a.get("role") == "img" and a.get("aria-label") for a in page.attributes("svg"))
    assert len(page.attributes("caption")) == len(page.attributes("table"))
    assert page.attributes("html") == [{"lang": "en"}]


def test_the_tenants_name_and_figures_are_in_its_plots_label() -> None:
    labels = [a["aria-label"] or "" for a in Page(render(run(tenant("acme")), ORIGIN)).attributes("svg")]
    assert any("acme" in label and "900 of 1,000" in label for label in labels)


def test_a_limit_that_did_not_hold_is_said_first() -> None:
    html = render(run(tenant("acme"), tenant("bolt", tokens=1100)), ORIGIN)
    assert "1 of 2 limited tenants went beyond a token limit." in html
    assert 'class="text bad">over<' in html
    assert "110.0 %" in html


def test_a_tenant_without_a_limit_has_a_plot_without_one() -> None:
    free = msgspec.structs.replace(tenant("acme"), peak=None, steps=())
    html = render(run(free), ORIGIN)
    assert "No tenant has an enforced token limit of its own." in html
    assert '"step limit"' not in html


def test_an_empty_run_has_a_report() -> None:
    job = JobFacts(events=0, wall_seconds=0.0, events_per_second=0.0)
    page = Page(render(run(buckets=1, job=job), ORIGIN))
    assert not any("Odd input" in text for text in page.texts)


def test_thousands_of_tenants_fit_into_the_file() -> None:
    many = [tenant(f"tenant-{'x' * 60}-{number}", buckets=360) for number in range(3000)]
    html = render(run(*many, buckets=360), ORIGIN)
    assert len(html.encode()) < 1_500_000
    page = Page(html)
    assert len([a for a in page.attributes("figure") if (a["data-series"] or "").startswith("t")]) == MOST_PLOTTED
    assert f"The {MOST_LISTED} busiest of 3,000 are shown." in html


def test_every_anomaly_has_a_meaning() -> None:
    assert set(ANOMALY_MEANINGS) == set(Anomaly)


def contrast(one: str, other: str) -> float:
    """As WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        digits = colour.removeprefix("#")
        digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_a_contrast_of_at_least_four_and_a_half(theme: int) -> None:
    html = render(run(tenant("acme")), ORIGIN)
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{3,6})", re.findall(r":root \{(.*?)\}", html, re.DOTALL)[theme]))
    for ground in ("canvas", "panel", "head"):
        for ink in ("ink", "muted", "good", "bad"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for mark in ("use", "admit", "throttle", "reject", "revoke", "limit"):
        assert contrast(colours[mark], colours["panel"]) >= 3.0, mark
