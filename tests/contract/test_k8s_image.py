"""The image that k8s/ runs: pinned, not root, and with all that its Dockerfile copies."""

from __future__ import annotations

from tests.contract.manifests import (
    K8S,
    REPOSITORY,
)


def _instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile, each on one line."""
    lines = (K8S / "image" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, rest in found]


def test_the_image_runs_as_flink_and_not_as_root() -> None:
    users = [value for name, value in _instructions() if name == "USER"]

    assert users[-1] == "9999:9999"


def test_what_goes_into_the_image_is_pinned() -> None:
    instructions = _instructions()
    bases = [value.split()[0] for name, value in instructions if name == "FROM"]
    installs = [value for name, value in instructions if name == "RUN" and "pip install" in value and "-r " in value]

    assert all(":" in base and not base.endswith(":latest") for base in bases)
    assert installs
    for install in installs:
        assert install.count("--require-hashes") == install.count("-r requirements/")
    assert any("sha256sum --check --strict" in value for name, value in instructions if name == "RUN")


def test_what_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
    sent = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for name, value in _instructions()
        if name == "COPY" and not value.startswith("--from")
        for source in value.split()[:-1]
    ]

    assert copied
    for source in copied:
        assert (REPOSITORY / source).exists(), source
        assert any(source == allowed or source.startswith(f"{allowed}/") for allowed in sent), source


def test_flink_python_is_in_lib() -> None:
    """Loaded by each job anew, the interpreter can't be loaded a second time in one process."""
    assert any("opt/flink-python-${FLINK_VERSION}.jar /opt/flink/lib/" in value for _, value in _instructions())
