from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.flink_options import distribution, flatten, flink_options, is_option
from udfs.operators.shard_keys import MAX_PARALLELISM

CONF = Path(__file__).parents[2] / "flink-conf"
PROFILES = ("latency", "throughput")
FILES = (*PROFILES, "kubernetes")
LOGGING = ("log4j.properties", "log4j-console.properties", "log4j-cli.properties")


@pytest.mark.parametrize("profile", PROFILES)
def test_reflection_is_opened_to_java_17_as_flink_ships_it(profile: str) -> None:
    ours = flatten(CONF / profile / "config.yaml")
    shipped = flatten(distribution() / "conf" / "config.yaml")

    assert ours["env.java.opts.all"] == shipped["env.java.opts.all"]


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_an_option_of_flink(name: str) -> None:
    """An unknown one is not refused by Flink: it does nothing."""
    assert [key for key in flatten(CONF / name / "config.yaml") if not is_option(key)] == []


@pytest.mark.parametrize(
    "slip",
    ["execution.checkpointing.intervall", "state.backend.typ", "jobmanager.memory", "kubernetes.operator.savepoint"],
)
def test_a_slip_in_a_key_is_found(slip: str) -> None:
    assert "execution.checkpointing.interval" in flink_options()
    assert not is_option(slip)


@pytest.mark.parametrize("name", FILES)
def test_a_comment_above_each_line_says_why(name: str) -> None:
    lines = (CONF / name / "config.yaml").read_text(encoding="utf-8").splitlines()
    valued = [index for index, line in enumerate(lines) if re.fullmatch(r" *[\w-]+: \S.*", line)]

    assert len(valued) == len(flatten(CONF / name / "config.yaml"))
    assert [lines[index] for index in valued if not lines[index - 1].lstrip().startswith("# ")] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_folds_run_in_thread_mode_with_an_interpreter_of_their_own(profile: str) -> None:
    settings = flatten(CONF / profile / "config.yaml")

    assert settings["python.execution-mode"] == "thread"
    assert settings["taskmanager.numberOfTaskSlots"] == 1
    assert int(settings["taskmanager.memory.task.off-heap.size"].rstrip("mg")) > 0


@pytest.mark.parametrize("profile", PROFILES)
def test_key_groups_are_those_of_the_code(profile: str) -> None:
    assert flatten(CONF / profile / "config.yaml")["pipeline.max-parallelism"] == MAX_PARALLELISM


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_listens_beyond_the_machine(profile: str) -> None:
    settings = flatten(CONF / profile / "config.yaml")

    for name in ("jobmanager.bind-host", "taskmanager.bind-host", "rest.bind-address"):
        assert settings[name] == "localhost"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_checkpoint_survives_what_it_is_for(profile: str) -> None:
    settings = flatten(CONF / profile / "config.yaml")

    assert settings["state.backend.type"] == "rocksdb"
    assert settings["execution.checkpointing.incremental"] is True
    assert settings["execution.checkpointing.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    assert settings["execution.checkpointing.num-retained"] > 1
    assert settings["restart-strategy.type"] == "exponential-delay"


def test_the_profiles_set_the_same_names_and_latency_waits_less() -> None:
    latency, throughput = (flatten(CONF / profile / "config.yaml") for profile in PROFILES)

    assert latency.keys() == throughput.keys()
    waits = (
        "execution.buffer-timeout.interval",
        "execution.checkpointing.aligned-checkpoint-timeout",
        "execution.checkpointing.interval",
        "heartbeat.interval",
        "heartbeat.timeout",
        "python.fn-execution.bundle.time",
    )
    for name in waits:
        assert int(str(latency[name]).split()[0]) < int(str(throughput[name]).split()[0])


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", LOGGING)
def test_each_profile_logs_one_json_object_a_line(profile: str, name: str) -> None:
    lines = (CONF / profile / name).read_text().splitlines()
    settings = dict(line.split(" = ", 1) for line in lines if line and not line.startswith("#"))
    layouts = {value for key, value in settings.items() if key.endswith(".layout.type")}

    assert layouts == {"JsonTemplateLayout"}
