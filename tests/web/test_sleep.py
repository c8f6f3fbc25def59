"""An agent that went to sleep behind the page that is open."""

from __future__ import annotations

import pytest
from tests.journeys.chat import warm_agents
from tests.web.person import Person


@pytest.mark.parametrize("settings", [{"ROOST_HARNESS": "claude", "ROOST_SLEEP_AFTER": "1"}])
def test_an_agent_that_sleeps_is_woken_by_a_message(person: Person):
    person.log_in()
    person.begin_session("Sleep")
    person.say("Good night")
    person.hears("I have seen 1 user message")
    while warm_agents(person.server):
        person.page.wait_for_timeout(100)
    person.say("Are you awake?")
    person.hears("I have seen 2 user messages")
