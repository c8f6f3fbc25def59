"""Restoring a tree beside its directory, and putting it there when it is whole.

A file gets its modification time last. So one that was being written when the machine went down does not
look like the one in the snapshot; and before a file is taken for restored, it is read and hashed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from roost.disk import remove
from roost.domain.snapshot import TreeEntry, digest_of
from roost.ports.tree import Root
from roost.sandboxes.paths import open_at
from roost.sandboxes.tree.root import root_of

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_SET_ID: Final = stat.S_ISUID | stat.S_ISGID


class LocalStaging:
    """`ports.tree.Staging`, in a directory beside the tree."""

    def __init__(self, path: Path, target: Path, owner: tuple[int, int], uids: range) -> None:
        self._path = path
        self._target = target
        self._uids = uids
        self._owner = owner
        self._may_give = os.geteuid() == 0
        self._resumes = path.exists()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = (b"", os.dup(self._top))
        self._begun: set[bytes] = set()

    def close(self) -> None:
        os.close(self._folder[1])
        os.close(self._top)

    def directory(self, entry: TreeEntry) -> None:
        at, name = self._parent(entry.path)
        try:
            os.mkdir(name, 0o700, dir_fd=at)
        except FileExistsError:  # left by a restore that did not end; perhaps settled already
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.fchmod(descriptor, 0o700)
            os.close(descriptor)

    def holds(self, entry: TreeEntry) -> bool:
        if not self._resumes:
            return False
        at, name = self._parent(entry.path)
        try:
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if entry.kind == "file" and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            same = (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime)
            if same and self._content_is(entry):
                return True
        os.unlink(name, dir_fd=at)  # links are cheap to make again
        return False

    def write(self, entry: TreeEntry, at: int, data: bytes, *, last: bool) -> None:
        folder, name = self._parent(entry.path)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        if entry.path not in self._begun:
            flags |= os.O_CREAT | os.O_EXCL
            if not last:
                self._begun.add(entry.path)
        # Nobody else can get here before it is whole, so it may have its mode from the start.
        descriptor = os.open(name, flags, entry.mode & 0o777 | 0o200, dir_fd=folder)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], at + written)
            if last:
                if at + len(data) != entry.size or entry.path in self._begun:
                    os.ftruncate(descriptor, entry.size)
                self._dress(descriptor, entry)
                os.utime(descriptor, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)

    def link(self, entry: TreeEntry) -> None:
        at, name = self._parent(entry.path)
        if entry.kind == "link":
            self._hard_link(entry, at, name)
            return
        os.symlink(entry.target, name, dir_fd=at)
        if self._may_give:
            os.chown(name, *self._given(entry), dir_fd=at, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=at, follow_symlinks=False)

    def settle(self, entry: TreeEntry) -> None:
        descriptor = open_at(self._top, os.fsdecode(entry.path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._dress(descriptor, entry)
            os.utime(descriptor, ns=(entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)

    def finish(self, mode: int, mtime: int) -> Root:
        entry = TreeEntry("directory", b"", mode, mtime)
        self._dress(self._top, entry)
        os.utime(self._top, ns=(mtime, mtime))
        return root_of(self._path)

    def replace(self, *, keep: bool) -> None:
        aside = self._target.with_name(f".{self._target.name}.aside")
        try:
            self._target.rmdir()  # it is empty: then what lies aside is worth more
        except FileNotFoundError:
            pass
        except OSError:
            remove(aside)
            self._target.rename(aside)
        self._path.rename(self._target)
        if not keep:
            remove(aside)

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        """The directory an entry is in, open, and the entry's name in it."""
        folder, _, name = path.rpartition(b"/")
        if folder != self._folder[0]:
            opened = self._opened(folder)
            os.close(self._folder[1])
            self._folder = (folder, opened)
        return self._folder[1], name

    def _opened(self, folder: bytes) -> int:
        return open_at(self._top, os.fsdecode(folder), _FOLDER) if folder else os.dup(self._top)

    def _hard_link(self, entry: TreeEntry, at: int, name: bytes) -> None:
        folder, _, source = entry.target.rpartition(b"/")
        origin = self._opened(folder)
        try:
            os.link(source, name, src_dir_fd=origin, dst_dir_fd=at, follow_symlinks=False)
        finally:
            os.close(origin)

    def _content_is(self, entry: TreeEntry) -> bool:
        """What is in holes is not looked at: files that have some are restored again."""
        if not all(part.digest for part in entry.parts):
            return False
        descriptor = open_at(self._top, os.fsdecode(entry.path), os.O_RDONLY)
        try:
            at = 0
            for part in entry.parts:
                if digest_of(os.pread(descriptor, part.size, at)) != part.digest:
                    return False
                at += part.size
            return True
        finally:
            os.close(descriptor)

    def _dress(self, descriptor: int, entry: TreeEntry) -> None:
        """Give it its owner and mode, the owner first: a change of owner takes set-id bits away.

        Only where it has not got them already: each change is one more for the file system to write.
        """
        status = os.fstat(descriptor)
        mode = entry.mode & 0o7777
        if self._may_give:
            owner = self._given(entry)
            if owner != (status.st_uid, status.st_gid):
                os.fchown(descriptor, *owner)
            if owner[0] not in self._uids:
                mode &= ~_SET_ID
        if mode != stat.S_IMODE(status.st_mode):
            os.fchmod(descriptor, mode)

    def _given(self, entry: TreeEntry) -> tuple[int, int]:
        """Only what sandboxes are given on this machine: another uid may be a person here."""
        uid, gid = entry.owner or self._owner
        if uid in self._uids and gid in self._uids:
            return uid, gid
        return os.geteuid(), os.getegid()
