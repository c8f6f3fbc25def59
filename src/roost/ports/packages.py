"""Sandboxes whose system can have packages: installed once into a layer, which any number of sandboxes then share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import Plan, Volume

PlanBuild = Callable[[str, Volume], Plan]
"""Makes the plan of a layer's build, from the layer's name and a volume for what the build does not keep."""


class LayersKept(msgspec.Struct, frozen=True, kw_only=True):
    """Which layers are kept that nobody uses: so `most`, for so many `days`; and all layers together take no more than
    so many `bytes`. 0 bytes: as many as they take.
    """

    days: float = 30.0
    most: int = 100
    bytes: int = 0


@runtime_checkable
class PackageProvider(Protocol):
    """A provider of sandboxes (`ports/sandbox_provider`) that also has layers, on this machine's disk.

    A layer is named by what is in it: the packages, and the system that they were installed on. It is there as a
    whole or not at all, whenever this process or the machine is killed.
    """

    async def lack(self, managers: Collection[str], image: str | None = None) -> str | None:
        """Why it cannot install with these managers on this machine; None if it can. `image`: see `Plan.image`.

        Called when an environment is saved, and before a layer is built.
        """
        ...

    async def layer_of(
        self, packages: Mapping[str, Any], image: str | None = None
    ) -> tuple[str, bool]:
        """The name of the layer that has these packages, over an image if one is named, and whether it is there. It is
        then kept for a while.

        :raises SandboxUnavailable: this machine cannot give a sandbox now
        """
        ...

    def building(
        self, packages: Mapping[str, Any], plan: PlanBuild, image: str | None = None
    ) -> AbstractAsyncContextManager[Sandbox | None]:
        """A sandbox in which to install the packages of their layer, for one command, which is the superuser of its own
        system and of nothing else. The layer is there once the body has ended; if it fails, nothing is left of it.

        Waits while another server builds it. None: it is there by now.

        :raises SandboxUnavailable: it cannot be made
        """
        ...

    async def takes_room_in(self) -> Sequence[Path]:
        """The directories whose disks a build fills. Called before each. :raises SandboxFailed: nobody can say"""
        ...

    async def collect(self, kept: LayersKept) -> int:
        """Remove layers that no sandbox has had for too long, those unused for longest if there are too many or they
        take too much, and what killed builds have left. What a sandbox has stays in any case.

        Called when a server starts, before and after each build, and now and then. Says how many bytes are still taken.
        """
        ...
