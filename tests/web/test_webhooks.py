"""Webhooks in the browser app: made, told, sent again, and why one was disabled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.web.person import Person
from tests.webhook_receiver import Receiver


@pytest.fixture
def settings() -> dict[str, str]:
    return {"ROOST_WEBHOOK_NETWORKS": "127.0.0.0/8"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    with made.listening():
        yield made
    made.server_close()


def test_a_webhook_is_made_told_and_says_why_it_is_disabled(person: Person, receiver: Receiver):
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/webhooks")
    page.get_by_role("button", name="New webhook").click()
    page.get_by_label("Address").fill("http://hooks.example/in")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Events are sent over https only")).to_be_visible()
    person.complaints.clear()  # the browser notes each 400
    page.get_by_label("Address").fill(receiver.url)
    page.get_by_label("Name").fill("ci")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("whsec_")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("whsec_")).to_have_count(0)
    page.get_by_role("link", name="ci").click()
    sent = page.get_by_role("region", name="Deliveries")
    expect(page.get_by_text("Nothing was sent yet.")).to_be_visible()
    person.client.beta.agents.create(name="a", model="claude-opus-5-5")
    expect(page.get_by_text("agent.created")).to_be_visible()
    expect(sent.get_by_text("delivered", exact=True)).to_be_visible()
    expect(page.get_by_text("answered 204")).to_be_visible()
    receiver.status = 410
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.get_by_text("Disabled: The receiver says that it is gone (410).")).to_be_visible()
    expect(sent.get_by_text("held", exact=True)).to_be_visible()
    receiver.status = 204
    page.get_by_role("button", name="Enable").click()
    expect(sent.get_by_text("delivered", exact=True)).to_be_visible()
    assert {seen["type"] for seen in receiver.seen} == {"agent.created"}
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete the webhook").click()
    expect(page.get_by_text("No webhooks yet.")).to_be_visible()
