"""Interrupting the real agent while it waits for somebody."""

from __future__ import annotations

import time
from pathlib import Path

from tests.journeys.chat import Chat, bash, said, script

from roost.testing.live import LiveServer

ASK = {
    "type": "agent_toolset_20260401",
    "default_config": {"permission_policy": {"type": "always_ask"}},
}


def test_an_interrupt_while_it_asks_closes_the_question_and_the_chat_goes_on(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        chat = Chat(server)
        chat.client.beta.sessions.update(chat.session.id, agent={"tools": [ASK]})
        asked = chat.turn(script(bash("touch allowed.txt"), {"text": "as you like"}))
        assert asked[-1].stop_reason.type == "requires_action"
        chat.client.beta.sessions.events.send(chat.session.id, events=[{"type": "user.interrupt"}])
        chat.wait_for("session.status_idle", 2)
        assert chat.events()[-1].stop_reason.type == "end_turn"
        later = chat.turn("Never mind")
        (result,) = [event for event in later if event.type == "agent.tool_result"]
        assert result.is_error
        assert said(later) == ["as you like"]
        assert not (chat.home / "allowed.txt").exists()


def test_after_an_interrupt_in_a_pause_the_next_message_starts_at_once(tmp_path: Path):
    """The model asked for five minutes: that holds for the request, not for who gave it up."""
    error = {"status": 429, "times": 1, "headers": {"retry-after": "300"}}
    with LiveServer(tmp_path / "data") as server:
        chat = Chat(server)
        chat.send(script({"error": error, "text": "much later"}))
        chat.wait_for("session.status_rescheduled", 1)
        begun = time.monotonic()
        chat.client.beta.sessions.events.send(chat.session.id, events=[{"type": "user.interrupt"}])
        chat.wait_for("session.status_idle", 1)
        later = chat.turn(script({"text": "at once"}))
        assert said(later)[-1] == "at once"
        assert time.monotonic() - begun < 200
