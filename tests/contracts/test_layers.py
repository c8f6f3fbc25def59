"""Layers of packages: built by nobody in particular, shared by sandboxes, and whole or not there."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.contracts.test_bubblewrap import wheel
from tests.hostile.probed_sandbox import need_bubblewrap, provider
from tests.parts import need

from roost.domain import packages
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.packages import LayersKept
from roost.ports.sandbox_provider import LocalVolume, Plan, SandboxLimits, Volume
from roost.sandboxes.bubblewrap import BubblewrapProvider, root
from roost.sandboxes.bubblewrap.layers import Layers
from roost.testing.sandbox_contract.kit import shell
from roost.testing.sandbox_contract.limits import FORK

WANTED = packages.checked({"pip": ["hello-roost"]}, packages.NONE)
INSTALL = "python3 -m pip install --no-index --no-deps ~/hello_roost-1.0-py3-none-any.whl"
ENVIRON = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PATH": "/usr/bin:/bin"}
_KILLED = """
import sys
from pathlib import Path
import anyio
from tests.contracts.test_layers import WANTED, plan_in
from tests.hostile.probed_sandbox import provider

async def main():
    given = provider(data=Path(sys.argv[1]))
    async with given.building(WANTED, plan_in()) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "touch /usr/local/half; echo begun; sleep 600"])
        print((await process.receive()).decode(), flush=True)
        await process.wait()

anyio.run(main)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _parts() -> None:
    need_bubblewrap()
    found = subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True)
    need("pip of the machine's Python", found.returncode == 0, "apt install python3-pip")


def plan_in(limits: SandboxLimits | None = None) -> Callable[[str, Volume], Plan]:
    def plan(layer: str, volume: Volume) -> Plan:
        wheel(volume.path)
        return Plan(
            session_id=f"layer-{layer}",
            generation=1,
            home=volume,
            workspace=volume,
            environ=ENVIRON,
            limits=limits or SandboxLimits(),
        )

    return plan


async def built(given: BubblewrapProvider, script: str, **options: Any) -> str:
    layer, is_there = await given.layer_of(WANTED)
    assert not is_there
    async with given.building(WANTED, plan_in(**options)) as sandbox:
        assert sandbox is not None
        done = await shell(sandbox, script)
        assert done.code == 0, done.errors
    return layer


def using(home: Path, layer: str | None) -> Plan:
    return Plan(
        session_id="sesn_user",
        generation=1,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
        layer=layer,
    )


async def test_what_a_build_installs_is_there_for_sandboxes_and_not_on_the_machine(
    tmp_path: Path,
) -> None:
    given, home = provider(data=tmp_path / "data"), tmp_path / "home"
    home.mkdir()
    asked = "id -u; chown 5:5 /usr/local/bin/hello-roost && chmod u+s /usr/local/bin/hello-roost"
    layer = await built(given, f"{INSTALL} && {asked} && rm /usr/bin/tac && echo >/etc/made")
    assert await given.layer_of(WANTED) == (layer, True)
    async with given.building(WANTED, plan_in()) as again:
        assert again is None, "it is built once"
    async with given.open(using(home, layer)) as sandbox:
        assert (await shell(sandbox, "hello-roost")).output == b"hello\n"
        seen = "ls -d /usr/bin/tac /home/sandbox/*.whl; find /usr/local/bin -perm /6000; id -u; ls /etc/made"
        assert (await shell(sandbox, seen)).output == b"1000\n/etc/made\n"
        # Its own, for as long as it is there: the layer does not change.
        await shell(sandbox, "rm /usr/local/bin/hello-roost; touch /usr/local/bin/mine")
        assert (await shell(sandbox, "hello-roost; ls /usr/local/bin/mine")).output == b"hello\n"
        await given.collect(LayersKept(days=0))
        assert await given.layer_of(WANTED) == (layer, True), "a sandbox has it"
    home.chmod(0o755)
    async with given.open(using(home, None)) as without:
        assert (await shell(without, "command -v hello-roost; ls /usr/bin/tac")).output == (
            b"/usr/bin/tac\n"
        )
    assert not Path("/usr/local/bin/hello-roost").exists()  # noqa: ASYNC240
    os.utime(tmp_path / "data/layers" / f"{layer}.lock", (1, 1))
    await given.collect(LayersKept(days=1))
    assert await given.layer_of(WANTED) == (layer, False), "nobody has used it for a day"
    with pytest.raises(SandboxUnavailable, match="is gone"):
        async with given.open(using(home, layer)):
            pass


