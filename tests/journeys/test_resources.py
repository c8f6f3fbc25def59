"""Files and repositories given to a session, and outputs taken from it: the official SDK, a real agent."""

from __future__ import annotations

import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from anthropic import APIStatusError, NotFoundError
from tests.journeys.chat import Chat, bash, printed, script
from tests.journeys.git_server import git, git_server, repository
from tests.journeys.test_forks import asked

from roost.testing.live import LiveServer

KEYS = [b64encode(bytes([n] * 32)).decode() for n in range(2)]
TOKEN = "ghp_a-token-that-must-not-be-seen-anywhere-0123456789"
BETA: Any = ["managed-agents-2026-04-01"]


def outputs(chat: Chat, *names: str) -> dict[str, bytes]:
    """What the session has handed over, once there are files of these names."""
    files = chat.client.beta.files
    deadline = time.monotonic() + 60
    while True:
        listed = list(files.list(scope_id=chat.session.id, betas=BETA))
        found = {each.filename: each for each in reversed(listed)}
        if found.keys() >= set(names):
            with suppress(NotFoundError):  # replaced by a newer one in this moment
                return {name: files.download(found[name].id).read() for name in names}
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def told(events: list[Any]) -> list[Any]:
    return [event.error for event in events if event.type == "session.error"]


def test_a_session_works_on_files_and_a_repository_and_hands_over_outputs(tmp_path: Path):
    environ = {"ROOST_SLEEP_AFTER": "0", "ROOST_LOG_LEVEL": "debug"}
    root = tmp_path / "git"
    first = repository(root, "project", {"README": "hello\n", "src/a.py": "print(1)"})
    with (
        git_server(root, TOKEN) as url,
        LiveServer(tmp_path / "data", ROOST_GIT_URLS=url, **environ) as server,
    ):
        chat = Chat(server)
        client = chat.client
        original = client.beta.files.upload(file=("data.csv", b"a,b\n1,2\n", "text/csv"))
        given = [
            {"type": "file", "file_id": original.id, "mount_path": "/in/data.csv"},
            {
                "type": "github_repository",
                "url": f"{url}/project.git",
                "authorization_token": TOKEN,
            },
            {
                "type": "github_repository",
                "url": f"{url}/project",
                "authorization_token": TOKEN,
                "mount_path": "/workspace/at/first",
                "checkout": {"type": "commit", "sha": first},
            },
            {
                "type": "github_repository",
                "url": f"{url}/missing",
                "authorization_token": TOKEN,
            },
            {"type": "github_repository", "url": f"{url}/forbidden/x"},
            {
                "type": "github_repository",
                "url": f"{url}/closed",
                "authorization_token": "not-the-token",
            },
        ]
        chat.session = client.beta.sessions.create(
            agent=chat.session.agent.id,
            environment_id=chat.session.environment_id,
            resources=given,  # type: ignore[arg-type]
            extra_body={"harness": "claude"},
        )
        shown = chat.session.resources
        assert shown[0].file_id != original.id  # type: ignore[union-attr]
        assert [each.mount_path for each in shown[:3]] == [
            "/mnt/session/uploads/in/data.csv",
            "/workspace/project",
            "/workspace/at/first",
        ]
        client.beta.files.delete(original.id)  # the session has its own copy

        look = """
            cat /mnt/session/uploads/in/data.csv
            echo x >/mnt/session/uploads/in/data.csv || echo read-only
            cat project/README; git -C project branch --show-current
            git -C project config remote.origin.url
            git -C at/first rev-parse HEAD; echo $(ls -A)
            a=FIRST; grep -rl "${a}REST" /proc/self/environ /workspace /run /etc 2>/dev/null
            printf out >/mnt/session/outputs/out.txt
            ln -s /etc/passwd /mnt/session/outputs/link
        """.replace("FIRST", TOKEN[:9]).replace("REST", TOKEN[9:])
        events = chat.turn(script(bash(look), {"text": "done"}))
        (text,) = printed(events)
        lines = text.splitlines()
        assert lines[:2] == ["a,b", "1,2"]
        assert "read-only" in text
        # The last line but for what has the token in it, which is nothing.
        assert lines[-5:-1] == ["hello", "main", f"{url}/project.git", first]
        assert set(lines[-1].split()) >= {"at", "project"}
        assert not [word for word in lines[-1].split() if word.startswith(".clone")]
        kinds = [(each.type, each.repository_url) for each in told(events)]
        assert ("repository_not_found_error", f"{url}/missing") in kinds
        assert ("repository_forbidden_error", f"{url}/forbidden/x") in kinds
        assert ("repository_authentication_error", f"{url}/closed") in kinds

        assert outputs(chat, "out.txt") == {"out.txt": b"out"}
        chat.wait_for("session.error", 4)
        assert "link (link)" in chat.events()[-1].error.message

        # Once more: what changed is handed over again, and the agent may push, without the token.
        more = client.beta.files.upload(file=("more.txt", b"more\n"))
        added = client.beta.sessions.resources.add(
            chat.session.id, type="file", file_id=more.id, mount_path="more.txt"
        )
        # As if the server had been killed between the turn and the taking of its outputs.
        (server.data / "session-files" / chat.session.id / "outputs" / "late").write_text("late")
        push = """
            rm /mnt/session/outputs/late
            cat /mnt/session/uploads/more.txt; echo new >/mnt/session/outputs/out.txt
            cd project; echo changed >README
            git -c user.name=a -c user.email=a@b.c commit -qam changed && git push -q && echo pushed
        """
        events = chat.turn(script(bash(push), {"text": "done"}))
        assert printed(events)[0].split() == ["more", "pushed"]
        assert git("show", "main:README", cwd=root / "project.git") == "changed"
        assert outputs(chat, "late") == {"late": b"late"}
        deadline = time.monotonic() + 60
        while outputs(chat, "out.txt")["out.txt"] != b"new\n":
            assert time.monotonic() < deadline
        client.beta.sessions.resources.delete(added.id, session_id=chat.session.id)
        left = client.beta.sessions.resources.list(chat.session.id)
        assert added.id not in [each.id for each in left]

        seen = (
            server.output + str(chat.events()) + str(client.beta.sessions.retrieve(chat.session.id))
        )
        assert TOKEN not in seen
        exported = asked(chat, "export")
        archive = zstandard.ZstdDecompressor().decompressobj().decompress(exported.content)
        assert b"hello" in archive
        kept = [path.read_bytes() for path in server.data.rglob("*") if path.is_file()]
        assert not any(TOKEN.encode() in data for data in [archive, *kept])
        client.beta.sessions.delete(chat.session.id)
        assert list(client.beta.files.list(scope_id=chat.session.id, betas=BETA)) == []


