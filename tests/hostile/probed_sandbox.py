"""What the hostile tests share: a sandbox with the probes in it, and things outside to be found."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from tests.parts import need

import roost.testing.probes
from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan, SandboxLimits
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.bubblewrap.sandbox import BubblewrapSandbox
from roost.sandboxes.state import default_state
from roost.testing.probes.inside.files import OWN
from roost.testing.reachable import reachable

MIB = 1024**2
PROBES = Path(roost.testing.probes.__file__).parent
INSIDE = "/opt/probes/roost/testing/probes"
ENVIRON = {"PYTHONPATH": "/opt/probes", "PYTHONDONTWRITEBYTECODE": "1"}
SECRET = "a-secret-of-the-server"
HARMLESS = {
    "fs.set_uid_in_workspace",
    "fs.write_own_root",
    "proc.machine_load",
    "proc.mounts",
    "proc.trace_first",
}
_CREATE_EXCLUSIVELY = 0o3000
_REMOVE = 0


def provider(**options: Any) -> BubblewrapProvider:
    options.setdefault("data", options.get("state") or default_state())
    return BubblewrapProvider(path=os.environ.get("PATH"), **options)


@cache
def _trouble() -> str:
    """Why this machine gives no sandbox; empty if it does."""
    try:
        anyio.run(provider().check)
    except SandboxUnavailable as error:
        return f"{error.message}. {error.hint}"
    return ""


def need_bubblewrap() -> None:
    need("a working bubblewrap", not _trouble(), _trouble())


@asynccontextmanager
async def hostile_sandbox(
    home: Path,
    limits: SandboxLimits | None = None,
    *,
    session: str = "sesn_hostile",
    **options: Any,
) -> AsyncGenerator[BubblewrapSandbox, None]:
    """A sandbox that holds the hostile programs."""
    plan = hostile_plan(home, limits, session=session)
    async with provider(**options).open(plan) as sandbox:
        assert isinstance(sandbox, BubblewrapSandbox)
        yield sandbox


def hostile_plan(
    home: Path, limits: SandboxLimits | None = None, *, session: str = "sesn_hostile"
) -> Plan:
    """Of a place that holds the hostile programs."""
    keep_record(home)
    return Plan(
        session_id=session,
        generation=1,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
        hidden=[".claude"],
        mounts=[Mount(PROBES, INSIDE)],
        environ=ENVIRON,
        limits=limits or SandboxLimits(),
    )


def keep_record(home: Path) -> None:
    """What an agent keeps of its conversation in its home."""
    (home / ".claude" / "projects").mkdir(parents=True, exist_ok=True)
    (home / ".claude" / "projects" / "one.jsonl").write_text("{}")


@contextmanager
def things_outside(folder: Path) -> Generator[dict[str, Any], None, None]:
    """Files, a process, sockets and memory on the host; and where they are."""
    other = folder / "other"
    other.mkdir(mode=0o755)
    (other / "note").write_text("of another session")
    (folder / "roost.db").write_text("the log")
    key = os.getpid()
    libc = ctypes.CDLL(None)
    memory = libc.shmget(key, 4096, _CREATE_EXCLUSIVELY | 0o666)
    with (
        subprocess.Popen(["sleep", "300"]) as victim,
        socket.create_server(("", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as filed,
    ):
        named.bind(f"\0roost-hostile-{key}")
        named.listen()
        filed.bind(str(folder / "server.sock"))
        (folder / "server.sock").chmod(0o666)
        filed.listen()
        mark = f"roost-probe-{key}"
        try:
            yield {
                "mark": mark,
                "victim": victim.pid,
                "port": server.getsockname()[1],
                "address": _own_address(),
                "metadata": "169.254.169.254",
                "metadata_port": 80,
                "name": "example.com",
                "other": str(other / "note"),
                "database": str(folder / "roost.db"),
                "secret": SECRET,
                "workspace": str(folder / "workspace"),
                "abstract": f"roost-hostile-{key}",
                "socket": str(folder / "server.sock"),
                "shared_memory": key,
                "cwd": "/workspace",
                "record": ".claude",
            }
            assert not [place for place in OWN.split() if Path(place, mark).exists()]
        finally:
            victim.kill()
            libc.shmctl(memory, _REMOVE, None)


def _own_address() -> str:
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        if datagrams.connect_ex(("192.0.2.1", 9)) == 0:  # nothing is sent
            return str(datagrams.getsockname()[0])
    return "127.0.0.1"


def naive(bwrap: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """What the probes find behind no more than a read-only view of the machine."""
    drop = ["setpriv", "--reuid=299998", "--regid=299998", "--clear-groups"]
    options = [
        "--ro-bind",
        "/",
        "/",
        "--dev-bind",
        "/dev",
        "/dev",
        "--tmpfs",
        "/opt",
        "--proc",
        "/proc",
    ]
    command = [
        str(reachable(bwrap, bwrap.parents[1])),
        *options,
        "--ro-bind",
        str(reachable(PROBES, PROBES)),
        INSIDE,
        "--bind",
        facts["cwd"],
        facts["cwd"],
    ]
    for name, value in {**ENVIRON, "SECRET": SECRET}.items():
        command += ["--setenv", name, value]
    done = subprocess.run(
        [
            *(drop if os.geteuid() == 0 else []),
            *command,
            "python3",
            "-m",
            "roost.testing.probes.inside",
        ],
        input=json.dumps(facts),
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "LEAKED": SECRET},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def not_blocked(found: dict[str, Any]) -> dict[str, str]:
    """The probes that got something which is not known to be harmless, and what."""
    return {
        n: got["detail"] for n, got in found.items() if got["verdict"] not in ("blocked", "info")
    }
