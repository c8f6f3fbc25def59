"""What is asked of an engine, in its own words. Paths carry no version: the engine speaks its newest."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote, urlencode

import anyio
import msgspec

from roost.errors import SandboxFailed
from roost.sandboxes.docker.wire import (
    EngineRefused,
    EngineStream,
    ask,
    fetch,
    hijack,
    relay,
)

LABEL: Final = "roost.session"
PLACE: Final = "roost.place"
BASE: Final = "roost.base"
NOT_FOUND: Final = 404
_SECONDS_TO_GO: Final = 60.0
_SECONDS_TO_KEEP: Final = 900.0


class Engine:
    """A Docker engine, at its socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._podman: bool | None = None

    async def version(self) -> str:
        """The engine's version, and whose it is if it is not Docker's."""
        found = await ask(self._socket, "GET", "/version", seconds=10)
        parts = [part.get("Name") for part in found.get("Components") or ()]
        self._podman = "Podman Engine" in parts
        version = str(found.get("Version", "of an unknown version"))
        return f"{version} (Podman)" if self._podman else version

    async def is_podman(self) -> bool:
        """Whether it is Podman's service, as far as was last heard."""
        if self._podman is None:
            await self.version()
        return bool(self._podman)

    async def runtimes(self) -> list[str]:
        """What it can run containers with, if asked to.

        Podman runs them all with its own, whatever it is asked, and names many that are not there.
        """
        found = await ask(self._socket, "GET", "/info")
        if await self.is_podman():
            return [PurePosixPath(found["DefaultRuntime"]).name]
        return sorted(found["Runtimes"])

    async def has_image(self, name: str) -> bool:
        """Whether it can make containers of it."""
        return await self._image(name) is not None

    async def image_id(self, name: str) -> str:
        """Which image has the name now."""
        return str((await ask(self._socket, "GET", f"/images/{quote(name)}/json"))["Id"])

    async def image_volumes(self, name: str) -> list[str]:
        """Where containers of an image have directories that an engine keeps elsewhere."""
        found = await self._image(name) or {}
        return sorted((found.get("Config") or {}).get("Volumes") or ())

    async def kept_in(self) -> Path | None:
        """Where on this machine it keeps images and containers, if it says so."""
        root = (await ask(self._socket, "GET", "/info")).get("DockerRootDir")
        return Path(root) if root else None

    async def image_bytes(self, name: str) -> int | None:
        """What an image takes besides the one that it was made of; None if it is not there."""
        found = await self._image(name)
        if found is None:
            return None
        labels = (found.get("Config") or {}).get("Labels") or {}
        # An engine of today does not say itself what an image was made of.
        base = labels.get(BASE) or found.get("Parent")
        below = await self._image(base) if base else None
        return max(0, int(found["Size"]) - int(below["Size"] if below else 0))

    async def _image(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await ask(self._socket, "GET", f"/images/{quote(name)}/json")
        except EngineRefused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise
        return found

    async def image_file(self, image: str, paths: Sequence[str]) -> bytes | None:
        """The first of these files that an image has. A container is made for that, and never started."""
        given = {"Image": image, "Cmd": ["true"], "Labels": {LABEL: "look", PLACE: ""}}
        with anyio.CancelScope(shield=True):  # given up half-way, it would stay
            container = await self.create(f"roost-look-{token_hex(4)}", given)
            try:
                found = [await self._file(container, path) for path in paths]
            finally:
                await self.remove(container)
        return next(filter(None, found), None)

    async def _file(self, container: str, path: str) -> bytes | None:
        target = f"/containers/{container}/archive?" + urlencode({"path": path})
        try:
            packed = await fetch(self._socket, target)
        except EngineRefused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            entry = tar.next()
            file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
            return None if file is None else file.read()

    def pull(self, name: str) -> AsyncGenerator[dict[str, Any], None]:
        """Get an image from where its name says; what the engine says of that."""
        asked = {"fromImage": name}
        if ":" not in name.rpartition("/")[2]:  # else it would get all that have the name
            asked["tag"] = "latest"
        return relay(self._socket, "/images/create?" + urlencode(asked))

    def load(self, root: Path, name: str) -> AsyncGenerator[dict[str, Any], None]:
        """Make an image of a file system in a tar file; what the engine says of that. No tag in the name."""
        asked = {"fromSrc": "-", "repo": name, "tag": "latest"}
        return relay(self._socket, "/images/create?" + urlencode(asked), root)

    def build(
        self, context: bytes, name: str, given: Mapping[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Make an image of a recipe in a tar file; what the engine says of that."""
        arguments = msgspec.json.encode(given).decode()
        asked = {"t": name, "buildargs": arguments, "rm": "true", "forcerm": "true"}
        return relay(self._socket, "/build?" + urlencode(asked), context)

    async def commit(self, container: str, name: str, tag: str, base: str) -> None:
        """Make an image of what is in a container of `base`, which stands still meanwhile. It is there as a whole or not
        at all.

        What is made of the image is not the container: labels that say whose it is are empty.
        """
        asked = [("container", container), ("repo", name), ("tag", tag), ("pause", "true")]
        labels = {LABEL: "", PLACE: "", BASE: base}
        asked += [("changes", f'LABEL {label}="{value}"') for label, value in labels.items()]
        await ask(self._socket, "POST", "/commit?" + urlencode(asked), {}, seconds=_SECONDS_TO_KEEP)

    async def remove_image(self, name: str) -> None:
        """Remove an image, if it is there. :raises EngineRefused: a container is made of it"""
        try:
            await ask(self._socket, "DELETE", f"/images/{quote(name)}")
        except EngineRefused as refused:
            if refused.status != NOT_FOUND:
                raise

    async def create(self, name: str, container: Mapping[str, Any]) -> str:
        """A container that does not run yet; its id."""
        target = "/containers/create?" + urlencode({"name": name})
        return str((await ask(self._socket, "POST", target, container))["Id"])

    async def attach(self, container: str) -> EngineStream:
        """The standard input of its first process."""
        return await hijack(self._socket, f"/containers/{container}/attach?stream=1&stdin=1")

    async def start(self, container: str) -> None:
        """Start a container that was created."""
        await ask(self._socket, "POST", f"/containers/{container}/start")

    async def inspect(self, container: str) -> dict[str, Any]:
        """Everything the engine knows about a container."""
        found: dict[str, Any] = await ask(self._socket, "GET", f"/containers/{container}/json")
        return found

    async def usage(self, container: str) -> dict[str, Any]:
        """What a container uses now, in the engine's own words."""
        target = f"/containers/{container}/stats?stream=false&one-shot=true"
        found: dict[str, Any] = await ask(self._socket, "GET", target)
        return found

    async def prepare(self, container: str, command: Mapping[str, Any]) -> str:
        """A command in a running container, which does not run yet; its id."""
        return str(
            (await ask(self._socket, "POST", f"/containers/{container}/exec", command))["Id"]
        )

    async def converse(self, command: str) -> EngineStream:
        """Start a command; its input one way, its outputs in frames the other."""
        body = {"Detach": False, "Tty": False}
        return await hijack(self._socket, f"/exec/{command}/start", body)

    async def run_detached(self, command: str) -> None:
        """Start a command, and do not wait for it."""
        await ask(self._socket, "POST", f"/exec/{command}/start", {"Detach": True, "Tty": False})

    async def exit_code(self, command: str) -> int | None:
        """The exit code of a command; None until it has ended."""
        found = await ask(self._socket, "GET", f"/exec/{command}/json")
        return None if found["Running"] else found["ExitCode"]

    async def sandboxes(self, session: str | None = None) -> Sequence[dict[str, Any]]:
        """Containers of ours, running or not. Those that others have made of our images have the label without a value."""
        label = LABEL if session is None else f"{LABEL}={session}"
        filters = msgspec.json.encode({"label": [label]}).decode()
        target = "/containers/json?" + urlencode({"all": "true", "filters": filters})
        found: list[dict[str, Any]] = await ask(self._socket, "GET", target)
        return [each for each in found if each["Labels"].get(LABEL)]

    async def remove(self, container: str) -> None:
        """Kill everything in it, and wait until it is gone.

        :raises SandboxFailed: it does not go
        """
        why: EngineRefused | None = None
        with anyio.move_on_after(_SECONDS_TO_GO):
            while True:
                try:
                    if await self._is_there(container):
                        target = f"/containers/{container}?force=true&v=true"
                        await ask(self._socket, "DELETE", target)
                    return
                except EngineRefused as refused:
                    # It has ended by itself and is being removed already; asked about what is half gone,
                    # Podman fails.
                    why = refused
                await anyio.sleep(0.01)
        raise SandboxFailed(f"container {container[:12]} cannot be removed: {why}")

    async def _is_there(self, container: str) -> bool:
        try:
            await self.inspect(container)
        except EngineRefused as refused:
            if refused.status == NOT_FOUND:
                return False
            raise
        return True
