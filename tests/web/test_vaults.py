"""Vaults in the app: a secret goes in, is used, and is nowhere in the page afterwards."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Request, expect
from tests.web.person import Person
from tests.web.test_pages import press, violations

FIRST = "the-first-secret-of-this-page-0123456789"
SECOND = "the-second-secret-of-this-page-0123456789"
KEPT = """async () => JSON.stringify([
    document.documentElement.outerHTML, [...document.querySelectorAll("input, textarea")].map((it) => it.value),
    {...localStorage}, {...sessionStorage}, document.cookie, history.state, location.href, document.title,
    await indexedDB.databases(), await caches.keys(),
])"""


class Wire:
    """What the page sends and gets."""

    def __init__(self, person: Person) -> None:
        self._requests: list[Request] = []
        person.page.on("request", lambda request: self._requests.append(request))

    def sent(self, secret: str) -> list[str]:
        """The requests that have the secret anywhere."""
        return [
            f"{it.method} {it.url.rpartition('/v1/')[2]}"
            for it in self._requests
            if secret in f"{it.url} {it.post_data} {it.headers}"
        ]

    def answered(self, secret: str) -> list[str]:
        """The answers of the API that have it."""
        asked = [it for it in self._requests if "/v1/" in it.url]
        return [
            it.url
            for it in asked
            if (response := it.response()) is not None and secret in response.text()
        ]


def card(person: Person, text: str) -> Locator:
    return person.page.get_by_role("listitem").filter(has_text=text)


def is_nowhere(person: Person, secret: str) -> bool:
    return secret not in person.page.evaluate(KEPT)


def test_a_secret_is_put_into_a_vault_used_replaced_and_is_nowhere_in_the_page(person: Person):
    person.log_in()
    person.make_parts()
    wire, page, dialog = Wire(person), person.page, person.page.get_by_role("dialog")
    page.get_by_role("link", name="Vaults").click()
    expect(page.get_by_text("No vaults yet.")).to_be_visible()
    press(person, "New vault")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("the team")
    page.keyboard.press("Enter")
    page.wait_for_url("**/vaults/vlt_*")
    vault = page.url.rpartition("/")[2]

    page.get_by_role("button", name="New credential").click()
    field = dialog.get_by_label("Secret")
    assert [field.get_attribute(name) for name in ("type", "autocomplete")] == ["password", "off"]
    dialog.get_by_role("textbox", name="Variable", exact=True).fill("SITE_KEY")
    field.fill(FIRST)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("Name at least one host.")
    assert FIRST not in page.content()  # not even while it is typed
    assert violations(person) == []
    dialog.get_by_label("Hosts", exact=True).fill("api.example.org")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    expect(card(person, "SITE_KEY")).to_contain_text("sent to api.example.org in headers")
    assert is_nowhere(person, FIRST)
    person.shoot("vault")

    page.get_by_role("button", name="New credential").click()
    expect(dialog.get_by_label("Secret")).to_have_value("")
    page.keyboard.press("Escape")
    card(person, "SITE_KEY").get_by_role("button", name="Replace").click()
    expect(dialog.get_by_label("New secret")).to_have_value("")
    dialog.get_by_label("New secret").fill(SECOND)
    dialog.get_by_role("button", name="Replace it").click()
    expect(dialog).to_have_count(0)
    expect(card(person, "SITE_KEY")).to_contain_text("changed just now")
    assert is_nowhere(person, SECOND)

    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("button", name="New session").click()
    dialog.get_by_label("Title").fill("With a vault")
    dialog.get_by_role("combobox", name="Credential vaults").click()
    page.get_by_role("option", name="the team").click()
    page.keyboard.press("Tab")  # the list of vaults is closed
    person.shoot("new-session-with-a-vault")
    assert violations(person) == []
    dialog.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/sessions/sesn_*")
    session = person.client.beta.sessions.retrieve(page.url.rpartition("/")[2])
    assert session.vault_ids == [vault]
    expect(page.locator(".heading")).to_contain_text("with the secrets of the team")
    page.get_by_role("link", name="the team").click()
    page.wait_for_url(f"**/vaults/{vault}")
    expect(card(person, "SITE_KEY")).to_be_visible()

    page.wait_for_load_state("networkidle")
    assert wire.sent(FIRST) == [f"POST vaults/{vault}/credentials"]
    assert len(wire.sent(SECOND)) == 1
    assert wire.answered(FIRST) == wire.answered(SECOND) == []
    assert is_nowhere(person, FIRST) and is_nowhere(person, SECOND)


def test_vaults_and_credentials_of_all_kinds_are_made_archived_and_deleted(person: Person):
    person.log_in()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/vaults")
    page.get_by_role("button", name="New vault").click()
    dialog.get_by_label("Name").fill("my account")
    dialog.get_by_label("Key for a model").check(force=True)
    dialog.get_by_label("Base URL").fill("https://gateway.example.org")
    dialog.get_by_label("Metadata", exact=True).fill("team=web")
    assert violations(person) == []
    dialog.get_by_role("button", name="Save").click()
    page.wait_for_url("**/vaults/vlt_*")
    vault = person.client.beta.vaults.retrieve(page.url.rpartition("/")[2])
    assert vault.metadata == {
        "team": "web",
        "roost.role": "llm",
        "roost.engine": "claude",
        "roost.base_url": "https://gateway.example.org",
    }
    page.get_by_role("button", name="Add the key").click()
    dialog.get_by_label("Key").fill(FIRST)
    dialog.get_by_role("button", name="Save").click()
    expect(card(person, "The model")).to_contain_text("key for a model")

    tools = person.client.beta.vaults.create(display_name="tools")
    page.goto(f"{person.server.url}/vaults/{tools.id}")
    for kind in ("A token for an MCP server", "An OAuth token for an MCP server"):
        page.get_by_role("button", name="New credential").click()
        dialog.get_by_label(kind, exact=True).check(force=True)
        dialog.get_by_label("Address of the MCP server").fill("https://mcp.example.org/mcp")
        dialog.locator("[name=secret]").fill(FIRST)
        if "OAuth" in kind:
            fill_refresh(person, dialog)
        assert violations(person) == []
        dialog.get_by_role("button", name="Save").click()
        if "OAuth" in kind:
            expect(dialog).to_contain_text("for the MCP server https://mcp.example.org/mcp already")
            dialog.get_by_label("Address of the MCP server").fill("https://other.example.org/mcp")
            dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_have_count(0)
    oauth = card(person, "https://other.example.org/mcp")
    expect(oauth).to_contain_text("OAuth token for an MCP server · renewed by itself")
    made: Any = [it.auth for it in person.client.beta.vaults.credentials.list(tools.id)]
    assert made[0].refresh.token_endpoint_auth.type == "client_secret_basic"

    oauth.get_by_role("button", name="Archive").click()
    dialog.get_by_role("button", name="Archive it").click()
    expect(oauth).to_contain_text("(archived)")
    expect(oauth.get_by_role("button", name="Replace")).to_have_count(0)
    oauth.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete the credential").click()
    expect(oauth).to_have_count(0)

    page.get_by_role("link", name="all vaults").click()
    mine = card(person, "my account")
    expect(mine).to_contain_text(
        "key for a model · claude · https://gateway.example.org · team=web"
    )
    person.shoot("vaults")
    mine.get_by_role("button", name="Archive").click()
    dialog.get_by_role("button", name="Archive it").click()
    expect(mine).to_have_count(0)
    page.get_by_label("Archived too").check(force=True)
    expect(mine).to_contain_text("(archived)")
    mine.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete the vault").click()
    expect(mine).to_have_count(0)
    person.complaints.clear()  # the browser notes that one was refused


def fill_refresh(person: Person, dialog: Locator) -> None:
    dialog.get_by_label("Renew it with a refresh token").check(force=True)
    dialog.locator("[name=refresh_token]").fill(SECOND)
    dialog.get_by_label("Token endpoint").fill("https://login.example.org/token")
    dialog.get_by_label("Client ID").fill("roost")
    dialog.get_by_role("combobox", name="How the client shows who it is").click()
    person.page.get_by_role("option", name="client_secret_basic").click()
    dialog.get_by_label("Client secret").fill(SECOND)
