"""docs/ingest.md against what it speaks of: formats, settings, and the files that it shows."""

import re
from pathlib import Path

import pytest

from jobs.wiring.settings import ForeignSource, IngestSettings, JobSettings, load_job_settings
from udfs.domain.ingest.formats import FORMATS
from udfs.domain.ingest.mapping import mapping_of

PAGE = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_format_is_on_the_page_and_no_other() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", section("Formats"), re.MULTILINE) == list(FORMATS)


def test_the_mapping_that_it_shows_can_be_read() -> None:
    mapping = mapping_of(next(block for block in BLOCKS if block.startswith("format:")))
    assert (mapping.prompt_tokens, mapping.completion_tokens) == ("prompt", "completion")


def test_the_settings_that_it_shows_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "ingest.yaml"
    path.write_text(next(block for block in BLOCKS if "sources:" in block))
    settings = load_job_settings(IngestSettings, path)
    assert [source.source for source in settings.sources] == ["otlp_spans", "litellm-eu"]
    assert {source.format for source in settings.sources} <= FORMATS.keys()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in IngestSettings.model_fields.items()
        if name not in JobSettings.model_fields or field.default != JobSettings.model_fields[name].default
    ],
)
def test_every_setting_of_its_own_is_on_the_page_with_its_default(name: str) -> None:
    (default,) = re.findall(rf"^\| `{name}` \| (\S+) \|", section("As a job"), re.MULTILINE)
    assert default in {str(IngestSettings.model_fields[name].default), "none"}


@pytest.mark.parametrize("name", [*ForeignSource.model_fields])
def test_every_field_of_a_source_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in section("As a job")
