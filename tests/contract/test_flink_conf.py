from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

CONF = Path(__file__).parents[2] / "flink-conf"
PROFILES = ("latency", "throughput")
LOGGING = ("log4j.properties", "log4j-console.properties", "log4j-cli.properties")


def load(path: Path) -> dict[str, Any]:
    """The settings under their full names, as Flink reads them: `a: {b: 1}` is `a.b: 1`."""

    def flatten(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in tree.items():
            if isinstance(value, dict):
                yield from flatten(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    return dict(flatten(yaml.safe_load(path.read_text()), ""))


def shipped_with_flink() -> dict[str, Any]:
    spec = importlib.util.find_spec("pyflink")
    assert spec is not None
    assert spec.origin is not None
    return load(Path(spec.origin).parent / "conf" / "config.yaml")


@pytest.mark.parametrize("profile", PROFILES)
def test_reflection_is_opened_to_java_17_as_flink_ships_it(profile: str) -> None:
    ours = load(CONF / profile / "config.yaml")

    assert ours["env.java.opts.all"] == shipped_with_flink()["env.java.opts.all"]


@pytest.mark.parametrize("profile", PROFILES)
def test_folds_run_in_thread_mode_with_an_interpreter_of_their_own(profile: str) -> None:
    settings = load(CONF / profile / "config.yaml")

    assert settings["python.execution-mode"] == "thread"
    assert settings["taskmanager.numberOfTaskSlots"] == 1


def test_the_profiles_set_the_same_names_and_latency_waits_less() -> None:
    latency, throughput = (load(CONF / profile / "config.yaml") for profile in PROFILES)

    assert latency.keys() == throughput.keys()
    waits = ("execution.buffer-timeout.interval", "python.fn-execution.bundle.time")
    for name in waits:
        assert int(str(latency[name]).split()[0]) < int(str(throughput[name]).split()[0])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", LOGGING)
def test_each_profile_logs_one_json_object_a_line(profile: str, name: str) -> None:
    lines = (CONF / profile / name).read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines if line and not line.startswith("#"))
    layouts = {value for key, value in settings.items() if key.endswith(".layout.type")}

    assert layouts == {"JsonTemplateLayout"}
