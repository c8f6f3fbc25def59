"""A way to the database that can be cut or blocked at a chosen moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from roost.testing.postgres import PostgresServer

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"  # as the driver sends it


Cut = Literal["before", "after", "for good"]


class Proxy:
    """Passes bytes on, while `passing`. `cut` names what happens to the next commits, one for each:
    they do not get through, or their answers do not, or nothing does from then on.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self.cut: list[Cut] = []
        self.cuts = 0
        self.shut = False
        self.passing = asyncio.Event()
        self.passing.set()

    @classmethod
    @asynccontextmanager
    async def before(cls, server: PostgresServer, folder: Path) -> AsyncGenerator[Proxy]:
        """A proxy whose socket is in `folder`, which takes the server's place in a URL."""
        proxy = cls(str(server.folder / ".s.PGSQL.5432"))
        listener = await asyncio.start_unix_server(proxy._serve, str(folder / ".s.PGSQL.5432"))
        try:
            yield proxy
        finally:
            listener.close()
            proxy.cut_all()

    def cut_all(self) -> None:
        """Every connection breaks, now."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.shut:
                raise ConnectionRefusedError
            up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        swallow = asyncio.Event()
        with suppress(OSError, asyncio.CancelledError):  # cut off, or the end of the test
            await asyncio.gather(
                self._up(reader, up_writer, swallow), self._down(up_reader, writer, swallow)
            )
        for one in (writer, up_writer):
            self._writers.discard(one)
            one.transport.abort()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            await self.passing.wait()
            if COMMIT in data and self.cut:
                self.cuts += 1
                if (cut := self.cut.pop()) == "before":
                    break
                self.shut = cut == "for good"
                swallow.set()
            writer.write(data)
        if not swallow.is_set():
            writer.transport.abort()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            await self.passing.wait()
            if swallow.is_set():  # the answer to the commit: it was done, and nobody is told
                break
            writer.write(data)
        writer.transport.abort()
        if self.shut:
            self.cut_all()
