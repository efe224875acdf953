"""The manifests of k8s/ as a cluster would get them, and the schemas that they are held to."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from jobs.wiring.settings import AdmissionSettings, load_settings

REPOSITORY = Path(__file__).parents[2]
K8S = REPOSITORY / "k8s"
OVERLAYS = ("dev", "production")
SCHEMAS = Path(__file__).parent
MAIN_CONTAINER = "flink-main-container"

Manifest = dict[str, Any]


def kustomize_command() -> list[str] | None:
    """What builds a kustomization on this machine."""
    if found := shutil.which("kustomize"):
        return [found, "build"]
    if found := shutil.which("kubectl"):
        return [found, "kustomize"]
    return None


@functools.cache
def _built(overlay: str) -> str:
    command = kustomize_command()
    if command is None:
        why = "kubectl or kustomize is needed to build k8s/: install one (https://kubernetes.io/docs/tasks/tools/)"
        # On a desk it is said; in CI nobody reads what was skipped.
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    done = subprocess.run(
        [*command, str(K8S / "overlays" / overlay)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(overlay: str) -> list[Manifest]:
    """All manifests of an overlay. Skips the test, or fails it in CI, where nothing can build them."""
    return list(yaml.safe_load_all(_built(overlay)))


def only(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one manifest of a kind, or of a kind and a name."""
    (found,) = [
        manifest for manifest in manifests if manifest["kind"] == kind and name in {None, manifest["metadata"]["name"]}
    ]
    return found


def merged_template(deployment: Manifest, component: str) -> Manifest:
    """The pod template of `jobManager` or `taskManager` as the operator makes it: lists are merged by name."""
    spec = deployment["spec"]
    merged = _merge(spec["podTemplate"], spec[component]["podTemplate"])
    assert isinstance(merged, dict)
    return merged


def job_settings(manifests: list[Manifest], folder: Path) -> AdmissionSettings:
    """The settings that the job has in its pod, written to `folder` and read as the job does."""
    template = merged_template(only(manifests, "FlinkDeployment"), "jobManager")
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "settings"]
    written = folder / "settings.yaml"
    written.write_text(only(manifests, "ConfigMap", volume["configMap"]["name"])["data"]["settings.yaml"])
    return load_settings(written)


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {
            key: _merge(base[key], over[key]) if key in base and key in over else base.get(key, over.get(key))
            for key in base.keys() | over.keys()
        }
    if isinstance(base, list) and isinstance(over, list):
        named = {item["name"]: item for item in base}
        for item in over:
            named[item["name"]] = _merge(named[item["name"]], item) if item["name"] in named else item
        return list(named.values())
    return over


# --- schemas ----------------------------------------------------------------------------------------------------------


@functools.cache
def _kubernetes() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((SCHEMAS / "k8s-schemas" / "kubernetes-1.34.json").read_text(encoding="utf-8"))
    return read


def kubernetes_errors(definition: str, value: object) -> list[str]:
    """What a definition of Kubernetes' API, such as `io.k8s.api.core.v1.ConfigMap`, has against a value."""
    schema = {"$ref": f"#/$defs/{definition}", "$defs": _kubernetes()["$defs"]}
    return _errors(schema, value)


def kubernetes_definition(manifest: Manifest) -> str | None:
    """The definition of a kind that is Kubernetes' own; None for a custom one."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    if "." in group and not group.endswith(".k8s.io"):
        return None
    short = group.partition(".")[0] or "core"
    return f"io.k8s.api.{short}.{version}.{manifest['kind']}"


@functools.cache
def _custom() -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for path in sorted((SCHEMAS / "crds").glob("*.json")):
        crd = json.loads(path.read_text(encoding="utf-8"))
        for version in crd["versions"]:
            found[f"{crd['group']}/{version['name']}", crd["kind"]] = strict(version["schema"])
    return found


def custom_errors(manifest: Manifest) -> list[str]:
    """What the schema of a custom resource has against a manifest; unknown fields too, which a cluster drops."""
    key = manifest["apiVersion"], manifest["kind"]
    schema = _custom().get(key)
    if schema is None:
        return [f"no schema of {key} in {SCHEMAS / 'crds'}"]
    # What every kind has is the API server's, whether or not the schema names it.
    own = {name: part for name, part in manifest.items() if name not in {"apiVersion", "kind", "metadata"}}
    meta = kubernetes_errors("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", manifest["metadata"])
    return _errors({**schema, "required": ["spec"]}, own) + meta


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every object closed: a cluster prunes what it does not know, and says nothing."""
    closed = copy.deepcopy(schema)
    _close(closed)
    return closed


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            _close(part)
    if not isinstance(schema, dict):
        return
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and not keeps:
        schema["additionalProperties"] = False
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("anyOf", None)
        schema["type"] = ["integer", "string"]
    for name in ("properties", "patternProperties", "$defs"):
        for part in schema.get(name, {}).values():
            _close(part)
    for name in ("items", "additionalProperties", "allOf", "anyOf", "oneOf"):
        _close(schema.get(name))


def _errors(schema: dict[str, Any], value: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in validator.iter_errors(value)
    ]
