"""Containers keep the contract, in a real engine; and nothing gets out of them either."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.contracts.docker_engine import IMAGE, docker_engine, need_docker
from tests.hostile.places import ENVIRON, INSIDE, PROBES, SECRET, things_outside
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.cli import doctor
from roost.config import Settings
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Mount, SandboxProvider
from roost.sandboxes.bubblewrap import seccomp
from roost.sandboxes.bubblewrap.syscalls import NUMBERS
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.docker.engine import LABEL, Engine
from roost.sandboxes.docker.profile import profile
from roost.testing.live import LiveServer
from roost.testing.sandbox_contract import SandboxContract
from roost.testing.sandbox_contract.kit import (
    Heart,
    Kit,
    Plans,
    finish,
    make_provider,
    run,
    shell,
)

# One engine is enough for all of them.
pytestmark = pytest.mark.xdist_group("docker")

# The contract's helper process makes the provider too, and knows the name of a factory, nothing else.
_FACTORY = """
from pathlib import Path
from roost.sandboxes.docker import DockerProvider

def make():
    return DockerProvider(socket=Path({socket!r}), image={image!r})
"""

# What probes find that bubblewrap hides, and why it does no harm.
_KNOWN = {
    "fs.set_uid_programs": (
        "['/usr', '.']",
        "engines do not mount nosuid; no_new_privs is in force",
    ),
    "fs.device_nodes": ("['mqueue']", "message queues of the container's own ipc namespace"),
    "fs.sys": ("['/sys']", "an empty directory lies over it"),
    "proc.write_others": ("['/proc/kmsg']", "/dev/null lies over it"),
    "proc.environment": ("['HOME', 'HOSTNAME', 'OF_THE_IMAGE', 'PATH']", "the image's, not ours"),
    "id.filters_missing": (
        "{'Seccomp': '2', 'Seccomp_filters': '1', 'NoNewPrivs': '1'}",
        "one filter does what bubblewrap's two do",
    ),
}


@pytest.fixture(scope="module")
def engine() -> Generator[Path, None, None]:
    need_docker()
    with docker_engine() as socket, tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "docker_under_test.py")
        module.write_text(_FACTORY.format(socket=str(socket), image=IMAGE))
        sys.path.insert(0, folder)
        try:
            yield socket
        finally:
            sys.path.remove(folder)
            sys.modules.pop("docker_under_test", None)


@pytest.fixture
def open_folder() -> Generator[Path, None, None]:
    """A folder everybody can get to: nothing but the sandbox is in the way."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.usefixtures("engine")
class TestDocker(SandboxContract):
    factory = "docker_under_test:make"


