"""What the pods of k8s/ may do, and whom they may reach: no more than the job needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.manifests import (
    MAIN_CONTAINER,
    Manifest,
    job_settings,
    merged_template,
    only,
)

COMPONENTS = ("jobManager", "taskManager")
PASSWORD = "HEADRACE_KAFKA__SASL_PASSWORD"  # noqa: S105 - the name of a variable


# --- least rights ---


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_run_without_rights(deployment: Manifest, component: str) -> None:
    """What Pod Security's `restricted` asks for, and a root file system that nothing is written to."""
    pod = merged_template(deployment, component)["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 9999
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        allowed = container["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["capabilities"] == {"drop": ["ALL"]}
    writable = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
    assert {"/tmp", "/opt/flink/log"} <= writable  # noqa: S108 - a path in the container
    assert not any("hostPath" in volume for volume in pod["volumes"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_scratch_volumes_are_bounded(deployment: Manifest, component: str) -> None:
    for volume in merged_template(deployment, component)["spec"]["volumes"]:
        if "emptyDir" in volume:
            assert "sizeLimit" in volume["emptyDir"], volume["name"]


def test_the_namespace_refuses_pods_with_more_rights(manifests: list[Manifest]) -> None:
    labels = only(manifests, "Namespace")["metadata"]["labels"]

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_accounts_may_do_what_flink_does_and_nothing_else(manifests: list[Manifest], deployment: Manifest) -> None:
    job_manager = deployment["spec"]["serviceAccount"]
    task_manager = deployment["spec"]["flinkConfiguration"]["kubernetes.taskmanager.service-account"]
    reads = {"get", "list", "watch"}
    own = deployment["metadata"]["name"]

    assert _rights(manifests, task_manager) == {("", "configmaps", verb, "") for verb in reads}
    assert _rights(manifests, job_manager) == {
        *(("", "configmaps", verb, "") for verb in reads | {"create", "update", "patch", "delete"}),
        *(("", "pods", verb, "") for verb in reads | {"create", "delete"}),
        ("apps", "deployments", "get", own),
        ("apps", "deployments/finalizers", "update", own),
    }
    assert not [manifest for manifest in manifests if manifest["kind"].startswith("ClusterRole")]


def _rights(manifests: list[Manifest], account: str) -> set[tuple[str, str, str, str]]:
    """Group, resource, verb and name (any where empty) of all that an account may do."""
    assert only(manifests, "ServiceAccount", account)
    roles = [
        only(manifests, "Role", binding["roleRef"]["name"])
        for binding in manifests
        if binding["kind"] == "RoleBinding"
        and account in [subject["name"] for subject in binding["subjects"] if subject["kind"] == "ServiceAccount"]
    ]
    return {
        (group, resource, verb, name)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def test_passwords_come_from_secrets_alone(manifests: list[Manifest], deployment: Manifest, overlay: str) -> None:
    for component in COMPONENTS:
        for container in merged_template(deployment, component)["spec"]["containers"]:
            for variable in container.get("env", []):
                assert set(variable) == {"name", "valueFrom"}
                assert "secretKeyRef" in variable["valueFrom"]
    assert not [manifest for manifest in manifests if manifest["kind"] == "Secret"]
    texts = [text for manifest in manifests if manifest["kind"] == "ConfigMap" for text in manifest["data"].values()]
    assert not [text for text in texts if re.search(r"password\s*[:=]", text)]
    (job_manager,) = merged_template(deployment, "jobManager")["spec"]["containers"]
    assert [variable["name"] for variable in job_manager.get("env", [])] == ([PASSWORD] if overlay != "dev" else [])


# --- the network ---


def _labels(deployment: Manifest, component: str) -> dict[str, str]:
    """The labels of a component's pods: the template's, and those that Flink gives them."""
    given = {
        "app": deployment["metadata"]["name"],
        "component": component.lower(),
        "type": "flink-native-kubernetes",
    }
    own: dict[str, str] = merged_template(deployment, component)["metadata"]["labels"]
    return own | given


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return set(selector.get("matchLabels", {}).items()) <= set(labels.items())


def _policies(manifests: list[Manifest]) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy"]


def test_what_is_not_allowed_is_denied(manifests: list[Manifest]) -> None:
    closed = only(manifests, "NetworkPolicy", "default-deny")["spec"]

    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_reach_each_other_and_kafka(
    manifests: list[Manifest], deployment: Manifest, component: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "secret")
    labels = _labels(deployment, component)
    mine = [policy["spec"] for policy in _policies(manifests) if _selects(policy["spec"]["podSelector"], labels)]
    out = [rule for policy in mine for rule in policy.get("egress", [])]
    in_ = [rule for policy in mine for rule in policy.get("ingress", [])]
    peers = [_labels(deployment, other) for other in COMPONENTS]

    for rules, side in ((out, "to"), (in_, "from")):
        for peer in peers:
            assert any(
                _selects(place["podSelector"], peer)
                for rule in rules
                for place in rule[side]
                if "podSelector" in place and "namespaceSelector" not in place and "ports" not in rule
            )
    ports = {port["port"] for rule in out for port in rule.get("ports", [])}
    servers = job_settings(manifests, tmp_path).kafka.servers.split(",")
    assert {int(server.rpartition(":")[2]) for server in servers} <= ports
    assert {53, 443} <= ports


def test_only_the_operator_reaches_the_rest_port(manifests: list[Manifest]) -> None:
    """Whoever reaches it can stop the job."""
    who = [
        place
        for policy in _policies(manifests)
        for rule in policy["spec"].get("ingress", [])
        if 8081 in [port["port"] for port in rule.get("ports", [])]
        for place in rule["from"]
    ]

    assert [place["podSelector"]["matchLabels"] for place in who] == [
        {"app.kubernetes.io/name": "flink-kubernetes-operator"}
    ]


def test_the_metrics_port_is_open_where_it_is_scraped(manifests: list[Manifest], deployment: Manifest) -> None:
    port = int(deployment["spec"]["flinkConfiguration"]["metrics.reporter.prom.port"])
    ports = [
        allowed["port"]
        for policy in _policies(manifests)
        for rule in policy["spec"].get("ingress", [])
        for allowed in rule.get("ports", [])
    ]
    (container,) = merged_template(deployment, "taskManager")["spec"]["containers"]

    assert port in ports
    assert {"name": "metrics", "containerPort": port} in container["ports"]


def test_disruption_budgets_leave_drains_a_way(manifests: list[Manifest], deployment: Manifest) -> None:
    """TaskManagers have no controller in native mode, so only a number is taken; JobManagers are a Deployment's."""
    expected = {}
    if (parallelism := deployment["spec"]["job"]["parallelism"]) > 1:
        expected["taskManager"] = {"minAvailable": parallelism - 1}
    if deployment["spec"]["jobManager"]["replicas"] > 1:
        expected["jobManager"] = {"maxUnavailable": 1}
    found = {}
    for budget in (manifest["spec"] for manifest in manifests if manifest["kind"] == "PodDisruptionBudget"):
        (component,) = [it for it in COMPONENTS if _selects(budget["selector"], _labels(deployment, it))]
        found[component] = {key: value for key, value in budget.items() if key != "selector"}

    assert found == expected


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_have_resources_and_probes(deployment: Manifest, component: str) -> None:
    (container,) = merged_template(deployment, component)["spec"]["containers"]

    assert container["name"] == MAIN_CONTAINER
    assert {"livenessProbe", "readinessProbe"} <= container.keys()
    assert {"cpu", "memory"} <= deployment["spec"][component]["resource"].keys()
