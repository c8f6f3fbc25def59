"""Tasks through the public API: changed by their agents, run with nobody watching, over a kill."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.gateway.talk import Api, Json

from roost.testing.live import LiveServer


def update(**fields: str) -> Json:
    return {"tool": "update_task", "input": fields}


def script(*steps: Json) -> str:
    return f"SCRIPT{json.dumps(steps)}"


def test_tasks_are_made_changed_listed_and_deleted(api: Api) -> None:
    made = api.post("/roost/v1/tasks", {"title": "One", "details": "x"})
    assert made["status"] == "open"
    path = f"/roost/v1/tasks/{made['id']}"
    changed = api.post(path, {"title": "Uno", "status": "done"})
    assert (changed["title"], changed["details"], changed["status"]) == ("Uno", "x", "done")
    assert api.get(path) == changed
    second = api.post("/roost/v1/tasks", {"title": "Two"})
    first_page = api.get("/roost/v1/tasks", limit=1)
    assert [task["id"] for task in first_page["data"]] == [second["id"]]
    rest = api.get("/roost/v1/tasks", page=first_page["next_page"])
    assert made["id"] in [task["id"] for task in rest["data"]]
    assert api.http.delete(path).status_code == 200
    assert api.http.get(path).status_code == 404
    assert api.http.post("/roost/v1/tasks", json={"title": ""}).status_code == 400
    assert (
        api.http.post("/roost/v1/tasks", json={"title": "x", "status": "running"}).status_code
        == 400
    )
    key = api.post("/roost/v1/keys", {"name": "other", "tenant": "elsewhere"})["secret"]
    with Api(api.server, key) as other:
        assert other.http.get(f"/roost/v1/tasks/{second['id']}").status_code == 404
        assert other.get("/roost/v1/tasks")["data"] == []


def test_who_follows_a_session_sees_what_others_do_to_its_task(api: Api) -> None:
    task = api.post("/roost/v1/tasks", {"title": "Old", "description": "d"})
    with api.talk(api.session(task_id=task["id"])) as talk, api.talk(api.session()) as other:
        api.post(f"/roost/v1/tasks/{task['id']}", {"title": "New"})
        told = talk.until("task_updated")
        fields = {"title": "New", "description": "d", "details": "", "status": "open"}
        fields |= {"schedule": None, "pausedReason": None}
        assert told == {"type": "task_updated", "taskId": task["id"], **fields}
        times = {"type": "cron", "expression": "0 9 * * *", "timezone": "Europe/Berlin"}
        api.post(f"/roost/v1/tasks/{task['id']}", {**api.parts(), "schedule": times})
        assert talk.until("task_updated")["schedule"] == times
        api.post(f"/roost/v1/tasks/{task['id']}/pause", {})
        assert talk.until("task_updated")["pausedReason"] == {"type": "manual"}
        other.say("message", content="Hello")
        other.until("done")
        assert "task_updated" not in other.types()


def test_an_agent_updates_its_task_and_everybody_sees_it(api: Api) -> None:
    task = api.post("/roost/v1/tasks", {"title": "Old", "description": "d"})
    parts = api.parts()
    with api.open() as talk:
        talk.say(
            "start",
            agent=parts["agent"],
            environmentId=parts["environment_id"],
            taskId=task["id"],
        )
        session_id = talk.until("ack")["sessionId"]
        with api.talk(session_id) as other:
            talk.say(
                "message",
                content=script(
                    update(title="New", details="Found it."), update(wrong="x"), {"text": "ok"}
                ),
            )
            seen = talk.until("task_updated")
            assert other.until("task_updated") == seen
            talk.until("done")
    assert seen["taskId"] == task["id"]
    assert {name: seen[name] for name in ("title", "description", "details", "status")} == {
        "title": "New",
        "description": "d",
        "details": "Found it.",
        "status": "open",
    }
    assert "ask_user_question" not in talk.types()
    assert talk.types().count("task_updated") == 1
    assert api.get(f"/roost/v1/tasks/{task['id']}")["title"] == "New"
    session = api.get(f"/v1/sessions/{session_id}")
    assert session["task_id"] == task["id"]
    # It never rested to wait for the server.
    reasons = [e["stop_reason"]["type"] for e in api.events(session_id) if "stop_reason" in e]
    assert set(reasons) == {"end_turn"}


def test_a_session_for_a_task_that_is_not_there_is_refused(api: Api) -> None:
    body = {**api.parts(), "task_id": "task_none"}
    assert api.http.post("/v1/sessions", json=body).status_code == 404


def finished(api: Api, path: str) -> Json:
    deadline = time.monotonic() + 60
    while not (run := api.get(path))["ended_at"]:
        assert time.monotonic() < deadline, run
        time.sleep(0.05)
    return run


def test_a_run_needs_no_browser_and_survives_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as server, Api(server) as api:
        parts = api.parts()
        steps = (update(details="begun"), {"text": "half " * 8, "chunk_delay": 0.2})
        task = api.post(
            "/roost/v1/tasks",
            {"title": "Long", "description": script(*steps), **parts},
        )
        runs = f"/roost/v1/tasks/{task['id']}/runs"
        headers = {"idempotency-key": "k-1"}
        run = api.post(runs, {}, headers=headers)
        with api.open(run["session_id"]) as talk:
            talk.say("start", after=0)
            talk.until("task_updated")
            talk.until("chunk")
            server.kill()
        server.start()
        assert api.post(runs, {}, headers=headers)["id"] == run["id"]
        done = finished(api, f"{runs}/{run['id']}")
        assert done["status"] == "succeeded"
        assert done["outcome"].startswith("half half")
        assert [each["id"] for each in api.get(runs)["data"]] == [run["id"]]
        after = api.get(f"/roost/v1/tasks/{task['id']}")
        assert (after["status"], after["details"]) == ("done", "begun")
        assert after["outcome"] == done["outcome"]
        events = api.events(run["session_id"])
        assert [e["type"] for e in events].count("user.custom_tool_result") == 1

        watching = api.talk(run["session_id"])
        assert server.stop() == 0
        code, reason = watching.close_code()
        assert (code, reason) == (1012, "the server is stopping; reconnect")
