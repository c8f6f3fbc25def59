"""Sessions of the real agent that share a workspace, and what must be true of it whatever happens to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
from tests.journeys.chat import Chat, bash, printed, script
from tests.workspaces.complete_files import WRITE, look_at_all, torn_in

from roost.core.snapshots.snapshots import Snapshots
from roost.testing.live import LiveServer

# Whose secrets are in any file that can be read; then the names in the workspace.
LOOK = """
import os, re
found = set()
for top in ("/home", "/workspace", "/tmp", "/mnt", "/vault"):
    for folder, _, files in os.walk(top):
        for name in files:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    found.update(re.findall(rb"SECRET-[0-9]+", file.read()))
            except OSError:
                pass
print(*sorted(one.decode() for one in found))
print(*sorted(os.listdir("/workspace")))
os.utime("/workspace/common-0") if os.path.exists("/workspace/common-0") else None
with open("/workspace/looked", "a") as file:
    file.write("x")
"""


def program(text: str, *arguments: object) -> dict[str, Any]:
    return bash(f"python3 - {' '.join(map(str, arguments))} <<'END'\n{text}\nEND")


class Company:
    """Sessions in one workspace; each was told a secret, which is in its transcript. `each` has what a
    session is made with.
    """

    def __init__(
        self,
        server: LiveServer,
        each: Sequence[Mapping[str, str]],
        *,
        key: str | None = None,
        networking: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        made = httpx2.post(
            f"{server.url}/roost/v1/workspaces",
            json={"name": "shared", "settings": settings},
            headers={"x-api-key": key or server.key},
        )
        assert made.status_code == 200, made.text
        self.workspace = made.json()["id"]
        first, *others = each
        self.chats = [Chat(server, key=key, networking=networking, workspace="shared", **first)]
        for options in others:
            other = copy.copy(self.chats[0])
            other.session = other.begin(workspace=self.workspace, **options)
            self.chats.append(other)

    def write(self, files: int, pause: float = 0) -> None:
        """Everybody begins a turn that writes."""
        for number, chat in enumerate(self.chats):
            run = program(WRITE, f"s{number}", files, ".", pause)
            chat.send(f"SECRET-{number}. {script(run, {'text': 'written'})}")

    def delete_from(self, server: LiveServer) -> None:
        """The workspace, by force."""
        path = f"{server.url}/roost/v1/workspaces/{self.workspace}"
        headers = {"x-api-key": server.key}
        assert httpx2.delete(f"{path}?force=true", headers=headers).status_code == 200

    def stored_by(self, server: LiveServer) -> set[str]:
        """The names of what there is of the workspace in the blob store."""
        below = server.data / "blobs" / "workspaces" / str(self.workspace)
        return {path.name for path in below.rglob("*") if path.is_file()}

    def move_to(self, server: LiveServer) -> None:
        for chat in self.chats:
            chat.move_to(server)

    def wait_until_idle(self) -> None:
        for chat in self.chats:
            chat.wait_until_idle()

    def place_on(self, server: LiveServer) -> Path:
        return server.data / "vault" / ".workspaces" / str(self.workspace)

    def check(self, snapshots: Snapshots, server: LiveServer) -> int:
        """No snapshot has half a file or a word of anybody's transcript, and the newest has what is there;
        gives how many there are.
        """
        seen = anyio.run(look_at_all, snapshots, self.workspace)
        for files in seen.values():
            files.pop("looked", None)
        assert torn_in(seen) == []
        names = {name for files in seen.values() for name in files}
        assert not any(name.startswith(".claude") for name in names)
        assert not any(b"SECRET-" in data for files in seen.values() for data in files.values())
        newest, place = seen[max(seen)], self.place_on(server)
        there = {path.name for path in place.iterdir()} - {"looked"}
        assert newest == {name: (place / name).read_bytes() for name in there}
        assert any(name.startswith("common-") for name in newest)
        return len(seen)

    def look_around(self) -> None:
        """From inside, a session finds its own secret and nobody else's; and all files, to be changed."""
        for number, chat in enumerate(self.chats):
            shown = printed(chat.turn(script(program(LOOK), {"text": "looked"})))[-1].splitlines()
            assert shown[0] == f"SECRET-{number}"
            assert len(shown) == 2, shown
            names = shown[1].split()
            assert any(name.startswith("common-") for name in names)
            assert ".claude" not in names
