"""Start, run, stop.

Stopping: refuse new work, let running turns finish for a while, hand the rest back to the log, close
connections, close the database. A second signal skips the waiting; nothing is lost by it, because
nothing is kept in memory.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import msgspec
from anyio import to_thread

from roost import __version__
from roost.config import Settings
from roost.errors import StartupError
from roost.serve import logs
from roost.serve.connections import Bounds, raise_file_limit
from roost.serve.first_start import prepare
from roost.serve.http import listening
from roost.serve.wiring import Roost, assembled

STARTUP_FAILURE = 3
"""Exit code of a server that could not start and would fail the same way again: do not restart it."""

_MOST_THREADS = 40
_SIOCGIFADDR = 0x8915  # netdevice(7)
_EVERYWHERE = ("0.0.0.0", "::", "")
_log = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Run the server until it is told to stop; gives the process's exit code."""
    logs.configure(settings.log_format, settings.log_level)
    raise_file_limit()
    failures: list[StartupError] = []
    try:
        anyio.run(_serve, settings, backend_options={"use_uvloop": True})
    except* StartupError as group:
        failures += _leaves(group)
    for failure in failures:
        print(f"roost: {failure.message}\n  {failure.hint or ''}".rstrip(), file=sys.stderr)  # noqa: T201
    return STARTUP_FAILURE if failures else 0


def bound_threads() -> None:
    """Blocking work of all requests and sessions waits for a thread, rather than start any number."""
    to_thread.current_default_thread_limiter().total_tokens = _MOST_THREADS


async def _serve(settings: Settings) -> None:
    bound_threads()
    prepare(settings.data)
    # Signals are caught before anything is open, so that a stop during the start is a stop, too.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            assembled(settings) as roost,
            _working(roost, settings.stop_seconds) as worked,
            listening(
                roost.app,
                settings.host,
                settings.port,
                max_frame_bytes=settings.max_frame_bytes,
                bounds=_bounds(settings),
            ) as url,
        ):
            _settle()
            with _announced(settings, url, roost):
                await anext(signals)
            async with anyio.create_task_group() as hurry:
                hurry.start_soon(_skip_waiting, signals, worked)
                roost.drain.begin()
                roost.dispatcher.stop()
                await worked.wait()
                hurry.cancel_scope.cancel()


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        connections=settings.max_connections,
        per_address=settings.max_address_connections,
        head_seconds=settings.head_seconds,
        unread_seconds=settings.unread_seconds,
        trusted=settings.trusted_proxies or (),
    )


def _settle() -> None:
    """What is loaded by now stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@asynccontextmanager
async def _working(roost: Roost, stop_seconds: float) -> AsyncGenerator[anyio.Event, None]:
    """The dispatcher at work; the event is set when it has wound down."""
    worked = anyio.Event()

    async def work(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await roost.dispatcher.run(stop_seconds, task_status=task_status)
        worked.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(roost.prestart.run)
        await tasks.start(work)
        yield worked
        tasks.cancel_scope.cancel()


async def _skip_waiting(signals: AsyncIterator[signal.Signals], worked: anyio.Event) -> None:
    await anext(signals)
    _log.warning("second signal to stop: running turns are released now", extra={"action": "stop"})
    worked.set()


@contextmanager
def _announced(settings: Settings, url: str, roost: Roost) -> Generator[None, None, None]:
    """Say where the server is, to people and (in `server.json`) to programs."""
    place = settings.data / "server.json"
    about = {"url": url, "pid": os.getpid(), "version": __version__, "model": roost.model}
    fresh = place.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(about))
    fresh.replace(place)
    print(  # noqa: T201
        f"Roost {__version__} is ready at {url}\n"
        f"  API key  {roost.admin_key}\n"
        f"  model    {roost.model}{_reach(settings.host, url)}",
        flush=True,
    )
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        _log.info("stopping", extra={"action": "stop"})


def _reach(host: str, url: str) -> str:
    """Where others find a server that listens on every address, and what they should know of it."""
    if host not in _EVERYWHERE:
        return ""
    port = url.rpartition(":")[2]
    said = [f"  network  http://{address}:{port}" for address in _addresses()]
    said.append("  Plain HTTP: keys and answers can be read on the way. Put TLS in front of it.")
    return "\n" + "\n".join(said)


def _addresses() -> list[str]:
    """The IPv4 addresses of this machine's network interfaces, without loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                said = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(said[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _leaves(group: BaseExceptionGroup[StartupError]) -> list[StartupError]:
    found = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
