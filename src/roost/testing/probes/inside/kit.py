"""What the probes share."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
Probe = Callable[[Facts], object]

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
REFUSED = (errno.EPERM, errno.ENOSYS, errno.EACCES)
PROBES: dict[str, tuple[Probe, str | None]] = {}
NUMBERS = {  # x86_64, aarch64
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "userfaultfd": (323, 282),
}


def probe(name: str, harmless: str | None = None) -> Callable[[Probe], Probe]:
    """Register a probe: what it returns is what it got. `harmless`: why that is no finding."""

    def register(function: Probe) -> Probe:
        PROBES[name] = (function, harmless)
        return function

    return register


def outcome(function: Probe, harmless: str | None, facts: Facts) -> dict[str, str]:
    """What a probe came to, in the words of the report."""
    try:
        got = function(facts)
    except OSError as error:
        return {"verdict": "blocked", "detail": errno.errorcode.get(error.errno or 0, str(error))}
    except Exception as error:  # noqa: BLE001 - a probe that does not work must show
        return {"verdict": "broken", "detail": repr(error)}
    if not got:
        return {"verdict": "blocked", "detail": ""}
    return {"verdict": "info" if harmless else "open", "detail": harmless or str(got)[:500]}


def call(which: str | int, *arguments: Any) -> int:
    """A system call by name or number: its result, or minus the error it fails with."""
    number = which if isinstance(which, int) else NUMBERS[which][0 if X86 else 1]
    given = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    result = int(LIBC.syscall(number, *given))
    return result if result >= 0 else -ctypes.get_errno()


def understood(*names: str) -> list[str]:
    """Those calls that are not refused outright, though their arguments make no sense."""
    results = {name: call(name, 0, 0, 0, 0, 0) for name in names}
    return [f"{name}: {result}" for name, result in results.items() if -result not in REFUSED]


def in_child(action: Callable[..., object], *arguments: object) -> bool:
    """Whether it succeeds in a child: it may kill or change the process that does it."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if action(*arguments) else 1)
        except BaseException:  # noqa: BLE001 - nothing may get back into the parent's code
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def succeeded(function: str, *arguments: object) -> bool:
    """Whether a function of the C library returns 0."""
    return int(LIBC[function](*arguments)) == 0


def opened(paths: Iterable[str | Path], flags: int = os.O_RDONLY) -> list[str]:
    """Those of the paths that can be opened."""
    return [str(path) for path in paths if _opens(path, flags)]


def readable(paths: Iterable[str]) -> list[str]:
    """Those of the paths that have something to read."""
    return [path for path in paths if _has_content(path)]


def status_of(field: str) -> str:
    """A line of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.split(None, 1)[1]
    return ""


def _opens(path: str | Path, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _has_content(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - some of them never end
            return bool(file.read(64))
    except OSError:
        return False
