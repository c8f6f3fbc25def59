"""A sandbox without a network, whose programs expect one: ports of its own lead to the sockets it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from roost.ports.egress import Endpoints
from roost.ports.sandbox import Process, Sandbox, Stats

FORWARDER: Final = "/run/roost/forward.py"
"""Where a sandbox shows the program that gives its loopback ports a way out."""


class ForwardedSandbox:
    """A sandbox whose commands find their way out on loopback ports of their own."""

    has_ports = True

    def __init__(self, inner: Sandbox, way: Endpoints) -> None:
        self._inner = inner
        ports = [f"{port}={path}" for port, path in way.forwards.items()]
        self._prefix = ["python3", "-I", "-S", FORWARDER, *ports, "--"]

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> Process:
        """As the sandbox does, by way of the program that opens the ports."""
        return await self._inner.spawn([*self._prefix, *argv], environ=environ, cwd=cwd)

    async def stats(self) -> Stats:
        """What it uses now."""
        return await self._inner.stats()

    async def stop(self) -> None:
        """Kill everything inside."""
        await self._inner.stop()


def forwarded(sandbox: Sandbox, way: Endpoints) -> Sandbox:
    """The sandbox, with the ports that it cannot open itself."""
    return ForwardedSandbox(sandbox, way) if way.forwards else sandbox
