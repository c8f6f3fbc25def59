"""Real engines for tests: in namespaces of their own, with an image made of this machine's files."""

from __future__ import annotations

import io
import json
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

from roost.errors import SandboxUnavailable
from roost.harnesses.claude.launch import bundled_cli
from roost.sandboxes import procfs
from roost.sandboxes.docker.wire import ask
from tests.parts import need

IMAGE = "roost-test"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = """
    sh bash cat chmod cp curl dd echo env false getconf head id ln ls mkdir mount mv rm sed setsid sleep stat su tail
    touch tr true umount wc whoami yes python3
"""
_LEFT_OUT = re.compile(r"/(test|tests|__pycache__|idlelib|ensurepip|tkinter|config-[^/]*)(/|$)")
_STARTS = {
    "dockerd": """
        dockerd --host "unix://$PWD/s" --data-root "$PWD/data" --exec-root "$PWD/exec" --pidfile "$PWD/pid"
        --config-file "$PWD/daemon.json"
    """,
    "podman": """
        podman --root "$PWD/data" --runroot "$PWD/run" --tmpdir "$PWD/tmp" --cgroup-manager cgroupfs
        --runtime runc system service --time=0 "unix://$PWD/s"
    """,
}
# gVisor without a network, but with unix sockets of the host; without hardware for virtual machines.
_GVISOR = ["--network=none", "--host-uds=all", "--platform=ptrace"]
_DAEMON = {"runtimes": {"runsc": {"path": "runsc", "runtimeArgs": _GVISOR}}}
# The contract's helper process makes the provider too, and knows the name of a factory, nothing else.
_FACTORY = """
from pathlib import Path
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.state import default_state

def make():
    return DockerProvider(socket=Path({socket!r}), image={image!r}, data=default_state())
"""


def need_engine(kind: str) -> None:
    """Go on if this machine can run one."""
    needed = (kind, "runc", "unshare", "ip", "ldd")
    missing = [name for name in needed if shutil.which(name, path=_PATH) is None]
    ok = os.geteuid() == 0 and not missing
    why = f"scripts/install-test-parts {kind} (as root on Debian; missing: {missing or 'root'})"
    need(f"a container engine, {kind}", ok, why)


def need_gvisor() -> None:
    """Go on if an engine can be asked for it."""
    found = shutil.which("runsc", path=_PATH)
    need("gVisor, runsc", found, "scripts/install-test-parts runsc (as root on Debian)")


class LiveEngine:
    """An engine that holds the image; `factory` names what makes a provider for it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.socket = folder / "s"
        self.factory = f"{kind}_under_test:make"

    @property
    def pid(self) -> int:
        """Of the process whose namespaces it is in."""
        assert self._daemon is not None, "not started"
        return self._daemon.pid

    def start(self, *, online: bool = False) -> None:
        """And wait until it answers. `online`: in the machine's network, for builds and nothing else."""
        # Bridges and firewall rules of its own stay its own, and so does what it mounts.
        apart = ["unshare", "-m", "--propagation", "private", *(() if online else ("-n",))]
        script = f"ip link set lo up && exec {' '.join(_STARTS[self._kind].split())}"
        if online:
            script += " --bridge=none --iptables=false --ip-masq=false"
        with (self._folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [*apart, "sh", "-c", script],
                stdout=log,
                stderr=log,
                env={"PATH": _PATH},
                cwd=self._folder,
            )
        self._wait(self._daemon)

    def stop(self) -> None:
        """And wait until it has ended."""
        assert self._daemon is not None, "not started"
        with self._daemon as daemon:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def _wait(self, daemon: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 180
        while not _answers(self.socket):
            said = (self._folder / "log").read_text()[-3000:]
            assert daemon.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)


@contextmanager
def engine(kind: str) -> Generator[LiveEngine, None, None]:
    """One for as long as the context lasts, in namespaces and a folder of its own."""
    need_engine(kind)
    folder = Path(tempfile.mkdtemp(prefix=f"roost-{kind}-"))
    made = LiveEngine(kind, folder)
    module = folder / f"{kind}_under_test.py"
    (folder / "daemon.json").write_text(json.dumps(_DAEMON))
    module.write_text(_FACTORY.format(socket=str(made.socket), image=IMAGE))
    sys.path.insert(0, str(folder))
    try:
        made.start()
        anyio.run(_import_image, made.socket)
        yield made
    finally:
        made.stop()
        end_what_is_left(folder)
        sys.path.remove(str(folder))
        sys.modules.pop(module.stem, None)
        shutil.rmtree(folder, ignore_errors=True)


def end_what_is_left(folder: Path) -> None:
    """Podman leaves a program behind each command, which tidies up minutes later, in folders made anew."""
    name = str(folder).encode()
    while left := [
        seen.pid for seen in procfs.everything() if name in procfs.raw(seen.pid, "cmdline")
    ]:
        for pid in left:
            procfs.send(
                pid, signal.SIGKILL, still=lambda pid=pid: name in procfs.raw(pid, "cmdline")
            )
        time.sleep(0.01)


def _answers(socket: Path) -> bool:
    try:
        anyio.run(ask, socket, "GET", "/version")
    except SandboxUnavailable:
        return False
    return True


async def _import_image(socket: Path) -> None:
    target = f"/images/create?fromSrc=-&repo={IMAGE}&tag=latest&changes=ENV+OF_THE_IMAGE%3Dyes"
    with anyio.fail_after(180):
        await ask(socket, "POST", target, rootfs())


def rootfs() -> bytes:
    """A small system, as a tar file: some programs, what they load, and Python's own library."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder in ("etc", "proc", "sys", "dev", "run"):
            _folder(tar, folder, 0o755)
        for folder in ("usr", "usr/bin", "usr/lib", "usr/local", "usr/local/bin", "opt", "var"):
            _folder(tar, folder, 0o777)
        _folder(tar, "tmp", 0o1777)
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
