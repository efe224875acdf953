"""k8s/ as a cluster would take it: schemas, the job, its settings and Flink's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.wiring.names import ADMISSION_JOB
from jobs.wiring.policies import load_policies
from tests.contract.flink_options import flatten, is_option
from tests.contract.manifests import (
    K8S,
    REPOSITORY,
    Manifest,
    build,
    custom_errors,
    job_settings,
    kubernetes_definition,
    kubernetes_errors,
    kustomize_command,
    merged_template,
    only,
    strict,
)

CONF = REPOSITORY / "flink-conf"
COMPONENTS = ("jobManager", "taskManager")
PASSWORD = "HEADRACE_KAFKA__SASL_PASSWORD"  # noqa: S105 - the name of a variable
LOCAL_TO_A_MACHINE = {
    "jobmanager.bind-host",
    "jobmanager.rpc.address",
    "rest.address",
    "rest.bind-address",
    "taskmanager.bind-host",
    "taskmanager.host",
}
BY_RESOURCES = {"jobmanager.memory.process.size", "taskmanager.memory.process.size"}
BY_OVERLAY = {
    "execution.checkpointing.dir",
    "execution.checkpointing.savepoint-dir",
    "high-availability.storageDir",
    "metrics.reporter.prom.port",
    "taskmanager.memory.task.off-heap.size",
}


# --- schemas ---


def test_every_manifest_is_what_its_api_takes(manifests: list[Manifest]) -> None:
    faults = {}
    for manifest in manifests:
        definition = kubernetes_definition(manifest)
        errors = kubernetes_errors(definition, manifest) if definition else custom_errors(manifest)
        if errors:
            faults[manifest["kind"], manifest["metadata"]["name"]] = errors

    assert not faults


@pytest.mark.parametrize("component", COMPONENTS)
def test_pods_are_what_kubernetes_takes_once_their_templates_are_merged(deployment: Manifest, component: str) -> None:
    template = merged_template(deployment, component)

    assert not kubernetes_errors("io.k8s.api.core.v1.PodTemplateSpec", template)


@pytest.mark.parametrize("path", sorted((K8S / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_what_their_api_takes(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        assert not custom_errors(manifest)
        assert manifest["spec"]["jobReference"] == {"kind": "FlinkDeployment", "name": ADMISSION_JOB}


def test_every_file_of_a_kustomization_is_built_into_something() -> None:
    """A manifest that no kustomization lists is never applied."""
    listed: set[Path] = set()
    for kustomization in K8S.rglob("kustomization.yaml"):
        folder = kustomization.parent
        read = yaml.safe_load(kustomization.read_text(encoding="utf-8"))
        names = [*read.get("resources", []), *read.get("configurations", [])]
        names += [patch["path"] for patch in read.get("patches", []) if "path" in patch]
        for generator in read.get("configMapGenerator", []):
            names += [name.split("=", 1)[-1] for name in generator["files"]]
        listed |= {kustomization, *((folder / name).resolve() for name in names)}
    written = {path for path in K8S.rglob("*") if path.suffix in {".yaml", ".json"}}

    assert written - listed == set((K8S / "examples").glob("*.yaml"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": {"upgrade": "savepoint"}}, "upgrade"),
        ({"flinkVersion": "v9_9"}, "v9_9"),
        ({"jobManager": {"replicas": "two"}}, "two"),
        ({"podTemplate": {"spec": {"containers": [{"name": "a", "imagee": "b"}]}}}, "imagee"),
    ],
)
def test_a_slip_in_a_flink_deployment_is_found(change: dict[str, Any], said: str) -> None:
    manifest = {
        "apiVersion": "flink.apache.org/v1beta1",
        "kind": "FlinkDeployment",
        "metadata": {"name": "a"},
        "spec": change,
    }

    assert said in " ".join(custom_errors(manifest))


def test_a_slip_in_a_pod_is_found() -> None:
    template = {"spec": {"containers": [{"name": "a", "securityContext": {"readOnlyRootFileSystem": True}}]}}

    assert "readOnlyRootFileSystem" in " ".join(kubernetes_errors("io.k8s.api.core.v1.PodTemplateSpec", template))


def test_closing_a_schema_leaves_open_what_is_declared_open() -> None:
    schema = strict(
        {
            "type": "object",
            "properties": {
                "free": {"x-kubernetes-preserve-unknown-fields": True, "type": "object"},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "closed": {"type": "object"},
            },
        }
    )

    assert schema["additionalProperties"] is False
    assert "additionalProperties" not in schema["properties"]["free"]
    assert schema["properties"]["map"]["additionalProperties"] == {"type": "string"}
    assert schema["properties"]["closed"]["additionalProperties"] is False


# --- settings and policies ---


def test_the_job_takes_its_settings(
    manifests: list[Manifest], overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = merged_template(only(manifests, "FlinkDeployment"), "jobManager")["spec"]["containers"]
    for variable in container.get("env", []):
        monkeypatch.setenv(variable["name"], "secret")

    settings = job_settings(manifests, tmp_path)

    assert settings.profile == "cluster"
    if overlay == "production":
        assert settings.kafka.sasl_password is not None
        assert settings.kafka.sasl_password.get_secret_value() == "secret"
        assert settings.kafka.security_protocol == "SASL_SSL"


def test_files_that_the_job_is_told_of_are_mounted(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = only(manifests, "FlinkDeployment")
    monkeypatch.setenv(PASSWORD, "secret")
    settings = job_settings(manifests, tmp_path)
    arguments = deployment["spec"]["job"]["args"]
    named = [Path(arguments[arguments.index("--config") + 1]), settings.policies, settings.kafka.ssl_ca]

    for path in filter(None, named):
        files = _mounted_files(manifests, merged_template(deployment, "jobManager"))
        assert str(path) in files
    # Kafka's consumers and producers run in the TaskManagers.
    if settings.kafka.ssl_ca:
        assert str(settings.kafka.ssl_ca) in _mounted_files(manifests, merged_template(deployment, "taskManager"))


def _mounted_files(manifests: list[Manifest], template: Manifest) -> set[str]:
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    (container,) = template["spec"]["containers"]
    files = set()
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        names: list[str] = []
        if "configMap" in volume:
            names = list(only(manifests, "ConfigMap", volume["configMap"]["name"])["data"])
        if "secret" in volume:
            names = [item["path"] for item in volume["secret"]["items"]]
        files |= {f"{mount['mountPath']}/{name}" for name in names}
    return files


def test_policies_are_read_and_their_windows_fit_into_what_is_kept(manifests: list[Manifest], tmp_path: Path) -> None:
    (config,) = [
        manifest
        for manifest in manifests
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"].startswith("headrace-policies")
    ]
    written = tmp_path / "policies.yaml"
    written.write_text(config["data"]["policies.yaml"])

    assert load_policies(written).policies


def test_config_maps_are_named_after_their_content(manifests: list[Manifest]) -> None:
    """A changed policy must be a changed FlinkDeployment: that is what upgrades the job, with a savepoint."""
    used = {
        volume["configMap"]["name"]
        for volume in merged_template(only(manifests, "FlinkDeployment"), "jobManager")["spec"]["volumes"]
        if "configMap" in volume
    }

    assert all(re.fullmatch(r"headrace-(settings|policies)-[a-z0-9]{10}", name) for name in used)
    assert used <= {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "ConfigMap"}


# --- Flink's configuration ---


def test_flinks_configuration_is_flat_text_and_every_key_is_an_option(deployment: Manifest) -> None:
    configuration = deployment["spec"]["flinkConfiguration"]

    assert all(isinstance(value, str) for value in configuration.values())
    assert [key for key in configuration if not is_option(key)] == []


def test_flinks_configuration_is_that_of_the_profile_and_of_kubernetes(deployment: Manifest) -> None:
    expected = flatten(CONF / "latency" / "config.yaml") | flatten(CONF / "kubernetes" / "config.yaml")
    configuration = deployment["spec"]["flinkConfiguration"]

    assert configuration.keys() == expected.keys() - LOCAL_TO_A_MACHINE - BY_RESOURCES
    for key in configuration.keys() - BY_OVERLAY:
        value = expected[key]
        assert configuration[key] == (str(value).lower() if isinstance(value, bool) else str(value)), key


def test_keys_that_the_operator_sets_itself_are_left_to_it(deployment: Manifest) -> None:
    refused = {"kubernetes.namespace", "kubernetes.cluster-id", "high-availability.cluster-id"}

    assert not refused & deployment["spec"]["flinkConfiguration"].keys()


def test_pods_log_as_the_profiles_do(deployment: Manifest) -> None:
    (name,) = deployment["spec"]["logConfiguration"]

    assert deployment["spec"]["logConfiguration"][name] == (CONF / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["execution.checkpointing.dir", "execution.checkpointing.savepoint-dir",
                                 "high-availability.storageDir", "state.backend.rocksdb.localdir"])  # fmt: skip
def test_what_flink_writes_has_a_place(deployment: Manifest, key: str) -> None:
    place = deployment["spec"]["flinkConfiguration"][key].removeprefix("file://")
    (container,) = merged_template(deployment, "taskManager")["spec"]["containers"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]

    assert place.startswith("s3://") or any(f"{place}/".startswith(f"{mount}/") for mount in mounts)


def test_the_fold_fits_into_its_task_manager(deployment: Manifest) -> None:
    """The arithmetic of Flink's memory model, in MiB: the heap is what is left, and must not be nothing."""
    configuration = deployment["spec"]["flinkConfiguration"]
    process = _mebibytes(deployment["spec"]["taskManager"]["resource"]["memory"])
    flink = process - 256 - max(192, 0.1 * process)
    managed = float(configuration["taskmanager.memory.managed.fraction"]) * flink
    network = min(0.1 * flink, _mebibytes(configuration["taskmanager.memory.network.max"]))
    off_heap = _mebibytes(configuration["taskmanager.memory.task.off-heap.size"])

    assert flink - managed - network - off_heap - 256 >= 512


