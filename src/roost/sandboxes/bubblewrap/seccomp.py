"""The two system-call filters of a sandbox, as programs for the kernel's classic BPF machine.

`refusing` lets everything through but what an agent never needs and attackers do: new namespaces,
mounts, keyrings, io_uring, tracing of other users' memory, raw and exotic sockets, typing into a
terminal. `known` lets through only calls that were known when this was written, so that a call a
newer kernel adds is closed until somebody has looked at it. Of two verdicts the kernel takes the harder.

The kernel reads most arguments as 32-bit numbers, so only their low halves are compared: a filter
that compares 64 bits is passed by setting a bit the kernel then ignores.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from roost.sandboxes.bubblewrap.syscalls import NUMBERS

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
Program = list[Instruction]

_ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT: Final = 0x40000000  # the same calls once more, numbered apart: a way around the list

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x25, 0x35, 0x45

_ALLOW: Final[Instruction] = (_RETURN, 0, 0, 0x7FFF0000)
_KILL: Final[Instruction] = (_RETURN, 0, 0, 0x80000000)

REFUSED: Final = """
    mount umount2 pivot_root chroot unshare setns open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr bpf perf_event_open keyctl add_key request_key userfaultfd io_uring_setup
    io_uring_enter io_uring_register init_module finit_module delete_module create_module kexec_load
    kexec_file_load open_by_handle_at name_to_handle_at quotactl quotactl_fd reboot swapon swapoff
    syslog acct settimeofday clock_settime adjtimex clock_adjtime lookup_dcookie vhangup nfsservctl
    process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp fanotify_init fanotify_mark
    iopl ioperm move_pages mbind migrate_pages set_mempolicy set_mempolicy_home_node sethostname
    setdomainname uselib ustat sysfs _sysctl modify_ldt
"""
NEW_NAMESPACES: Final = 0x7E020000  # every CLONE_NEW* that clone() takes
TERMINAL_TRICKS: Final = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
PERSONALITIES: Final = (0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)  # none reads as executable
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
STREAM, DATAGRAM = 1, 2
PROTOCOLS: Final = (0, 1, 6, 17, 58, 262)  # default, ICMP, TCP, UDP, ICMPv6, MPTCP
NETLINK_ROUTE: Final = 0


def filters(machine: str) -> tuple[bytes, bytes]:
    """Both programs for an architecture, as `bwrap --add-seccomp-fd` takes them.

    :raises KeyError: an architecture whose numbers are not known here
    """
    return _packed(refusing(machine)), _packed(known(machine))


def forged_owners(machine: str) -> bytes:
    """A third program, for builds of layers: to change the owner of a file works, and does nothing.

    A build is the superuser of a namespace with a single user, and the kernel refuses all others, which package
    managers take for a failure. The owner of what they install is nobody's in the end.
    """
    numbers = NUMBERS[machine]
    program = _opening(machine)
    for name in ("chown", "fchown", "lchown", "fchownat"):
        if name in numbers:
            program += _when(numbers[name], [_refuse(0)])
    return _packed([*program, _ALLOW])


def refusing(machine: str) -> Program:
    """Everything but what is refused by name or by argument."""
    numbers = NUMBERS[machine]
    program = _opening(machine)
    for name in REFUSED.split():
        if name in numbers:
            program += _when(numbers[name], [_refuse(errno.EPERM)])
    # ENOSYS makes the C library fall back to clone(), whose flags a filter can see.
    program += _when(numbers["clone3"], [_refuse(errno.ENOSYS)])
    for name, block in _by_argument().items():
        program += _when(numbers[name], block)
    return [*program, _ALLOW]


def known(machine: str) -> Program:
    """Only calls that are in the table; anything newer does not exist."""
    program = _opening(machine)
    for first, last in _ranges(NUMBERS[machine].values()):
        program += [
            (_IF_AT_LEAST, 1, 0, first),
            _refuse(errno.ENOSYS),
            (_IF_GREATER, 1, 0, last),
            _ALLOW,
        ]
    return [*program, _refuse(errno.ENOSYS)]


def _opening(machine: str) -> Program:
    """Refuse calls made as another architecture; leave the call's number in the accumulator."""
    foreign: Program = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, _ARCHES[machine]), _KILL]
    number: Program = [(_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        number += [(_IF_AT_LEAST, 0, 1, _X32_BIT), _refuse(errno.ENOSYS)]
    return foreign + number


def _by_argument() -> dict[str, Program]:
    return {
        "clone": [
            _argument(0),
            (_IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
            _refuse(errno.EPERM),
            _ALLOW,
        ],
        "ioctl": [_argument(1), *_any_of(TERMINAL_TRICKS, _refuse(errno.EPERM)), _ALLOW],
        "personality": [_argument(0), *_any_of(PERSONALITIES, _ALLOW), _refuse(errno.EPERM)],
        "socket": _sockets(),
        "socketpair": [_argument(0), *_any_of((UNIX,), _ALLOW), _refuse(errno.EAFNOSUPPORT)],
    }


def _sockets() -> Program:
    protocols = [
        _argument(2),
        *_any_of(PROTOCOLS, _ALLOW),
        _refuse(errno.EPROTONOSUPPORT),
    ]
    internet = [
        _argument(1),
        (_AND, 0, 0, 0xF),  # the rest are flags
        *_when(STREAM, protocols),
        *_when(DATAGRAM, protocols),
        _refuse(errno.EPERM),
    ]
    netlink = [
        _argument(2),
        *_any_of((NETLINK_ROUTE,), _ALLOW),
        _refuse(errno.EPROTONOSUPPORT),
    ]
    return [
        _argument(0),
        *_when(UNIX, [_ALLOW]),
        *_when(INET, internet),
        *_when(INET6, internet),
        *_when(NETLINK, netlink),
        _refuse(errno.EAFNOSUPPORT),
    ]


def _argument(index: int) -> Instruction:
    """Load the low half of an argument; both architectures are little-endian."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _refuse(error: int) -> Instruction:
    return (_RETURN, 0, 0, 0x00050000 | error)


def _when(value: int, block: Program) -> Program:
    """Run the block, which must return, if the accumulator holds the value."""
    return [(_IF_EQUAL, 0, len(block), value), *block]


def _any_of(values: Iterable[int], verdict: Instruction) -> Program:
    return [instruction for value in values for instruction in _when(value, [verdict])]


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _packed(program: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
