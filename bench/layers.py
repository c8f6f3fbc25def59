"""Open a sandbox and run a command in it: with a layer of packages, without one, and with a read-only root.

    python bench/layers.py [--rounds 200]

By turns, in one process. The layer is one of files that this makes itself (2,000 of 4 KiB). The ratios of the medians
count: that with a layer beside that without, and that beside the read-only root (aim of both: at most 1.3).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Final

import anyio
from msgspec.structs import replace

from roost.domain import packages
from roost.ports.sandbox_provider import LocalVolume, Plan, Volume
from roost.sandboxes.bubblewrap import BubblewrapProvider

PACKAGES: Final = packages.checked({"pip": ["some-package"]}, packages.NONE)
FILES: Final = "mkdir /usr/local/lib/many; cd /usr/local/lib/many; for i in $(seq 2000); do head -c 4096 /dev/zero >$i; done"


def plan_of(session: str, volume: Volume, generation: int, layer: str | None = None) -> Plan:
    return Plan(
        session_id=session, generation=generation, home=volume, workspace=volume, layer=layer
    )


async def measured(provider: BubblewrapProvider, plan: Plan) -> float:
    began = time.perf_counter()
    async with provider.open(plan) as sandbox:
        await (await sandbox.spawn(["true"])).wait()
        return time.perf_counter() - began


async def race(folder: Path, rounds: int) -> dict[str, list[float]]:
    with_root, read_only = BubblewrapProvider(data=folder), BubblewrapProvider(data=folder)
    for provider in (with_root, read_only):
        await provider.check()
    ground = await read_only._prepare_ground()
    read_only._ground = replace(ground, roots=None, read_only="for comparison")
    async with with_root.building(PACKAGES, lambda name, v: plan_of(name, v, 1)) as sandbox:
        assert sandbox is not None
        assert await (await sandbox.spawn(["sh", "-c", FILES])).wait() == 0
    layer, _ = await with_root.layer_of(PACKAGES)
    home = folder / "home"
    home.mkdir()
    generations, found = count(1), defaultdict[str, list[float]](list)
    for _ in range(rounds):
        for name, provider, given in (
            ("read-only", read_only, None),
            ("without a layer", with_root, None),
            ("with a layer", with_root, layer),
        ):
            plan = plan_of("bench", LocalVolume(home), next(generations), given)
            found[name].append(await measured(provider, plan))
    return found


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=200)
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        found = anyio.run(race, Path(folder), asked.parse_args().rounds)
    medians = {name: statistics.median(times) for name, times in found.items()}
    for name, median in medians.items():
        print(f"{name:16} {median * 1000:6.1f} ms (best {min(found[name]) * 1000:.1f})")
    plain = medians["without a layer"]
    print(f"with a layer, beside without: {medians['with a layer'] / plain:.2f} times")
    print(
        f"a root that can be written to, beside a read-only one: {plain / medians['read-only']:.2f} times"
    )


if __name__ == "__main__":
    main()
