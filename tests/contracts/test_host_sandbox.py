"""No sandbox keeps what it can of the contract; the rest is named, with the reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import ClassVar

import pytest
from tests.parts import need

from roost.ports.sandbox_provider import LocalVolume, Mount, SandboxProvider
from roost.sandboxes import cgroups
from roost.sandboxes.host import HostProvider
from roost.testing.sandbox_contract import SandboxContract
from roost.testing.sandbox_contract.kit import Plans, run

_NO_CONFINEMENT = "nothing is confined: that is what it is for"
_NO_MOUNTS = "paths are the machine's own"
_NO_DISK_LIMIT = "what it writes is the machine's own"
_NO_GROUPS = "only a control group can do that"

_ALWAYS = {
    "test_two_sandboxes_do_not_see_each_others_processes": _NO_CONFINEMENT,
    "test_two_sandboxes_do_not_see_each_others_files": _NO_CONFINEMENT,
    "test_two_sandboxes_do_not_reach_each_others_sockets": _NO_CONFINEMENT,
    "test_there_is_no_network": _NO_CONFINEMENT,
    "test_an_endpoint_is_the_way_out": _NO_MOUNTS,
    "test_a_mount_can_be_read_and_only_written_if_it_says_so": _NO_MOUNTS,
    "test_what_the_workspace_hides_is_seen_in_the_home_alone": _NO_MOUNTS,
    "test_what_is_planted_where_the_workspace_hides_something_leads_nowhere": _NO_MOUNTS,
    "test_what_a_mount_hides_looks_empty_and_its_links_lead_nowhere": _NO_MOUNTS,
    "test_a_file_does_not_grow_over_the_disk_limit": _NO_DISK_LIMIT,
}


def make() -> HostProvider:
    return HostProvider()


def make_without_groups() -> HostProvider:
    return HostProvider(use_cgroups=False)


class HostContract(SandboxContract):
    # It would be written to the machine.
    test_there_is_room_of_its_own_where_programs_look_for_it = None  # type: ignore[assignment]
    test_what_is_written_to_the_system_is_the_sandbox_s_own_and_goes_with_it = None  # type: ignore[assignment]
    test_other_certificates_can_take_the_place_of_the_systems = None  # type: ignore[assignment]
    # Only the commands themselves do; what those have started is ended by the next sweep, any server's.
    test_a_sandbox_dies_with_the_process_that_holds_it = None  # type: ignore[assignment]
    # There is no limit either for one file or for all; of the second it would be seen in a minute.
    test_all_files_together_do_not_stay_over_the_disk_limit = None  # type: ignore[assignment]


class TestHost(HostContract):
    factory = "tests.contracts.test_host_sandbox:make"
    deviations: ClassVar = _ALWAYS

    @pytest.fixture(autouse=True)
    def groups(self) -> None:
        need(
            "control groups", cgroups.detect().controllers, "running as root, or with Delegate=yes"
        )


@pytest.mark.chaos
class TestHostWithoutControlGroups(HostContract):
    factory = "tests.contracts.test_host_sandbox:make_without_groups"
    deviations: ClassVar = _ALWAYS | {
        "test_memory_over_the_limit_is_not_given": _NO_GROUPS,
        "test_memory_is_counted_over_all_commands": _NO_GROUPS,
        "test_processes_over_the_limit_are_not_started": _NO_GROUPS,
        "test_processor_time_over_the_limit_is_not_given": _NO_GROUPS,
    }

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_what_a_sandbox_would_show_is_named_by_its_own_path(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        program = tmp_path / "program"
        program.write_text('#!/bin/sh\necho "$PLACE $HOME $CONFIG"')
        program.chmod(0o755)
        given = plan(
            workspace=LocalVolume(tmp_path),
            mounts=[Mount(program, "/run/roost/program")],
            environ={"PLACE": "/run/roost/program", "HOME": "/root-of-a-person"},
        )
        async with provider.open(given) as sandbox:
            environ = {"CONFIG": "/home/sandbox/.config"}
            told = await run(sandbox, "/run/roost/program", environ=environ)
        assert told.output.decode().split() == [
            *(str(program), "/root-of-a-person", f"{given.home.path}/.config")
        ]

    async def test_a_socket_with_a_long_path_can_be_connected_to(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        place = tmp_path / ("long" * 30)
        place.mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            descriptor = os.open(place, os.O_RDONLY)
            listening.bind(f"/proc/self/fd/{descriptor}/model.sock")
            os.close(descriptor)
            listening.listen()
            given = plan(
                mounts=[Mount(place / "model.sock", "/run/model.sock")],
                environ={"SOCKET": "/run/model.sock"},
            )
            connect = "import os, socket; socket.socket(1).connect(os.environ['SOCKET'])"
            async with provider.open(given) as sandbox:
                assert (await run(sandbox, "python3", "-c", connect)).code == 0
