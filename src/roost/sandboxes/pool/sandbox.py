"""One open sandbox: the container of an identifier, in which `guest/commands.py` runs what it is told."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from roost.dynamic_sessions import CodePool, PoolRefused, PoolUnavailable
from roost.errors import FilesNotFetched, SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Stats
from roost.ports.sandbox_provider import Plan
from roost.sandboxes.bubblewrap.recipe import BASE_ENVIRON
from roost.sandboxes.open_sandboxes import Ending
from roost.sandboxes.pool import transfer
from roost.sandboxes.pool.channels import PoolChannel, PoolConnection, PoolProcess
from roost.sandboxes.pool.claims import Claim, ContainerClaims
from roost.sandboxes.pool.link import NONSENSE, Link
from roost.sandboxes.pool.notes import Notes

_LOOKED_FOR: Final = (
    1024**2
)  # bytes from which on it is worth asking whether a file is there already
_SECONDS_TO_STOP: Final = 300.0
_SECONDS_TO_ANSWER: Final = 60.0
_MOST_CHANNELS: Final = 2000
_log = logging.getLogger(__name__)


class Rented:
    """A container of a pool: whose it is, and whether it may have files that are nowhere else."""

    def __init__(
        self,
        pool: CodePool,
        identifier: str,
        notes: Notes,
        name: str,
        claims: ContainerClaims,
        claim: Claim,
    ) -> None:
        self.pool = pool
        self.identifier = identifier
        self.claims = claims
        self.claim = claim
        self._notes = notes
        self._name = name
        self._is_changed = False

    async def touch(self) -> None:
        """Something in it is about to go on. :raises SandboxFailed: that cannot be noted"""
        if not self._is_changed:
            await self._note(is_changed=True)

    async def settle(self) -> None:
        """All its files are back, or those of the one before. :raises SandboxFailed: that cannot be noted"""
        await self._note(is_changed=False)

    async def took_a_turn(self) -> None:
        """The same, and the agent knows what was lost before. :raises SandboxFailed: that cannot be noted"""
        await self._note(is_changed=False, is_lost=False)

    async def lose(self) -> None:
        """What the one before had is lost. :raises SandboxFailed: that cannot be noted"""
        await self._note(is_changed=False, is_lost=True)

    async def _note(self, *, is_changed: bool, is_lost: bool | None = None) -> None:
        write = partial(
            self._notes.mark, self.identifier, self._name, is_changed=is_changed, is_lost=is_lost
        )
        try:
            await anyio.to_thread.run_sync(write)
        except OSError as error:
            raise SandboxFailed(f"what a container has cannot be noted: {error}") from error
        self._is_changed = is_changed

    async def end(self, *, is_lost: bool) -> None:
        """End it, unless a newer lease has it; `is_lost`: perhaps it is another one by now.

        :raises PoolUnavailable: :raises PoolRefused:
        """
        await self.claims.end(self.pool, self._is_anothers, even_free=not is_lost)

    def _is_anothers(self, holder: Claim) -> bool:
        return holder.token != self.claim.token and holder.generation >= self.claim.generation

    def forget(self) -> None:
        """It is closed, and all its files are back."""
        self._notes.remove(self.identifier, self._name)


class PoolSandbox:
    """`ports.sandbox.Sandbox` and `ports.away_sandbox.AwaySandbox`. Made and ended by `provider`."""

    has_ports = True

    def __init__(self, plan: Plan, rented: Rented, link: Link, tasks: TaskGroup) -> None:
        self._plan = plan
        self._rented = rented
        self._link = link
        self._tasks = tasks
        self._numbers = itertools.count(2, 2)
        self._channels: dict[int, PoolChannel] = {}
        self._asked = {0}
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = anyio.Event()
        self._places: list[transfer.Place] = []
        self._brought = 0
        self._bringing = anyio.Lock()
        self._ending = Ending()
        self.is_behind = False

    # Opening

    async def begin(self) -> None:
        """Wait until it is up, and fill it.

        :raises SandboxUnavailable: it does not come to that
        """
        self._tasks.start_soon(self._run)
        try:
            with anyio.fail_after(_SECONDS_TO_STOP):
                await self._told(0)
                self._asked.discard(0)
                await self._fill()
        except TimeoutError:
            words = f"a container could not be filled within {_SECONDS_TO_STOP:.0f} seconds"
            raise SandboxUnavailable(words) from None
        except (SandboxFailed, PoolRefused, PoolUnavailable, OSError) as error:
            if isinstance(error, SandboxUnavailable):
                raise
            raise SandboxUnavailable(f"a container cannot be filled: {error}") from error

    async def _run(self) -> None:
        await self._link.run(self._take)
        self._wake()

    async def _fill(self) -> None:
        self._places = await anyio.to_thread.run_sync(transfer.places, self._plan)
        wanted = await self._missing(self._places)
        with tempfile.TemporaryFile() as file:
            await anyio.to_thread.run_sync(transfer.pack, wanted, file)
            file.seek(0)
            parts: list[str] = []
            while data := file.read(transfer.PART):
                parts.append(f"up-{len(parts)}")
                await self._link.put_file(parts[-1], data)
        kept = [each for each in self._places if each.comes_back]
        await self.ask(
            "unpack",
            parts=parts,
            places=[each.target for each in wanted],
            wiped=[each.target for each in kept],
            kept=[each.target for each in kept],
        )

    async def _missing(self, places: Sequence[transfer.Place]) -> list[transfer.Place]:
        """Those that the container's image does not have already: a program is large."""
        large = [
            each
            for each in places
            if not each.is_folder and each.source.stat().st_size >= _LOOKED_FOR
        ]
        if not large:
            return list(places)
        digests = [await anyio.to_thread.run_sync(transfer.digest, each.source) for each in large]
        files = [
            [each.target, each.source.stat().st_size, digest]
            for each, digest in zip(large, digests, strict=True)
        ]
        has = list((await self.ask("has", files=files)).get("has") or ())
        there = {id(each) for each, is_there in zip(large, has, strict=False) if is_there}
        return [each for each in places if id(each) not in there]

    # Frames

    def _take(self, kind: bytes, channel: int, data: bytes) -> None:
        if kind in (b"A", b"H"):
            told = json.loads(data)
            if not isinstance(told, dict):
                raise ValueError("an answer that is none")
            if channel in self._asked:
                self._answers.setdefault(channel, told)
                self._wake()
        elif kind == b"C":
            self._accept(channel, int(data))
        elif channel in self._channels:
            self._channels[channel].frame(kind, data)

    def _accept(self, channel: int, index: int) -> None:
        # Its own numbers are odd: the even ones are for what is begun here.
        is_free = channel % 2 == 1 and channel not in self._channels
        if not is_free or not 0 <= index < len(self._plan.endpoints):
            raise ValueError("a connection that cannot be")
        if len(self._channels) >= _MOST_CHANNELS:
            self._link.put(b"X", channel)
            return
        connection = PoolConnection(self._link, channel)
        self._channels[channel] = connection
        self._tasks.start_soon(self._serve, channel, connection, index)

    async def _serve(self, channel: int, connection: PoolConnection, index: int) -> None:
        try:
            await connection.serve(self._plan.endpoints[index])
        finally:
            self._channels.pop(channel, None)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        for channel in self._channels.values() if self._link.ended.is_set() else ():
            channel.wake()

    async def ask(self, what: str, **about: Any) -> dict[str, Any]:
        """Ask the container something. :raises SandboxFailed: it cannot, or is gone"""
        number = next(self._numbers)
        self._asked.add(number)
        self._link.put(b"Q", number, json.dumps({"do": what, **about}).encode())
        try:
            told = await self._told(number)
        finally:
            self._asked.discard(number)
        if "failed" in told:
            raise SandboxFailed(f"the container failed to {what}: {str(told['failed'])[:500]}")
        return told

    async def _told(self, number: int) -> dict[str, Any]:
        while number not in self._answers:
            if self._link.failure is not None:
                raise SandboxFailed(self._link.failure)
            await self._changed.wait()
        return self._answers.pop(number)

    # `ports.sandbox.Sandbox`

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> PoolProcess:
        if self._ending.begun:
            raise SandboxFailed("the sandbox is stopped")
        if self._link.failure is not None:
            raise SandboxFailed(self._link.failure)
        merged = {**BASE_ENVIRON, **self._plan.environ, **(environ or {})}
        if any("\0" in word for word in (*argv, cwd, *merged.values())):
            raise SandboxFailed(
                "cannot start a command: an argument or a variable holds a zero byte"
            )
        for number in [
            n for n, c in self._channels.items() if isinstance(c, PoolProcess) and c.over
        ]:
            del self._channels[number]
        number = next(self._numbers)
        await self._rented.touch()
        process = PoolProcess(self._link, number, self._rented.touch)
        self._channels[number] = process
        asked = {"argv": list(argv), "environ": merged, "cwd": cwd}
        self._link.put(b"S", number, json.dumps(asked).encode())
        try:
            await process.begin()
        except BaseException:
            if process.is_refused:
                self._channels.pop(number, None)
            else:
                process.signal(9)
            raise
        if self._ending.begun:
            raise SandboxFailed("the sandbox is stopped")
        return process

    async def stats(self) -> Stats:
        used = await self.ask("stats")
        try:
            return Stats(
                memory_bytes=int(used["memory_bytes"]),
                processes=int(used["processes"]),
                cpu_seconds=float(used["cpu_seconds"]),
            )
        except NONSENSE as error:
            raise SandboxFailed("the container does not say what it uses") from error

    async def bring_back(self) -> None:
        """The plan's volumes, and mounts that can be written to, have what was changed inside.

        :raises FilesNotFetched: that cannot be had, or not be stored, or takes too long; the container has it still
        :raises SandboxFailed: the container is lost
        """
        try:
            await self._fetch()
        except SandboxFailed as failed:
            await self._check_answer()
            raise FilesNotFetched(failed.message) from failed
        await self._rented.took_a_turn()

    async def _check_answer(self) -> None:
        """:raises SandboxFailed: the container is lost"""
        with anyio.move_on_after(_SECONDS_TO_ANSWER):
            await self.ask("stats")
            return
        raise SandboxFailed("the container does not answer")

    async def _fetch(self) -> None:
        """:raises SandboxFailed:"""
        try:
            with anyio.fail_after(_SECONDS_TO_STOP):
                await self._fetch_changes()
        except TimeoutError:
            words = f"the container's files did not come within {_SECONDS_TO_STOP:.0f} seconds"
            raise SandboxFailed(words) from None

    async def _fetch_changes(self) -> None:
        kept = [each.source for each in self._places if each.comes_back]
        async with self._bringing:
            number = self._brought + 1
            told = await self.ask("pack", number=number)
            try:
                received = transfer.Received(kept, self._plan.limits.disk_bytes)
                parts = transfer.checked_parts(told["parts"], received.most)
                with tempfile.TemporaryFile() as file:
                    for name, size, check in parts:
                        file.write(await self._link.file(name, size, check))
                    file.seek(0)
                    await anyio.to_thread.run_sync(received.apply, file, told["gone"])
            except (PoolRefused, PoolUnavailable, OSError, *NONSENSE) as error:
                raise SandboxFailed(f"the container's files cannot be fetched: {error}") from error
            self._brought = number
            await self._rented.settle()
            await self.ask("packed", parts=[name for name, _, _ in parts])

    async def stop(self) -> None:
        await self._ending.reach(self._kill)

    async def _kill(self) -> None:
        is_back = False
        try:
            with anyio.fail_after(_SECONDS_TO_STOP):
                await self.ask("stop")
                if self._places:
                    await self._fetch()
                is_back = True
        except (SandboxFailed, TimeoutError) as failed:
            why = failed.message if isinstance(failed, SandboxFailed) else "it took too long"
            _log.warning("files are left in a pool: %s", why, extra={"action": "stop"})
        finally:
            for channel in self._channels.values():
                if isinstance(channel, PoolProcess):
                    channel.stop()
            self._link.close("the sandbox is stopped")
            await self.let_go(is_back=is_back)

    async def let_go(self, *, is_back: bool) -> None:
        """End the container, if it is still this one's. What it has is lost; `is_back`: nothing that anybody needs."""
        rented = self._rented
        try:
            await rented.end(is_lost=self._link.has_failed)
        except (PoolRefused, PoolUnavailable) as error:
            # It ends by itself, as nobody comes to its door any more.
            _log.warning("cannot end a container: %s", error, extra={"action": "stop"})
        if is_back:
            await anyio.to_thread.run_sync(rented.forget)

    def close(self) -> None:
        """Let go of the link, whatever has become of the sandbox: it outlives being cancelled."""
        self._link.close("the sandbox is closed")
