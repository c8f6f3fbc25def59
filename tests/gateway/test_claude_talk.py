"""The real Claude Code at the other end of a socket: a normal turn, sleep, and tabs that close."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.gateway.talk import Api, Json, Talk
from tests.stores import Databases

from roost.client import AgentStatus, Client, Done, SdkMessage, ToolPermissionRequest
from roost.testing.live import LiveServer

TOOLSET = {"type": "agent_toolset_20260401"}
ASKING = {**TOOLSET, "default_config": {"permission_policy": {"type": "always_ask"}}}


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Its agents are real, and sleep soon."""
    data = tmp_path_factory.mktemp("server") / "data"
    with LiveServer(data, ROOST_HARNESS="claude", ROOST_SLEEP_AFTER="4") as live:
        yield live


def script(*steps: Json) -> str:
    return f"SCRIPT{json.dumps(steps)}"


def bash(command: str) -> Json:
    return {"tool": "Bash", "input": {"command": command}}


def home(server: LiveServer, session_id: str) -> Path:
    return server.data / "vault" / ".workspaces" / session_id


def said(seen: list[Json]) -> list[str]:
    return [
        m["message"]["content"][0]["text"]
        for m in seen
        if m["type"] == "sdk_message" and m["message"]["type"] == "agent.message"
    ]


def statuses(talk: Talk, type: str) -> list[str]:
    return [m["status"] for m in talk.seen if m["type"] == type]


def test_a_normal_turn_then_sleep_then_a_message_wakes_it(api: Api) -> None:
    parts = api.parts(tools=[TOOLSET])
    with api.open() as talk:
        talk.say("start", agent=parts["agent"], environmentId=parts["environment_id"])
        talk.say("message", id="m-1", content=script(bash("echo hi > note.txt"), {"text": "noted"}))
        done = talk.until("done")
        (ack,) = [m for m in talk.seen if "sessionId" in m]
        assert said(talk.seen) == ["noted"]
        assert statuses(talk, "session_status") == ["restore_skipped"]
        assert statuses(talk, "connection_status") == ["connecting", "connected"] * 2
        assert statuses(talk, "agent_status") == ["asleep", "waking", "running", "idle"]
        types = talk.types()
        assert types.index("stream_start") < types.index("chunk") < types.index("stream_end")
        assert done["messageId"]
        assert done["metadata"]["tokensUsed"] > 0
        assert (home(api.server, ack["sessionId"]) / "note.txt").read_text() == "hi\n"
        stats = talk.until("memory_stats")
        assert stats["processes"] is None or stats["processes"] > 0

        talk.until(lambda m: m.get("sandboxStatus") == "disconnected")  # it sleeps
        talk.until(lambda m: m["type"] == "agent_status" and m["status"] == "asleep")
        shutil.rmtree(home(api.server, ack["sessionId"]))  # and its files are lost meanwhile
        woken = len(talk.seen)
        talk.say("message", id="m-2", content="Are you awake?")
        assert talk.until("ack")["id"] == "m-2"  # taken in while nobody is there
        talk.until("done")
        again = talk.seen[woken:]
        lines = [m["status"] for m in again if m["type"] == "connection_status"]
        assert lines == ["connecting", "connected"]
        assert "2 user messages" in said(again)[0]
        files = [m["status"] for m in again if m["type"] == "session_status"]
        assert list(dict.fromkeys(files)) in (
            ["restore_started", "restored"],
            ["restore_started", "restoring", "restored"],
        )
        assert (home(api.server, ack["sessionId"]) / "note.txt").read_text() == "hi\n"


def test_the_agent_goes_on_when_the_last_tab_closes(api: Api) -> None:
    session_id = api.session(tools=[TOOLSET])
    talk = api.talk(session_id)
    talk.say("message", id="m-1", content=script(bash("echo on > on.txt"), {"text": "went on"}))
    talk.until("ack")
    talk.close()  # no goodbye to the session
    with api.open(session_id) as back:
        back.say("start", after=0)
        done = back.until("done")
    assert said(back.seen) == ["went on"]
    assert done["messageId"]
    assert (home(api.server, session_id) / "on.txt").exists()


