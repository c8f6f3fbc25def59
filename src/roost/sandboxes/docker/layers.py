"""Layers of packages in containers: each is an image, made of the container in which they were installed.

    roost-layer:NAME              the engine's; it is there when all of it is, and is shared by all containers
    container-layers/NAME.lock    below the data directory: see `layer_directory`

Whoever builds is root in a container of its own, where nothing is mounted that it could change but room for what the
build does not keep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from roost import disk
from roost.domain.packages import MANAGERS, program_of
from roost.errors import SandboxFailed
from roost.ports.packages import LayersKept
from roost.sandboxes.docker.engine import Engine
from roost.sandboxes.docker.wire import EngineRefused
from roost.sandboxes.layer_directory import KnownLayer, LayerDirectory, Surplus

_FORMAT: Final = 1
_REPOSITORY: Final = "roost-layer"
_IN_USE: Final = 409

_FOUND: Final = {
    "apt": "command -v apt-get && test -f /var/lib/dpkg/status",
    "pip": "python3 -m pip --version",
}
LOOK: Final = "\n".join(
    f"if {{ {_FOUND.get(each, f'command -v {each}')}; }} >/dev/null 2>&1; then echo {each}; fi"
    for each in MANAGERS
)
"""A shell's script that says which package managers an image has."""

CLEAN: Final = "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /var/tmp/*"
"""What of a build is of no use to anybody."""


def image_of(layer: str) -> str:
    """The image that is a layer."""
    return f"{_REPOSITORY}:{layer}"


def name_of(base: str, packages: Mapping[str, Any]) -> str:
    """The name of the layer with these packages over an image, which is named by what is in it."""
    text = json.dumps([_FORMAT, base, packages], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def lack_of(managers: Collection[str], found: Collection[str], image: str) -> str | None:
    """Which of the managers an image does not have, in words."""
    missing = [each for each in managers if each not in found]
    return f"{missing[0]}: the image {image} has no {program_of(missing[0])}" if missing else None


class ImageLayers:
    """The layers that an engine has, as far as they are in use by who shares the directory."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._locks = LayerDirectory(directory)

    async def use(self, name: str) -> bool:
        """Whether a layer is there; it is then kept for a while. :raises OSError:"""
        is_there = await self._engine.has_image(image_of(name))
        if is_there:
            await anyio.to_thread.run_sync(self._locks.touch, name)
        return is_there

    @asynccontextmanager
    async def begun(self, name: str) -> AsyncGenerator[Path | None, None]:
        """Room for what the build of a layer does not keep. Nobody else builds it meanwhile; None: it is there."""
        async with self._locks.alone(
            name, partial(self._engine.has_image, image_of(name))
        ) as is_there:
            if is_there:
                yield None
                return
            new = await anyio.to_thread.run_sync(self._locks.new, name)
            home = new / "home"  # root may leave anything there, so nobody else gets to it
            new.mkdir(mode=0o700)
            home.mkdir()
            try:
                yield home
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(disk.remove, new)

    async def keep(self, name: str, container: str, base: str) -> None:
        """What is in a container of `base`, which stands still meanwhile, becomes the layer. :raises EngineRefused:"""
        await self._engine.commit(container, _REPOSITORY, name, base)

    async def collect(self, kept: LayersKept) -> int:
        """Remove what is not kept, and what killed builds have left; how many bytes are still taken. :raises OSError:"""
        await anyio.to_thread.run_sync(self._locks.sweep)
        known = await anyio.to_thread.run_sync(self._locks.known)
        surplus = Surplus([await self._counted(layer) for layer in known], kept)
        for layer in surplus:
            with ExitStack() as held:
                if not await anyio.to_thread.run_sync(self._locks.try_lock_unused, layer, held):
                    continue
                try:
                    await self._engine.remove_image(image_of(layer.name))
                except EngineRefused as refused:
                    if refused.status == _IN_USE:  # by a container, of this server or of another
                        continue
                    raise SandboxFailed(f"cannot remove a layer: {refused}") from refused
                self._locks.forget(layer.name)
                surplus.removed(layer)
        return surplus.bytes

    async def _counted(self, layer: KnownLayer) -> KnownLayer:
        """Once, when it is there: an image does not change."""
        if layer.bytes is None:
            taken = await self._engine.image_bytes(image_of(layer.name))
            if taken is not None:
                return await anyio.to_thread.run_sync(self._locks.count, layer, taken)
        return layer
