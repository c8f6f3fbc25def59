"""What sandboxes are shown of their sessions' files, as directories of the data directory: `ports.file_exchange`.

The files are written beside their final path and renamed; an index that says which file is where is written
last. So a file that the index does not name is written again, and a crash costs no more than that.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import anyio
import msgspec
from anyio import to_thread

from roost.disk import remove, sync_folder
from roost.errors import Unavailable
from roost.ports.file_exchange import Fetch
from roost.sandboxes.tree.local import LocalTree

_INDEX: Final = "uploads.json"
_FRESH: Final = "fresh"
_MOST_OUTPUTS: Final = 10_000


class FolderExchange:
    """`ports.file_exchange.FileExchange`, in directories that nobody but the server can enter."""

    def __init__(self, root: Path, uids: range) -> None:
        self._root = root
        self._uids = uids
        self._locks: dict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def uploads(self, session_id: str, files: Mapping[str, str], fetch: Fetch) -> Path:
        base = self._root / session_id
        async with self._locks[session_id]:
            with _explained():
                before = await to_thread.run_sync(_begun, base)
                if before == files:
                    return base / "uploads"
                await to_thread.run_sync(_without, base, before, files)
                for path, file_id in files.items():
                    if before.get(path) != file_id:
                        await _write(base, path, fetch(file_id))
                await to_thread.run_sync(_note, base, dict(files))
        return base / "uploads"

    async def outputs(self, session_id: str) -> Path:
        base = self._root / session_id / "outputs"
        with _explained():
            await to_thread.run_sync(_made, base)
        return base

    def outputs_tree(self, session_id: str) -> LocalTree:
        base = self._root / session_id
        return LocalTree(base / "outputs", base / "notes", self._uids, most=_MOST_OUTPUTS)

    async def remove(self, session_id: str) -> None:
        self._locks.pop(session_id, None)
        with _explained():
            await to_thread.run_sync(remove, self._root / session_id)


def _made(base: Path) -> None:
    base.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    base.parent.mkdir(mode=0o700, exist_ok=True)
    base.mkdir(mode=0o755, exist_ok=True)


def _begun(base: Path) -> dict[str, str]:
    """What is there already, by path."""
    _made(base / "uploads")
    try:
        return msgspec.json.decode((base / _INDEX).read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _without(base: Path, before: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Remove what is not wanted any more, and directories that are empty then."""
    gone = [path for path, file_id in before.items() if files.get(path) != file_id]
    if not gone:
        return
    # They stay in the index until they are surely gone: what it does not name is never removed.
    _note(base, {path: "" if path in gone else file_id for path, file_id in before.items()})
    for path in gone:
        (base / "uploads" / path).unlink(missing_ok=True)
        folder = (base / "uploads" / path).parent
        while folder != base / "uploads" and not (folder.is_dir() and any(folder.iterdir())):
            if folder.is_dir():
                folder.rmdir()
            folder = folder.parent
        sync_folder(folder)


async def _write(base: Path, path: str, content: AsyncIterator[bytes]) -> None:
    fresh = base / _FRESH
    file: BinaryIO = await to_thread.run_sync(fresh.open, "wb")
    try:
        async for piece in content:
            await to_thread.run_sync(file.write, piece)
        os.fchmod(file.fileno(), 0o444)
        await to_thread.run_sync(_sync, file)
    finally:
        await to_thread.run_sync(file.close)
    await to_thread.run_sync(_put, fresh, base / "uploads", path)


def _put(fresh: Path, uploads: Path, path: str) -> None:
    target = uploads / path
    for folder in reversed(target.relative_to(uploads).parents[:-1]):
        (uploads / folder).mkdir(mode=0o755, exist_ok=True)
        (uploads / folder).chmod(0o755)
    fresh.rename(target)
    for folder in target.relative_to(uploads).parents:
        sync_folder(uploads / folder)


def _note(base: Path, files: Mapping[str, str]) -> None:
    """The index, when all that it names is durable: what it names is never written again."""
    fresh = base / f"{_INDEX}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(files))
        _sync(file)
    fresh.rename(base / _INDEX)
    sync_folder(base)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the session's files cannot be shown: {error.strerror}") from error