def _mebibytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


# --- the job ---


def test_the_job_is_the_one_of_this_repository(deployment: Manifest) -> None:
    job = deployment["spec"]["job"]

    assert deployment["metadata"]["name"] == ADMISSION_JOB
    assert job["entryClass"] == "org.apache.flink.client.python.PythonDriver"
    # PythonDriver reads its own arguments first; what follows is the job's.
    assert job["args"][:2] == ["-pym", "jobs.admission"]
    assert (REPOSITORY / "jobs" / "admission.py").is_file()
    assert job["upgradeMode"] == "savepoint"


def test_one_version_of_flink_everywhere(deployment: Manifest) -> None:
    pinned = re.search(r'"apache-flink==([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned
    version = pinned.group(1)

    assert deployment["spec"]["flinkVersion"] == "v" + "_".join(version.split(".")[:2])
    assert deployment["spec"]["job"]["jarURI"] == f"local:///opt/flink/opt/flink-python-{version}.jar"
    assert f"ARG FLINK_VERSION={version}\n" in (K8S / "image" / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_has_the_version_of_the_project(deployment: Manifest) -> None:
    version = re.search(
        r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert version

    assert deployment["spec"]["image"].rpartition(":")[2] == version.group(1)


def test_there_are_no_more_subtasks_than_shards(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "secret")

    assert (
        only(manifests, "FlinkDeployment")["spec"]["job"]["parallelism"]
        <= job_settings(manifests, tmp_path).shard_count
    )


def test_a_job_manager_that_is_lost_is_found_again(deployment: Manifest) -> None:
    """Operator 1.15 can't start Flink 2 with high availability in standalone mode (FLINK-38795)."""
    assert deployment["spec"]["flinkConfiguration"]["high-availability.type"] == "kubernetes"
    assert deployment["spec"]["mode"] == "native"


# --- the tool ---


def test_building_is_repeatable(overlay: str) -> None:
    first = build(overlay)
    command = kustomize_command()
    assert command is not None
    again = subprocess.run([*command, str(K8S / "overlays" / overlay)], capture_output=True, text=True, check=True)

    assert list(yaml.safe_load_all(again.stdout)) == first
