"""How many more agents a machine has room for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roost.sandboxes.machine import Machine

MIB = 1 << 20


def machine(folder: Path, *, total: int, free: int, **more: float) -> Machine:
    """One with so much memory, in MiB."""
    (folder / "self").mkdir(parents=True, exist_ok=True)
    memory = f"MemTotal: {total * 1024} kB\nMemAvailable: {free * 1024} kB\n"
    (folder / "meminfo").write_text(memory)
    given = {"agent_memory": 100 * MIB, "least_free": 0, "max_load": 0} | more
    return Machine(**given, proc=folder, groups=folder / "groups")  # type: ignore[arg-type]


def test_agents_fit_beside_what_has_to_stay_free(tmp_path: Path) -> None:
    assert machine(tmp_path, total=1600, free=1100).room() == 10
    assert machine(tmp_path, total=1600, free=199).room() == 0
    assert machine(tmp_path, total=1600, free=50).room() == 0
    assert machine(tmp_path, total=1600, free=1100, least_free=900 * MIB).room() == 2


def test_memory_is_short_if_not_one_more_agent_fits(tmp_path: Path) -> None:
    assert machine(tmp_path, total=1600, free=199).short()
    assert not machine(tmp_path, total=1600, free=200).short()


def test_the_control_group_of_a_container_counts_too(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("3:cpu:/x\n2:memory:/box/in\n0::/box\n")
    one, other = tmp_path / "groups" / "memory" / "box", tmp_path / "groups" / "box"
    for folder in (one, other):
        folder.mkdir(parents=True)
    found = machine(tmp_path, total=1600, free=1100)
    assert found.available() == 1100 * MIB
    (other / "memory.max").write_text("max\n")
    (other / "memory.current").write_text("0\n")
    assert found.available() == 1100 * MIB
    (other / "memory.max").write_text(f"{500 * MIB}\n")
    (other / "memory.current").write_text(f"{300 * MIB}\n")
    (other / "memory.stat").write_text(f"anon 1\ninactive_file {200 * MIB}\n")
    assert found.available() == 400 * MIB
    (one / "memory.limit_in_bytes").write_text(f"{350 * MIB}\n")
    (one / "memory.usage_in_bytes").write_text(f"{50 * MIB}\n")
    assert found.available() == 300 * MIB
    assert found.room() == 2


def test_a_loaded_machine_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = 4.0 * (os.cpu_count() or 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (load + 0.1, 0.0, 0.0))
    assert machine(tmp_path, total=1600, free=1100, max_load=4.0).room() == 0
    assert machine(tmp_path, total=1600, free=1100).room() == 10
    monkeypatch.setattr(os, "getloadavg", lambda: (load - 0.1, 0.0, 0.0))
    assert machine(tmp_path, total=1600, free=1100, max_load=4.0).room() == 10


def test_where_nothing_is_known_nothing_is_held_back(tmp_path: Path) -> None:
    unknown = Machine(
        agent_memory=MIB, least_free=0, max_load=0, proc=tmp_path, groups=tmp_path / "groups"
    )
    assert unknown.room() > 1000
