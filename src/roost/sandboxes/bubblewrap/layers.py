"""Layers of packages: built over the machine's own system, kept below the data directory, shared by sandboxes.

    layers/NAME/{usr,opt,var,etc}    what the build has written, without what only the build needs; `etc` is whole
    layers/.new-NAME-…               being built: it gets its name when all of it is on the disk

The locks beside them are those of `layer_directory`.

A build is nobody in particular on the machine, as every sandbox, and the superuser of a user namespace with one user.
So it can change what belongs to it, and nothing else: it has directories of its own under all names of the
machine's, and whoever changes the owner of a file is told that it worked.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from roost import disk
from roost.domain.packages import program_of
from roost.ports.packages import LayersKept
from roost.sandboxes.bubblewrap.disk import used
from roost.sandboxes.bubblewrap.root import writable_directories
from roost.sandboxes.layer_directory import KnownLayer, LayerDirectory, Surplus
from roost.sandboxes.paths import open_at, walk_beneath

_FORMAT: Final = 1
_SYSTEM: Final = Path("/usr")
_DPKG: Final = Path("/var/lib/dpkg")
_ALIKE: Final = (
    "/usr/bin/python3",
    "/usr/bin/node",
    "/usr/bin/ruby",
    "/usr/bin/go",
    "/usr/bin/cargo",
)
"""Programs whose other version needs other packages."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_FOR_BUILDS: Final = """
    apt/sources.list apt/sources.list.d apt/trusted.gpg.d apt/keyrings apt/preferences apt/preferences.d
    adduser.conf debconf.conf default/useradd deluser.conf dpkg login.defs
"""
_ACCOUNTS: Final = ("passwd", "group")
_NOT_KEPT: Final = (
    *("etc/apt", "usr/sbin/policy-rc.d", "home", "work-usr", "var/tmp", "var/run"),
    *("var/cache", "var/log", "var/lib/apt", "var/lib/dpkg"),
)
_ACCOUNT_BYTES: Final = 1024**2
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Layers(LayerDirectory):
    """The layers of one data directory. All of it blocks."""

    def __init__(self, directory: Path, etc: Path) -> None:
        super().__init__(directory)
        self._etc = etc

    def lack(self, managers: Collection[str]) -> str | None:
        """Which program is missing on this machine, in words."""
        for manager in managers:
            program = program_of(manager)
            if shutil.which(program, path=_PATH) is None:
                return f"{manager}: the program {program} is missing on this machine"
        if "apt" in managers and not (_DPKG / "status").is_file():
            return "apt: this machine is not a Debian system"
        return None

    def name_of(self, packages: Mapping[str, Any]) -> str:
        """By the packages, and by what they are installed on: its release, its programs, its own packages."""
        parts = [_identity(Path(part)) for part in (*_ALIKE, _DPKG / "status")]
        system = [platform.machine(), self._etc.name, *parts]
        text = json.dumps([_FORMAT, system, packages], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def find(self, name: str) -> Path | None:
        """Where a layer is, if it is there."""
        layer = self.directory / name
        return layer if layer.is_dir() else None

    @contextmanager
    def used(self, name: str) -> Iterator[Path]:
        """Where a layer is, which nobody removes meanwhile. :raises FileNotFoundError: it is gone"""
        with self.locked(name, fcntl.LOCK_SH):
            self.touch(name)
            layer = self.find(name)
            if layer is None:
                raise FileNotFoundError(f"the layer {name} is gone")
            yield layer

    def begin(self, name: str, packages: Mapping[str, Any]) -> Path:
        """A directory to build the layer in, with all that a build needs. What a killed build has left is removed.

        :raises OSError:
        """
        new = self.new(name)
        for part in ("usr", "opt", "var/lib", "var/cache", "var/log", "home", "work-usr"):
            (new / part).mkdir(parents=True)
        for inner in _shadowed(everything=bool(packages.get("apt"))):
            (new / "usr" / inner).mkdir(parents=True, exist_ok=True)
        _write(new / "usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
        for part in ("lib/apt/lists/partial", "cache/apt/archives/partial"):
            (new / "var" / part).mkdir(parents=True)
        if packages.get("apt"):
            shutil.copytree(_DPKG, new / "var/lib/dpkg", symlinks=True, copy_function=_copied)
        self._make_etc(new / "etc")
        return new

    def _make_etc(self, etc: Path) -> None:
        shutil.copytree(self._etc, etc, symlinks=True)
        for name in _FOR_BUILDS.split():
            source = Path("/etc", name)
            (etc / name).parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(
                    source, etc / name, symlinks=True, dirs_exist_ok=True, ignore=_unreadable
                )
            elif source.is_file() and source.stat().st_mode & stat.S_IROTH:
                shutil.copyfile(source, etc / name)
        # Packages ask for users of the machine, and are refused without them.
        for name in _ACCOUNTS:
            with (etc / name).open("a") as accounts:
                accounts.writelines(f"{line}\n" for line in _system_accounts(name, etc / name))

    def publish(self, name: str, new: Path) -> None:
        """What was built becomes the layer. :raises OSError:"""
        for account in _ACCOUNTS:
            _keep_new_accounts(new / "etc" / account, self._etc / account, account)
        top = os.open(new, _DIRECTORY)
        try:
            for part in _NOT_KEPT:
                _remove(top, part)
            _remove_empty(top)
            for entry in walk_beneath(new):
                _open_to_all(entry.directory, entry.name, entry.stat)
            _close_to_pip(top)
            os.fchmod(top, 0o755)
            if os.geteuid() == 0:
                os.fchown(top, 0, 0)
            if _libc.syncfs(top) != 0:
                raise OSError(ctypes.get_errno(), "the layer cannot be made durable")
        finally:
            os.close(top)
        new.rename(self.directory / name)
        disk.sync_folder(self.directory)

    def collect(self, kept: LayersKept) -> int:
        """Remove what is not kept, and what killed builds have left; how many bytes are still taken."""
        self.sweep()
        surplus = Surplus([self._counted(layer) for layer in self.known()], kept)
        for layer in surplus:
            with ExitStack() as held:
                if not self.try_lock_unused(layer, held):
                    continue
                # First it loses its name: what a kill leaves of it must not count as the layer.
                gone = self.directory / f".new-{layer.name}-gone"
                with suppress(FileNotFoundError):
                    (self.directory / layer.name).rename(gone)
                    disk.sync_folder(self.directory)
                    disk.remove(gone)
                self.forget(layer.name)
                surplus.removed(layer)
        return surplus.bytes

    def _counted(self, layer: KnownLayer) -> KnownLayer:
        """Once, when it is there: nobody writes to it any more."""
        found = self.find(layer.name)
        if layer.bytes is not None or found is None:
            return layer
        with suppress(FileNotFoundError):  # it was removed just now
            return self.count(layer, used([found]))
        return layer


def _identity(file: Path) -> list[object]:
    try:
        found = file.resolve().stat()
    except OSError:
        return []
    return [str(file.resolve()), found.st_size, found.st_mtime_ns]


def _shadowed(*, everything: bool) -> Iterator[str]:
    """The directories of the system that a build may write to: with apt it is all of them."""
    if everything:
        yield from _directories(str(_SYSTEM))
        return
    yield from writable_directories(_SYSTEM)
    if (_SYSTEM / "local").is_dir():
        yield from (f"local/{inner}" for inner in _directories(str(_SYSTEM / "local")))


def _directories(top: str, prefix: str = "") -> Iterator[str]:
    with os.scandir(top) as entries:
        inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in inner:
        with suppress(PermissionError):
            if os.access(f"{top}/{name}", os.R_OK | os.X_OK):
                yield f"{prefix}{name}"
                yield from _directories(f"{top}/{name}", f"{prefix}{name}/")


def _write(file: Path, text: str, mode: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def _copied(source: str, target: str) -> None:
    with suppress(PermissionError):  # locks, which are empty
        shutil.copy2(source, target)
        return
    Path(target).touch()


def _unreadable(directory: str, names: list[str]) -> list[str]:
    """What of the machine's is not for everybody to read."""
    found = [(name, os.lstat(f"{directory}/{name}").st_mode) for name in names]
    return [name for name, mode in found if not stat.S_ISLNK(mode) and not mode & stat.S_IROTH]


