"""Many messages, many clients and a model that fails, for one session of the real Claude Code."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.chat import Chat, said, script, serving, warm_agents
from tests.stores import Databases

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

HEARD = ("user.", "agent.")


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel(keep=1)


@pytest.fixture(scope="module")
def server(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel
) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("many") / "data"
    with (
        serving(model) as url,
        LiveServer(data, ANTHROPIC_BASE_URL=url, ROOST_MODEL_RETRIES="2") as live,
    ):
        yield live


def check_all_heard(chat: Chat, model: ScriptedModel, count: int) -> None:
    """Every one of the messages 0, 1, 2 ... is in the log once, and reached the model in that order."""
    chat.send(f"Is that all? {script()}")
    chat.wait_until_idle()
    events = chat.events()
    messages = [event for event in events if event.type == "user.message"][:-1]
    logged = [event.content[0].text for event in messages]
    assert sorted(logged) == sorted(f"message {number}." for number in range(count))
    assert all(event.processed_at for event in messages)
    assert f"I have seen {count + 1} user messages" in said(events)[-1]
    seen = str(model.requests[-1].body["messages"])
    places = [seen.index(text) for text in logged]
    assert places == sorted(places)
    assert len({event.id for event in events}) == len(events)


def test_messages_sent_at_once_are_all_heard(server: LiveServer, model: ScriptedModel):
    chat = Chat(server)
    with ThreadPoolExecutor() as senders:
        for pair in range(5):
            list(senders.map(chat.send, [f"message {2 * pair + n}." for n in (0, 1)]))
            time.sleep(0.2 * pair)
    check_all_heard(chat, model, 10)


def test_ten_clients_of_one_session_see_the_same(server: LiveServer, model: ScriptedModel):
    chat = Chat(server)

    def follow(number: int) -> list[str]:
        """Say something, and what is seen of everybody until somebody says that it is over."""
        seen = []
        with chat.client.beta.sessions.events.stream(chat.session.id) as stream:
            chat.send(f"message {number}.")
            for event in stream:
                if event.type.startswith(HEARD):
                    seen.append(event.id)
                if event.type == "agent.message" and "script is over" in said([event])[0]:
                    break
        return seen

    with ThreadPoolExecutor(11) as clients:
        following = [clients.submit(follow, number) for number in range(10)]
        while sum(event.type == "user.message" for event in chat.events()) < 10:
            time.sleep(0.05)
        check_all_heard(chat, model, 10)
        seen = [one.result() for one in following]
    # A client sees what comes after its stream was opened, and of that everything, in order.
    longest = max(seen, key=len)
    assert all(one == longest[-len(one) :] for one in seen)
    # A message is shown when it comes, and again when it is taken; in the log that is one event.
    logged = [event.id for event in chat.events() if event.type.startswith(HEARD)]
    newest = list(dict.fromkeys(reversed(longest)))[::-1]
    assert newest == logged[-len(newest) :]
    assert len(newest) > 10


def test_a_message_in_the_instant_of_going_idle_is_heard(server: LiveServer, model: ScriptedModel):
    chat = Chat(server)
    sent = 0
    with chat.client.beta.sessions.events.stream(chat.session.id) as stream:
        chat.send("message 0.")
        for event in stream:
            # By turns: just before the session rests, and just as it does.
            if event.type == ("agent.message", "session.status_idle")[sent % 2]:
                sent += 1
                chat.send(f"message {sent}.")
            if sent == 20:
                break
    chat.wait_until_idle()
    check_all_heard(chat, model, 21)


def test_a_message_in_the_instant_of_waking_or_falling_asleep_is_heard(tmp_path: Path):
    rng = random.Random(3)
    model = ScriptedModel(keep=1)
    environ = {"ROOST_SLEEP_AFTER": "0.2"}
    with (
        serving(model) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url, **environ) as server,
    ):
        chat = Chat(server)
        for number in range(0, 12, 2):
            chat.send(f"message {number}.")
            time.sleep(rng.uniform(0, 0.8))  # it wakes
            chat.send(f"message {number + 1}.")
            chat.wait_until_idle()
            time.sleep(rng.uniform(0.15, 0.4))  # it falls asleep
        while warm_agents(server):
            time.sleep(0.05)
        check_all_heard(chat, model, 12)


def states(events: list[Any]) -> list[str]:
    """What a client is told about the session's state, in short."""
    told = []
    for event in events:
        if event.type == "session.error":
            told.append(f"{event.error.type} {event.error.retry_status.type}")
        elif event.type == "session.status_idle":
            told.append(f"idle {event.stop_reason.type}")
        elif event.type.startswith("session.status_"):
            told.append(event.type.removeprefix("session.status_"))
    return told


def again(error: str, times: int = 1) -> list[str]:
    return [f"{error} retrying", "rescheduled", "running"] * times


LIMITED = "model_rate_limited_error"
OVERLOADED = "model_overloaded_error"
FAILED = "model_request_failed_error"


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (429, {"retry-after": "1"}, LIMITED),
        pytest.param(429, {"retry-after": "40"}, LIMITED, marks=pytest.mark.chaos),
        (500, {}, FAILED),
        (529, {}, OVERLOADED),
    ],
)
def test_a_model_that_fails_for_a_while_is_asked_again(
    server: LiveServer, status: int, headers: dict[str, str], error: str
):
    fault = {"status": status, "headers": headers, "times": 2}
    events = Chat(server).turn(script({"text": "there it is", "error": fault}))
    assert states(events) == ["running", *again(error, 2), "idle end_turn"]
    assert said(events) == ["there it is"]


@pytest.mark.parametrize(
    ("step", "error", "tries"),
    [
        ({"error": {"status": 429, "headers": {"retry-after": "1"}}}, LIMITED, 2),
        ({"error": {"status": 429, "headers": {"retry-after": "700"}}}, LIMITED, 0),
        pytest.param({"error": {"status": 500}}, FAILED, 2, marks=pytest.mark.chaos),
        ({"error": {"status": 529}}, OVERLOADED, 2),
        ({"error": {"status": 401}}, FAILED, 0),
        ({"error": {"status": 400}}, FAILED, 0),
        ({"text": "one two three four", "cut": 2}, FAILED, 2),
    ],
    ids=["429", "429 for too long", "500", "529", "401", "400", "cut off"],
)
def test_a_model_that_does_not_recover_costs_the_turn_and_not_the_session(
    server: LiveServer, step: dict[str, Any], error: str, tries: int
):
    chat = Chat(server)
    events = chat.turn(script(step))
    assert states(events) == [
        *("running", *again(error, tries), f"{error} exhausted", "idle retries_exhausted")
    ]
    assert said(chat.turn(script({"text": "better"}))) == ["better"]
