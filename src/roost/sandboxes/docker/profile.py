"""The system-call filter of a sandbox, as engines take it: the same lists as bubblewrap's filters.

Engines take one list of what is allowed, where the kernel takes two programs. What is on no list is
refused with EPERM; calls newer than the list do not exist, which the engine's own runtime sees to.
Arguments are compared in their low halves, as the kernel reads them. There is no "not equal" for a
half, so what is forbidden by value is said as all that differs from it in some bit.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final

from roost.sandboxes.bubblewrap import seccomp
from roost.sandboxes.bubblewrap.syscalls import NUMBERS

_ARCHES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_BITS: Final = 32
_LOW: Final = (1 << _BITS) - 1
_TYPE: Final = 0xF  # of a socket; the rest are flags

_BUBBLEWRAP: Final = "mount umount2 pivot_root chroot unshare setns sethostname"

Rule = dict[str, Any]


def profile(machine: str) -> dict[str, Any]:
    """For one architecture; calls made as another are killed.

    :raises KeyError: an architecture whose calls are not known here
    """
    conditional = _by_argument()
    apart = {*seccomp.REFUSED.split(), *conditional, "clone3"}
    plain = sorted(NUMBERS[machine].keys() - apart)
    rules = [_allow(plain)]
    for name, conditions in conditional.items():
        rules += [_allow([name], condition) for condition in conditions]
    # ENOSYS makes the C library fall back to clone(), whose flags a filter can see.
    missing = {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [_ARCHES[machine]],
        "syscalls": [*rules, missing],
    }


def around_server() -> dict[str, Any]:
    """For a container with the server in it, which makes sandboxes of its own: `deploy/seccomp.json`.

    What bubblewrap needs is allowed: namespaces and mounts, which the kernel gives to who has a user
    namespace. What is left of the lists stays refused, and each sandbox has its own filters besides.
    """
    calls = {name for numbers in NUMBERS.values() for name in numbers}
    refused = set(seccomp.REFUSED.split()) - set(_BUBBLEWRAP.split())
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": sorted(_ARCHES.values()),
        "syscalls": [
            _allow(sorted(calls - refused)),
            {"names": sorted(refused), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM},
        ],
    }


def _by_argument() -> dict[str, list[list[Rule]]]:
    """For each call, the conditions of which one must hold."""
    return {
        "clone": [[_is(0, 0, seccomp.NEW_NAMESPACES)]],
        "ioctl": [[_is(1, *rest)] for rest in _all_but(seccomp.TERMINAL_TRICKS)],
        "personality": [[_is(0, value)] for value in seccomp.PERSONALITIES],
        "socket": list(_sockets()),
        "socketpair": [[_is(0, seccomp.UNIX)]],
    }


def _sockets() -> Iterator[list[Rule]]:
    yield [_is(0, seccomp.UNIX)]
    yield [_is(0, seccomp.NETLINK), _is(2, seccomp.NETLINK_ROUTE)]
    families, kinds = (seccomp.INET, seccomp.INET6), (seccomp.STREAM, seccomp.DATAGRAM)
    for family, kind, protocol in product(families, kinds, seccomp.PROTOCOLS):
        yield [_is(0, family), _is(1, kind, _TYPE), _is(2, protocol)]


def _all_but(values: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Values and masks that together match every number but these."""
    return _differing(0, 0, _BITS, list(values))


def _differing(
    prefix: int, mask: int, bits: int, forbidden: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """The same among numbers that begin with a prefix, `bits` of which are still open."""
    if not forbidden:
        yield prefix, mask
    elif bits:
        bit = 1 << (bits - 1)
        for value in (0, bit):
            within = [number for number in forbidden if number & bit == value]
            yield from _differing(prefix | value, mask | bit, bits - 1, within)


def _is(index: int, value: int, mask: int = _LOW) -> Rule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _allow(names: Sequence[str], conditions: Sequence[Rule] = ()) -> Rule:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": list(conditions)}
