"""What all tests share: golden files and the switch that writes them anew."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: how long an example takes says nothing of the code. CI repeats the same examples, so that a red
# run speaks of its change; every run on a desk looks at new ones.
settings.register_profile("headrace", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("headrace")

GOLDEN_FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-golden",
        action="store_true",
        help="write tests/golden anew from the code; then look at the difference: each one is a broken contract",
    )


class Golden:
    """Values that outlive a deploy, committed as JSON in tests/golden."""

    def __init__(self, *, regenerate: bool) -> None:
        self._regenerate = regenerate

    def check(self, name: str, found: object) -> None:
        """Compare with the committed value, or commit `found` and skip the test."""
        path = GOLDEN_FOLDER / name
        if self._regenerate:
            path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            pytest.skip(f"{name} written anew")
        assert found == self.read(name), f"{name} differs; if that is meant, run pytest --regenerate-golden"

    def read(self, name: str) -> object:
        """The committed value."""
        return json.loads((GOLDEN_FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(regenerate=bool(request.config.getoption("--regenerate-golden")))
