"""Budgets of a real agent in a real sandbox, through the real server, over a crash of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from tests.journeys.chat import Chat, bash, said, script

from roost.testing.live import LiveServer

PRICE = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": "6.25"}


def limit(cents: int) -> Any:
    return {"type": "limit", "max_list_cost": {"amount": str(cents), "currency": "USD"}}


def test_a_session_stops_at_its_budget_and_goes_on_when_it_is_raised(tmp_path: Path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"claude-opus-5-5": PRICE}))
    rules = {"ROOST_PRICES": str(prices), "ROOST_LEASE_SECONDS": "2"}
    with LiveServer(tmp_path / "data", **rules) as server:
        chat = Chat(server, budget=limit(1))
        sessions = chat.client.beta.sessions
        used = {"input_tokens": 5000, "output_tokens": 100}  # 2.75 cents
        first = bash("echo one >> ran.txt", usage=used, delay=1)
        chat.send(script(first, {"text": "At last."}))
        chat.wait_for("span.model_request_start")
        chat.send(script({"text": "The second one."}))
        chat.wait_until_idle()
        *_, thread, usage, idle = events = chat.events()
        assert thread.stop_reason.type == idle.stop_reason.type == "budget_reached"
        assert usage.usage.list_cost.amount == "3"
        assert usage.budget.max_list_cost.amount == "1"
        assert said(events) == []
        errors = [event.error for event in events if event.type == "session.error"]
        assert {error.type for error in errors} == {"billing_error"}
        assert "budget of 0.01 US dollars is used up" in errors[-1].message
        assert "operator has to settle" not in errors[-1].message

        server.kill()
        server.start()
        found = sessions.retrieve(chat.session.id)
        assert found.usage.list_cost is not None
        assert found.usage.list_cost.amount == "3"
        with pytest.raises(anthropic.BadRequestError, match="is used up"):
            chat.send("More?")
        with pytest.raises(anthropic.BadRequestError, match="already spent that much"):
            sessions.update(chat.session.id, budget=limit(2))
        raised = sessions.update(chat.session.id, budget=limit(1000))
        assert raised.budget is not None
        assert raised.budget.max_list_cost.amount == "1000"
        assert raised.status == "running", "it goes on by itself"
        server.kill()
        server.start()
        chat.wait_until_idle()
        later = chat.events()[len(events) :]
        assert later[-1].stop_reason.type == "end_turn"
        assert said(later) == ["At last.", "The second one."]
        assert [event.type for event in later].count("user.message") == 1, "the one that waited"
        assert (chat.home / "ran.txt").read_text() == "one\n"

        metrics = httpx2.get(f"{server.url}/metrics").text
        assert (
            'roost_model_requests_total{model="claude-opus-5-5",status="200",upstream="anthropic"} 2.0'
            in metrics
        )
        tokens = (
            'roost_model_tokens_total{kind="input",model="claude-opus-5-5",upstream="anthropic"}'
        )
        assert tokens in metrics


def test_the_operators_limit_holds_for_sessions_without_a_budget(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_BUDGET_REQUESTS="2") as server:
        chat = Chat(server)
        steps = [bash("echo one"), bash("echo two"), {"text": "Never."}]
        idle = chat.turn(script(*steps))[-1]
        assert idle.stop_reason.type == "budget_reached"
        with pytest.raises(anthropic.BadRequestError, match="budget of 2 requests is used up"):
            chat.send("More?")
        with pytest.raises(anthropic.BadRequestError, match="no list price"):
            Chat(server, budget=limit(1))
