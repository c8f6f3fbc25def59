"""Who a sandbox is on this machine.

A server that is root gives each live session a uid of its own: inside, every sandbox is uid 1000, but
outside no two are the same, so none can signal, trace or starve another, and none is ever root. The
group goes with the workspace: sessions that share one have it in common and can write each other's files.
A server that is not root has one uid to give, its own.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import Plan
from roost.sandboxes.paths import PathEntry, walk_beneath

# Another session of the same workspace is at work while this one is being opened.
_CHANGED_MEANWHILE = (errno.ENOENT, errno.ELOOP, errno.ENXIO)
_GROUP_READ_WRITE = stat.S_IRGRP | stat.S_IWGRP


class SandboxIdentity(msgspec.Struct, frozen=True):
    """A uid and a gid of this machine. `dropped`: the server is root and becomes them.

    `shared`: the workspace is not the session's own, and new files are for its group to write.
    """

    uid: int
    gid: int
    dropped: bool
    shared: bool


class Uids:
    """Uids that no other live sandbox on this machine has, whichever server it belongs to.

    A uid is held by a socket bound to a name in the abstract namespace: the kernel refuses a second
    one, and lets go when the server dies, however it dies. Sandboxes cannot see that namespace.
    """

    def __init__(self, uids: range) -> None:
        self._uids = uids

    def __contains__(self, uid: int) -> bool:
        return uid in self._uids

    @contextmanager
    def hold(self, session_id: str, preferred: Iterable[int]) -> Iterator[int]:
        """A uid, nobody else's while the body runs.

        The one its files have, if that is free: then nothing has to change hands. Else one that
        mostly stays the same for a session.

        :raises SandboxUnavailable: all are taken
        """
        for uid in self._candidates(session_id, preferred):
            with socket.socket(socket.AF_UNIX) as holder:
                try:
                    holder.bind(f"\0roost-uid-{uid}")
                except OSError:
                    continue
                yield uid
                return
        raise SandboxUnavailable(
            f"all {len(self._uids)} uids for sandboxes are in use",
            hint="Give the server a larger range of uids.",
        )

    def _candidates(self, session_id: str, preferred: Iterable[int]) -> Iterator[int]:
        yield from (uid for uid in preferred if uid in self._uids)
        digest = hashlib.blake2b(session_id.encode(), digest_size=8).digest()
        first = int.from_bytes(digest, "big") % len(self._uids)
        yield from self._uids[first:]
        yield from self._uids[:first]


def settle(plan: Plan, uids: Uids, held: ExitStack) -> SandboxIdentity:
    """Who a sandbox is; its files become its own if the server is root. The uid is kept while held. Blocks.

    :raises OSError: the files cannot change hands
    :raises SandboxUnavailable: all uids are taken
    """
    if os.geteuid() != 0:
        return SandboxIdentity(os.geteuid(), os.getegid(), dropped=False, shared=False)
    uid = held.enter_context(uids.hold(plan.session_id, [plan.home.path.stat().st_uid]))
    gid = group_of(plan.workspace.path, uids, uid)
    shared = plan.home.path.resolve() != plan.workspace.path.resolve()
    who = SandboxIdentity(uid, gid, dropped=True, shared=shared)
    hand_over(plan.home.path, who, uids, shared=False)
    if shared:
        hand_over(plan.workspace.path, who, uids, shared=True)
    for mount in plan.shown:
        if mount.writable and mount.source.is_dir():
            hand_over(mount.source, who, uids, shared=True)
    return who


def group_of(workspace: Path, uids: Uids, uid: int) -> int:
    """The group of a workspace that sandboxes have had before, or a new one."""
    gid = workspace.stat().st_gid
    return gid if gid in uids else uid


def hand_over(directory: Path, identity: SandboxIdentity, uids: Uids, *, shared: bool) -> None:
    """Make a directory and all in it the sandbox's. Blocks.

    In a shared one, what belongs to another session stays its own and becomes writable for the group.
    Links are changed themselves, never what they point to.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _own(PathEntry(descriptor, ".", os.fstat(descriptor)), identity, uids, shared=shared)
    finally:
        os.close(descriptor)
    for entry in walk_beneath(directory):
        try:
            _own(entry, identity, uids, shared=shared)
        except OSError as error:
            if error.errno not in _CHANGED_MEANWHILE:
                raise


def _own(entry: PathEntry, identity: SandboxIdentity, uids: Uids, *, shared: bool) -> None:
    status = entry.stat
    foreign = status.st_uid not in uids
    if foreign and _may_be_elsewhere(status):
        return
    uid = status.st_uid if shared and not foreign else identity.uid
    if (status.st_uid, status.st_gid) != (uid, identity.gid):
        os.chown(entry.name, uid, identity.gid, dir_fd=entry.directory, follow_symlinks=False)
    if shared:
        _open_to_group(entry)


def _may_be_elsewhere(status: os.stat_result) -> bool:
    """A device, or a file with a second name: that one may be outside, and is not ours to give."""
    if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
        return True
    return status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)


def _open_to_group(entry: PathEntry) -> None:
    mode = entry.stat.st_mode
    wanted = stat.S_IMODE(mode) | _GROUP_READ_WRITE
    if stat.S_ISDIR(mode):
        wanted |= stat.S_IXGRP
    elif not stat.S_ISREG(mode):
        return
    if mode & stat.S_IXUSR:
        wanted |= stat.S_IXGRP
    if wanted != stat.S_IMODE(mode):
        _change_mode(entry, wanted)


def _change_mode(entry: PathEntry, mode: int) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(entry.name, flags, dir_fd=entry.directory)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) == (entry.stat.st_dev, entry.stat.st_ino):
            os.fchmod(descriptor, mode & 0o777)
    finally:
        os.close(descriptor)
