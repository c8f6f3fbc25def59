"""Makes what containers are made of: an image, of the recipe that is in the package."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

from roost.errors import RoostError
from roost.sandboxes.docker.engine import Engine
from roost.sandboxes.docker.wire import EngineRefused

RECIPE: Final = Path(__file__).parent / "image"
BASE: Final = "debian:12-slim"
"""What the recipe begins with, if it is not told."""

_IMPORTED: Final = "roost-base"
_BASE_HINT: Final = (
    "Where the engine reaches no registry, name an image that it has, or a tar file of a file system, "
    "with --from."
)
_BUILD_HINT: Final = (
    "Its last lines say why. Where the engine reaches no packages, take a base that has all that is "
    'needed (--from), and install none (--packages "").'
)


class BuildProgress(msgspec.Struct, frozen=True):
    """A line about the work; `passing` ones are worth showing only until the next one."""

    text: str
    passing: bool = False


async def build(
    engine: Engine, name: str, *, base: str | Path = BASE, packages: str | None = None
) -> AsyncGenerator[BuildProgress, None]:
    """Build the image, under that name. Closed early, it is given up.

    :param base: an image's name, or a tar file that holds a file system
    :param packages: Debian's, to be installed instead of those in the recipe
    :raises SandboxUnavailable: there is no engine
    :raises RoostError: the base cannot be had, or the recipe fails
    """
    if isinstance(base, Path):
        got, given = engine.load(base, _IMPORTED), {"BASE": _IMPORTED}
    else:
        got, given = _pulled(engine, base), {"BASE": base}
    async with aclosing(_told(got, f"the base {base} is not available", _BASE_HINT)) as told:
        async for progress in told:
            yield progress
    if packages is not None:
        given["PACKAGES"] = packages
    built = engine.build(context(), name, given)
    async with aclosing(_told(built, "the image cannot be built", _BUILD_HINT)) as told:
        async for progress in told:
            yield progress


async def _pulled(engine: Engine, name: str) -> AsyncGenerator[dict[str, Any], None]:
    if not await engine.has_image(name):
        async with aclosing(engine.pull(name)) as said:
            async for each in said:
                yield each


def context() -> bytes:
    """The recipe's files, as engines take them. Always the same bytes, so that engines know them again."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for file in sorted(RECIPE.iterdir()):
            info = tarfile.TarInfo(file.name)
            info.size, info.mode = file.stat().st_size, 0o644
            tar.addfile(info, io.BytesIO(file.read_bytes()))
    return made.getvalue()


async def _told(
    work: AsyncGenerator[dict[str, Any], None], failed: str, hint: str
) -> AsyncGenerator[BuildProgress, None]:
    """The engine's words, for a person."""
    async with aclosing(work):
        try:
            async for said in work:
                for progress in _in_words(said):
                    yield progress
        except EngineRefused as refused:
            why = " ".join(str(refused).split())
            raise RoostError(f"{failed}: {why}", hint=hint) from refused


def _in_words(said: dict[str, Any]) -> list[BuildProgress]:
    if text := said.get("stream", "").rstrip():
        return [BuildProgress(line) for line in text.splitlines()]
    if status := said.get("status"):
        parts = (said.get("id"), status, said.get("progress"))
        return [BuildProgress(" ".join(part for part in parts if part), passing=True)]
    return []
