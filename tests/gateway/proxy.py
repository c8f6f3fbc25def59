"""A bad network: between a client and the server, cutting connections at random moments."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream


class Proxy:
    """Passes bytes on, until a connection has had its share; then it is cut in mid-air."""

    def __init__(self, url: str, rng: random.Random, drops: int, share: tuple[int, int]) -> None:
        where = urlsplit(url)
        self._host, self._port = str(where.hostname), int(where.port or 0)
        self._rng = rng
        self._share = share
        self.left = drops
        self.dropped = 0

    async def handle(self, client: SocketStream) -> None:
        async with client:
            try:
                server = await anyio.connect_tcp(self._host, self._port)
            except OSError:  # the server is down
                return
            async with server, anyio.create_task_group() as tasks:
                budget = [self._rng.randint(*self._share) if self.left > 0 else None]
                tasks.start_soon(self._pump, client, server, budget, tasks)
                tasks.start_soon(self._pump, server, client, budget, tasks)

    async def _pump(
        self,
        source: SocketStream,
        target: SocketStream,
        budget: list[int | None],
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        try:
            while True:
                data = await source.receive(4096)
                left = budget[0]
                if left is not None and len(data) >= left:
                    await target.send(data[:left])  # a frame cut in two, more often than not
                    if self.left > 0:
                        self.left -= 1
                        self.dropped += 1
                    return
                if left is not None:
                    budget[0] = left - len(data)
                await target.send(data)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def bad_network(
    url: str, rng: random.Random, drops: int, share: tuple[int, int]
) -> AsyncGenerator[tuple[str, Proxy], None]:
    proxy = Proxy(url, rng, drops, share)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.handle)
        yield f"http://127.0.0.1:{port}", proxy
        tasks.cancel_scope.cancel()
