"""Namespaces, and who one is."""

from __future__ import annotations

import os
import resource
import signal

from roost.testing.probes.inside.kit import (
    Facts,
    call,
    in_child,
    probe,
    status_of,
    succeeded,
    understood,
)

_NAMESPACES = {
    "mnt": 1 << 17,
    "cgroup": 1 << 25,
    "uts": 1 << 26,
    "ipc": 1 << 27,
    "user": 1 << 28,
    "pid": 1 << 29,
    "net": 1 << 30,
}


@probe("ns.mount")
def _mount(facts: Facts) -> object:
    fresh = in_child(succeeded, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
    bound = in_child(succeeded, "mount", b"/etc", b"/tmp", None, 4096, None)
    by_hand = understood("fsopen", "open_tree", "move_mount", "pivot_root")
    return by_hand + ["tmpfs"] * fresh + ["bind"] * bound


@probe("ns.unmount")
def _unmount(facts: Facts) -> object:
    paths = ("/proc/kallsyms", "/etc", "/proc/sys")
    return [path for path in paths if in_child(succeeded, "umount2", path.encode(), 2)]


@probe("ns.new")
def _new(facts: Facts) -> object:
    unshared = [n for n, f in _NAMESPACES.items() if in_child(succeeded, "unshare", f)]
    cloned = [n for n, flag in _NAMESPACES.items() if _cloned(flag)]
    return unshared + cloned + understood("clone3")


@probe("ns.enter")
def _enter(facts: Facts) -> object:
    paths = [f"/proc/{pid}/ns/{name}" for pid in (1, facts["victim"]) for name in _NAMESPACES]
    return [path for path in paths if in_child(_entered, path)]


@probe("ns.chroot")
def _chroot(facts: Facts) -> object:
    return in_child(succeeded, "chroot", b"/tmp")


@probe("id.become_another")
def _become_another(facts: Facts) -> object:
    changes = ("setuid", "setgid", "seteuid", "setegid")
    others = [who for who in (0, 1, 65534) if who != os.getuid()]
    became = [f"{c}({who})" for c in changes for who in others if in_child(succeeded, c, who)]
    return became + ["setgroups"] * in_child(succeeded, "setgroups", 0, None)


@probe("id.capabilities")
def _capabilities(facts: Facts) -> object:
    fields = ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")
    return [f"{field} {status_of(field)}" for field in fields if int(status_of(field), 16)]


@probe("id.filters_missing")
def _filters_missing(facts: Facts) -> object:
    seen = {field: status_of(field) for field in ("Seccomp", "Seccomp_filters", "NoNewPrivs")}
    filtered = seen["Seccomp"] == "2" and int(seen["Seccomp_filters"] or 2) >= 2
    return None if filtered and seen["NoNewPrivs"] == "1" else seen


@probe("id.raise_limits")
def _raise_limits(facts: Facts) -> object:
    names = ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE")
    return [name for name in names if in_child(_raised, getattr(resource, name))]


@probe("id.priority")
def _priority(facts: Facts) -> object:
    first = in_child(_in_real_time)
    nicer = in_child(lambda: os.nice(-5) < 0)
    return ["real time"] * first + ["nice"] * nicer


def _in_real_time() -> bool:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return True


def _cloned(flag: int) -> bool:
    pid = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return pid > 0


def _entered(path: str) -> bool:
    return succeeded("setns", os.open(path, os.O_RDONLY), 0)


def _raised(which: int) -> bool:
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (hard + 1, hard + 1))
    return hard != resource.RLIM_INFINITY
