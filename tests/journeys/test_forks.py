"""The real Claude Code at an earlier turn: in another session, or in the same one."""

from __future__ import annotations

import copy
import os
import random
import tarfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.testing.live import LiveServer

TURNS = 10


def asked(chat: Chat, what: str, body: dict[str, Any] | None = None) -> httpx2.Response:
    url = f"{chat.server.url}/roost/v1/sessions/{chat.session.id}/{what}"
    headers = {"x-api-key": chat.server.key}
    if body is None:
        return httpx2.get(url, headers=headers, timeout=300)
    return httpx2.post(url, json=body, headers=headers, timeout=300)


def forked(chat: Chat, **at: Any) -> Chat:
    answer = asked(chat, "fork", at)
    assert answer.status_code == 200, answer.text
    other = copy.copy(chat)
    other.session = chat.client.beta.sessions.retrieve(answer.json()["id"])
    return other


def word(number: int) -> str:
    return f"echo word{number} >> words.txt; echo {number} > turn{number}.txt"


def talk(chat: Chat, turns: int = TURNS) -> None:
    """Each turn adds a line to a file, and a file; the next message follows at once."""
    for number in range(1, turns + 1):
        chat.turn(script(bash(word(number)), {"text": f"noted word{number}"}))


def files(chat: Chat) -> dict[str, str]:
    """What is in its workspace, without waking its agent."""
    listed = asked(chat, "files").json()
    names = [item["path"] for item in listed["data"] if item["path"].endswith(".txt")]
    return {name: asked(chat, f"files/content?path={name}").text for name in names}


def expected(turn: int) -> dict[str, str]:
    numbers = range(1, turn + 1)
    words = "".join(f"word{number}\n" for number in numbers)
    return {f"turn{n}.txt": f"{n}\n" for n in numbers} | {"words.txt": words}


def remembers(chat: Chat, turns: int) -> None:
    """The agent itself: how many messages the model is shown, and what its tools find."""
    heard = said(chat.turn("How much do you remember?"))[0]
    assert f"{turns + 1} user messages" in heard, heard
    shown = printed(chat.turn(script(bash("cat words.txt"), {"text": "read"})))
    assert shown[-1].split() == [f"word{n}" for n in range(1, turns + 1)]


@pytest.mark.chaos
@pytest.mark.parametrize("ask", [(4,), range(1, 11)])
def test_a_fork_at_each_of_ten_turns_has_its_files_and_its_memory(tmp_path: Path, ask: Any):
    with LiveServer(tmp_path / "data") as server:
        chat = Chat(server)
        talk(chat)
        forks = {turn: forked(chat, at=turn) for turn in range(1, TURNS + 1)}
        for turn, fork in forks.items():
            assert files(fork) == expected(turn), turn
        for turn in ask:
            remembers(forks[turn], turn)
        fork = forks[4]
        fork.turn(script(bash("echo mine > words.txt"), {"text": "changed"}))
        assert files(chat) == expected(TURNS)


def test_a_rewound_session_goes_on_with_the_files_and_the_memory_of_that_turn(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        chat = Chat(server)
        talk(chat, 4)
        answer = asked(chat, "rewind", {"to": 2})
        assert answer.status_code == 200, answer.text
        remembers(chat, 2)  # its agent was awake, and is not the one that answers
        assert files(chat) == expected(2)
        # The conversation alone: files that were made since are still there.
        chat.turn(script(bash("echo kept > kept.txt"), {"text": "made"}))
        assert asked(chat, "rewind", {"to": 1, "files": False}).status_code == 200
        events = chat.turn(script(bash("cat kept.txt words.txt"), {"text": "read"}))
        assert printed(events)[-1].split() == ["kept", "word1", "word2"]
        assert "noted word2" not in said(chat.events())
        # And back, with the files, to what the program called the conversation then.
        lost = asked(chat, "turns").json()["data"][0]
        assert asked(chat, "rewind", {"to": lost["event_id"]}).status_code == 200
        remembers(chat, 1)
        assert files(chat) == expected(1)


def test_a_fork_out_of_a_shared_workspace_has_its_memory_and_the_files_as_they_were(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        url, headers = f"{server.url}/roost/v1/workspaces", {"x-api-key": server.key}
        assert httpx2.post(url, json={"name": "ours"}, headers=headers).status_code == 200
        chat = Chat(server, workspace="ours")
        talk(chat, 2)
        other = copy.copy(chat)
        other.session = chat.begin(workspace="ours")
        other.turn(script(bash("echo theirs > words.txt; mkdir .claude"), {"text": "changed"}))
        assert asked(chat, "rewind", {"to": 1}).status_code == 400
        server.kill()
        server.start()
        for one in (chat, other):
            one.move_to(server)
        fork = forked(chat, at=1)
        assert files(fork) == expected(1)
        remembers(fork, 1)
        fork.turn(script(bash("echo mine > words.txt"), {"text": "changed"}))
        assert files(chat)["words.txt"] == "theirs\n"
        # The other session remembers only its own turn, and its fork has what the first had made.
        assert files(forked(other)) == {**expected(2), "words.txt": "theirs\n"}
        with (
            zstandard.open(BytesIO(asked(chat, "export").content)) as packed,
            tarfile.open(fileobj=packed, mode="r|") as archive,
        ):
            names = {member.name for member in archive}
        assert names >= {f"files/{name}" for name in expected(2)}
        again = forked(forked(chat, at=1))
        assert files(again) == expected(1)
        stays = forked(chat, at=2, files="keep")
        assert files(stays) == files(chat)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_servers_killed_at_any_moment_of_forks_and_rewinds_leave_the_old_or_the_new(
    tmp_path: Path,
):
    seed = int(os.environ.get("SEED", time.time_ns() % 10_000))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER=rng.choice(["0", "600"])) as server:
        chat = Chat(server)
        talk(chat, 5)
        now = 5
        for _ in range(12):
            to = rng.randint(1, now)
            place = _turn_with(chat, to)
            try:
                # Killed while it is asked, or a moment after: nobody knows whether it was done.
                url = f"{server.url}/roost/v1/sessions/{chat.session.id}/rewind"
                seconds = rng.choice([0.002, 0.01, 0.05, 5])
                headers = {"x-api-key": server.key}
                httpx2.post(url, json={"to": place}, headers=headers, timeout=seconds)
                if rng.random() < 0.5:
                    chat.send("hello?")
                    time.sleep(rng.uniform(0, 1.5))
            except httpx2.HTTPError:
                pass
            server.kill()
            server.start()
            chat.move_to(server)
            chat.wait_until_idle()
            turns = asked(chat, "turns").json()["data"]
            made = [turn["number"] for turn in turns]
            assert made == list(range(1, len(made) + 1))
            shown = printed(chat.turn(script(bash("cat words.txt; true"), {"text": "read"})))
            found = len(shown[-1].split())
            assert shown[-1].split() == [f"word{n}" for n in range(1, found + 1)]
            assert found in (to, now), (found, to, now)
            fork = forked(chat)
            assert files(fork)["words.txt"].split() == shown[-1].split()
            while found < 5:
                found += 1
                chat.turn(script(bash(word(found)), {"text": f"noted word{found}"}))
            assert asked(chat, "rewind", {"to": _turn_with(chat, 5)}).status_code == 200
            now = 5


def _turn_with(chat: Chat, number: int) -> str:
    told = [event for event in chat.events() if event.type == "agent.message"]
    return next(e.id for e in reversed(told) if e.content[0].text == f"noted word{number}")