async def test_of_two_builds_at_once_one_builds_and_the_other_waits_for_it(tmp_path: Path) -> None:
    first, second = (provider(data=tmp_path / "data") for _ in range(2))
    seen: list[bool] = []

    async def build(given: BubblewrapProvider) -> None:
        async with given.building(WANTED, plan_in()) as sandbox:
            seen.append(sandbox is not None)
            if sandbox is not None:
                assert (await shell(sandbox, INSTALL)).code == 0

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(build, first)
        tasks.start_soon(build, second)
    assert sorted(seen) == [False, True]


async def test_a_build_that_fails_fills_its_disk_forks_or_is_killed_leaves_no_layer(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    given = provider(data=data)
    layer, _ = await given.layer_of(WANTED)
    with pytest.raises(ValueError, match="as told"):
        async with given.building(WANTED, plan_in()):
            raise ValueError("as told")
    small = SandboxLimits(disk_bytes=100 * 1024**2, processes=64)
    fill = "i=0; while :; do i=$((i+1)); head -c 20000000 /dev/zero >/usr/local/f$i; done"
    with pytest.raises(SandboxFailed, match="disk"):
        await built(given, fill, limits=small)
    with pytest.raises(ValueError, match="held"):
        async with given.building(WANTED, plan_in(small)) as sandbox:
            assert sandbox is not None
            process = await sandbox.spawn(["python3", "-c", f"{FORK}time.sleep(600)"])
            assert 20 <= int(await process.receive()) <= 64
            raise ValueError("held")
    assert [path.name for path in (data / "layers").iterdir()] == []
    command = [sys.executable, "-c", _KILLED, str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220
        assert server.stdout is not None
        begun = await anyio.to_thread.run_sync(server.stdout.readline)
        assert begun == b"begun\n"
        server.send_signal(signal.SIGKILL)
    assert list((data / "layers").glob(".new-*")), "it was killed in the middle"
    assert await given.layer_of(WANTED) == (layer, False)
    await built(given, INSTALL)
    assert {path.name for path in (data / "layers").iterdir()} == {layer, f"{layer}.lock"}


async def test_what_a_hostile_build_plants_does_not_lead_the_server_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for name in ("sbin", "lib/apt", "log", "python3/dist-packages"):
        (outside / name).mkdir(parents=True)
    (outside / "sbin/policy-rc.d").write_text("kept")
    outside.chmod(0o755)
    mode = (outside / "python3/dist-packages").stat().st_mode
    plant = f"""
        mv /usr/sbin /usr/sbin2 2>/dev/null; rm -rf /usr/sbin; ln -s {outside}/sbin /usr/sbin
        rm -rf /var/lib /var/log /etc/passwd /usr/local/lib; ln -s {outside}/lib /var/lib
        ln -s {outside}/log /var/log; ln -s /etc/shadow /etc/passwd; ln -s {outside} /usr/local/lib
    """
    given = provider(data=tmp_path / "data")
    layer = await built(given, f"{plant} true")
    assert (outside / "sbin/policy-rc.d").read_text() == "kept"
    assert (outside / "lib/apt").is_dir()
    assert (outside / "log").is_dir()
    assert (outside / "python3/dist-packages").stat().st_mode == mode
    shown = (tmp_path / "data/layers" / layer / "etc/passwd").read_text()
    assert {line.split(":")[0] for line in shown.splitlines()} == {"root", "sandbox", "nobody"}


async def test_a_package_cannot_lift_the_limit_on_processes(tmp_path: Path) -> None:
    """Without control groups, by a program that sets limits elsewhere."""
    given, home = provider(data=tmp_path / "data", use_cgroups=False), tmp_path / "home"
    home.mkdir()
    own = """#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n"""
    plant = f"rm /usr/bin/prlimit && printf '%s' {shlex.quote(own)} >/usr/bin/prlimit"
    layer = await built(given, f"{plant} && chmod 755 /usr/bin/prlimit")
    wanted = replace(using(home, layer), limits=SandboxLimits(processes=64))
    async with given.open(wanted) as sandbox:
        process = await sandbox.spawn(["python3", "-c", f"{FORK}os.kill(0, 9)"])
        assert 20 <= int(await process.receive()) <= 64


async def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    layers = Layers(tmp_path, tmp_path / "etc-0")
    assert layers.lack(["pip"]) is None
    assert layers.lack(["no-such"]) == "no-such: the program no-such is missing on this machine"


def test_another_system_is_another_layer(tmp_path: Path) -> None:
    one, other = Layers(tmp_path, tmp_path / "etc-1"), Layers(tmp_path, tmp_path / "etc-2")
    assert one.name_of(WANTED) == one.name_of(dict(WANTED))
    assert one.name_of(WANTED) != other.name_of(WANTED)
    assert one.name_of(WANTED) != one.name_of({**WANTED, "npm": ["left-pad"]})


def test_what_is_left_of_a_removed_layer_is_not_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = Layers(tmp_path, tmp_path / "etc-0")
    (tmp_path / "old").mkdir()
    layers.touch("old")
    with monkeypatch.context() as dying:
        dying.setattr("roost.sandboxes.bubblewrap.layers.disk.remove", _dies)
        with pytest.raises(InterruptedError):
            layers.collect(LayersKept(days=0))
    assert layers.find("old") is None
    layers.collect(LayersKept(days=0))
    assert list(tmp_path.iterdir()) == []


def _dies(_path: Path) -> None:
    raise InterruptedError


def test_of_more_than_are_kept_those_unused_for_longest_go(tmp_path: Path) -> None:
    layers = Layers(tmp_path, tmp_path / "etc-0")
    for at, name in enumerate(("first", "second", "third")):
        (tmp_path / name).mkdir()
        layers.touch(name)
        os.utime(tmp_path / f"{name}.lock", (1e9 + at, 1e9 + at))
    layers.touch("first")
    with layers.used("second"):
        layers.collect(LayersKept(days=99999, most=2))
        assert {path.name for path in tmp_path.iterdir()} == {
            *("first", "first.lock", "second", "second.lock")
        }


def test_of_layers_that_take_too_much_those_unused_for_longest_go(tmp_path: Path) -> None:
    """One that is in use stays, whenever it was used last: others make room for it."""
    layers = Layers(tmp_path, tmp_path / "etc-0")
    for at, name in enumerate(("old", "older", "newer", "newest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
        layers.touch(name)
        os.utime(tmp_path / f"{name}.lock", (1e9 + at, 1e9 + at))
    taken = layers.collect(LayersKept(days=99999))
    one = taken // 4
    assert 100_000 <= one < 120_000
    (tmp_path / "older/file").unlink()
    assert layers.collect(LayersKept(days=99999)) == taken, "what a layer takes is counted once"
    with layers.locked("old", fcntl.LOCK_SH):
        assert layers.collect(LayersKept(days=99999, bytes=2 * one + 1)) == 2 * one
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"old", "newest"}
        layers.touch("newest")
        assert layers.collect(LayersKept(days=99999, bytes=1)) == 2 * one, "it was used just now"
    assert layers.collect(LayersKept(days=99999, bytes=one)) == one
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "newest.lock"}


async def test_a_root_that_no_server_holds_is_removed_also_of_another_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, home, roots = (
        provider(data=tmp_path / "data"),
        tmp_path / "home",
        tmp_path / "data/roots",
    )
    home.mkdir()
    monkeypatch.setattr("roost.sandboxes.bubblewrap.root._SECONDS_TO_HOLD", -1)
    async with given.open(using(home, None)) as sandbox:
        await shell(sandbox, "touch /opt/mine")
        [mine] = roots.iterdir()
        left = roots / re.sub(r"roost-\d+", "roost-1", mine.name)  # of another pid namespace
        left.mkdir()
        root.sweep(roots)
        assert [path.name for path in roots.iterdir()] == [mine.name]
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("roost.sandboxes.sandbox_names._namespace", lambda: 1)
            root.sweep(roots)
        assert mine.exists()
    assert list(roots.iterdir()) == []


async def test_a_failure_that_passes_does_not_make_roots_read_only_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = provider(data=tmp_path / "data")

    async def fails(*_: object) -> int:
        raise SandboxFailed("not now")

    with monkeypatch.context() as now:
        now.setattr(given, "_tried", fails)
        assert (await given.limits_report())["root"] == "read-only: not now"
    assert (await given.limits_report())["root"] == "read-only: not now"
    given._look_again = 0
    assert (await given.limits_report())["root"] == "writable"
