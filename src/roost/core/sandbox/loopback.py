"""Loopback ports of a sandbox that cannot open them itself: a program inside connects them to the sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from roost.ports.sandbox import Process, Sandbox, Stats
from roost.ports.sandbox_provider import Endpoint

FORWARDER: Final = "/run/roost/forward.py"
"""Where a sandbox shows the program that opens the ports (`roost/guest/forward.py`)."""


class ForwardedSandbox:
    """A sandbox whose commands each begin with a program that opens these ports on their loopback."""

    has_ports = True

    def __init__(self, inner: Sandbox, ports: Mapping[int, str]) -> None:
        self._inner = inner
        pairs = [f"{port}={path}" for port, path in ports.items()]
        self._prefix = ["python3", "-I", "-S", FORWARDER, *pairs, "--"]

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
        """What the sandbox uses now."""
        return await self._inner.stats()

    async def stop(self) -> None:
        """Kill everything inside the sandbox."""
        await self._inner.stop()


def with_ports(sandbox: Sandbox, endpoints: Sequence[Endpoint]) -> Sandbox:
    """The sandbox, with the ports of the endpoints open for each of its commands."""
    ports = {
        each.port: each.socket for each in endpoints if each.port is not None and not each.is_open
    }
    return sandbox if sandbox.has_ports or not ports else ForwardedSandbox(sandbox, ports)