@pytest.mark.usefixtures("engine")
class TestContainers(Kit):
    factory = "docker_under_test:make"

    async def test_every_probe_is_blocked_or_finds_what_is_known(
        self,
        provider: SandboxProvider,
        plan: Plans,
        open_folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("ROOST_TEST_SECRET", SECRET)
        given = plan(mounts=[Mount(PROBES, INSIDE)], environ=ENVIRON)
        with things_outside(open_folder) as facts:
            async with provider.open(given) as sandbox:
                process = await sandbox.spawn(["python3", "-m", "roost.testing.probes.inside"])
                await process.send(json.dumps(facts).encode())
                await process.close_input()
                code, output, errors = await finish(process)
        assert code == 0, errors.decode()
        found = json.loads(output)
        assert len(found) >= 50
        opened = {name: got["detail"] for name, got in found.items() if got["verdict"] == "open"}
        assert opened == {name: detail for name, (detail, _) in _KNOWN.items() if name in opened}
        assert {got["verdict"] for got in found.values()} <= {"blocked", "info", "open"}

    async def test_a_machine_with_an_engine_and_an_image_can_give_a_place(
        self, provider: SandboxProvider
    ) -> None:
        await provider.check()

    async def test_an_image_that_is_not_there_is_named(self, engine: Path) -> None:
        with pytest.raises(SandboxUnavailable, match="nowhere-to-be-found") as caught:
            await DockerProvider(socket=engine, image="nowhere-to-be-found").check()
        assert "ROOST_DOCKER_IMAGE" in (caught.value.hint or "")

    async def test_an_engine_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        nobody = DockerProvider(socket=tmp_path / "no.sock", image=IMAGE)
        with pytest.raises(SandboxUnavailable, match=r"no\.sock") as caught:
            await nobody.check()
        assert "ROOST_DOCKER_SOCKET" in (caught.value.hint or "")

    async def test_a_runtime_the_engine_does_not_know_is_the_places_failure(
        self, engine: Path, plan: Plans
    ) -> None:
        odd = DockerProvider(socket=engine, image=IMAGE, runtime="odd")
        with pytest.raises(SandboxUnavailable, match="odd"):
            async with odd.open(plan()):
                pass
        assert await Engine(engine).sandboxes("sesn_1") == []

    async def test_a_container_removed_from_outside_is_the_places_failure(
        self, provider: SandboxProvider, plan: Plans, engine: Path
    ) -> None:
        async with provider.open(plan()) as sandbox:
            process = await sandbox.spawn(["sleep", "60"])
            await Engine(engine).remove(sandbox.handle()["container"])
            with pytest.raises(SandboxFailed), anyio.fail_after(10):
                await process.wait()
            with pytest.raises(SandboxFailed):
                await sandbox.spawn(["true"])

    async def test_a_place_that_another_server_holds_is_gone_before_a_newer_one_is_open(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        heart = Heart(plan().workspace)
        async with make_provider(self.factory).open(plan(generation=1)) as older:
            await older.spawn(["sh", "-c", Heart.script])
            await heart.begins()
            async with provider.open(plan(generation=2)):
                assert not await heart.beats()

    async def test_what_was_made_and_never_started_is_swept(
        self, provider: SandboxProvider, engine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roost.sandboxes.docker.provider._SECONDS_TO_START", -1)
        await Engine(engine).create(
            "left", {"Image": IMAGE, "Cmd": ["true"], "Labels": {LABEL: "x"}}
        )
        await provider.check()
        assert await Engine(engine).sandboxes("x") == []

    async def test_a_killed_command_takes_what_it_started_with_it(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        given = plan()
        heart = Heart(given.workspace)
        async with provider.open(given) as sandbox:
            process = await sandbox.spawn(["sh", "-c", f"sh -c '{Heart.script}' & wait"])
            await heart.begins()
            process.signal(signal.SIGKILL)
            assert await process.wait() == 128 + signal.SIGKILL
            assert not await heart.beats()
            assert (await run(sandbox, "echo", "alive")).output == b"alive\n"

    async def test_a_command_that_kills_all_it_can_does_not_end_the_place(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        async with provider.open(plan()) as sandbox:
            await shell(sandbox, "kill -KILL -1")
            assert (await run(sandbox, "echo", "alive")).output == b"alive\n"

    async def test_nothing_begins_for_a_caller_that_has_given_up(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        given = plan()
        async with provider.open(given) as sandbox:
            for milliseconds in range(0, 500, 10):
                with anyio.move_on_after(milliseconds / 1000) as scope:
                    await sandbox.spawn(["touch", "begun"])
                if not scope.cancelled_caught:
                    break
                await anyio.sleep(0.05)
                assert not (given.workspace / "begun").exists()


def test_the_doctor_says_which_engine_it_is(engine: Path) -> None:
    good = Settings(sandbox="docker", docker_socket=engine, docker_image=IMAGE)
    found = doctor.sandbox(good)
    assert (found.level, found.said[:30]) == ("ok", "docker works; engine: version ")
    missing = doctor.sandbox(good.model_copy(update={"docker_socket": Path("/nowhere.sock")}))
    assert (missing.level, missing.fix[:23]) == ("fail", "Start the Docker engine")


def test_the_real_agent_lives_in_a_container_and_outlives_a_killed_server(
    engine: Path, tmp_path: Path
) -> None:
    chosen = {"ROOST_SANDBOX": "docker", "ROOST_DOCKER_SOCKET": str(engine)}
    with LiveServer(tmp_path / "data", ROOST_DOCKER_IMAGE=IMAGE, **chosen) as server:
        chat = Chat(server)
        first = chat.turn(script(bash("id -un; pwd; echo mine >note.txt"), {"text": "noted"}))
        assert printed(first) == ["sandbox\n/workspace"]
        assert said(first) == ["noted"]
        server.kill()
        server.start()
        second = chat.turn(script(bash("cat note.txt"), {"text": "still there"}))
        assert printed(second) == ["mine"]
        assert said(second) == ["still there"]
        running = anyio.run(Engine(engine).sandboxes, chat.session.id)
        assert len(running) == 1


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
