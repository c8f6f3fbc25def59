"""Objects as files. Each is written beside its place, made durable, and renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from roost.disk import free, make_folder, sync_folder
from roost.errors import BlobChanged, BlobNotFound, BlobsFailed, DiskFull
from roost.ports.blobs import Pointer, Stored

_FRESH: Final = ".fresh-"
_LOCK: Final = ".lock"
_MOST_KNOWN: Final = 10_000


class FolderBlobs:
    """`ports.blobs.Blobs`. Several processes of one machine may share the folder.

    :param least_free: bytes that objects leave free on the disk, for a database that may be on it too;
        pointers are small, and are written all the same: without them nothing could be removed
    """

    def __init__(self, folder: Path, *, least_free: int = 0) -> None:
        self._folder = folder
        self._least_free = least_free
        self._durable: set[Path] = set()  # folders that nobody need look at again
        self._threads = anyio.CapacityLimiter(8)

    async def put(self, key: str, data: bytes) -> None:
        await to_thread.run_sync(self._put_if_there_is_room, key, data, limiter=self._threads)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await to_thread.run_sync(self._get, key, start, end, limiter=self._threads)

    async def list(self, prefix: str) -> Sequence[Stored]:
        return await to_thread.run_sync(self._list, prefix, limiter=self._threads)

    async def delete(self, keys: Sequence[str]) -> None:
        await to_thread.run_sync(self._delete, keys, limiter=self._threads)

    async def read(self, key: str) -> Pointer | None:
        try:
            data = await self.get(key)
        except BlobNotFound:
            return None
        return Pointer(data, _version(data))

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        work = partial(self._swap, key, data, version)
        return await to_thread.run_sync(work, limiter=self._threads)

    def _put_if_there_is_room(self, key: str, data: bytes) -> None:
        if self._least_free and free(self._folder) < self._least_free + len(data):
            raise DiskFull(f"there are fewer than {self._least_free} bytes free for blobs")
        self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        with _explained(key):
            path = self._path(key)
            try:
                self._put_at(path, data)
            except FileNotFoundError:  # somebody has removed its folder
                self._durable.clear()
                self._put_at(path, data)

    def _put_at(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(f"{_FRESH}{os.urandom(6).hex()}")
        self._make_folder(path.parent)
        try:
            _write(fresh, data)
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)

    def _get(self, key: str, start: int, end: int | None) -> bytes:
        with _explained(key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(end - start)

    def _list(self, prefix: str) -> Sequence[Stored]:
        with _explained(prefix):
            above = self._folder / prefix.rpartition("/")[0]
            return [
                Stored(key, path.stat().st_size)
                for path in above.rglob("*")
                if not path.name.startswith(".") and path.is_file()
                if (key := path.relative_to(self._folder).as_posix()).startswith(prefix)
            ]

    def _delete(self, keys: Sequence[str]) -> None:
        folders = {self._path(key).parent for key in keys}
        for key in keys:
            with _explained(key):
                self._path(key).unlink(missing_ok=True)
        for folder in folders:  # what came back would have no record, and stay for ever
            with _explained(str(folder)), suppress(FileNotFoundError):
                sync_folder(folder)

    def _swap(self, key: str, data: bytes, version: str | None) -> str:
        with _explained(key), self._locked():
            try:
                now = _version(self._path(key).read_bytes())
            except FileNotFoundError:
                now = None
            if now != version:
                raise BlobChanged(f"the pointer {key} was changed by somebody else")
            self._put(key, data)
        return _version(data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One swap at a time, among all processes."""
        self._make_folder(self._folder)
        with (self._folder / _LOCK).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_folder(self, folder: Path) -> None:
        """Make it durable, down from the store's own: somebody else may only just have made it."""
        if folder in self._durable:
            return
        if folder != self._folder:
            self._make_folder(folder.parent)
        make_folder(folder, mode=0o700)
        if len(self._durable) >= _MOST_KNOWN:
            self._durable.clear()
        self._durable.add(folder)

    def _path(self, key: str) -> Path:
        names = key.split("/")
        if any(not name or name.startswith(".") for name in names) or "\0" in key:
            raise BlobsFailed(f"{key[:200]!r} is no key")
        return self._folder.joinpath(*names)


def _version(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _explained(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BlobNotFound(f"there is no object {key}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{key}: {error.strerror}") from error
        raise BlobsFailed(f"{key}: {error.strerror or error}") from error