def _system_accounts(name: str, own: Path) -> list[str]:
    known = {line.split(":")[0] for line in own.read_text().splitlines()}
    lines = Path("/etc", name).read_text().splitlines()
    return [
        line
        for line in lines
        if (parts := line.split(":"))[0] not in known
        and len(parts) > 2
        and int(parts[2] or 1000) < 1000
    ]


def _keep_new_accounts(file: Path, own: Path, name: str) -> None:
    """Sessions see the accounts that packages have made, and none of the machine's."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size > _ACCOUNT_BYTES:
        file.unlink(missing_ok=True)
        shutil.copyfile(own, file)
        return
    machine = {line.split(":")[0] for line in Path("/etc", name).read_text().splitlines()}
    kept = own.read_text().splitlines()
    kept += [
        line
        for line in file.read_text(errors="replace").splitlines()
        if line.split(":")[0] not in machine | {each.split(":")[0] for each in kept}
    ]
    file.write_text("".join(f"{line}\n" for line in kept))


def _remove(top: int, path: str) -> None:
    """What is there in a directory that somebody else has written to: a link on the way would lead elsewhere."""
    folder, _, name = path.rpartition("/")
    with suppress(OSError), _opened(top, folder) as parent:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            disk.remove(Path(f"/proc/self/fd/{parent}", name))
        else:
            os.unlink(name, dir_fd=parent)


def _remove_empty(top: int) -> None:
    """Remove directories that only stand for the machine's own."""
    for inner in reversed(list(_directories(str(_SYSTEM)))):
        folder, _, name = f"usr/{inner}".rpartition("/")
        with suppress(OSError), _opened(top, folder) as parent:
            os.rmdir(name, dir_fd=parent)  # unless it has something


def _close_to_pip(top: int) -> None:
    """So that pip goes on to install into the home."""
    with suppress(OSError), _opened(top, "usr/local/lib") as library:
        for python in filter(lambda name: name.startswith("python3"), os.listdir(library)):  # noqa: PTH208
            for name in ("dist-packages", "site-packages"):
                with suppress(OSError), _opened(library, f"{python}/{name}") as packages:
                    os.fchmod(packages, 0o555)


@contextmanager
def _opened(top: int, path: str) -> Iterator[int]:
    descriptor = open_at(top, path, _DIRECTORY) if path else os.dup(top)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_all(directory: int, name: str, status: os.stat_result) -> None:
    """Everybody may read it, and it gives no rights."""
    if os.geteuid() == 0:
        os.chown(name, 0, 0, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        os.chmod(name, stat.S_IMODE(status.st_mode) & 0o777 | 0o555, dir_fd=directory)
    elif stat.S_ISREG(status.st_mode):
        run = 0o111 if status.st_mode & 0o111 else 0
        os.chmod(name, stat.S_IMODE(status.st_mode) & 0o777 | 0o444 | run, dir_fd=directory)
