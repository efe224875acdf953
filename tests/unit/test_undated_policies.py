from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.ops.job_command import _warn_of_undated
from jobs.ops.target import Target
from jobs.wiring.flink_rest import Flink
from jobs.wiring.settings import load_settings

if TYPE_CHECKING:
    import pytest

LOCAL = Path(__file__).parents[2] / "data" / "policies" / "local.yaml"


def warned(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> str:
    at = Target(Flink("http://nowhere"), LOCAL, load_settings(policies=LOCAL), {}, (), {})
    changed = tmp_path / "changed.yaml"
    changed.write_text(text)
    _warn_of_undated(at, changed)
    return capsys.readouterr().err


def test_a_change_that_reaches_back_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = warned(tmp_path, capsys, LOCAL.read_text().replace("60k", "2k"))
    assert "policy everyone is new or changed and holds for the past too" in said
    assert f"effective_from: {datetime.now(timezone.utc):%Y-%m-%d}" in said


def test_no_change_and_a_dated_one_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warned(tmp_path, capsys, LOCAL.read_text()) == ""
    since = datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    dated = LOCAL.read_text().split("policies:\n")[1].replace("id: everyone", "id: less").replace("60k", "2k")
    dated = dated.replace('tenant: "*"', f'tenant: "*"\n    effective_from: {since}')
    assert warned(tmp_path, capsys, LOCAL.read_text() + dated) == ""
