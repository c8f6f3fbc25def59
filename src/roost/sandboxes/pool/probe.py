"""Whether a pool can do what sandboxes need, tried in a container of its own; and what its containers reach."""

from __future__ import annotations

import base64
import ipaddress
import json
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio

from roost.dynamic_sessions import CodePool, PoolRefused, PoolUnavailable
from roost.errors import SandboxUnavailable
from roost.sandboxes.pool.link import EXCHANGE, NONSENSE, called

_NAME: Final = "probe"
_CONTENT: Final = b"roost"
_OLDEST: Final = (3, 11)
_ANSWER: Final = "probe:"
_SECONDS_TO_END: Final = 5.0
_PROBE: Final = '''\
def _roost_probe(_given):
    import base64, json, os, shutil, socket, sys, tempfile

    def leads(family, address):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # nothing is sent
        except OSError:
            return False
        return True

    def reaches(host, port):
        try:
            with socket.create_connection((host, port), timeout=5):
                return True
        except OSError:
            return False

    def read(path):
        try:
            with open(path, errors="replace") as file:
                return file.read(100)
        except OSError:
            return ""

    asked = json.loads(base64.b64decode(_given))
    mark = os.path.join(tempfile.gettempdir(), "roost-probe")
    was_there = os.path.exists(mark)
    with open(mark, "w"):
        pass
    has_route = leads(socket.AF_INET, "192.0.2.1") or leads(socket.AF_INET6, "2001:db8::1")
    told = {
        "python": list(sys.version_info[:2]),
        "has_sh": shutil.which("sh") is not None,
        "file": read(asked["file"]),
        "was_there": was_there,
        "proxies": sorted(name for name in os.environ if name.lower() in asked["proxies"]),
        "has_route": has_route,
        "reaches": has_route and bool(asked["host"]) and reaches(asked["host"], asked["port"]),
    }
    return "probe:" + base64.b64encode(json.dumps(told).encode()).decode()


_roost_probe("'''


class Reach(NamedTuple):
    """What a pool's containers reach beside the server, as far as it can be seen from inside."""

    is_open: bool
    said: str


class _Told(NamedTuple):
    """What a container tells."""

    python: tuple[int, ...]
    has_sh: bool
    file: str
    was_there: bool
    proxies: list[str]
    has_route: bool
    reaches: bool


async def probed(pool: CodePool, endpoint: str, identifier: str, files: str) -> Reach:
    """Try all that is needed. `files` is where the pool keeps an identifier's files.

    :raises SandboxUnavailable: the pool cannot do it
    """
    try:
        await pool.upload(identifier, EXCHANGE, _NAME, _CONTENT)
        told = await _told(pool, endpoint, identifier, files)
        await _end(pool, identifier)
        after = await _told(pool, endpoint, identifier, files)
        await _end(pool, identifier)
    except BaseException as error:
        with (
            anyio.move_on_after(_SECONDS_TO_END, shield=True),
            suppress(PoolRefused, PoolUnavailable),
        ):
            await pool.end(identifier)
        if not isinstance(error, (PoolRefused, PoolUnavailable)):
            raise
        raise SandboxUnavailable(
            f"the pool does not work: {error}",
            hint="See to ROOST_POOL_ENDPOINT and ROOST_POOL_TOKEN.",
        ) from error
    _check(told, after, files)
    return _reach(told, urlsplit(endpoint).hostname or "")


async def _told(pool: CodePool, endpoint: str, identifier: str, files: str) -> _Told:
    """:raises PoolRefused: :raises PoolUnavailable: :raises SandboxUnavailable:"""
    address = urlsplit(endpoint)
    asked = {
        "file": f"{files}/{EXCHANGE}/{_NAME}",
        "host": "" if _is_loopback(address.hostname or "") else address.hostname,
        "port": address.port or (443 if address.scheme == "https" else 80),
        "proxies": ["http_proxy", "https_proxy", "all_proxy"],
    }
    text = await pool.text(identifier, called(_PROBE, asked))
    try:
        told = json.loads(base64.b64decode(text.removeprefix(_ANSWER), validate=True))
        return _Told(
            python=tuple(int(number) for number in told["python"]),
            has_sh=bool(told["has_sh"]),
            file=str(told["file"]),
            was_there=bool(told["was_there"]),
            proxies=[str(name) for name in told["proxies"]],
            has_route=bool(told["has_route"]),
            reaches=bool(told["reaches"]),
        )
    except NONSENSE:
        raise SandboxUnavailable(
            f"the pool does not answer with what its code ends with: {text[:100]!r}",
            hint="ROOST_POOL_ENDPOINT must be that of a pool that runs Python.",
        ) from None


async def _end(pool: CodePool, identifier: str) -> None:
    try:
        await pool.end(identifier)
    except PoolRefused as refused:
        raise SandboxUnavailable(
            f"the pool does not end containers: {refused}",
            hint="It needs the API of 2025-02-02-preview or later, or `stopSession`.",
        ) from refused


def _check(told: _Told, after: _Told, files: str) -> None:
    """:raises SandboxUnavailable: something is missing"""
    image = "Give the pool an image that has it."
    for is_missing, said, hint in (
        (told.python < _OLDEST, "its containers have Python older than 3.11", image),
        (not told.has_sh, "its containers have no sh", image),
        (
            told.file != _CONTENT.decode(),
            f"a file that is uploaded to it is not in {files}",
            "It must keep files as Azure's pools do.",
        ),
        (
            after.was_there,
            "it says that a container was ended, and gives the same one again",
            "It must end a container when it is asked to: files and processes of an older lease would go on there.",
        ),
    ):
        if is_missing:
            raise SandboxUnavailable(f"the pool does not work: {said}", hint=hint)


def _reach(told: _Told, host: str) -> Reach:
    if told.reaches:
        return Reach(True, f"open: a container reaches {host} past the server")
    if told.has_route:
        return Reach(True, "perhaps open: a container has a route to other machines")
    if told.proxies:
        return Reach(True, f"perhaps open: a container has a proxy ({', '.join(told.proxies)})")
    return Reach(False, "off in the pool: a container has no route to other machines")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
