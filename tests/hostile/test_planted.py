"""What a sandbox plants in its workspace leads the host nowhere."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import pytest
from tests.hostile.probed_sandbox import hostile_sandbox, provider
from tests.parts import need

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.sandboxes.paths import open_at, open_by_steps, walk_beneath
from roost.testing.sandbox_contract.kit import run

SECRET = "of the host"
Open = Callable[..., int]


def _opened(way: Open, root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    top = os.open(root, os.O_RDONLY)
    try:
        opened = way(top, path, flags)
    finally:
        os.close(top)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise OSError("not a regular file")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[open_at, open_by_steps], ids=["by the kernel", "by steps"])
def open_path(request: pytest.FixtureRequest) -> Open:
    return partial(_opened, request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Generator[Path, None, None]:
    """A workspace full of traps, beside a secret."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    root = tmp_path / "workspace"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "plain").write_text("hello")
    (root / "link").symlink_to(outside / "secret")
    (root / "relative-link").symlink_to("../outside/secret")
    (root / "inner-link").symlink_to("folder/plain")
    (root / "folder-link").symlink_to(outside)
    (root / "magic").symlink_to("/proc/self/root/etc/passwd")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(root / "socket"))
        yield root


def test_a_plain_file_is_opened(workspace: Path, open_path: Open) -> None:
    opened = open_path(workspace, "folder/plain")
    with os.fdopen(opened) as file:
        assert file.read() == "hello"


@pytest.mark.parametrize(
    "path",
    [
        "link",
        "relative-link",
        "inner-link",
        "folder-link/secret",
        "folder-link",
        "magic",
        "loop",
        "fifo",
        "socket",
        "folder",
        "../outside/secret",
        "folder/../../outside/secret",
        "/etc/passwd",
        "",
        ".",
        "..",
        "missing",
        "folder/plain/below-a-file",
    ],
)
def test_a_trap_is_not_opened(workspace: Path, open_path: Open, path: str) -> None:
    with pytest.raises(OSError):
        open_path(workspace, path)


@pytest.mark.timeout(60)
def test_a_fifo_is_not_waited_for_when_writing(workspace: Path, open_path: Open) -> None:
    with pytest.raises(OSError):
        open_path(workspace, "fifo", os.O_WRONLY)


def test_a_device_is_not_opened(workspace: Path, open_path: Open) -> None:
    need("root", os.geteuid() == 0, "running as root")
    os.mknod(workspace / "zero", 0o020666, os.makedev(1, 5))
    with pytest.raises(OSError):
        open_path(workspace, "zero")


def test_a_new_file_is_made_where_it_should_be_and_never_over_a_link(
    workspace: Path, open_path: Open
) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(open_path(workspace, "folder/new", flags))
    assert (workspace / "folder" / "new").is_file()
    for path in ("link", "folder-link/new", "../new"):
        with pytest.raises(OSError):
            open_path(workspace, path, os.O_WRONLY | os.O_CREAT)
    assert not (workspace.parent / "outside" / "new").exists()


def test_a_folder_that_becomes_a_link_in_between_leads_nowhere(
    workspace: Path, open_path: Open
) -> None:
    swapping, done = workspace / "swapping", threading.Event()
    real, link = workspace / "real", workspace / "as-link"
    real.mkdir()
    (real / "secret").write_text("its own")
    link.symlink_to(workspace.parent / "outside")

    def swap() -> None:
        while not done.is_set():
            for what in (real, link):
                what.rename(swapping)
                swapping.rename(what)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        read = {_read(open_path, workspace, "swapping/secret") for _ in range(3000)}
    finally:
        done.set()
        thread.join()
    assert read <= {"its own", None}


def test_a_walk_follows_no_link_and_sees_each_thing_once(workspace: Path) -> None:
    names = sorted(entry.name for entry in walk_beneath(workspace))
    expected = "fifo folder folder-link inner-link link loop magic plain relative-link socket"
    assert names == expected.split()


def test_a_walk_stops_when_it_is_carried_away(workspace: Path) -> None:
    """A directory moved elsewhere while the walk is in it would make `..` lead elsewhere too."""
    (workspace / "folder" / "a" / "b").mkdir(parents=True)
    elsewhere = workspace.parent / "outside" / "caught"
    with pytest.raises(OSError, match="moved"):
        for entry in walk_beneath(workspace):
            if entry.name == "b":
                (workspace / "folder" / "a").rename(elsewhere)


async def test_opening_a_sandbox_gives_away_nothing_that_is_linked_to(workspace: Path) -> None:
    need("root", os.geteuid() == 0, "running as root: else nothing changes hands")
    outside = workspace.parent / "outside"
    (outside / "twice").write_text(SECRET)
    os.link(outside / "twice", workspace / "second-name")
    async with hostile_sandbox(workspace) as sandbox:
        assert (await run(sandbox, "sh", "-c", "echo >>folder/plain")).code == 0
        assert (await run(sandbox, "sh", "-c", "cat link folder-link/secret")).code != 0
    assert {(outside / name).stat().st_uid for name in ("secret", "twice", ".")} == {0}
    assert (workspace / "folder" / "plain").stat().st_uid >= 200_000


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/usr",
        "/usr/local/x",
        "/etc/passwd",
        "/proc/x",
        "/dev/x",
        "/bin/x",
        "/lib64",
        "/tmp/x",
        "/workspace",
        "/workspace/x",
        "/home/sandbox/.ssh",
        "/open/inside",
        "relative",
        "/a/../etc",
        "/a//b",
        "/a/",
        "/nul\0",
    ],
)
async def test_a_mount_over_the_system_or_in_what_is_writable_is_refused(
    workspace: Path, target: str
) -> None:
    """bwrap makes the mount point, and would follow a link planted there."""
    mounts = [Mount(workspace, "/open", writable=True), Mount(workspace, target)]
    plan = Plan(
        session_id="s",
        generation=1,
        home=LocalVolume(workspace),
        workspace=LocalVolume(workspace),
        mounts=mounts,
    )
    with pytest.raises(SandboxUnavailable, match="mounted"):
        async with provider().open(plan):
            pass


def _read(open_path: Open, root: Path, path: str) -> str | None:
    try:
        opened = open_path(root, path)
    except OSError:
        return None
    with os.fdopen(opened) as file:
        return file.read()
