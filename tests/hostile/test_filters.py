"""The system-call filters say what they should, on machines this test does not run on too."""

from __future__ import annotations

import errno

import pytest

from roost.sandboxes.bubblewrap import seccomp
from roost.sandboxes.bubblewrap.syscalls import NUMBERS

ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = "allow", "kill"
HIGH = 1 << 32


@pytest.fixture(params=sorted(ARCHES))
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def verdict(machine: str, call: str | int, *arguments: int, arch: int | None = None) -> str | int:
    """What both filters together say: the kernel takes the harder of the two."""
    number = NUMBERS[machine][call] if isinstance(call, str) else call
    data = [number, ARCHES[machine] if arch is None else arch, 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        data += [argument & 0xFFFFFFFF, argument >> 32]
    results = [
        _run(program, data) for program in (seccomp.refusing(machine), seccomp.known(machine))
    ]
    return next((result for result in results if result != ALLOW), ALLOW)


def _run(program: seccomp.Program, data: list[int]) -> str | int:
    """The kernel's machine, as far as the filters use it."""
    at = accumulator = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x20:
            accumulator = data[operand // 4]
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x06:
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(operand, operand & 0xFFFF)
        else:
            tests = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }
            at += if_true if tests[code] else if_false


def test_ordinary_calls_pass(machine: str) -> None:
    for call in ("read", "openat", "execve", "futex", "mmap", "ptrace", "seccomp", "memfd_create"):
        assert verdict(machine, call) == ALLOW


@pytest.mark.parametrize(
    "call",
    [
        "mount",
        "unshare",
        "setns",
        "keyctl",
        "add_key",
        "io_uring_setup",
        "bpf",
        "userfaultfd",
        "perf_event_open",
        "kexec_load",
        "open_by_handle_at",
        "process_vm_writev",
        "pivot_root",
        "chroot",
        "reboot",
        "init_module",
        "fsopen",
        "swapon",
    ],
)
def test_dangerous_calls_are_refused(machine: str, call: str) -> None:
    assert verdict(machine, call) == errno.EPERM


def test_every_name_that_is_refused_exists_somewhere() -> None:
    """A misspelt one would refuse nothing."""
    known = NUMBERS["x86_64"].keys() | NUMBERS["aarch64"].keys()
    assert set(seccomp.REFUSED.split()) <= known


def test_calls_that_are_not_known_do_not_exist(machine: str) -> None:
    for number in (430_000, 1000, 470, max(NUMBERS[machine].values()) + 1):
        assert verdict(machine, number) == errno.ENOSYS


def test_another_architecture_is_killed(machine: str) -> None:
    assert verdict(machine, "read", arch=0x40000003) == KILL


def test_the_second_numbering_of_x86_does_not_exist() -> None:
    assert verdict("x86_64", 0x40000000 + 39) == errno.ENOSYS


def test_new_namespaces_are_refused_and_threads_are_not(machine: str) -> None:
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(machine, "clone", 1 << bit | 17) == errno.EPERM
        assert verdict(machine, "clone", HIGH | 1 << bit) == errno.EPERM
    assert verdict(machine, "clone", 0x3D0F00) == ALLOW
    assert verdict(machine, "clone3") == errno.ENOSYS


def test_only_plain_sockets_are_made(machine: str) -> None:
    nonblocking = 0o4000 | 0o2000000
    for family, kind, protocol in ((1, 1, 0), (2, 1, 6), (2, 2, 17), (10, 1, 0), (16, 3, 0)):
        assert verdict(machine, "socket", family, kind | nonblocking, protocol) == ALLOW
        assert verdict(machine, "socket", HIGH | family, kind, protocol) == ALLOW
    for family in (0, 3, 17, 29, 31, 38, 40, 44, 45, 99):
        assert verdict(machine, "socket", family, 1, 0) == errno.EAFNOSUPPORT
        assert verdict(machine, "socketpair", family, 1, 0) == errno.EAFNOSUPPORT
    for kind in (3, 4, 5, 10):
        assert verdict(machine, "socket", 2, kind | nonblocking, 0) == errno.EPERM
    assert verdict(machine, "socket", 2, 2, 115) == errno.EPROTONOSUPPORT
    assert verdict(machine, "socket", 16, 3, 12) == errno.EPROTONOSUPPORT


def test_typing_into_a_terminal_is_refused_whatever_the_high_bits_say(machine: str) -> None:
    for request in (0x5412, 0x541C, 0x5423):
        assert verdict(machine, "ioctl", 0, request) == errno.EPERM
        assert verdict(machine, "ioctl", 0, HIGH | request) == errno.EPERM
    assert verdict(machine, "ioctl", 0, 0x5413) == ALLOW


def test_readable_memory_does_not_become_executable(machine: str) -> None:
    assert verdict(machine, "personality", 0x0400000) == errno.EPERM
    assert verdict(machine, "personality", 0xFFFFFFFF) == ALLOW


def test_the_programs_are_small_enough_for_the_kernel(machine: str) -> None:
    for program in seccomp.filters(machine):
        assert len(program) % 8 == 0
        assert len(program) // 8 <= 4096
    with pytest.raises(KeyError):
        seccomp.filters("pdp11")
