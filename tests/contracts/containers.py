"""What containers promise beyond the contract, in any engine."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar

import anyio
import pytest
from msgspec.structs import replace
from tests.engines import IMAGE, LiveEngine, rootfs
from tests.hostile.probed_sandbox import (
    ENVIRON,
    INSIDE,
    PROBES,
    SECRET,
    keep_record,
    things_outside,
)

from roost.domain import packages
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.packages import LayersKept, PlanBuild
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import (
    SYSTEM_CERTIFICATES,
    Mount,
    Plan,
    SandboxLimits,
    SandboxProvider,
    Volume,
)
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.docker.engine import LABEL, PLACE, Engine
from roost.sandboxes.docker.layers import image_of
from roost.testing.sandbox_contract.kit import (
    Heart,
    Kit,
    Plans,
    finish,
    make_provider,
    run,
    shell,
)
from roost.testing.sandbox_contract.limits import FORK

# What probes find that bubblewrap hides, and why it does no harm.
KNOWN = {
    "fs.set_uid_programs": (
        r"\[('/usr', )?'\.'\]",
        "engines do not mount nosuid; no_new_privs is in force",
    ),
    "fs.device_nodes": (r"\['mqueue'\]", "message queues of the container's own ipc namespace"),
    "fs.sys": (r"\['/sys'\]", "an empty directory lies over it"),
    "proc.write_others": (r"\['/proc/kmsg'\]", "/dev/null lies over it"),
    "proc.environment": (
        r"\['HOME', 'HOSTNAME', 'OF_THE_IMAGE', 'PATH'(, 'TERM', 'container')?\]",
        "the image's and the engine's, not ours",
    ),
    "id.filters_missing": (
        r"{'Seccomp': '2', 'Seccomp_filters': '1', 'NoNewPrivs': '1'}",
        "one filter does what bubblewrap's two do",
    ),
}


# What they find besides where packages are installed.
OF_A_BUILD = {
    "fs.host_users": (r"\['0'\]", "what Podman calls root where the image does not name it"),
    "fs.write_system": (
        r"\[('/(etc|dev|run|home|proc)?'(, )?)+\]",
        "root writes to its own container; nothing can be made in /proc",
    ),
    "id.become_another": (
        r"\[('set(uid|gid|euid|egid)\(\d+\)', )+'setgroups'\]",
        "users of its own container, as packages have them",
    ),
    "id.capabilities": (
        r"\[('Cap(Eff|Prm|Bnd) 00000000000000db'(, )?)+\]",
        "over the owners and modes of its own files, and to become these users",
    ),
}


async def probed(sandbox: Sandbox, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What each probe finds inside."""
    process = await sandbox.spawn(["python3", "-m", "roost.testing.probes.inside"])
    await process.send(json.dumps(facts).encode())
    await process.close_input()
    code, output, errors = await finish(process)
    assert code == 0, errors.decode()
    found: dict[str, Any] = json.loads(output)
    assert len(found) >= 50
    assert {got["verdict"] for got in found.values()} <= {"blocked", "info", "open"}
    return found


class EngineKit(Kit):
    """A subclass says which engine it is. `known` is what probes find in it, and why it does no harm."""

    known: ClassVar[Mapping[str, tuple[str, str]]] = KNOWN

    @pytest.fixture
    def engine(self) -> LiveEngine:
        """The engine under test."""
        raise NotImplementedError

    @pytest.fixture
    def open_folder(self) -> Generator[Path, None, None]:
        """A folder everybody can get to: nothing but the sandbox is in the way."""
        with tempfile.TemporaryDirectory(prefix="hostile-") as name:
            Path(name).chmod(0o755)
            yield Path(name)


