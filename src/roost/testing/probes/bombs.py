"""Take as much as there is of something, and print how much that was: `bombs.py KIND`.

Each is bounded by itself too, so that a limit that fails shows as a number, not as a dead machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1024**2


def fork() -> int:
    """Processes, up to 2,000; each lives until the sandbox ends."""
    return _count(2000, _forked)


def threads() -> int:
    """Threads, up to 2,000."""
    threading.stack_size(256 * 1024)  # aarch64 refuses less than 128 KiB
    return _count(
        2000, lambda: threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    )


def memory() -> int:
    """MiB of memory, up to 2,048; is killed on the way."""
    return len([bytearray(b"x") * MIB for _ in range(2048)])


def descriptors() -> int:
    """Open files, up to 100,000."""
    return _count(100_000, lambda: os.open("/dev/null", os.O_RDONLY))


def watches() -> int:
    """Instances of inotify, up to 1,000: they are counted per uid of the machine."""
    libc = ctypes.CDLL(None)
    for count in range(1000):
        if libc.inotify_init() < 0:
            return count
    return 1000


def temporary() -> int:
    """MiB in /tmp, up to 1,024."""
    return _filled(Path("/tmp/bomb"), 1024)


def shared_memory() -> int:
    """MiB in /dev/shm, up to 1,024."""
    return _filled(Path("/dev/shm/bomb"), 1024)


def one_file() -> int:
    """MiB in one file of the workspace, up to 256."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    return _filled(Path("bomb"), 256)


def many_files() -> int:
    """Empty files in the workspace, up to 200,000."""
    for count in range(200_000):
        Path(f"bomb-{count}").touch()
    return 200_000


def deep() -> int:
    """Directories in each other, deeper than any path can say."""
    for count in range(1500):
        try:
            os.mkdir("d" * 50)  # noqa: PTH102 - below where a path would reach
            os.chdir("d" * 50)
        except OSError:
            return count
    return 1500


def line() -> int:
    """A line of 1 GiB on standard output."""
    for _ in range(1024):
        sys.stdout.buffer.write(b"x" * MIB)
    return 1024


def everybody() -> int:
    """SIGKILL for every process that can be reached."""
    os.kill(-1, signal.SIGKILL)
    return 1


def _forked() -> None:
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)


def _count(most: int, take: Callable[[], object]) -> int:
    for count in range(most):
        try:
            take()
        except (OSError, RuntimeError):
            return count
    return most


def _filled(path: Path, most: int) -> int:
    with path.open("wb", buffering=0) as file:
        for count in range(most):
            try:
                written = file.write(b"x" * MIB)
            except OSError:
                return count
            if written < MIB:
                return count
    return most


if __name__ == "__main__":
    bomb: Callable[[], int] = globals()[sys.argv[1]]
    taken = bomb()
    with contextlib.suppress(OSError):
        os.write(1, f"{taken}\n".encode())
    os._exit(0)
