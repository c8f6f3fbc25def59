"""Every message of the gateway, both ways, with a real WebSocket client against a real server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.talk import Api, Json, Talk

pytestmark = pytest.mark.both_stores

CUSTOM = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}


def script(*steps: Json) -> str:
    return f"SCRIPT{json.dumps(steps)}"


def looking_up(text: str = "found it") -> str:
    return script({"tool": "lookup", "input": {"what": "it"}}, {"text": text})


def finished(talk: Talk, text: str, **more: Any) -> Json:
    """Say something, and wait until the session rests."""
    talk.say("message", content=text, **more)
    done = talk.until("done")
    talk.event("session.status_idle")
    return done


def closed_entries(seen: list[Json]) -> list[int]:
    return [message["seq"] for message in seen if message["type"] == "sdk_message"]


def test_a_start_is_answered_in_the_order_that_is_written_down(api: Api) -> None:
    session_id = api.session()
    with api.open(session_id) as talk:
        talk.say("start", id="s-1")
        talk.until("agent_status")
        assert talk.seen == [
            {"type": "connection_status", "status": "connecting", "sandboxStatus": "connecting"},
            {"type": "ack", "id": "s-1", "sessionId": session_id, "seq": 0, "head": 0},
            {"type": "session_status", "status": "restore_skipped"},
            {"type": "connection_status", "status": "connected", "sandboxStatus": "connected"},
            {"type": "agent_status", "status": "asleep"},
        ]


def test_a_turn_shows_every_message_in_its_place(api: Api) -> None:
    with api.talk(api.session()) as talk:
        done = finished(talk, "Hello", id="m-1")
        talk.until(lambda m: m == {"type": "agent_status", "status": "asleep"})
    entries = [m["message"] for m in talk.seen if m["type"] == "sdk_message"]
    (said,) = [e for e in entries if e["type"] == "agent.message"]
    (ack,) = [m for m in talk.seen if m.get("id") == "m-1"]
    sent = [e for e in entries if e["type"] == "user.message"]
    assert [e["processed_at"] is None for e in sent] == [True, False]
    assert {e["id"] for e in sent} == {ack["eventId"]}
    assert ack["seq"] == 1
    assert {e["client_id"] for e in sent} == {"m-1"}
    chunks = [m for m in talk.seen if m["type"] == "chunk"]
    assert "".join(chunk["content"] for chunk in chunks) == said["content"][0]["text"]
    assert {chunk["messageId"] for chunk in chunks} == {said["id"]}
    assert done["messageId"] == said["id"]
    assert done["metadata"]["stopReason"] == "end_turn"
    assert done["metadata"]["tokensUsed"] > 0
    assert closed_entries(talk.seen) == list(range(1, done["seq"] + 1))
    # The log may be shown before the message that has changed it is acknowledged.
    order = [t for t in dict.fromkeys(talk.types()[5:]) if t not in ("sdk_message", "ack")]
    assert order == [
        "connection_status", "agent_status", "stream_start", "chunk", "stream_end", "done",
    ]  # fmt: skip
    statuses = [m["status"] for m in talk.seen[5:] if m["type"] == "agent_status"]
    assert statuses == ["waking", "running", "idle", "asleep"]
    lines = [m["status"] for m in talk.seen[5:] if m["type"] == "connection_status"]
    assert lines == ["connecting", "connected", "disconnected"]


def test_a_message_of_content_blocks_is_the_api_s(api: Api) -> None:
    with api.talk(api.session()) as talk:
        talk.say(
            "message", content=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        )
        assert len(talk.event("user.message")["content"]) == 2
        talk.say("message", id="bad", content=[{"type": "sound"}])
        error = talk.until("error")
    assert error["id"] == "bad"
    assert error["code"] == "invalid_request"
    assert "content.0.type" in error["message"]


def test_a_message_that_is_sent_again_is_there_once(api: Api) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk:
        finished(talk, "Hello", id="m-1")
        first = next(m for m in talk.seen if m.get("id") == "m-1")
    with api.talk(session_id) as again:
        again.say("message", id="m-1", content="Hello")
        assert again.until("ack") == {**first, "repeated": True}
        again.say("message", id="m-1", content="Something else")
        assert again.until("error")["code"] == "idempotency_key_reused"
    sent = [e for e in api.events(session_id) if e["type"] == "user.message"]
    assert len(sent) == 1


@pytest.mark.parametrize("where", ["address", "start"])
def test_who_comes_back_with_a_seq_gets_exactly_what_it_missed(api: Api, where: str) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk:
        finished(talk, "Hello")
    whole = [m for m in talk.seen if "seq" in m and m["type"] not in ("ack", "stream_end")]
    for after in range(len(closed_entries(whole)) + 1):
        more = {"after": after} if where == "address" else {}
        with api.open(session_id, **more) as back:
            back.say("start", **({"after": after} if where == "start" else {}))
            back.say("message", id="last", content=[])
            back.until(lambda m: m.get("id") == "last")
        missed = [m for m in back.seen if "seq" in m and m["type"] != "ack"]
        assert missed == [m for m in whole if m["seq"] > after]


def test_a_seq_beyond_the_log_is_refused(api: Api) -> None:
    with api.open(api.session()) as talk:
        talk.say("start", after=1)
        assert "after" in talk.until("error")["message"]
        talk.say("start")
        talk.until("agent_status")


def test_a_question_is_asked_answered_and_answered_only_once(api: Api) -> None:
    session_id = api.session(tools=[CUSTOM])
    with api.talk(session_id) as talk, api.talk(session_id) as other:
        talk.say("message", content=looking_up())
        asked = talk.until("ask_user_question")
        assert other.until("ask_user_question") == asked
        assert asked["toolName"] == "lookup"
        assert asked["toolInput"] == {"what": "it"}
        assert asked["questions"] == []
        idle = talk.until(lambda m: m["type"] == "agent_status" and m["status"] == "idle")
        assert idle["stopReason"] == "requires_action"
        with api.open(session_id) as late:  # shown again, until it is answered
            late.say("start")
            assert late.until("ask_user_question") == asked
            late.say("ask_user_answer", requestId=asked["requestId"], answers={"a": 1}, id="a-1")
            assert late.until("ack")["id"] == "a-1"
            talk.say("ask_user_answer", requestId=asked["requestId"], answers="no", id="a-2")
            error = talk.until("error")
            assert (error["id"], error["code"]) == ("a-2", "already_answered")
            for each in (talk, other, late):
                answered = each.find(_answers)
                message = each.seen[answered]["message"]
                assert message["custom_tool_use_id"] == asked["requestId"]
                assert each.seen[each.find("done", answered)]["messageId"]
    assert "done" not in talk.types()[: talk.types().index("ask_user_question")]
    with api.open(session_id) as later:  # from the beginning, and the old question is not put again
        later.say("start", after=0)
        later.until("done")
    assert "ask_user_question" not in later.types()


def _answers(message: Json) -> bool:
    return message["type"] == "sdk_message" and (
        message["message"]["type"] == "user.custom_tool_result"
    )


def test_an_answer_to_nothing_is_refused(api: Api) -> None:
    with api.talk(api.session()) as talk:
        talk.say("permission_response", requestId="sevt_none", decision="allow")
        assert talk.until("error")["code"] == "invalid_request"
        talk.say("permission_response", requestId="sevt_none", decision="perhaps")
        assert "decision" in talk.until("error")["message"]
        talk.say("permission_response", requestId="x", decision="deny", modifiedInput={"a": 1})
        assert "modified_input" in talk.until("error")["message"]


def test_an_interrupt_stops_the_turn(api: Api) -> None:
    with api.talk(api.session()) as talk:
        talk.say("message", content=script({"text": "slow " * 50, "chunk_delay": 0.2}))
        begun = talk.until("chunk")
        talk.say("interrupt", id="i-1")
        assert talk.until("ack")["id"] == "i-1"
        done = talk.until("done")
    assert done["messageId"] == begun["messageId"]
    assert done["metadata"]["stopReason"] == "end_turn"


def test_trouble_in_the_log_is_an_error_with_its_seq(api: Api) -> None:
    with api.talk(api.session()) as talk:
        talk.say("message", content=script({"error": {"status": 529, "times": 1}}, {"text": "ok"}))
        error = talk.until("error")
        talk.until("done")
    assert (error["code"], error["retry"]) == ("model_overloaded_error", "retrying")
    assert error["seq"] in closed_entries(talk.seen)


def test_who_comes_in_the_middle_of_a_text_sees_all_of_it(api: Api) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk:
        talk.say("message", content=script({"text": "one two three four", "chunk_delay": 0.3}))
        talk.until("chunk")
        with api.talk(session_id) as late:
            late.until("stream_end")
            text = "".join(m["content"] for m in late.seen if m["type"] == "chunk")
            assert text == "one two three four"
    assert late.types().count("stream_start") == 1


def test_a_preview_that_dies_is_said_to_be_void(api: Api) -> None:
    with api.talk(api.session()) as talk:
        done = finished(talk, script({"text": "broken off", "cut": 1}))
    ends = [m for m in talk.seen if m["type"] == "stream_end"]
    starts = [m["messageId"] for m in talk.seen if m["type"] == "stream_start"]
    assert [end["messageId"] for end in ends] == starts
    assert [end["aborted"] for end in ends] == [True, True]  # at first, and when it is tried again
    assert done["messageId"] is None
    assert done["metadata"]["stopReason"] == "retries_exhausted"


def test_a_session_is_made_by_its_start_once(api: Api) -> None:
    parts = api.parts()
    start = {
        "id": "new-1",
        "agent": parts["agent"],
        "environmentId": parts["environment_id"],
        "systemPrompt": "Be brief.",
        "projectId": "atlas",
        "title": "Mine",
        "trustLevel": "sandboxed",
    }
    made = []
    for _ in range(2):
        with api.open() as talk:
            talk.say("start", **start)
            made.append(talk.until("ack")["sessionId"])
            talk.say("message", content="Hello", id="m-1")
            talk.until(lambda m: m.get("id") == "m-1")
    assert made[0] == made[1]
    session = api.get(f"/v1/sessions/{made[0]}")
    assert session["agent"]["system"] == "Be brief."
    assert session["metadata"] == {"project_id": "atlas"}
    assert session["title"] == "Mine"
    assert [e["type"] for e in api.events(made[0])].count("user.message") == 1
    with api.open() as talk:
        talk.say("start", **{**start, "title": "Another"})
        assert talk.until("error")["code"] == "idempotency_key_reused"
        talk.say("start", agent=parts["agent"])
        assert "environmentId" in talk.until("error")["message"]


def test_messages_before_a_start_and_a_second_start_are_refused(api: Api) -> None:
    with api.open(api.session()) as talk:
        talk.say("message", content="Hello", id="m-1")
        error = talk.until("error")
        assert (error["code"], error["id"]) == ("not_started", "m-1")
        talk.say("start")
        talk.until("agent_status")
        talk.say("start")
        assert talk.until("error")["code"] == "already_started"


def test_close_closes_and_the_agent_goes_on(api: Api) -> None:
    session_id = api.session()
    talk = api.talk(session_id)
    talk.say("message", content=script({"text": "a b c", "chunk_delay": 0.2}))
    talk.until("ack")
    talk.say("close")
    assert talk.close_code()[0] == 1000
    with api.talk(session_id, after=0) as back:
        assert back.until("done")["messageId"]


def test_a_deleted_session_closes_its_sockets(api: Api) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk:
        api.http.delete(f"/v1/sessions/{session_id}")
        assert talk.close_code()[0] == 4404


def test_an_answer_of_the_wrong_kind_is_told_what_is_needed_and_the_question_waits(
    api: Api,
) -> None:
    session_id = api.session(tools=[CUSTOM])
    with api.talk(session_id) as talk:
        talk.say("message", content=looking_up())
        asked = talk.until("ask_user_question")["requestId"]
        talk.event("session.status_idle")
        talk.say("permission_response", requestId=asked, decision="allow", id="w-1")
        error = talk.until("error")
        assert (error["id"], error["code"]) == ("w-1", "wrong_answer")
        assert "ask_user_answer" in error["message"]
        for empty in (None, {}, []):
            talk.say("ask_user_answer", requestId=asked, answers=empty, id="w-2")
            error = talk.until("error")
            assert (error["code"], error["hint"]) == ("invalid_request", error["hint"])
            assert "answers" in error["message"]
        talk.say("ask_user_answer", requestId=asked, answers="yes", id="w-3")
        assert talk.until("ack")["id"] == "w-3"
        talk.until("done")


def test_questions_come_back_in_the_order_they_were_asked(api: Api) -> None:
    session_id = api.session(tools=[CUSTOM])
    calls = [{"tool": "lookup", "input": {"what": str(n)}} for n in range(3)]
    with api.talk(session_id) as talk:
        talk.say("message", content=script({"tools": calls}, {"text": "done"}))
        talk.event("session.status_idle")
    with api.talk(session_id) as talk:
        talk.say("interrupt")
        talk.until("ack")
        shown = [m["toolInput"]["what"] for m in talk.seen if m["type"] == "ask_user_question"]
    assert shown == ["0", "1", "2"]


def test_what_is_refused_with_a_reason_closes_nothing_however_often(api: Api) -> None:
    session_id = api.session(tools=[CUSTOM])
    with api.talk(session_id) as talk:
        talk.say("message", content=looking_up())
        asked = talk.until("ask_user_question")["requestId"]
        talk.event("session.status_idle")
        talk.say("ask_user_answer", requestId=asked, answers="yes")
        talk.until("done")
        for _ in range(30):
            talk.say("ask_user_answer", requestId=asked, answers="again")
            assert talk.until("error")["code"] == "already_answered"
        assert finished(talk, "still here?")


def test_an_interrupt_withdraws_what_waits_and_every_client_is_told(api: Api) -> None:
    session_id = api.session()
    with api.talk(session_id) as talk, api.talk(session_id) as other:
        talk.say("message", content=script({"text": "slow " * 50, "chunk_delay": 0.2}))
        talk.until("chunk")
        talk.say("message", content="never mind", id="m-2")
        waits = talk.until(lambda m: m["type"] == "ack" and m.get("id") == "m-2")["eventId"]
        talk.say("interrupt", id="i-1")
        stop = talk.until(lambda m: m["type"] == "ack" and m.get("id") == "i-1")["eventId"]
        for each in (talk, other):
            told = each.seen[each.find("withdrawn")]
            assert (told["eventIds"], told["interruptId"]) == ([waits], stop)
            each.until("done")
        talk.say("message", content="never mind", id="m-2")
        assert talk.until("ack")["repeated"] is True
        answer = finished(talk, "Hello")
    events = api.events(session_id)
    [shown] = [event for event in events if event["id"] == waits]
    assert shown["processed_at"]
    assert shown["withdrawn_at"]
    said = next(e for e in events if e["id"] == answer["messageId"])["content"][0]["text"]
    assert "2 user messages" in said


def test_a_start_says_what_it_ignores_of_a_session_that_is_there(api: Api) -> None:
    session_id = api.session(title="mine")
    with api.open(session_id) as talk:
        talk.say(
            "start", id="s", systemPrompt="Be brief.", taskId="task_x", projectId="p", title="mine"
        )
        assert talk.until("ack")["ignored"] == ["systemPrompt", "taskId", "projectId"]
    with api.open(session_id) as talk:
        talk.say("start", title="mine")
        assert "ignored" not in talk.until("ack")