class HostileContract(EngineKit):
    """Nothing gets out."""

    async def test_every_probe_is_blocked_or_finds_what_is_known(
        self,
        provider: SandboxProvider,
        plan: Plans,
        open_folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("ROOST_TEST_SECRET", SECRET)
        given = plan(mounts=[Mount(PROBES, INSIDE)], environ=ENVIRON, hidden=[".claude"])
        keep_record(given.home.path)
        with things_outside(open_folder) as facts:
            async with provider.open(given) as sandbox:
                found = await probed(sandbox, facts)
        opened = {name: got["detail"] for name, got in found.items() if got["verdict"] == "open"}
        expected = {name: self.known.get(name, ("nothing",))[0] for name in opened}
        assert [n for n, detail in opened.items() if not re.fullmatch(expected[n], detail)] == []

    async def test_what_is_linked_to_from_a_workspace_is_not_given_away(
        self, provider: SandboxProvider, plan: Plans, open_folder: Path
    ) -> None:
        """Neither to the sandbox, nor does its owner change."""
        given = plan()
        for name in ("secret", "twice"):
            (open_folder / name).write_text(SECRET)
        (given.workspace.path / "link").symlink_to(open_folder / "secret")
        (given.workspace.path / "folder").symlink_to(open_folder)
        os.link(open_folder / "twice", given.workspace.path / "second-name")
        async with provider.open(given) as sandbox:
            looked = await shell(sandbox, "cat link folder/secret; echo >>own")
            assert (looked.code, looked.output) == (0, b"")
        owners = {(open_folder / name).stat().st_uid for name in ("secret", "twice", ".")}
        assert owners == {os.geteuid()}


class ContainerContract(EngineKit):
    """What is the engine's own."""

    async def test_a_machine_with_an_engine_and_an_image_can_give_a_sandbox(
        self, provider: SandboxProvider
    ) -> None:
        await provider.check()

    async def test_an_image_that_is_not_there_is_named(
        self, engine: LiveEngine, tmp_path: Path
    ) -> None:
        with pytest.raises(SandboxUnavailable, match="nowhere-to-be-found") as caught:
            await DockerProvider(
                socket=engine.socket, image="nowhere-to-be-found", data=tmp_path
            ).check()
        assert "ROOST_DOCKER_IMAGE" in (caught.value.hint or "")

    async def test_an_image_without_a_shell_is_the_sandbox_s_failure(
        self, engine: LiveEngine, tmp_path: Path
    ) -> None:
        with tarfile.open(tmp_path / "empty.tar", "w"):
            pass
        async for _ in Engine(engine.socket).load(tmp_path / "empty.tar", "roost-empty"):
            pass
        with pytest.raises(SandboxUnavailable, match=r"does not work here.*/bin/sh"):
            await DockerProvider(socket=engine.socket, image="roost-empty", data=tmp_path).check()

    async def test_an_engine_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        nobody = DockerProvider(socket=tmp_path / "no.sock", image=IMAGE, data=tmp_path)
        with pytest.raises(SandboxUnavailable, match=r"no\.sock") as caught:
            await nobody.check()
        assert "ROOST_DOCKER_SOCKET" in (caught.value.hint or "")

    async def test_a_runtime_the_engine_does_not_know_is_the_sandbox_s_failure(
        self, engine: LiveEngine, plan: Plans, tmp_path: Path
    ) -> None:
        odd = DockerProvider(socket=engine.socket, image=IMAGE, runtime="odd", data=tmp_path)
        with pytest.raises(SandboxUnavailable, match=r"no runtime 'odd', but .*runc") as caught:
            await odd.check()
        assert "ROOST_DOCKER_RUNTIME" in (caught.value.hint or "")
        with pytest.raises(SandboxUnavailable, match="odd"):
            async with odd.open(plan()):
                pass
        assert await Engine(engine.socket).sandboxes("sesn_1") == []
        await DockerProvider(
            socket=engine.socket, image=IMAGE, runtime="runc", data=tmp_path
        ).check()

    async def test_an_image_is_built_of_a_file_and_makes_sandboxes(
        self, engine: LiveEngine, tmp_path: Path
    ) -> None:
        """Without any network, and without the engine's own program."""
        base = tmp_path / "root.tar"
        base.write_bytes(rootfs())
        done = await _image_build(engine, "--from", str(base), "--packages", "")
        assert (done.returncode, done.stdout) == (0, b"roost-built\n"), done.stderr.decode()
        assert b"Successfully" in done.stderr
        await DockerProvider(socket=engine.socket, image="roost-built", data=tmp_path).check()

    async def test_an_image_has_its_own_list_of_certificates(
        self, engine: LiveEngine, plan: Plans, tmp_path: Path
    ) -> None:
        """They are trusted, and not this machine's; and those of the session, as always."""
        base = tmp_path / "root.tar"
        base.write_bytes(rootfs())
        with tarfile.open(base, "a") as tar:
            entry = tarfile.TarInfo(SYSTEM_CERTIFICATES[0].removeprefix("/"))
            entry.size, entry.mode = len(b"of the image\n"), 0o644
            tar.addfile(entry, io.BytesIO(b"of the image\n"))
        async for _ in Engine(engine.socket).load(base, "roost-trusting"):
            pass
        session, everything = tmp_path / "ca.pem", tmp_path / "ca-bundle.pem"
        session.write_text("of the session\n")
        trusted = {"certificates": everything, "authority": session}
        shown = Mount(everything, "/run/roost/ca-bundle.pem")
        read = f"cat {SYSTEM_CERTIFICATES[0]} /run/roost/ca-bundle.pem"
        for image, found in (("roost-trusting", b"of the image\n"), (IMAGE, b"of the machine\n")):
            everything.write_text("of the machine\nof the session\n")
            provider = DockerProvider(socket=engine.socket, image=image, data=tmp_path)
            async with provider.open(plan(mounts=[shown], **trusted)) as sandbox:
                assert (await shell(sandbox, read)).output == (found + b"of the session\n") * 2
        assert await Engine(engine.socket).sandboxes("look") == []

    async def test_an_image_that_cannot_be_built_says_why_and_what_to_do(
        self, engine: LiveEngine
    ) -> None:
        for arguments, why, hint in (
            (
                ["--from", "nowhere.invalid/base"],
                b"the base nowhere.invalid/base is not available",
                b"--from",
            ),
            (["--from", IMAGE], b"apt-get: not found", b"--packages"),
        ):
            done = await _image_build(engine, *arguments)
            assert (done.returncode, done.stdout) == (1, b"")
            assert why in done.stderr
            assert hint in done.stderr.partition(b"hint: ")[2]

    async def test_a_container_removed_from_outside_is_the_sandbox_s_failure(
        self, provider: SandboxProvider, plan: Plans, engine: LiveEngine
    ) -> None:
        async with provider.open(plan()) as sandbox:
            process = await sandbox.spawn(["sleep", "60"])
            (found,) = await Engine(engine.socket).sandboxes("sesn_1")
            await Engine(engine.socket).remove(found["Id"])
            with pytest.raises(SandboxFailed), anyio.fail_after(60):
                await process.wait()
            with pytest.raises(SandboxFailed):
                await sandbox.spawn(["true"])

    async def test_a_sandbox_that_another_server_holds_is_gone_before_a_newer_one_is_open(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        heart = Heart(plan().workspace.path)
        async with make_provider(self.factory).open(plan(generation=1)) as older:
            await older.spawn(["sh", "-c", Heart.script])
            await heart.begins()
            async with provider.open(plan(generation=2)):
                assert not await heart.beats()

    async def test_what_was_made_and_never_started_is_swept(
        self, provider: SandboxProvider, engine: LiveEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roost.sandboxes.docker.provider._SECONDS_TO_START", -1)
        await Engine(engine.socket).create(
            "left", {"Image": IMAGE, "Cmd": ["true"], "Labels": {LABEL: "x"}}
        )
        await provider.check()
        assert await Engine(engine.socket).sandboxes("x") == []

    async def test_a_killed_command_takes_what_it_started_with_it(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        given = plan()
        heart = Heart(given.workspace.path)
        async with provider.open(given) as sandbox:
            process = await sandbox.spawn(["sh", "-c", f"sh -c '{Heart.script}' & wait"])
            await heart.begins()
            process.signal(signal.SIGKILL)
            assert await process.wait() == 128 + signal.SIGKILL
            assert not await heart.beats()
            assert (await run(sandbox, "echo", "alive")).output == b"alive\n"

    async def test_a_command_that_kills_all_it_can_does_not_end_the_sandbox(
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
                assert not (given.workspace.path / "begun").exists()


WANTED = packages.checked({"pip": ["hello-roost"]}, packages.NONE)
INSTALL = "printf '#!/bin/sh\\necho hello\\n' >/usr/local/bin/hello-roost; chmod 755 /usr/local/bin/hello-roost"
_KILLED = """
import sys
from pathlib import Path
import anyio
from tests.contracts.containers import WANTED, build_plan
from roost.sandboxes.docker import DockerProvider

async def main():
    given = DockerProvider(socket=Path(sys.argv[1]), image=sys.argv[2], data=Path(sys.argv[3]))
    async with given.building(WANTED, build_plan()) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "echo half >/usr/local/half; echo begun; sleep 600"])
        print((await process.receive()).decode(), flush=True)
        await process.wait()

anyio.run(main)
"""


def build_plan(limits: SandboxLimits | None = None) -> PlanBuild:
    """The plan of a build that reaches nothing."""
    return lambda layer, volume: Plan(
        session_id=f"layer-{layer}",
        generation=1,
        home=volume,
        workspace=volume,
        limits=limits or SandboxLimits(),
    )


class ContainerLayers(EngineKit):
    """Packages are installed into an image once, which containers then share; it is whole or not there."""

    @pytest.fixture
    def layered(self, engine: LiveEngine, tmp_path: Path) -> DockerProvider:
        return DockerProvider(socket=engine.socket, image=IMAGE, data=tmp_path / "data")

    async def test_what_a_build_installs_is_there_for_containers_as_long_as_they_use_it(
        self, engine: LiveEngine, layered: DockerProvider, plan: Plans, tmp_path: Path
    ) -> None:
        layer, is_there = await layered.layer_of(WANTED)
        assert not is_there
        seen: list[bool] = []

        async def build() -> None:
            async with layered.building(WANTED, build_plan()) as sandbox:
                seen.append(sandbox is not None)
                if sandbox is not None:
                    asked = """touch ~/scratch /opt/5 && python3 -c 'import os; os.chown("/opt/5", 5, 5)'"""
                    done = await shell(sandbox, f"{INSTALL} && {asked} && id -u; rm /usr/bin/yes")
                    assert (done.output, done.errors) == (b"0\n", b"")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(build)
            tasks.start_soon(build)
        assert sorted(seen) == [False, True], "it is built once"
        assert await layered.layer_of(WANTED) == (layer, True)
        await _check_labels(Engine(engine.socket), layer)
        async with layered.open(plan(layer=layer)) as sandbox:
            looked = "hello-roost; ls /home/sandbox /usr/bin/yes; stat -c %u /opt/5; id -u >&2"
            found = await shell(sandbox, looked)
            assert found.output == b"hello\n/home/sandbox:\n5\n"
            assert int(found.errors.splitlines()[-1]) > 0
            await layered.collect(LayersKept(days=-1))
            assert await layered.layer_of(WANTED) == (layer, True), "a container has it"
        async with layered.open(plan(generation=2)) as without:
            assert (
                await shell(without, "ls /usr/bin/yes; hello-roost")
            ).output == b"/usr/bin/yes\n"
        taken = await layered.collect(LayersKept(days=1))
        assert await layered.layer_of(WANTED) == (layer, True), "it was used today"
        whole = await Engine(engine.socket).image_bytes(IMAGE)
        assert whole is not None
        assert 0 < taken < whole / 2, "what is below it is not the layer's"
        await layered.collect(LayersKept(days=-1))
        assert [path.name for path in (tmp_path / "data/container-layers").iterdir()] == []
        with pytest.raises(SandboxUnavailable, match="is gone"):
            async with layered.open(plan(layer=layer, generation=3)):
                pass

    async def test_a_build_that_fails_fills_its_disk_forks_or_is_killed_leaves_no_layer(
        self, layered: DockerProvider, engine: LiveEngine, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="as told"):
            async with layered.building(WANTED, build_plan()):
                raise ValueError("as told")
        fill = "i=0; while :; do i=$((i+1)); head -c 20000000 /dev/zero >/usr/local/f$i; done"
        small = SandboxLimits(disk_bytes=100 * 1024**2, processes=64)
        with pytest.raises(SandboxFailed, match="disk"):
            async with layered.building(WANTED, build_plan(small)) as sandbox:
                assert sandbox is not None
                await shell(sandbox, fill)
        with pytest.raises(ValueError, match="held"):
            async with layered.building(WANTED, build_plan(small)) as sandbox:
                assert sandbox is not None
                process = await sandbox.spawn(["python3", "-c", f"{FORK}time.sleep(600)"])
                assert 20 <= int(await process.receive()) <= 64
                raise ValueError("held")
        await self._killed(engine, tmp_path / "data")
        assert (await layered.layer_of(WANTED))[1] is False
        async with layered.building(WANTED, build_plan()) as sandbox:
            assert sandbox is not None
            assert (await shell(sandbox, f"{INSTALL}; ls /usr/local")).output == b"bin\n"
        await layered.collect(LayersKept(days=-1))
        assert await Engine(engine.socket).sandboxes() == []

    async def test_probes_find_nothing_in_a_build_but_what_is_root_s_in_its_own_container(
        self, layered: DockerProvider, open_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ROOST_TEST_SECRET", SECRET)

        def plan(layer: str, volume: Volume) -> Plan:
            keep_record(volume.path)
            shown = {"mounts": [Mount(PROBES, INSIDE)], "hidden": [".claude"], "environ": ENVIRON}
            return replace(build_plan()(layer, volume), **shown)

        found: dict[str, Any] = {}
        with things_outside(open_folder) as facts, pytest.raises(ValueError, match="no layer"):
            async with layered.building(WANTED, plan) as sandbox:
                assert sandbox is not None
                found = await probed(sandbox, facts)
                raise ValueError("no layer is to be made of it")
        opened = {name: got["detail"] for name, got in found.items() if got["verdict"] == "open"}
        known = {**self.known, **OF_A_BUILD}
        expected = {name: known.get(name, ("nothing",))[0] for name in opened}
        strange = {n: d for n, d in opened.items() if not re.fullmatch(expected[n], d)}
        assert not strange, str(strange)

    async def test_volumes_of_an_image_are_in_memory_and_limited(
        self, engine: LiveEngine, plan: Plans, tmp_path: Path
    ) -> None:
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            lines = f"FROM {IMAGE}\nVOLUME /data /workspace\n".encode()
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(lines)
            tar.addfile(entry, io.BytesIO(lines))
        async for _ in Engine(engine.socket).build(context.getvalue(), "roost-volumes", {}):
            pass
        given = DockerProvider(socket=engine.socket, image="roost-volumes", data=tmp_path / "data")
        limits = SandboxLimits(tmp_bytes=8 * 1024**2)
        async with given.open(plan(limits=limits)) as sandbox:
            fill = "head -c 9000000 /dev/zero >/data/f; stat -c %s /data/f; echo x >kept"
            done = await shell(sandbox, fill)
            assert int(done.output) <= 8 * 1024**2, done
        assert (plan().workspace.path / "kept").read_text() == "x\n"

    async def _killed(self, engine: LiveEngine, data: Path) -> None:
        command = [sys.executable, "-c", _KILLED, str(engine.socket), IMAGE, str(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220
            assert server.stdout is not None
            try:
                begun = await anyio.to_thread.run_sync(server.stdout.readline)
            finally:
                server.kill()
        assert begun == b"begun\n"
        assert list((data / "container-layers").glob(".new-*")), "it was killed in the middle"

    async def test_an_environment_s_image_is_what_its_containers_are_made_of(
        self, engine: LiveEngine, plan: Plans, tmp_path: Path
    ) -> None:
        """Its packages too; and one that the engine does not have is named, with what to do."""
        other = {"other": "roost-other", "gone": "nowhere/to-be-found:1"}
        given = DockerProvider(socket=engine.socket, image=IMAGE, images=other, data=tmp_path / "d")
        base = tmp_path / "root.tar"
        base.write_bytes(rootfs())
        with tarfile.open(base, "a") as tar:
            entry = tarfile.TarInfo("usr/bin/npm")
            entry.mode = 0o755
            tar.addfile(entry)
        async for _ in Engine(engine.socket).load(base, "roost-other"):
            pass
        assert sorted(given.images) == ["gone", "other"]
        async with given.open(plan(image="other")) as sandbox:
            assert (await shell(sandbox, "command -v npm")).output == b"/usr/bin/npm\n"
        assert await given.lack(["npm"], "other") is None
        assert await given.lack(["npm"]) == f"npm: the image {IMAGE} has no npm"
        async with given.building(WANTED, build_plan(), "other") as sandbox:
            assert sandbox is not None
            assert (await shell(sandbox, INSTALL)).code == 0
        layer, is_there = await given.layer_of(WANTED, "other")
        assert (is_there, await given.layer_of(WANTED) == (layer, True)) == (True, False)
        async with given.open(plan(generation=2, image="other", layer=layer)) as sandbox:
            found = await shell(sandbox, "command -v npm; hello-roost")
            assert found.output == b"/usr/bin/npm\nhello\n"
        await given.collect(LayersKept(days=-1))
        for name, why in (("gone", "no image 'nowhere/to-be-found:1'"), ("odd", "called 'odd'")):
            with pytest.raises(SandboxUnavailable, match=why) as caught:
                async with given.open(plan(generation=3, image=name)):
                    pass
            assert "ROOST_DOCKER_IMAGES" in (caught.value.hint or "")


async def _check_labels(engine: Engine, layer: str) -> None:
    """What somebody else makes of a layer is not taken for the build's container, nor for one of ours."""
    made = await engine.create("foreign", {"Image": image_of(layer), "Cmd": ["true"]})
    try:
        labels = (await engine.inspect(made))["Config"]["Labels"]
        assert not any(labels.get(label) for label in (LABEL, PLACE))
        assert made not in [each["Id"] for each in await engine.sandboxes()]
    finally:
        await engine.remove(made)


async def _image_build(engine: LiveEngine, *arguments: str) -> CompletedProcess[bytes]:
    chosen = {"ROOST_DOCKER_SOCKET": str(engine.socket), "ROOST_DOCKER_IMAGE": "roost-built"}
    command = [sys.executable, "-m", "roost", "image", "build", *arguments]
    return await anyio.run_process(command, check=False, env=os.environ | chosen)
