"""Containers keep the contract, in a real engine; and nothing gets out of them either."""

from __future__ import annotations

import platform
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.containers import ContainerContract, ContainerLayers, HostileContract
from tests.engines import IMAGE, LiveEngine, need_gvisor

from roost.cli import doctor
from roost.config import Settings
from roost.ports.sandbox_provider import Mount
from roost.sandboxes.bubblewrap import seccomp
from roost.sandboxes.bubblewrap.syscalls import NUMBERS
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.docker.profile import profile
from roost.testing.sandbox_contract import SandboxContract
from roost.testing.sandbox_contract.ends import EndContract
from roost.testing.sandbox_contract.kit import Kit, Plans, run, shell

# One engine is enough for all of them.
pytestmark = pytest.mark.xdist_group("docker")


@pytest.mark.usefixtures("docker")
class TestDocker(SandboxContract):
    factory = "dockerd_under_test:make"
    steps_apart = 5  # a container takes half a second


@pytest.mark.chaos
@pytest.mark.usefixtures("docker")
class TestDockerAtEveryStep(Kit):
    factory = "dockerd_under_test:make"
    test_a_command = EndContract.test_a_command_given_up_at_any_wait_is_no_part_of_the_next_one
    test_a_sandbox = (
        EndContract.test_a_sandbox_given_up_at_any_wait_as_it_is_opened_leaves_nothing_to_the_next
    )


class TestContainers(HostileContract, ContainerContract, ContainerLayers):
    factory = "dockerd_under_test:make"

    @pytest.fixture(autouse=True)
    def engine(self, docker: LiveEngine) -> LiveEngine:
        return docker

    async def test_another_runtime_is_another_kernel_around_the_same_sandbox(
        self, docker: LiveEngine, plan: Plans, tmp_path: Path
    ) -> None:
        """gVisor's; the way out is the same, too."""
        need_gvisor()
        provider = DockerProvider(socket=docker.socket, image=IMAGE, data=tmp_path, runtime="runsc")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "way-out.sock"))
            (tmp_path / "way-out.sock").chmod(0o666)
            server.listen()
            mounts = [Mount(tmp_path / "way-out.sock", "/run/way-out.sock")]
            given = plan(mounts=mounts, hidden=[".own"])
            async with provider.open(given) as sandbox:
                kernel = (await run(sandbox, "cat", "/proc/version")).output.decode()
                assert platform.release() not in kernel
                reach = "import socket; socket.socket(socket.AF_UNIX).connect('/run/way-out.sock')"
                assert await run(sandbox, "python3", "-c", reach) == (0, b"", b"")
                hidden = await shell(sandbox, "echo one >$HOME/.own/file; ls -A .own; >.own/new")
                assert (hidden.code != 0, hidden.output) == (True, b"")
            assert (given.home.path / ".own" / "file").read_text() == "one\n"


def test_the_doctor_says_which_engine_it_is(docker: LiveEngine) -> None:
    good = Settings(sandbox="docker", docker_socket=docker.socket, docker_image=IMAGE)
    found = doctor.sandbox(good)
    assert (found.level, found.said[:30]) == ("ok", "docker works; engine: version ")
    missing = doctor.sandbox(good.model_copy(update={"docker_socket": Path("/nowhere.sock")}))
    assert (missing.level, missing.fix[:23]) == ("fail", "Start the Docker engine")
    lacking = doctor.sandbox(good.model_copy(update={"docker_images": "node=no-such:22"}))
    assert (lacking.level, lacking.fix[:15]) == ("warn", "Pull the images")
    assert "; image node: missing: no-such:22; " in lacking.said
    odd = doctor.sandbox(good.model_copy(update={"docker_runtime": "odd"}))
    assert (odd.level, odd.said[:31]) == ("fail", "the engine has no runtime 'odd'")


class TestProfile:
    def test_what_is_refused_in_bubblewrap_is_on_no_list(self) -> None:
        for machine in NUMBERS:
            allowed = {name for rule in _allowing(machine) for name in rule["names"]}
            assert not allowed & set(seccomp.REFUSED.split())
            assert {"read", "execve", "clone", "socket", "ioctl"} <= allowed

    @pytest.mark.parametrize("request_", [0x5401, 0x5413, 0x5411, 0x541D, 0x5422, 0, 0xFFFFFFFF])
    def test_a_terminal_can_be_asked_what_does_no_harm(self, request_: int) -> None:
        assert _passes("ioctl", 0, request_)

    @pytest.mark.parametrize("request_", seccomp.TERMINAL_TRICKS)
    def test_a_terminal_is_not_typed_into_whatever_the_high_bits_say(self, request_: int) -> None:
        assert not _passes("ioctl", 0, request_)
        assert not _passes("ioctl", 0, 1 << 32 | request_)

    def test_only_plain_sockets_are_made(self) -> None:
        flags = 0o4000 | 0o2000000
        for arguments in ((1, 1, 0), (2, 1 | flags, 6), (10, 2, 17), (16, 3, 0)):
            assert _passes("socket", *arguments)
        for arguments in ((40, 1, 0), (17, 3, 0), (2, 3, 1), (2, 2, 115), (16, 3, 12)):
            assert not _passes("socket", *arguments)

    def test_new_namespaces_are_refused_and_threads_are_not(self) -> None:
        assert _passes("clone", 0x3D0F00)
        assert not _passes("clone", 1 << 28)
        assert not _passes("clone", 1 << 32 | 1 << 28)


def _allowing(machine: str) -> list[dict[str, Any]]:
    return [rule for rule in profile(machine)["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]


def _passes(call: str, *arguments: int) -> bool:
    """What the engine's runtime makes of the profile."""
    return any(
        all(arguments[each["index"]] & each["value"] == each["valueTwo"] for each in rule["args"])
        for rule in _allowing("x86_64")
        if call in rule["names"]
    )
