"""Sessions whose sandboxes are containers of a pool: real Claude Code there, its model here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.gateway.talk import Api
from tests.journeys.chat import SLOW, Chat, bash, close_clients, printed, said, script
from tests.pool.pool_server import make_pool
from tests.pool.sandbox_pool import POOL, SECRET
from tests.pool.stocked import planted
from tests.web.person import Person, chromium

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, databases: None) -> Iterator[LiveServer]:
    """One whose containers have Claude Code where a session's sandbox has it, so that it need not be sent."""
    root = tmp_path_factory.mktemp("pool")
    environ = {"PYTHONPATH": str(planted(root / "site")), "ROOST_SANDBOX": "stocked"}
    with LiveServer(root / "data", **environ) as server:
        make_pool(server, POOL)
        yield server


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, databases: None, pool: LiveServer
) -> Iterator[LiveServer]:
    root = tmp_path_factory.mktemp("server")
    environ = {
        "ROOST_HARNESS": "claude",
        "ROOST_SANDBOX": "pool",
        "ROOST_POOL_ENDPOINT": f"{pool.url}/roost/v1/pools/{POOL}",
        "ROOST_POOL_TOKEN": pool.key,
        "ROOST_POOL_SECRET": SECRET,
    }
    with LiveServer(root / "data", **environ) as server:
        yield server
        close_clients()


def test_claude_code_works_in_a_container_of_the_pool(server: LiveServer, pool: LiveServer) -> None:
    chat = Chat(server)
    seen = chat.turn(
        script(
            bash("echo one >note; pwd; echo out >/mnt/session/outputs/out.txt"), {"text": "made"}
        )
    )
    assert printed(seen) == ["/workspace"]
    assert said(seen) == ["made"]
    again = chat.turn(script(bash("cat note; env"), {"text": "read"}))
    (text,) = printed(again)
    assert text.startswith("one\n")
    assert pool.key not in text


def test_a_session_of_a_deployment_goes_on_by_websocket(server: LiveServer) -> None:
    with Api(server) as api:
        text = {"type": "text", "text": script(bash("echo one >note; pwd"), {"text": "made"})}
        deployment = api.post(
            "/v1/deployments",
            {
                "name": "in a pool",
                **api.parts(tools=[{"type": "agent_toolset_20260401"}]),
                "initial_events": [{"type": "user.message", "content": [text]}],
            },
        )
        session = api.post(f"/v1/deployments/{deployment['id']}/run")["session_id"]
        with api.talk(session) as talk:
            talk.find(lambda m: m["type"] == "done", seconds=300)
            talk.say("message", id="m-1", content=script(bash("cat note"), {"text": "read"}))
            talk.until(lambda m: m.get("type") == "ack")
            talk.until("done", seconds=300)
        events = [event for event in api.events(session) if event["type"].startswith("agent.")]
        spoken = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
        outputs = [
            e["content"][0]["text"].strip() for e in events if e["type"] == "agent.tool_result"
        ]
    assert (spoken, outputs) == (["made", "read"], ["/workspace", "one"])


def test_somebody_chats_in_the_app_with_an_agent_in_the_pool(server: LiveServer) -> None:
    with chromium() as browser:
        person = Person("in a pool", browser, server)
        is_content = False
        try:
            person.log_in()
            person.enter_session("In a pool")
            person.say(script(bash("echo one >note.txt; pwd"), {"text": "I noted it."}))
            person.hears("I noted it.")
            person.waits_until("Idle")
            person.log.get_by_role("button", name="bash").click()
            person.sees("/workspace")
            person.page.get_by_role("tab", name="Files").click()
            expect(person.page.get_by_role("link", name="note.txt")).to_be_visible()
            is_content = True
        finally:
            person.leave(content=is_content)


@pytest.mark.chaos
def test_a_server_killed_in_a_turn_goes_on_with_the_files_of_its_container(
    server: LiveServer,
) -> None:
    chat = Chat(server)
    chat.turn(script(bash("echo one >note"), {"text": "made"}))
    assert (chat.home / "note").read_text() == "one\n"
    chat.send(script(bash("echo two >note"), SLOW, {"text": "finished"}))
    chat.wait_for("agent.tool_use", 3)
    server.kill()
    server.start()
    chat.wait_until_idle(300)
    events = chat.events()
    assert len({event.id for event in events}) == len(events)
    assert [event.type for event in events].count("user.message") == 2
    (text,) = printed(chat.turn(script(bash("cat note"), {"text": "read"})))
    assert text.strip() == "two"
