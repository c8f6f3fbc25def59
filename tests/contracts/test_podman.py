"""Podman's service keeps the same contract."""

from __future__ import annotations

import pytest
from tests.contracts.containers import KNOWN, ContainerContract
from tests.engines import LiveEngine

from roost.testing.sandbox_contract import SandboxContract

pytestmark = pytest.mark.xdist_group("podman")


@pytest.mark.usefixtures("podman")
class TestPodman(SandboxContract):
    factory = "podman_under_test:make"


class TestContainers(ContainerContract):
    factory = "podman_under_test:make"
    known = KNOWN | {
        "cgroup.escape": (
            r"\['\d+:[^']*:/libpod_parent/.*",
            "only its own group's name, and only with version 1 of control groups",
        ),
    }

    @pytest.fixture(autouse=True)
    def engine(self, podman: LiveEngine) -> LiveEngine:
        return podman