def test_a_repository_that_could_not_be_had_is_had_with_another_token(tmp_path: Path):
    root = tmp_path / "git"
    repository(root, "project", {"README": "hello"})
    with (
        git_server(root, TOKEN) as url,
        LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="0", ROOST_GIT_URLS=url) as server,
    ):
        chat = Chat(server)
        resource = {
            "type": "github_repository",
            "url": f"{url}/project",
            "authorization_token": "wrong",
            "checkout": {"type": "branch", "name": "other"},
        }
        chat.session = chat.client.beta.sessions.create(
            agent=chat.session.agent.id,
            environment_id=chat.session.environment_id,
            resources=[resource],  # type: ignore[list-item]
            extra_body={"harness": "claude"},
        )
        events = chat.turn(script(bash("ls -A"), {"text": "done"}))
        assert [each.type for each in told(events)] == ["repository_authentication_error"]
        (shown,) = chat.client.beta.sessions.resources.list(chat.session.id)
        # As if something had died in the middle of cloning it.
        (chat.home / f".clone-{shown.id}" / ".git").mkdir(parents=True)  # type: ignore[union-attr]
        chat.client.beta.sessions.resources.update(
            shown.id,  # type: ignore[union-attr]
            session_id=chat.session.id,
            authorization_token=TOKEN,
        )
        events = chat.turn(script(bash("cat project/other"), {"text": "done"}))
        assert printed(events) == ["other"]
        assert told(events) == []
        assert not [path for path in chat.home.iterdir() if path.name.startswith(".clone")]
        with pytest.raises(APIStatusError, match="not allowed here"):
            chat.client.beta.sessions.create(
                agent=chat.session.agent.id,
                environment_id=chat.session.environment_id,
                resources=[{"type": "github_repository", "url": "https://example.com/a/b"}],
                extra_body={"harness": "claude"},
            )


@pytest.mark.chaos
def test_a_session_whose_token_cannot_be_opened_says_so_and_goes_on_when_the_key_is_back(
    tmp_path: Path,
):
    root, data = tmp_path / "git", tmp_path / "data"
    repository(root, "project", {"README": "hello"})
    with git_server(root, TOKEN) as url:
        environ = {"ROOST_SLEEP_AFTER": "0", "ROOST_GIT_URLS": url}
        with LiveServer(data, **environ, ROOST_MASTER_KEY=KEYS[0]) as server:
            chat = Chat(server)
            given: Any = {
                "type": "github_repository",
                "url": f"{url}/project",
                "authorization_token": TOKEN,
            }
            chat.session = chat.client.beta.sessions.create(
                agent=chat.session.agent.id,
                environment_id=chat.session.environment_id,
                resources=[given],
                extra_body={"harness": "claude"},
            )
        with LiveServer(data, **environ, ROOST_MASTER_KEY=KEYS[1]) as server:
            chat.move_to(server)
            chat.send(script(bash("cat project/README"), {"text": "read"}))
            chat.wait_for("session.error")
            chat.wait_until_idle()
            assert "sealed with the master key" in told(chat.events())[0].message
            assert "ROOST_MASTER_KEY" in told(chat.events())[0].message
            assert printed(chat.events()) == []
        with LiveServer(data, **environ, ROOST_MASTER_KEY=",".join(reversed(KEYS))) as server:
            chat.move_to(server)
            chat.turn("And now?")
            assert printed(chat.events()) == ["hello"]
            assert TOKEN not in server.output
