"""A real engine for tests: in namespaces of its own, with an image made of this machine's files."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import anyio
from tests.parts import need

from roost.errors import SandboxUnavailable
from roost.harnesses.claude.launch import bundled_cli
from roost.sandboxes.docker.wire import ask

IMAGE = "roost-test"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEEDED = ("dockerd", "unshare", "ip", "ldd")
_PROGRAMS = """
    sh bash cat chmod cp dd echo env false getconf head id ln ls mkdir mount mv rm setsid sleep stat su tail
    touch tr true umount wc whoami python3
"""
_LEFT_OUT = re.compile(r"/(test|tests|__pycache__|idlelib|ensurepip|tkinter|config-[^/]*)(/|$)")
# Bridges and firewall rules of its own stay its own, and so does what it mounts.
_START = 'ip link set lo up && exec dockerd --host "unix://$0/s" --data-root "$0/data" --exec-root "$0/exec" --pidfile "$0/pid"'


def need_docker() -> None:
    """Go on if this machine can run an engine."""
    missing = [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]
    ok = os.geteuid() == 0 and not missing
    why = f"scripts/install-test-parts dockerd (as root on Debian; missing: {missing or 'root'})"
    need("a Docker engine", ok, why)


@contextmanager
def docker_engine() -> Generator[Path, None, None]:
    """An engine that holds the image, at its socket."""
    folder = Path(tempfile.mkdtemp(prefix="roost-dockerd-"))
    try:
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                ["unshare", "-n", "-m", "--propagation", "private", "sh", "-c", _START, folder],
                stdout=log,
                stderr=log,
                env={"PATH": _PATH},
            )
        with daemon:
            try:
                _wait_for(folder / "s", daemon, folder / "log")
                anyio.run(_import_image, folder / "s")
                yield folder / "s"
            finally:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(socket: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while not _answers(socket):
        assert daemon.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


def _answers(socket: Path) -> bool:
    try:
        anyio.run(ask, socket, "GET", "/version")
    except SandboxUnavailable:
        return False
    return True


async def _import_image(socket: Path) -> None:
    target = f"/images/create?fromSrc=-&repo={IMAGE}&tag=latest&changes=ENV+OF_THE_IMAGE%3Dyes"
    with anyio.fail_after(50):
        await ask(socket, "POST", target, _rootfs())


def _rootfs() -> bytes:
    """A small system, as a tar file: some programs, what they load, and Python's own library."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in ("usr", "usr/bin", "etc", "proc", "sys", "dev", "run", "tmp"):
            _folder(tar, folder, 0o1777 if folder == "tmp" else 0o755)
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name if name != 'sbin' else 'bin'}"
            tar.addfile(link)
        programs = [
            found for name in _PROGRAMS.split() if (found := shutil.which(name, path=_PATH))
        ]
        for program in programs:
            tar.add(Path(program).resolve(), f"usr/bin/{Path(program).name}")
        library = Path(_stdlib())
        extensions = [str(path) for path in library.glob("lib-dynload/*.so")]
        for path in sorted(_loaded([*programs, *extensions, str(bundled_cli())])):
            tar.add(Path(path).resolve(), f"usr/{path.removeprefix('/usr').lstrip('/')}")
        tar.add(library, str(library).lstrip("/"), filter=_wanted)
    return made.getvalue()


def _folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _LEFT_OUT.search(f"/{info.name}") or info.name.endswith(".a") else info


def _stdlib() -> str:
    ask_it = "import os; print(os.path.dirname(os.__file__))"
    python = shutil.which("python3", path=_PATH) or sys.executable
    return subprocess.check_output([python, "-I", "-c", ask_it], text=True).strip()


def _loaded(programs: Iterable[str]) -> set[str]:
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    return set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE))
