"""Unix sockets on the host that one sandbox, and nobody else, can reach.

Each grant has a directory of its own that only the server can enter. The sockets in it are open to
everybody: whoever is given one, by a mount, runs as some user the server need not know. The
directory's name is random and says nothing: a sandbox can read the host's paths of its mounts.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roost.errors import StartupError, Unavailable

_log = logging.getLogger(__name__)

_BACKLOG = 128
_LONGEST_PATH = 100
"""A unix socket's address holds 108 bytes; longer paths take the detour in `_bind`."""


def prepare(directory: Path, names: Sequence[str]) -> None:
    """Make the directory of all grants, and remove the sockets that an earlier process left in it.

    :raises StartupError: it cannot be made
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        for place in directory.iterdir():
            _remove(place, names)
    except OSError as error:
        raise StartupError(f"{directory} cannot hold the sandboxes' sockets: {error}") from None


@contextmanager
def listening(
    directory: Path, names: Sequence[str]
) -> Generator[tuple[Path, dict[str, socket.socket]], None, None]:
    """A fresh place with listening sockets of those names in it, until the context ends.

    :raises Unavailable: they cannot be made
    """
    place = directory / secrets.token_hex(8)
    with ExitStack() as stack:
        stack.callback(_leave, place, names)
        try:
            place.mkdir(0o700)
            bound = {name: stack.enter_context(_bind(place, name)) for name in names}
            for name in names:
                (place / name).chmod(0o666)
        except OSError as error:
            raise Unavailable(f"the sandbox's sockets cannot be made: {error}") from None
        yield place, bound


def _bind(place: Path, name: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = place / name
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            bound.bind(str(path))
        else:
            _bind_by_descriptor(bound, place, name)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _bind_by_descriptor(bound: socket.socket, place: Path, name: str) -> None:
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bound.bind(f"/proc/self/fd/{handle}/{name}")
    finally:
        os.close(handle)


def _leave(place: Path, names: Sequence[str]) -> None:
    try:
        _remove(place, names)
    except OSError:
        _log.warning("sockets were left behind; the next start removes them", exc_info=True)


def _remove(place: Path, names: Sequence[str]) -> None:
    if place.is_symlink() or not place.is_dir():
        return
    for name in names:
        (place / name).unlink(missing_ok=True)
    # Something else in it is not ours to remove, and no reason to stop.
    if not any(place.iterdir()):
        place.rmdir()
