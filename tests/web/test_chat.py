"""The journeys of somebody who chats with agents in a browser: the real CLI in a real sandbox."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.journeys.chat import SLOW, bash, script
from tests.stores import Databases
from tests.web.person import Person

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One for all of them: what a test leaves behind is a session that the next does not look at."""
    data = tmp_path_factory.mktemp("chat") / "data"
    with LiveServer(data, ROOST_HARNESS="claude", ROOST_SLEEP_AFTER="60") as live:
        yield live


def test_a_sandboxed_session_remembers_and_says_that_it_is_sandboxed(person: Person):
    person.log_in()
    person.begin_session("Fix the parser")
    expect(person.page.locator(".heading")).to_contain_text("Sandboxed")
    person.say(script(bash("pwd; echo mine > note.txt"), {"text": "I **noted** it."}))
    person.hears("I noted it.")
    person.waits_until("Idle")
    call = person.log.get_by_role("button", name="bash")
    call.click()
    person.sees("/workspace")
    person.say("And what did I say before?")
    person.hears("I have seen 2 user messages")
    person.shoot("chat")
    person.page.get_by_role("tab", name="Timeline").click()
    expect(person.page.get_by_role("region", name="Turn 2")).to_be_visible()
    person.shoot("timeline")
    person.page.get_by_role("link", name="Sessions").click()
    row = person.page.get_by_role("listitem").filter(has_text="Fix the parser")
    expect(row).to_contain_text("Sandboxed")
    person.shoot("sessions")


def test_an_approval_is_asked_for_on_a_card_and_can_be_refused_with_a_reason(person: Person):
    person.log_in()
    person.begin_session("Careful", policy="always_ask")
    steps = [bash("echo yes >> allowed.txt"), bash("echo no >> denied.txt"), {"text": "Done."}]
    person.say(script(*steps))
    card = person.page.get_by_role("group", name="May the agent use bash?")
    expect(card).to_contain_text("allowed.txt")
    person.waits_until("Waits for you")
    person.shoot("approval")
    card.get_by_role("button", name="Allow").click()
    expect(card).to_contain_text("denied.txt")
    card.get_by_label("If not, why").fill("Not that one.")
    card.get_by_role("button", name="Deny").click()
    person.hears("Done.")
    expect(person.log.get_by_text("not allowed")).to_be_visible()


def test_a_question_is_answered_with_a_choice(person: Person):
    person.log_in()
    person.begin_session("Ask me")
    options = [
        {"label": "Blue", "description": "like the sky"},
        {"label": "Green", "description": "like grass"},
    ]
    question = {"question": "Which colour?", "header": "Colour", "multiSelect": False}
    # The agent's program refuses a question without choices by itself: nobody is asked that one.
    wrong = {"tool": "AskUserQuestion", "input": {"questions": [question]}}
    asked = {"tool": "AskUserQuestion", "input": {"questions": [{**question, "options": options}]}}
    person.say(script(wrong, asked, {"text": "Thank you."}))
    card = person.page.get_by_role("group", name="The agent asks")
    expect(card).to_contain_text("Blue")
    expect(person.log.locator(".call")).to_contain_text("failed")
    card.get_by_text("Blue").click()
    person.shoot("question")
    person.waits_until("Waits for you")
    expect(person.log.locator(".said-agent")).to_have_count(0)
    card.get_by_role("button", name="Answer").click()
    person.hears("Thank you.")
    person.waits_until("Idle")


def test_an_interrupt_stops_the_turn_and_withdraws_what_was_queued(person: Person):
    person.log_in()
    person.begin_session("Stop")
    person.say(script(SLOW, {"text": "On to the second thing."}))
    expect(person.log.get_by_text("Running bash")).to_be_visible()
    person.say("A second thing")
    expect(person.log.get_by_text("queued", exact=True)).to_be_visible()
    person.shoot("queued")
    person.page.get_by_role("button", name="Interrupt").click()
    person.sees("Interrupted")
    expect(person.log.get_by_text("withdrawn", exact=True)).to_be_visible()
    expect(person.log.get_by_text("queued", exact=True)).to_have_count(0)
    person.waits_until("Idle")
    person.say("A third thing")
    person.hears("On to the second thing.")


def test_a_reload_in_the_middle_of_an_answer_misses_and_doubles_nothing(person: Person):
    words = " ".join(f"word{n}." for n in range(120))
    person.log_in()
    person.begin_session("Reload")
    person.say(script({"text": words, "chunk_delay": 0.03}))
    expect(person.log.locator("[data-streaming=true]")).to_contain_text("word9.")
    person.page.reload()
    person.waits_until("Idle")
    expect(person.log.locator(".said-agent")).to_have_count(1)
    expect(person.log.locator(".said-agent")).to_have_text(words)
    expect(person.log.locator(".said-user")).to_have_count(1)


def test_a_page_outlives_a_killed_server_and_shows_the_rest_of_the_turn(person: Person):
    person.log_in()
    person.begin_session("Kill")
    slow = "echo ran >> count.txt; sleep 4; cat count.txt"
    person.say(script(bash(slow), {"text": "Finished after all."}))
    expect(person.log.get_by_text("Running bash")).to_be_visible()
    person.server.kill()
    expect(person.page.get_by_text("No connection to the server")).to_be_visible()
    person.say("Are you still there?")
    expect(person.log.get_by_text("sending")).to_be_visible()
    person.shoot("no-connection")
    person.server.start()
    person.hears("Finished after all.")
    person.hears("the last one says: Are you still there?")
    expect(person.log.get_by_text(re.compile("^Are you still there"))).to_have_count(1)
    expect(person.page.get_by_text("No connection to the server")).to_have_count(0)


def test_two_tabs_show_the_same_and_either_may_answer(person: Person):
    person.log_in()
    session_id = person.begin_session("Two tabs", policy="always_ask")
    other = person.another_tab()
    other.goto(f"{person.server.url}/sessions/{session_id}")
    person.say(script(bash("echo hello"), {"text": "Both saw it."}))
    other.get_by_role("button", name="Allow").click()
    person.hears("Both saw it.")
    expect(other.get_by_text("Both saw it.", exact=True)).to_be_visible()
    expect(person.page.get_by_role("button", name="Allow")).to_have_count(0)