def test_permissions_and_questions_are_put_to_every_tab_and_answered_by_one(api: Api) -> None:
    session_id = api.session(tools=[ASKING])
    question = {
        "question": "Which colour?",
        "header": "Colour",
        "multiSelect": False,
        "options": [
            {"label": "Blue", "description": "like the sky"},
            {"label": "Red", "description": "like a rose"},
        ],
    }
    steps = (
        bash("echo yes > allowed.txt"),
        bash("echo first > changed.txt"),
        {"tool": "AskUserQuestion", "input": {"questions": [question]}},
        {"text": "thank you"},
    )
    with api.talk(session_id) as talk, api.talk(session_id) as other:
        talk.say("message", content=script(*steps))
        request = talk.until("tool_permission_request")
        assert (request["toolName"], request["toolInput"]["command"]) == (
            "bash",
            "echo yes > allowed.txt",
        )
        assert other.until("tool_permission_request") == request
        other.say("permission_response", requestId=request["requestId"], decision="allow", id="p-1")
        assert other.until(lambda m: m.get("id") == "p-1")["type"] == "ack"
        talk.say("permission_response", requestId=request["requestId"], decision="deny", id="p-2")
        assert talk.until(lambda m: m.get("id") == "p-2")["code"] == "already_answered"
        request = talk.until("tool_permission_request")
        better = {"command": "echo better > changed.txt"}
        answer = {"requestId": request["requestId"], "decision": "allow", "modifiedInput": better}
        talk.say("permission_response", **answer, id="p-3")
        assert talk.event("user.tool_confirmation")["modified_input"] == better
        asked = talk.until("ask_user_question")
        assert asked["questions"][0]["question"] == "Which colour?"
        answers = {"Which colour?": "Blue"}
        talk.say("ask_user_answer", requestId=asked["requestId"], answers=answers)
        talk.until("done")
        other.until("done")  # what a tab leaves unread would hold its goodbye up, too
        assert said(talk.seen) == said(other.seen) == ["thank you"]
        assert (home(api.server, session_id) / "allowed.txt").exists()
        assert (home(api.server, session_id) / "changed.txt").read_text() == "better\n"


async def test_sockets_outlive_a_server_that_is_killed_in_the_middle_of_a_turn(
    server: LiveServer, api: Api
) -> None:
    def killed() -> None:
        server.kill()
        server.start()

    session_id = await anyio.to_thread.run_sync(lambda: api.session(tools=[ASKING]))
    seen: list[Any] = []
    async with Client(server.url, server.key).session(session_id, after=0) as chat:
        await chat.send(script(bash("echo once >> count.txt"), {"text": "finished"}), id="m-1")
        with anyio.fail_after(90):
            async for message in chat:
                seen.append(message)
                if isinstance(message, ToolPermissionRequest):
                    await anyio.to_thread.run_sync(killed)
                    await chat.allow(message.request_id)
                if isinstance(message, Done):
                    break
        assert chat.connections == 2
        assert (await chat.send("again", id="m-1-b")).seq > 0
    entries = [m for m in seen if isinstance(m, SdkMessage)]
    assert [m.seq for m in entries] == list(range(1, entries[-1].seq + 1))
    texts = [
        m.message["content"][0]["text"] for m in entries if m.message["type"] == "agent.message"
    ]
    assert texts == ["finished"]
    assert sum(isinstance(m, ToolPermissionRequest) for m in seen) == 1
    assert any(isinstance(m, AgentStatus) and m.status == "running" for m in seen)
    assert (home(server, session_id) / "count.txt").read_text() == "once\n"
    deadline = time.monotonic() + 60
    while api.get(f"/v1/sessions/{session_id}")["status"] != "idle":
        assert time.monotonic() < deadline
        await anyio.sleep(0.1)


def test_an_input_that_the_tool_cannot_take_is_refused_and_the_call_goes_on_waiting(
    api: Api,
) -> None:
    session_id = api.session(tools=[ASKING])
    with api.talk(session_id) as talk:
        talk.say("message", content=script(bash("echo asked > ran.txt"), {"text": "thank you"}))
        request = talk.until("tool_permission_request")["requestId"]
        answer = {"requestId": request, "decision": "allow"}
        for n, wrong in enumerate(({}, {"command": 5}, {"file_path": "x"})):
            talk.say("permission_response", **answer, modifiedInput=wrong, id=f"p-{n}")
            error = talk.until(lambda m, mine=f"p-{n}": m.get("id") == mine)
            assert (error["type"], error["code"]) == ("error", "wrong_input"), wrong
        sent = {"type": "user.tool_confirmation", "tool_use_id": request, "result": "allow"}
        refused = api.http.post(
            f"/v1/sessions/{session_id}/events",
            json={"events": [{**sent, "modified_input": {"command": ["ls"]}}]},
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["details"]["error_code"] == "wrong_input"
        assert api.get(f"/v1/sessions/{session_id}")["waiting_for"] == [request]
        assert "user.tool_confirmation" not in [e["type"] for e in api.events(session_id)]
        better = {"command": "echo better > ran.txt"}
        talk.say("permission_response", **answer, modifiedInput=better, id="p-9")
        assert talk.until(lambda m: m.get("id") == "p-9")["type"] == "ack"
        talk.until("done")
    assert (home(api.server, session_id) / "ran.txt").read_text() == "better\n"
