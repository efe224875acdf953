"""Dashboards and alert rules: expressions that Prometheus takes, on metrics that exist, with a page to open."""

from __future__ import annotations

import json
import re
from typing import Any

import promql_parser
import pytest
import yaml

from jobs.wiring.names import ADMISSION_JOB, job_name
from schemas.dead_letters import DeadLetterReason
from schemas.decisions import DecisionKind
from tests.contract.manifests import K8S, REPOSITORY, Manifest, build, merged_template, only
from udfs.domain.anomaly import Anomaly
from udfs.domain.ingest.stamping import StampingFold
from udfs.domain.limiter import LimiterFold
from udfs.operators.metric_names import (
    dead_letter_counter,
    decision_counter,
    fold_metrics,
    known_names,
    prometheus_label,
    prometheus_name,
    prometheus_names,
)

MONITORING = K8S / "monitoring"
RUNBOOKS = (
    "job-restarts-in-a-loop",
    "lag-grows",
    "checkpoint-fails",
    "poison-record",
    "bad-policy-shipped",
    "savepoint-incompatible",
    "region-lost",
)
# Grafana's own variables, as a range or a value that they stand for.
VARIABLES = {
    "$__rate_interval": "5m",
    "$namespace": "headrace",
    "$job_name": "headrace_(admission(_g[0-9]+)?|ingest)",
}

ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["spec"]["groups"]
    for rule in group["rules"]
]
BOARDS: dict[str, dict[str, Any]] = {
    path.name: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((MONITORING / "dashboards").glob("*.json"))
}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in ALERTS),
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for _, panel in PANELS
        for target in panel["targets"]
    ),
]


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """Every selector of an expression. Raises ValueError where Prometheus would not take it."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def labels(selector: promql_parser.VectorSelector) -> dict[str, str]:
    """What a selector asks of labels."""
    return {matcher.name: matcher.value for matcher in selector.matchers.matchers}


def used() -> set[str]:
    return {str(selector.name) for case in EXPRESSIONS for selector in selectors(str(case.values[0]))}


# --- expressions ---


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_of_an_expression_exist(expression: str) -> None:
    names = {selector.name for selector in selectors(expression)}

    assert names
    assert names <= known_names()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_our_job(expression: str) -> None:
    """Others run on the same Prometheus: a selector without a label of ours adds theirs."""
    folds = set(prometheus_names())
    for selector in selectors(expression):
        asked = labels(selector)
        if selector.name in folds:
            assert asked["fold"] in {LimiterFold.name, StampingFold.name}
        if str(selector.name).startswith(("flink_jobmanager_job_", "flink_taskmanager_job_")):
            # A rollback writes the next generation, by a job of another name.
            for generation in (1, 2, 12):
                assert re.fullmatch(asked["job_name"], prometheus_label(job_name("admission", generation)))
            assert not re.fullmatch(asked["job_name"], "headrace_routing")
        else:
            assert {"pod", "namespace"} & asked.keys()
        if "pod" in asked:
            assert re.fullmatch(asked["pod"], f"{ADMISSION_JOB}-taskmanager-1")
            assert re.fullmatch(asked["pod"], f"{ADMISSION_JOB}-5d8f-x2")


@pytest.mark.parametrize("slip", ["rate(a[5m]", "sum by namespace (a)", 'a{b="c"', "rate(a)", "a > > 1"])
def test_a_slip_in_an_expression_is_found(slip: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        selectors(slip)


def test_the_parser_finds_names_wherever_they_stand() -> None:
    found = selectors("sum(rate(a[5m])) / on (x) max_over_time(b[1h:1m]) > 3 or absent(c) unless -(d offset 1h)")

    assert {selector.name for selector in found} == {"a", "b", "c", "d"}


def test_every_metric_of_a_fold_is_shown_somewhere() -> None:
    """What is counted and shown nowhere is dropped in silence after all."""
    assert {prometheus_name(metric) for metric in fold_metrics()} - used() == set()
    assert all(prometheus_name(anomaly.value) in used() for anomaly in Anomaly)


# --- alerts ---


def _alert(name: str) -> dict[str, Any]:
    (found,) = [rule for rule in ALERTS if rule["alert"] == name]
    return found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_which_page_to_open(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    page = re.fullmatch(r"https://\S+/docs/runbooks/([a-z-]+)\.md", annotations["runbook_url"])

    assert page
    assert page.group(1) in RUNBOOKS
    assert annotations["summary"]
    assert annotations["description"]
    assert rule["labels"]["severity"] in {"critical", "warning"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_that_is_about_now_waits_before_it_wakes_somebody(rule: dict[str, Any]) -> None:
    """An expression over a window has waited already."""
    assert "for" in rule or "increase(" in rule["expr"]


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_quotes_only_labels_that_it_keeps(rule: dict[str, Any]) -> None:
    quoted = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]))
    kept = set(re.split(r", ?", "".join(re.findall(r"^\S+ by \(([^)]*)\)", rule["expr"]))))

    assert quoted <= kept


def test_alert_names_are_given_once() -> None:
    names = [rule["alert"] for rule in ALERTS]

    assert len(names) == len(set(names))


def test_every_runbook_has_an_alert_that_opens_it() -> None:
    opened = {rule["annotations"]["runbook_url"].rpartition("/")[2].removesuffix(".md") for rule in ALERTS}

    assert opened == set(RUNBOOKS)


@pytest.mark.parametrize("name", RUNBOOKS)
def test_runbooks_are_there(name: str) -> None:
    assert (REPOSITORY / "docs" / "runbooks" / f"{name}.md").is_file()


def test_every_reason_for_a_dead_letter_raises_an_alert() -> None:
    watched = {
        selector.name
        for name in ("HeadraceDeadLetters", "HeadraceFoldFailed")
        for selector in selectors(_alert(name)["expr"])
    }

    assert watched == {prometheus_name(dead_letter_counter(reason)) for reason in DeadLetterReason}


# --- dashboards ---


def test_there_are_dashboards_with_titles_of_their_own() -> None:
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS) > 0
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize(
    ("board", "panel"), PANELS, ids=lambda value: value["title"] if isinstance(value, dict) else ""
)
def test_a_panel_has_a_unit_and_says_what_it_shows(board: str, panel: dict[str, Any]) -> None:
    assert panel["title"], board
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert all(target["legendFormat"] for target in panel["targets"])
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_side_by_side(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    panels = BOARDS[name]["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("name", BOARDS)
def test_variables_of_a_dashboard_are_declared(name: str) -> None:
    variables = {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}
    declared = variables.keys()
    assert variables["job_name"]["allValue"] in {"headrace_admission(_g[0-9]+)?", "headrace_ingest"}
    assert re.fullmatch(VARIABLES["$job_name"], variables["job_name"]["allValue"].replace("(_g[0-9]+)?", "_g2"))
    asked = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARDS[name]["panels"])))

    assert {variable for variable in asked if not variable.startswith("__")} <= declared


def test_decisions_of_every_kind_are_shown() -> None:
    shown = json.dumps(BOARDS["headrace-admission.json"])

    assert all(f"{prometheus_name(decision_counter(kind))}{{" in shown for kind in DecisionKind)


# --- what is deployed ---


def test_prometheus_scrapes_the_pods_and_grafana_finds_the_dashboards() -> None:
    manifests = build("production")
    deployment = only(manifests, "FlinkDeployment")
    (endpoint,) = only(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]
    boards = only(manifests, "ConfigMap", "headrace-dashboards")

    assert only(manifests, "PodMonitor")["spec"]["selector"] == {"matchLabels": {"app": deployment["metadata"]["name"]}}
    for component in ("jobManager", "taskManager"):
        assert endpoint["port"] in _ports(deployment, component)
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == BOARDS
    assert [rule for group in only(manifests, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]] == ALERTS


def _ports(deployment: Manifest, component: str) -> set[str]:
    (container,) = merged_template(deployment, component)["spec"]["containers"]
    return {port["name"] for port in container["ports"]}
