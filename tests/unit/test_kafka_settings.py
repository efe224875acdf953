from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from jobs.ops.cli import app
from jobs.ops.log_options import log_access, with_hint
from jobs.ops.snapshots import Snapshot, SnapshotError, newest, snapshots
from jobs.ops.submit import _why
from jobs.ops.target import target
from jobs.wiring.kafka_log import BrokerUnreachableError
from jobs.wiring.kafka_settings import KafkaSettings
from jobs.wiring.kafka_topics import KafkaUnavailableError
from jobs.wiring.record_keys import partition_of, record_keys, shard_of_key
from jobs.wiring.settings import SettingsError, load_settings
from jobs.wiring.topic_catalog import CATALOG
from schemas.topics import Topic

SASL = {"security_protocol": "SASL_SSL", "sasl_username": "headrace", "sasl_password": "s3cret-word"}


def test_every_client_is_told_the_same_of_a_secured_cluster() -> None:
    kafka = KafkaSettings(servers="a:1,b:2", ssl_ca=Path("/ca.pem"), **SASL)
    assert kafka.client_options() == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "headrace",
        "sasl_plain_password": "s3cret-word",
        "ssl_cafile": "/ca.pem",
    }
    properties = kafka.flink_properties()
    assert properties["sasl.jaas.config"].endswith('username="headrace" password="s3cret-word";')
    assert properties["ssl.truststore.location"] == "/ca.pem"


def test_a_password_is_not_shown() -> None:
    kafka = KafkaSettings(**SASL)
    assert "s3cret-word" not in repr(kafka) + kafka.model_dump_json()


@pytest.mark.parametrize("password", ["it's", 'say "x"', "a\\b", "a;b", "line\nbreak"])
def test_a_password_that_would_break_out_of_its_place_is_refused(password: str) -> None:
    with pytest.raises(ValidationError, match="sasl_password may have no quote"):
        KafkaSettings(**{**SASL, "sasl_password": password})


def test_sasl_without_a_name_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs sasl_username and sasl_password"):
        KafkaSettings(security_protocol="SASL_PLAINTEXT")


def test_nested_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA__SERVERS", "broker:9092")
    assert load_settings().kafka.servers == "broker:9092"
    monkeypatch.setenv("HEADRACE_KAFKA__SEVRERS", "broker:9092")
    with pytest.raises(SettingsError, match=r"kafka\.sevrers"):
        load_settings()


@pytest.mark.parametrize("partitions", [1, 2, 4, 8, 16, 32, 64, 128])
def test_shards_are_spread_evenly_by_the_partitioner_of_any_client(partitions: int) -> None:
    # What the suffixes are for.
    assert len({partition_of(b"%d" % shard, 32) for shard in range(32)}) == 32 - 13
    keys = record_keys(128)
    assert [partition_of(key, partitions) for key in keys] == [shard % partitions for shard in range(128)]
    assert [shard_of_key(key, 128) for key in keys] == list(range(128))


def test_config_shows_every_nested_setting_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in SASL.items():
        monkeypatch.setenv(f"HEADRACE_KAFKA__{name.upper()}", value)
    for arguments in ((), ("--json",)):
        said = CliRunner().invoke(app, ["config", *arguments]).stdout
        assert "s3cret-word" not in said
        assert "sasl_password" in said
        assert "headrace" in said


def test_every_topic_has_a_make() -> None:
    assert set(CATALOG) == set(Topic)
    assert CATALOG[Topic.EVENTS].options["retention.ms"] == "-1"
    assert CATALOG[Topic.GENERATIONS].options["cleanup.policy"] == "compact"


def test_the_newest_snapshot_before_a_time_is_found_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    for name, at in (("savepoints/savepoint-1", 100), ("checkpoints/job/chk-7", 200), ("savepoints/savepoint-2", 300)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "_metadata").touch()
        _set_time(folder / "_metadata", at)
    (tmp_path / "checkpoints" / "job" / "chk-8").mkdir()
    found = snapshots(str(tmp_path / "savepoints"), f"file://{tmp_path}/checkpoints")
    assert [it.path.name for it in found] == ["savepoint-2", "chk-7", "savepoint-1"]
    assert newest(found) == Snapshot(tmp_path / "savepoints" / "savepoint-2", 300_000)
    assert newest(found, before_ms=300_000) == Snapshot(tmp_path / "checkpoints" / "job" / "chk-7", 200_000)
    assert newest(found, before_ms=100_000) is None
    with pytest.raises(SnapshotError, match="name the savepoint itself"):
        snapshots("s3://bucket/savepoints")


