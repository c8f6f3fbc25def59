"""Probes of the file system, from inside a sandbox."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from roost.testing.probes.inside.kit import Facts, opened, probe, readable, status_of

_SYSTEM = "/ /etc /dev /run /home /proc"
OWN = "/usr /usr/bin /usr/lib /usr/local /usr/local/bin /opt /var"
_NOBODY = 65534  # whoever is not in this user namespace
_PLAIN = "console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"


@probe("fs.other_workspace")
def _other_workspace(facts: Facts) -> object:
    return opened([facts["other"], Path(facts["other"]).parent])


@probe("fs.agents_record")
def _agents_record(facts: Facts) -> object:
    hidden = Path(facts["cwd"], facts["record"])
    return [*map(str, hidden.iterdir()), *opened([hidden], os.O_TMPFILE | os.O_WRONLY)]


@probe("fs.server_database")
def _server_database(facts: Facts) -> object:
    return opened([facts["database"]])


@probe("fs.host_secrets")
def _host_secrets(facts: Facts) -> object:
    return readable(["/etc/shadow", "/etc/gshadow", "/etc/sudoers"]) + opened(["/root", "/var/lib"])


@probe("fs.host_users")
def _host_users(facts: Facts) -> object:
    names = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    return sorted(names - {"root", "sandbox", "nobody"})


@probe("fs.write_system")
def _write_system(facts: Facts) -> object:
    places = _SYSTEM.split()
    nameless = opened(places, os.O_TMPFILE | os.O_WRONLY)
    return nameless + [place for place in places if os.access(place, os.W_OK)]


@probe("fs.write_own_root", harmless="a layer of its own over the system, which goes with it")
def _write_own_root(facts: Facts) -> object:
    """A file in each stays, for the test to look for it where it must not be."""
    return opened([f"{place}/{facts['mark']}" for place in OWN.split()], os.O_CREAT | os.O_WRONLY)


@probe("fs.set_uid_programs")
def _set_uid_programs(facts: Facts) -> object:
    places = ("/usr", "/tmp", "/mnt", "/srv", ".")
    heeded = [place for place in places if not os.statvfs(place).f_flag & os.ST_NOSUID]
    if "/usr" in heeded and not _owned_by_another():
        heeded.remove("/usr")
    return heeded + ([] if status_of("NoNewPrivs") == "1" else ["new privileges"])


def _owned_by_another() -> bool:
    """Whether a set-uid program would make us somebody who is anybody here."""
    found = (entry.stat() for entry in Path("/usr/bin").iterdir() if entry.exists())
    return any(
        status.st_mode & stat.S_ISUID and status.st_uid not in (os.getuid(), _NOBODY)
        for status in found
    )


@probe("fs.set_uid_in_workspace", harmless="mounted nosuid; the owner is a uid that nobody uses")
def _set_uid_in_workspace(facts: Facts) -> object:
    file = Path("set-uid")
    file.write_text("")
    file.chmod(0o6755)
    return oct(file.stat().st_mode)


@probe("fs.device_files")
def _device_files(facts: Facts) -> object:
    memory, disk = (0o020666, os.makedev(1, 1)), (0o060666, os.makedev(254, 0))
    places = [Path(place, "device") for place in (".", "/tmp", "/mnt", "/srv", "/dev/shm")]
    return [
        str(place)
        for place in places
        for kind in (memory, disk)
        if _made(place, lambda at, kind=kind: os.mknod(at, *kind))  # type: ignore[misc]
    ]


@probe("fs.device_nodes")
def _device_nodes(facts: Facts) -> object:
    return sorted({node.name for node in Path("/dev").iterdir()} - set(_PLAIN.split()))


@probe("fs.hard_link_to_system")
def _hard_link_to_system(facts: Facts) -> object:
    sources = ("/etc/passwd", "/usr/bin/env", "/proc/self/exe")
    return [s for s in sources if _made(Path("link"), lambda at, s=s: os.link(s, at))]  # type: ignore[misc]


@probe("fs.sys")
def _sys(facts: Facts) -> object:
    return opened(["/sys", "/sys/kernel", "/sys/fs/cgroup", "/sys/firmware"])


def _made(path: Path, make: Callable[[Path], None]) -> bool:
    try:
        make(path)
    except OSError:
        return False
    path.unlink()
    return True
