"""Opening a sandbox: what it is to be, and who makes it.

`core/sandbox/planner` makes a plan of a session, and a provider makes a sandbox of the plan, here or on another
machine. See `docs/decisions/051-plans-have-no-host-in-them.md`.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from roost.ports.sandbox import Sandbox


class Mount(msgspec.Struct, frozen=True):
    """A file, directory or socket of the host, shown inside at `target`; a sandbox elsewhere copies it.

    Whoever is inside is nobody in particular on the host: what is shown must be readable for everybody
    (and a socket writable), and is protected by the directory it lies in. `hidden` are paths below a
    directory that is shown: directories that are there, and look empty.
    """

    source: Path
    target: str
    writable: bool = False
    hidden: Sequence[str] = ()


SYSTEM_CERTIFICATES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, and what is made from it
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",
)
"""Where systems keep the list of the certificates that they trust, each as one file."""


class LocalVolume(msgspec.Struct, frozen=True):
    """A directory of this machine that outlives every sandbox it is given to."""

    path: Path


Volume = LocalVolume
"""What holds a session's home, or the workspace it works in.

A sandbox of this machine mounts it. One that runs elsewhere fills a disk of its own from it before the first
command, and brings back what was changed there, both through `ports.tree.Tree`. A volume without a path of
this machine would be one more class here; mypy then names every provider that cannot serve it.
"""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What everything inside may use together. 0: no limit of ours."""

    memory_bytes: int = 4 * 1024**3
    processes: int = 512
    cpus: float = 2.0
    open_files: int = 4096
    disk_bytes: int = 10 * 1024**3
    tmp_bytes: int = 256 * 1024**2


class UnixAddress(msgspec.Struct, frozen=True):
    """A unix socket of this machine."""

    path: Path


Address = UnixAddress
"""Where the server listens for a sandbox. One that runs elsewhere needs an address it can reach, with a token
that names the session: one more class here.
"""

Take = Callable[[socket.socket], Awaitable[None]]
"""Takes over a connection from inside; returns when there is room for the next one. Never fails."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Something of the server's that commands can connect to. There is no other way out of a sandbox.

    The server listens at `address`. Commands find it as a unix socket at the path `socket`, and, where a
    program speaks only TCP, at `port` of their own loopback; without isolation that is the machine's, where the
    server has opened it already (`is_open`). `take` spares a sandbox of this process the
    detour over the address: it hands over a connection that has come to such a port.
    """

    address: Address
    socket: str
    port: int | None = None
    is_open: bool = False
    take: Take | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox is to be.

    `home` becomes `/home/sandbox` and `workspace` becomes `/workspace`, both writable; they may be the same
    volume. What the workspace has under the names in `hidden` is an empty directory there, and nothing can
    be put into it; that is for what belongs to the home alone. `mounts` are added to that, and the file
    `certificates` takes the place of the system's list of trusted ones (`SYSTEM_CERTIFICATES`). It has this
    machine's list and the certificate in `authority`, and is this sandbox's alone: a sandbox with another system
    than this machine's writes that system's list into it instead, and the certificate after it. There is no
    network but the `endpoints`. A command's environment is `HOME` and `PATH` of the sandbox, then `environ`,
    then what `spawn` is given, and nothing else (shells add `PWD`; a sandbox that does not isolate adds
    `ROOST_PLACE`, to find again what was started in it).

    `image` is the operator's name for the system that it has (`ImageProvider`); None: the usual one. `layer` is the
    name of the packages that its system has (`ports/packages`), which are there by then.

    `generation` is the lease's: a sandbox of an older generation must be gone before a newer one is open,
    also if another server on this machine holds it.
    """

    session_id: str
    generation: int
    home: Volume
    workspace: Volume
    hidden: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    certificates: Path | None = None
    authority: Path | None = None
    endpoints: Sequence[Endpoint] = ()
    environ: Mapping[str, str] = {}
    limits: SandboxLimits = SandboxLimits()
    image: str | None = None
    layer: str | None = None

    @property
    def shown(self) -> list[Mount]:
        """All that a sandbox on this machine mounts: the mounts, and the sockets of the endpoints."""
        sockets = [Mount(each.address.path, each.socket) for each in self.endpoints]
        return [*self.mounts, *sockets]


class SandboxProvider(Protocol):
    """Opens sandboxes of one kind. Each kind is found by name in `roost.sandboxes.SANDBOXES`."""

    @property
    def name(self) -> str:
        """The word settings name it by."""
        ...

    @property
    def isolates(self) -> bool:
        """Whether it keeps what runs inside from the machine, as a sandboxed session is promised.

        If not, only sessions whose trust level asks for no isolation get it.
        """
        ...

    async def check(self) -> None:
        """Called before a sandbox is asked for, and by `roost doctor`.

        :raises SandboxUnavailable: this machine cannot give one now; the hint says what to do
        """
        ...

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox according to the plan; everything inside is dead when the context ends.

        It dies with this process too, whatever kills it: at once, or when the next server sweeps.

        :raises SandboxUnavailable: it cannot be made
        """
        ...

    async def sweep(self) -> None:
        """End every sandbox on this machine whose server is dead; those of living servers are left alone.

        Called when a server starts. Nothing is given to find them by: servers keep no list of their
        sandboxes, because they can die before they have written to it.

        :raises SandboxUnavailable: what holds the sandboxes does not answer
        :raises SandboxFailed: something does not die
        """
        ...

    async def limits_report(self) -> Mapping[str, str]:
        """How each limit is in force, in words. Called by `roost doctor`, once `check` has passed.

        :raises SandboxUnavailable: this machine cannot give a sandbox now
        """
        ...


@runtime_checkable
class ImageProvider(Protocol):
    """A provider whose sandboxes can have one of several systems."""

    @property
    def images(self) -> Collection[str]:
        """The operator's names for them."""
        ...

    async def check_image(self, name: str) -> None:
        """See whether a sandbox can have the one of that name now. :raises SandboxUnavailable: it cannot"""
        ...