def _set_time(path: Path, at_s: int) -> None:
    os.utime(path, (at_s, at_s))


def test_what_flink_run_says_is_cut_down_to_what_helps() -> None:
    ours = "WARNING: noise\nheadrace: settings: no such key\nheadrace: kafka: none\norg.apache.flink.X: exits"
    assert _why(ours) == "settings: no such key\nkafka: none"
    java = "The program finished with:\nCaused by: first\n  at x\nCaused by: java.io.IOException: disk\n"
    assert _why(java) == "java.io.IOException: disk"
    assert _why("") == "it said nothing"


@pytest.mark.parametrize(
    "servers", ["a:1", "a:1,b-2.example:65535", "10.0.0.1:9092", "[::1]:9092,[fe80::1]:1", "b_1:9"]
)
def test_servers_are_hosts_and_ports(servers: str) -> None:
    assert KafkaSettings(servers=servers).servers == servers
    # As a person writes lists.
    assert KafkaSettings(servers=f" {servers.replace(',', ' , ')} ").servers == servers


@pytest.mark.parametrize(
    "servers",
    [
        "",
        " ",
        "a",
        "a:",
        ":1",
        "a:abc",
        "a:0",
        "a:65536",
        "a:1,",
        "a:1,,b:1",
        "::1:9092",
        "[::1]",
        "[::1]:x",
        "[a]:1",
        "a b:1",
        "a:1;b:1",
        "http://a:1",
        "[::1:9092",
        "a:\u0661",
    ],
)
def test_servers_that_no_client_could_use_are_refused(servers: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is not HOST:PORT"):
        KafkaSettings(servers=servers)
    settings = tmp_path / "job.yaml"
    settings.write_text(f"kafka: {{servers: {servers!r}}}")
    with pytest.raises(SettingsError, match=r"job\.yaml: kafka\.servers: .*is not HOST:PORT"):
        load_settings(settings)
    with pytest.raises(SettingsError, match=r"^--servers: .*is not HOST:PORT"):
        log_access(None, servers)


def test_servers_of_the_command_line_win_and_the_rest_stays(tmp_path: Path) -> None:
    settings = tmp_path / "job.yaml"
    settings.write_text(yaml.safe_dump({"kafka": {"servers": "a:1", **SASL}}))
    found = log_access(settings, "b:2").kafka
    assert found == KafkaSettings(servers="b:2", **SASL)
    assert log_access(settings, None).kafka.servers == "a:1"


def test_where_nobody_answers_by_default_the_local_profile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nobody = BrokerUnreachableError("localhost:9092: no broker answers")
    assert with_hint(nobody) == str(nobody)
    (tmp_path / "out" / "local").mkdir(parents=True)
    (tmp_path / "out" / "local" / "headrace.yaml").touch()
    assert with_hint(nobody) == f"{nobody} (the local profile: --config out/local/headrace.yaml)"
    assert "out/local" in with_hint(KafkaUnavailableError("kafka.servers: localhost:9092 does not answer"))
    for other in (BrokerUnreachableError("b:1: no broker answers"), ValueError("localhost:9092")):
        assert with_hint(other) == str(other)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://[::1", "http://a:x", "http://a:0", "https://a:1", "a:1"]
)
def test_a_rest_endpoint_that_is_none_is_a_mistake_of_its_option(url: str, tmp_path: Path) -> None:
    settings = tmp_path / "job.yaml"
    settings.write_text("profile: cluster")
    with pytest.raises(SettingsError, match=r"^--flink: "):
        target(tmp_path, url, settings)


def test_a_rest_endpoint_is_told_to_flink_by_host_and_port(tmp_path: Path) -> None:
    settings = tmp_path / "job.yaml"
    settings.write_text("profile: cluster")
    assert target(tmp_path, "http://a:1/", settings).rest_options == {"rest.address": "a", "rest.port": "1"}
    assert target(tmp_path, "http://a", settings).rest_options["rest.port"] == "8081"
