"""Podman's service keeps the same contract. Always tried is what its API might do in another way."""

from __future__ import annotations

import pytest
from tests.contracts.containers import KNOWN, ContainerContract, ContainerLayers, HostileContract
from tests.engines import LiveEngine

from roost.testing.sandbox_contract.apart import ApartContract
from roost.testing.sandbox_contract.commands import CommandContract
from roost.testing.sandbox_contract.ends import EndContract
from roost.testing.sandbox_contract.files import FileContract
from roost.testing.sandbox_contract.limits import LimitContract

pytestmark = pytest.mark.xdist_group("podman")


class InPodman:
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


class TestPodman(InPodman, HostileContract):
    # It fills a tmpfs with what that covers, which once showed what was to be hidden.
    test_what_a_mount_hides = (
        FileContract.test_what_a_mount_hides_looks_empty_and_its_links_lead_nowhere
    )
    test_a_mount_stays_as_it_is = (
        FileContract.test_nothing_can_be_put_into_a_mount_or_into_what_it_hides
    )
    # What becomes of a container is another program's work there.
    layered = ContainerLayers.layered
    test_packages = (
        ContainerLayers.test_what_a_build_installs_is_there_for_containers_as_long_as_they_use_it
    )


@pytest.mark.chaos
class TestTheRestOfPodman(
    InPodman,
    CommandContract,
    EndContract,
    FileContract,
    LimitContract,
    ApartContract,
    ContainerContract,
    ContainerLayers,
):
    pass
