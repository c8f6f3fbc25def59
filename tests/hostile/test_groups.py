"""Control groups on machines unlike this one: version 2, from files that look like the kernel's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from roost.ports.sandbox_provider import LocalVolume, Plan, SandboxLimits
from roost.sandboxes import cgroups, sandbox_names
from roost.sandboxes.cgroups import UNIFIED, Cgroups, Group, read_mounts

MOUNTS = """\
25 30 0:23 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
26 30 0:24 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
27 30 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
28 30 8:1 / / rw - ext4 /dev/sda1 rw
"""
FILES = (
    "cgroup.procs cgroup.kill cgroup.subtree_control memory.max memory.swap.max pids.max cpu.max"
)


def made(groups: Cgroups, **limits: float) -> Group | None:
    home = Path("/")
    plan = Plan(
        session_id="../s", generation=3, home=LocalVolume(home), workspace=LocalVolume(home)
    )
    return groups.create(sandbox_names.name_of(plan), SandboxLimits(**limits))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory where a new one has the files of a group, as in the kernel's file system."""
    make = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make(self, mode, parents, exist_ok)
        if self.is_relative_to(tmp_path):
            for name in FILES.split():
                (self / name).touch()

    def rmdir(self: Path) -> None:
        for name in FILES.split():
            (self / name).unlink()
        os.rmdir(self)  # noqa: PTH106 - the real one

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    base = tmp_path / "sys"
    base.mkdir()
    return base


def test_hierarchies_are_found_where_this_process_is() -> None:
    own = {"": "/system.slice/roost.service", "memory": "/docker/abc", "cpu,cpuacct": "/x"}
    found = {(mount.own, mount.controllers >= {"memory"}) for mount in read_mounts(MOUNTS, own)}
    assert found == {
        (Path("/sys/fs/cgroup/system.slice/roost.service"), False),
        (Path("/sys/fs/cgroup/memory"), True),
        (Path("/sys/fs/cgroup/cpu,cpuacct/x"), False),
    }


def test_version_2_is_given_its_limits(kernel: Path) -> None:
    groups = Cgroups(dict.fromkeys(("memory", "pids", "cpu", UNIFIED), kernel))
    group = made(groups, memory_bytes=1000, processes=7, cpus=1.5)
    assert group is not None
    own = group.directories[UNIFIED]
    assert own.parent == kernel
    assert re.fullmatch(r"roost-[0-9.]+-[0-9a-f]+-3-[0-9a-f]+", own.name)
    assert (own / "memory.max").read_text() == "1000"
    assert (own / "memory.swap.max").read_text() == "0"
    assert (own / "pids.max").read_text() == "7"
    assert (own / "cpu.max").read_text() == "150000 100000"
    assert group.joins() == [own / "cgroup.procs"]
    assert groups.says("memory") == "control group, version 2"
    group.destroy()
    assert not own.exists()


def test_no_limit_of_ours_leaves_the_kernels_own(kernel: Path) -> None:
    groups = Cgroups({UNIFIED: kernel, "memory": kernel})
    group = made(groups, memory_bytes=0, processes=0, cpus=0)
    assert group is not None
    assert (group.directories[UNIFIED] / "memory.max").read_text() == ""


def test_the_server_moves_down_where_the_group_is_its_own(kernel: Path) -> None:
    service = kernel / "roost.service"
    service.mkdir()
    (service / "cgroup.procs").write_text(str(os.getpid()))
    base = cgroups._v2_base(cgroups.Mounted(frozenset(), service, kernel))
    assert base == service
    assert (service / "roost-server" / "cgroup.procs").read_text() == str(os.getpid())
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_a_group_with_others_in_it_is_left_alone(kernel: Path) -> None:
    session = kernel / "session.scope"
    session.mkdir()
    (session / "cgroup.procs").write_text(f"1\n{os.getpid()}")
    base = cgroups._v2_base(cgroups.Mounted(frozenset(), session, kernel))
    assert base == kernel
    assert not (session / "roost-server").exists()


def test_a_machine_that_gives_none_is_done_without() -> None:
    nothing = Cgroups({})
    assert made(nothing) is None
    assert nothing.says("memory") is None
    assert nothing.says_kill() is None


def test_groups_are_found_by_what_their_names_say(kernel: Path) -> None:
    groups = Cgroups({UNIFIED: kernel, "pids": kernel / "pids"})
    (kernel / "pids").mkdir()
    (kernel / "roost-server").mkdir()
    (kernel / "theirs").mkdir()
    group = made(groups)
    assert group is not None
    group.directories["pids"].rmdir()  # as if its server had died before it was made
    (found,) = groups.named(lambda mark: mark.generation == 3)
    assert found.directories == {UNIFIED: group.directories[UNIFIED]}
    assert groups.named(sandbox_names.orphaned) == []
