"""A small `/etc` for sandboxes, prepared once: one mount instead of thirty (4 ms less per start).

Of the machine's own only what everybody may read is taken, so no key or password ever is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from roost.sandboxes.state import is_own

_TAKEN: Final = (
    "alternatives ca-certificates* crypto-policies debian_version fonts java-* ld.so.* localtime "
    "magic mime.types os-release perl pki protocols python3* services ssl terminfo timezone"
)
_WRITTEN: Final = {
    "passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "machine-id": "0" * 32 + "\n",
    # Files of a shared workspace belong to several uids; git would refuse to work there.
    "gitconfig": "[safe]\n\tdirectory = *\n",
}


Entry = bytes | str | None  # a file's content, where a link leads, or a directory


def prepare(state: Path, source: Path = Path("/etc")) -> Path:
    """The directory to show as `/etc`. Blocks for some milliseconds, for more where it is not there yet.

    Named by its content, so that servers share it and none changes it under a running sandbox. It is
    compared with its name each time: a power cut leaves files empty, and cleaners of `/tmp` take some away.

    :raises OSError: it cannot be made
    """
    wanted: dict[str, Entry] = dict(_taken(source))
    wanted |= {name: text.encode() for name, text in _WRITTEN.items()}
    ready = state / f"etc-{_digest(wanted)}"
    if not _is_whole(ready):
        _make(wanted, ready)
    return ready


def _is_whole(ready: Path) -> bool:
    try:
        return is_own(ready) and ready.name == f"etc-{_digest(dict(_within(str(ready))))}"
    except OSError:
        return False


def _taken(source: Path) -> Iterator[tuple[str, Entry]]:
    for pattern in _TAKEN.split():
        for found in source.glob(pattern):
            yield from _readable(str(found), found.name)


def _readable(path: str, name: str) -> Iterator[tuple[str, Entry]]:
    """It and what is in it, as far as everybody may read it."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        yield name, os.readlink(path)  # noqa: PTH115 - hundreds of them, at each start
    elif stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
        yield name, None
        yield from _within(path, f"{name}/")
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        yield name, Path(path).read_bytes()


def _within(path: str, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    with os.scandir(path) as inside:
        for inner in inside:
            yield from _readable(inner.path, f"{prefix}{inner.name}")


def _digest(entries: dict[str, Entry]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, entry in sorted(entries.items()):
        content = os.fsencode(entry or "")
        digest.update(os.fsencode(f"{name}\0{type(entry).__name__}\0{len(content)}\0") + content)
    return digest.hexdigest()


def _make(entries: dict[str, Entry], ready: Path) -> None:
    making = Path(tempfile.mkdtemp(prefix="etc-new-", dir=ready.parent))
    try:
        making.chmod(0o755)
        for name, entry in sorted(entries.items()):  # a directory is before what is in it
            _put(making / name, entry)
        try:
            making.rename(ready)
        except OSError:
            _replace(ready, making)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _replace(ready: Path, making: Path) -> None:
    """What is there is put aside, and kept: a sandbox may be looking at it.

    :raises OSError: it cannot be made
    """
    if _is_whole(ready):  # another server was quicker
        return
    ready.rename(Path(tempfile.mkdtemp(prefix="etc-old-", dir=ready.parent), ready.name))
    making.rename(ready)


def _put(target: Path, entry: Entry) -> None:
    if isinstance(entry, str):
        target.symlink_to(entry)
    elif entry is None:
        target.mkdir()
        target.chmod(0o755)
    else:
        target.write_bytes(entry)
        target.chmod(0o644)
