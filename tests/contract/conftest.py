"""The built manifests of each overlay."""

from __future__ import annotations

import pytest

from tests.contract.manifests import OVERLAYS, Manifest, build, only


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(overlay: str) -> list[Manifest]:
    return build(overlay)


@pytest.fixture
def deployment(manifests: list[Manifest]) -> Manifest:
    return only(manifests, "FlinkDeployment")
