"""Vaults and credentials that are there: edited, tried, and refused in plain words beside the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect
from tests.oauth_world import OAuthWorld, oauth_world
from tests.stores import Databases
from tests.web.person import Person
from tests.web.test_pages import press, violations
from tests.web.test_vaults import FIRST, SECOND, card, is_nowhere

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture(scope="module")
def server(
    databases: Databases, world: OAuthWorld, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("vaults") / "data", **world.rules()) as live:
        yield live


def variable(name: str) -> Any:
    networking = {"type": "limited", "allowed_hosts": ["api.example.org"]}
    return {
        "type": "environment_variable",
        "secret_name": name,
        "secret_value": FIRST,
        "networking": networking,
        "injection_location": {"header": True, "body": False},
    }


def said_of(field: Locator) -> Locator:
    """What is said to be wrong with a field, as a screen reader finds it."""
    expect(field).to_have_attribute("aria-invalid", "true")
    ids = (field.get_attribute("aria-describedby") or "").split()
    error = next(it for it in ids if it.endswith("-error"))
    return field.page.locator(f'[id="{error}"]')


def test_the_hosts_and_the_name_of_a_variable_are_edited_with_the_keyboard(person: Person):
    vault = person.client.beta.vaults.create(display_name="keyboard").id
    credentials = person.client.beta.vaults.credentials
    made = credentials.create(vault, auth=variable("SITE_KEY"), metadata={"team": "web"})
    person.log_in()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/vaults/{vault}")
    expect(card(person, "SITE_KEY")).to_contain_text(
        "sent to api.example.org in headers · team=web"
    )
    expect(page.get_by_role("button", name="Edit")).to_have_count(2)  # of the vault, and of this
    card(person, "SITE_KEY").get_by_role("button", name="Edit").focus()
    page.keyboard.press("Enter")
    hosts = dialog.get_by_label("Hosts", exact=True)
    expect(dialog.get_by_role("textbox", name="Variable")).not_to_be_editable()
    assert dialog.locator("input[type=password]").count() == 0
    hosts.press_sequentially("not a host")
    page.keyboard.press("Enter")
    dialog.get_by_label("In bodies").focus()
    page.keyboard.press("Space")
    dialog.get_by_label("Name").fill("of the site")
    page.keyboard.press("Enter")
    expect(said_of(hosts)).to_contain_text("host")
    expect(hosts).to_be_focused()
    assert violations(person) == []
    page.keyboard.press("Backspace")
    page.keyboard.type("*.example.org")
    page.keyboard.press("Enter")
    press(person, "Save")
    expect(dialog).to_have_count(0)
    edited = card(person, "of the site")
    expect(edited).to_contain_text("sent to api.example.org, *.example.org in headers and bodies")
    found: Any = credentials.retrieve(made.id, vault_id=vault)
    assert found.auth.networking.allowed_hosts == ["api.example.org", "*.example.org"]
    assert (found.display_name, found.metadata) == ("of the site", {"team": "web"})
    person.complaints.clear()  # the browser notes that one was refused


def test_what_a_vault_cannot_have_is_said_where_it_was_given(person: Person):
    vaults = person.client.beta.vaults
    vault = vaults.create(display_name="full").id
    for n in range(19):
        vaults.credentials.create(vault, auth=variable(f"KEY_{n}"))
    person.log_in()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/vaults/{vault}")
    page.get_by_role("button", name="New credential").click()
    name = dialog.get_by_role("textbox", name="Variable", exact=True)
    name.fill("KEY_7")
    dialog.get_by_label("Secret").fill(SECOND)
    dialog.get_by_label("Hosts", exact=True).fill("api.example.org")
    dialog.get_by_role("button", name="Save").click()
    expect(said_of(name)).to_contain_text("named KEY_7 already. Update that one, or archive it")
    expect(name).to_be_focused()
    expect(dialog.get_by_label("Secret")).to_have_value(SECOND)  # it need not be found again
    vaults.credentials.create(vault, auth=variable("KEY_19"))
    name.fill("KEY_20")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("A vault has at most 20 credentials")
    assert violations(person) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert is_nowhere(person, SECOND)
    person.complaints.clear()  # the browser notes that two were refused


def test_the_address_of_a_key_stays_and_everything_else_of_its_vault_can_be_edited(person: Person):
    metadata = {"sandbox0.managed_agents.role": "llm", "roost.key_header": "bearer", "old": "note"}
    vaults = person.client.beta.vaults
    vault = vaults.create(display_name="account", metadata=metadata).id
    person.log_in()
    person.make_parts()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/vaults/{vault}")
    expect(page.get_by_role("alert")).to_contain_text("It has no key yet")
    page.get_by_role("button", name="Add the key").click()
    dialog.get_by_label("Key").fill(FIRST)
    dialog.get_by_role("button", name="Save").click()
    expect(card(person, "The model")).to_be_visible()
    expect(page.get_by_role("button", name="Add the key")).to_have_count(0)
    page.get_by_role("button", name="Edit").first.click()
    address = dialog.get_by_label("Base URL")
    address.fill("https://gateway.example.org")
    dialog.get_by_role("button", name="Save").click()
    expect(said_of(address)).to_contain_text("annot be changed while the vault has a key")
    assert violations(person) == []
    address.fill("")
    dialog.get_by_label("Name").fill("my account")
    dialog.get_by_label("Metadata", exact=True).press("Backspace")  # the note goes
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="my account", exact=True)).to_be_visible()
    assert vaults.retrieve(vault).metadata == {
        "sandbox0.managed_agents.role": "llm",
        "roost.engine": "claude",
        "roost.key_header": "bearer",
    }

    vaults.create(display_name="second", metadata={"roost.role": "llm"})
    vaults.archive(vaults.create(display_name="bygone").id)
    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    choice = dialog.get_by_role("combobox", name="Credential vaults")
    choice.click()
    expect(page.get_by_role("option", name="bygone")).to_have_count(0)
    for name in ("my account", "second"):
        page.get_by_role("option", name=f"{name} (key for a model)").click()
    page.keyboard.press("Tab")
    expect(dialog).to_contain_text("with the key of my account, and not with the server's own")
    dialog.get_by_role("button", name="Begin").click()
    expect(said_of(choice)).to_contain_text("vault")
    assert violations(person) == []
    person.complaints.clear()  # the browser notes that two were refused


def test_a_token_is_tried_and_the_outcome_is_said_in_plain_words(person: Person, world: OAuthWorld):
    vault = person.client.beta.vaults.create(display_name="tokens").id
    old: Any = world.auth("no-longer-good-0123456789")
    person.client.beta.vaults.credentials.create(vault, auth=old)
    bare = {"type": "mcp_oauth", "mcp_server_url": f"{world.url}?bare", "access_token": "bad"}
    person.client.beta.vaults.credentials.create(vault, auth=bare)
    person.client.beta.vaults.credentials.create(vault, auth=variable("NO_TOKEN"))
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/vaults/{vault}")
    expect(page.get_by_role("button", name="Validate")).to_have_count(2)
    renewed, bad = card(person, "renewed by itself"), card(person, "?bare")
    renewed.get_by_role("button", name="Validate").click()
    expect(renewed.get_by_role("alert")).to_contain_text("The token works")
    expect(renewed.get_by_role("alert")).to_contain_text("It accepts the new one, which is stored.")
    renewed.get_by_role("button", name="Validate").click()
    expect(renewed.get_by_role("alert")).to_contain_text("The MCP server accepts it.")
    bad.get_by_role("button", name="Validate").click()
    expect(bad.get_by_role("alert")).to_contain_text("There is no refresh token to renew it with.")
    assert violations(person) == []
    person.shoot("vault-validated")
    bad.get_by_role("button", name="Replace").click()
    page.get_by_role("dialog").get_by_label("New access token").fill(world.authorization.access)
    page.get_by_role("dialog").get_by_role("button", name="Replace it").click()
    expect(bad.get_by_role("alert")).to_have_count(0)  # that was said of the token before
    assert is_nowhere(person, world.authorization.access)
