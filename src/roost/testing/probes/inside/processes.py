"""Other processes, and what /proc tells and takes."""

from __future__ import annotations

import os
from pathlib import Path

from roost.testing.probes.inside.kit import Facts, in_child, opened, probe, readable, succeeded

_SEIZE = 0x4206  # does not stop the process it takes
_KERNEL = (
    "cmdline config.gz kallsyms keys key-users kmsg kpagecount timer_list vmallocinfo sched_debug"
)
_SWITCHES = "sysrq-trigger mtrr acpi/wakeup irq/default_smp_affinity timer_stats kcore kmsg"


@probe("proc.host_processes")
def _host_processes(facts: Facts) -> object:
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return len(pids) > 10 or facts["victim"] in pids


@probe("proc.signal_host")
def _signal_host(facts: Facts) -> object:
    os.kill(facts["victim"], 0)
    return "can be signalled"


@probe("proc.trace_host")
def _trace_host(facts: Facts) -> object:
    return in_child(succeeded, "ptrace", _SEIZE, facts["victim"], 0, 0)


@probe("proc.trace_first", harmless="bwrap's own process in there has no more rights than others")
def _trace_first(facts: Facts) -> object:
    return in_child(succeeded, "ptrace", _SEIZE, 1, 0, 0)


@probe("proc.write_sys")
def _write_sys(facts: Facts) -> object:
    files = [Path(at, name) for at, _, names in os.walk("/proc/sys") for name in names]
    return opened(files, os.O_WRONLY)


@probe("proc.write_others")
def _write_others(facts: Facts) -> object:
    return opened([f"/proc/{name}" for name in _SWITCHES.split()], os.O_WRONLY)


@probe("proc.kernel_secrets")
def _kernel_secrets(facts: Facts) -> object:
    return readable([f"/proc/{name}" for name in _KERNEL.split()]) + opened(["/proc/kcore"])


@probe("proc.machine_load", harmless="how much memory and time the machine has is no secret here")
def _machine_load(facts: Facts) -> object:
    return readable(["/proc/meminfo", "/proc/stat", "/proc/loadavg"])


@probe("proc.descriptors")
def _descriptors(facts: Facts) -> object:
    found = []
    for number in range(3, 1024):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115 - not a path
        except OSError:
            continue
    # A program's own libraries may keep themselves open: libffi does, since 3.5.
    return [name for name in found if not _is_library(name)]


def _is_library(name: str) -> bool:
    return name.startswith(("/usr/lib/", "/lib/")) and ".so" in name


@probe("proc.environment")
def _environment(facts: Facts) -> object:
    own = [name for name, value in os.environ.items() if facts["secret"] in value]
    if own:
        return own
    first = Path("/proc/1/environ").read_bytes().decode().split("\0")
    return sorted({variable.partition("=")[0] for variable in first} - {"", "PWD"})


@probe("proc.command_line")
def _command_line(facts: Facts) -> object:
    return facts["workspace"].encode() in Path("/proc/1/cmdline").read_bytes()


@probe("proc.mounts", harmless="the path of the workspace on the host shows; it holds no secret")
def _mounts(facts: Facts) -> object:
    name = Path(facts["workspace"]).name.encode()
    return name in Path("/proc/self/mountinfo").read_bytes()


@probe("proc.survive_lack_of_memory")
def _survive_lack_of_memory(facts: Facts) -> object:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return "others would be killed first"
