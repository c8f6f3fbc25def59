"""System calls, terminals, control groups."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import pty
import struct
from pathlib import Path

from roost.testing.probes.inside.kit import (
    LIBC,
    REFUSED,
    X86,
    Facts,
    call,
    in_child,
    opened,
    probe,
    succeeded,
    understood,
)

_DANGEROUS = """
    bpf userfaultfd perf_event_open kcmp process_vm_readv pidfd_getfd finit_module kexec_load reboot
    swapon syslog fanotify_init quotactl name_to_handle_at open_by_handle_at
"""
_GETPID_AS_32_BIT = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
_READ_IMPLIES_EXEC = 0x0400000
_TYPE_INTO, _CONSOLE, _LINE_DISCIPLINE = 0x5412, 0x541C, 0x5423


@probe("sys.io_uring")
def _io_uring(facts: Facts) -> object:
    return understood("io_uring_setup")


@probe("sys.dangerous_calls")
def _dangerous_calls(facts: Facts) -> object:
    return understood(*_DANGEROUS.split())


@probe("sys.newer_calls")
def _newer_calls(facts: Facts) -> object:
    numbers = (457, 458, 467, 470, 500, 1000)
    return [n for n in numbers if call(n, 0, 0, 0, 0, 0) not in (-errno.ENOSYS, -errno.EPERM)]


@probe("sys.other_numbering")
def _other_numbering(facts: Facts) -> object:
    if not X86:
        return None
    as_x32 = in_child(lambda: call(0x40000000 + 39) > 0)  # a filter may kill for it
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_GETPID_AS_32_BIT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    as_i386 = in_child(lambda: ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0)
    return ["x32"] * as_x32 + ["i386"] * as_i386


@probe("sys.personality")
def _personality(facts: Facts) -> object:
    return in_child(lambda: LIBC.personality(_READ_IMPLIES_EXEC) != -1)


@probe("sys.clock_and_name")
def _clock_and_name(facts: Facts) -> object:
    named = in_child(succeeded, "sethostname", b"sandbox", 7)
    timed = in_child(succeeded, "settimeofday", None, struct.pack("ii", 0, 0))
    return ["sethostname"] * named + ["settimeofday"] * timed


@probe("tty.type_into_it")
def _type_into_it(facts: Facts) -> object:
    _, terminal = pty.openpty()
    requests = (_TYPE_INTO, _CONSOLE, _LINE_DISCIPLINE)
    heeded = [hex(request) for request in requests if not _refused(terminal, request)]
    # The kernel looks at 32 bits of a request; a filter that looks at 64 is passed by setting another.
    tricked = call("ioctl", terminal, 1 << 32 | _TYPE_INTO, ctypes.c_char_p(b"x"))
    return heeded + ["with a high bit set"] * (-tricked not in REFUSED)


@probe("tty.of_the_server")
def _of_the_server(facts: Facts) -> object:
    return opened(["/dev/tty", "/dev/console"])


@probe("cgroup.escape")
def _escape(facts: Facts) -> object:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return [line for line in lines if not line.endswith(":/")] + opened(["/sys/fs/cgroup"])


def _refused(terminal: int, request: int) -> bool:
    try:
        fcntl.ioctl(terminal, request, struct.pack("i", 0))
    except OSError as error:
        return error.errno in REFUSED
    return False
