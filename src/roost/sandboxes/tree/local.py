"""A workspace's directory on this machine, and beside it what is remembered about it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Final

from roost.disk import remove
from roost.ports.tree import Changed, Found, Root, Skipped
from roost.sandboxes.tree.read import Patience, read
from roost.sandboxes.tree.root import root_of
from roost.sandboxes.tree.stage import LocalStaging
from roost.sandboxes.tree.walk import Walk, look, name_of

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_libc = ctypes.CDLL(None, use_errno=True)


class LocalTree:
    """`ports.tree.Tree`.

    :param directory: the directory; it need not be there
    :param notes: where to remember things; nothing in a sandbox can see it
    :param uids: whom restored files may be given to, if the server is root
    :param most: how many entries a directory may have
    """

    def __init__(self, directory: Path, notes: Path, uids: range, most: int = 1_000_000) -> None:
        self._directory = directory
        self._notes = notes
        self._uids = uids
        self._most = most
        self._patience = Patience()

    def root(self) -> Root | None:
        try:
            return root_of(self._directory)
        except FileNotFoundError:
            return None

    def walk(self) -> Iterator[Found | Skipped]:
        self._patience = Patience()
        return iter(Walk(self._directory, self._most))

    def read(self, found: Found) -> Iterator[bytes | int]:
        return read(found, self._patience)

    def link(self, found: Found) -> bytes:
        try:
            return os.readlink(name_of(found.path), dir_fd=found.handle)
        except OSError:
            raise Changed from None

    def again(self, found: Found) -> Found | Skipped | None:
        return look(found.handle, found.path, os.fstat(found.handle).st_dev)

    def recall(self, what: str) -> bytes | None:
        try:
            return self._note(what).read_bytes()
        except FileNotFoundError:
            return None

    def remember(self, what: str, data: bytes) -> None:
        self._notes.mkdir(parents=True, exist_ok=True, mode=0o700)
        note = self._note(what)
        fresh = note.with_suffix(".new")
        fresh.write_bytes(data)  # not made durable: what is lost with the machine costs time only
        fresh.replace(note)

    def remove(self) -> None:
        beside = self._directory.parent.glob(f".{escape(self._directory.name)}.*")
        for directory in (self._directory, *beside):
            remove(directory)
        for note in self._notes.glob(f"{escape(self._directory.name)}.*"):
            note.unlink(missing_ok=True)

    def boot(self) -> str:
        try:
            return _BOOT.read_text().strip()
        except OSError:
            return ""

    def make_durable(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "the files cannot be made durable")
        finally:
            os.close(descriptor)

    @contextmanager
    def staging(self, name: str, owner: tuple[int, int]) -> Iterator[LocalStaging]:
        prefix = f".{self._directory.name}.restoring-"
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        for left in self._directory.parent.glob(f"{escape(prefix)}*"):
            if left.name != prefix + name:
                remove(left)
        staging = LocalStaging(
            self._directory.with_name(prefix + name), self._directory, owner, self._uids
        )
        try:
            yield staging
        finally:
            staging.close()

    def _note(self, what: str) -> Path:
        return self._notes / f"{self._directory.name}.{what}"
