"""The loop of our own through the real server: sandboxes on demand, its journal, kills, keys and budgets."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send
from tests.journeys.chat import Chat, printed, said, script, serving, warm_agents
from tests.stores import rows_of

from roost.domain.events import PRIVATE
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

SIGNATURE = "c2NyaXB0ZWQ="  # what the scripted model signs its thoughts with
MINE = "sk-mine-0123456789-0123456789"


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "bash", "input": {"command": command}, **more}


def chat_with(server: LiveServer, **options: Any) -> Chat:
    return Chat(server, **{"harness": "messages", **options})


def test_a_sandbox_is_opened_by_the_first_tool_and_its_files_stay(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="1") as server:
        chat = chat_with(server)
        assert said(chat.turn(script({"text": "Hello."}))) == ["Hello."]
        assert not chat.home.exists(), "nothing needed a sandbox"
        turn = chat.turn(
            script(
                {"thinking": "Hm.", **bash("echo $HOME; id -u; echo one >kept")},
                {"tools": [{"tool": "read", "input": {"file_path": "kept"}}, bash("cat kept")]},
                {"text": "Done."},
            )
        )
        assert said(turn) == ["Done."]
        home, *rest = printed(turn)
        assert home.startswith("/home/sandbox\n")
        assert rest == ["one\n", "one"]
        assert (chat.home / "kept").read_text() == "one\n"
        while warm_agents(server):
            time.sleep(0.05)
        # Woken, it goes on with its conversation and its files.
        assert printed(chat.turn(script(bash("cat kept; echo two >>kept"), {"text": "Yes."}))) == [
            "one"
        ]
        kinds = Counter(event.type for event in chat.events())
        assert kinds["agent.tool_use"] == kinds["agent.tool_result"] == 4
        check_privacy(server, chat)


def check_privacy(server: LiveServer, chat: Chat) -> None:
    """What the model thinks is in the log, and no client is shown it."""
    kept = rows_of(server.data, "SELECT type, body FROM entries")
    assert any(
        kind == "roost.model_answer" and SIGNATURE.encode() in bytes(body) for kind, body in kept
    )
    url = f"{server.url}/v1/sessions/{chat.session.id}/events"
    headers = {
        "x-api-key": server.key,
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "managed-agents-2026-04-01",
    }
    for query in ("", "?order=desc", "?types[]=roost.model_answer&types[]=agent.thinking"):
        check_shown(httpx2.get(url + query, headers=headers).text)
    with httpx2.stream("GET", f"{url}/stream?after=0", headers=headers, timeout=60) as stream:
        shown = ""
        for text in stream.iter_text():
            shown += text
            if shown.count("session.status_idle") >= 3:
                break
    check_shown(shown)


def check_shown(shown: str) -> None:
    assert "agent.thinking" in shown
    assert SIGNATURE not in shown
    assert not any(kind in shown for kind in PRIVATE)


def test_a_command_asks_first_and_a_killed_server_runs_it_once_at_most(tmp_path: Path):
    policy = {"enabled": True, "permission_policy": {"type": "always_ask"}}
    toolset = {"type": "agent_toolset_20260401", "default_config": policy}
    with LiveServer(tmp_path / "data", ROOST_LEASE_SECONDS="2") as server:
        chat = chat_with(server, agent={"tools": [toolset]})
        *_, idle = chat.turn(script(bash("echo ran >>log; sleep 300"), {"text": "I see."}))
        assert idle.stop_reason.type == "requires_action"
        (call,) = idle.stop_reason.event_ids
        server.kill()
        server.start()
        answer = {"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"}
        chat.client.beta.sessions.events.send(chat.session.id, events=[answer])
        while not (chat.home / "log").exists():
            time.sleep(0.05)
        server.kill()
        server.start()
        chat.wait_until_idle()
        (told,) = printed(chat.events())
        assert "its outcome is unknown" in told
        assert said(chat.events()) == ["I see."]
        assert (chat.home / "log").read_text() == "ran\n"


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/html")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"<h1>Hello</h1><a href=/on>on</a>"})


def test_pages_are_fetched_where_the_environment_and_the_agent_allow_it(tmp_path: Path):
    host = "127.0.0.2"  # a loopback address that no program takes for its own machine's
    with serving(page, host) as url:
        rules = {
            "ROOST_EGRESS_NETWORKS": f"{host}/32",
            "ROOST_EGRESS_PORTS": url.rpartition(":")[2],
        }
        fetch = {"tool": "web_fetch", "input": {"url": f"{url}/page"}}
        steps = script(fetch, {"text": "Done."})
        with LiveServer(tmp_path / "data", **rules) as server:
            open_net = {"type": "limited", "allowed_hosts": [host]}
            chat = chat_with(server, networking=open_net)
            assert printed(chat.turn(steps)) == [f"{url}/page\n\n# Hello\n[on]({url}/on)"]
            (told,) = printed(chat_with(server).turn(steps))
            assert "host_not_allowed" in told or "403" in told, told
            toolset = {
                "type": "agent_toolset_20260401",
                "configs": [{"name": "web_fetch", "allowed_domains": ["elsewhere.example"]}],
            }
            kept = chat_with(server, networking=open_net, agent={"tools": [toolset]})
            assert printed(kept.turn(steps)) == [
                f"Refused: this agent may not fetch pages from {host}."
            ]


def test_an_interrupt_ends_a_command_and_the_conversation_goes_on(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        chat = chat_with(server)
        chat.send(script(bash("echo on >log; sleep 300"), {"text": "Never."}))
        while not (chat.home / "log").exists():
            time.sleep(0.05)
        began = time.monotonic()
        events = chat.client.beta.sessions.events
        events.send(chat.session.id, events=[{"type": "user.interrupt"}])
        chat.wait_until_idle()
        assert time.monotonic() - began < 60
        (told,) = printed(chat.events())
        assert "interrupted" in told
        assert said(chat.turn(script({"text": "Onwards."}))) == ["Onwards."]


def test_a_vaults_key_and_the_operators_limit_hold(tmp_path: Path):
    model = ScriptedModel(require_key=MINE)
    rules = {
        "ANTHROPIC_API_KEY": "sk-operators-0123456789-0123456789",
        "ROOST_BUDGET_REQUESTS": "2",
        "ROOST_EGRESS_NETWORKS": "127.0.0.0/8",
    }
    with serving(model) as url, LiveServer(tmp_path / "data", **rules) as server:
        chat = chat_with(server)
        vaults, sessions = chat.client.beta.vaults, chat.client.beta.sessions
        about = {"roost.role": "llm", "roost.engine": "messages", "roost.base_url": url}
        vault = vaults.create(display_name="mine", metadata=about)
        auth: Any = {"type": "static_bearer", "token": MINE}
        vaults.credentials.create(vault.id, auth=auth)
        chat.session = sessions.create(
            agent=chat.session.agent.id,
            environment_id=chat.session.environment_id,
            vault_ids=[vault.id],
        )
        assert said(chat.turn(script({"text": "By my key."}))) == ["By my key."]
        assert model.requests[-1].headers["authorization"] == f"Bearer {MINE}"
        turn = chat.turn(script(bash("true"), {"text": "Never."}))
        assert turn[-1].stop_reason.type == "budget_reached", [event.type for event in turn]


@pytest.mark.parametrize("level", ["vault", "full"])
def test_with_trust_its_tools_run_on_the_host_and_with_the_vault_they_stay_in_it(
    tmp_path: Path, level: str
):
    with LiveServer(tmp_path / "data", ROOST_TRUST_LEVELS="sandboxed,vault,full") as server:
        open_net = {"type": "unrestricted"}
        chat = chat_with(server, networking=open_net, trust_level=level)
        write = {"tool": "write", "input": {"file_path": "note", "content": "x"}}
        outside = {"tool": "read", "input": {"file_path": "/etc/hostname"}}
        turn = chat.turn(script({"tools": [write, outside, bash("echo hi")]}, {"text": "Done."}))
        results = {e.tool_use_id: e.content[0].text for e in turn if e.type == "agent.tool_result"}
        told = [results[event.id] for event in turn if event.type == "agent.tool_use"]
        is_confined = level == "vault"
        assert told[0].startswith("wrote 1 bytes to ")
        assert ("Refused" in told[1]) == is_confined
        assert (told[2] == "hi") != is_confined
        assert (server.data / "vault" / "note").read_text() == "x"


def test_forks_and_rewinds_have_the_files_of_turns_that_used_none(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="0.3") as server:
        chat = chat_with(server)

        def turn(*steps: dict[str, Any]) -> list[Any]:
            seen = chat.turn(script(*steps))
            while warm_agents(server):
                time.sleep(0.05)
            return seen

        turn({"text": "One."})
        turn(bash("echo two >kept"), {"text": "Two."})
        turn({"text": "Three."})
        turn(bash("echo four >kept"), {"text": "Four."})
        headers = {"x-api-key": server.key}
        url = f"{server.url}/roost/v1/sessions/{chat.session.id}"
        original = chat.session
        for at, file in ((1, "none"), (2, "two"), (3, "two"), (4, "four")):
            made = httpx2.post(f"{url}/fork", json={"at": at}, headers=headers, timeout=60)
            chat.session = chat.client.beta.sessions.retrieve(made.json()["id"])
            assert printed(turn(bash("cat kept || echo none"), {"text": "Read."}))[-1:] == [
                file if file != "none" else "cat: kept: No such file or directory\nnone"
            ]
        chat.session = original
        refused = httpx2.post(f"{url}/rewind", json={"to": 1}, headers=headers, timeout=60)
        assert (refused.status_code, "had no files yet" in refused.text) == (404, True)
        back = httpx2.post(f"{url}/rewind", json={"to": 3}, headers=headers, timeout=60)
        assert back.status_code == 200, back.text
        assert printed(turn(bash("cat kept"), {"text": "Read."})) == ["two"]
