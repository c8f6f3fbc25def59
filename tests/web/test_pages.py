"""The app's pages: for every width, for the keyboard alone, in both schemes, readable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Route, expect
from tests.journeys.chat import bash, script
from tests.parts import need
from tests.web.person import Person

AXE = Path("web/node_modules/axe-core/axe.min.js")
PAGES = ("/", "/tasks", "/deployments", "/workspaces", "/agents", "/environments", "/vaults")
PAGES += ("/webhooks", "/keys")


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "dark"), pytest.param(1600, "light", marks=pytest.mark.chaos)]
)
def test_every_page_fits_its_width_and_can_be_read(person: Person, width: int, scheme: Any):
    need("axe-core", AXE.exists(), "make setup")
    person.page.emulate_media(color_scheme=scheme)
    person.log_in()
    session_id = person.begin_session("A session with a rather long title, for narrow screens")
    make = "mkdir src; printf '# a parser\ndef f(x):\n    return x + 1\n' > src/parser.py"
    person.say(script(bash(make), {"text": "See `this`:\n\n```sh\nls -la # all\n```"}))
    person.hears("See this:")
    person.make(
        "/roost/v1/workspaces", name="atlas", description="Maps, and whatever belongs to them"
    )
    task = person.make_task("A task with a rather long title as well, for the same narrow screens")
    vault = person.make_vault("Vault-with-a-rather-long-name-that-has-no-spaces-in-it-at-all")
    chat, file = f"/sessions/{session_id}", "/files?path=src&file=parser.py"
    looks = (chat, f"{chat}/timeline", f"{chat}/files", f"{chat}{file}", f"/tasks/{task}")
    url = "https://a-receiver-with-a-rather-long-name.example.org/and/a/long/path-without-spaces"
    webhook = person.make("/roost/v1/webhooks", url=url)
    deployment = person.make_deployment("A-deployment-with-a-rather-long-name-without-spaces")
    looks += (f"/vaults/{vault}", f"/webhooks/{webhook}", f"/deployments/{deployment}")
    named = "An-environment-with-a-rather-long-name-without-spaces"
    made = person.client.beta.environments.create(name=named, config={"type": "self_hosted"})
    place = made.id
    person.make(f"/roost/v1/environments/{place}/keys", name="A machine with a rather long name")
    looks += (f"/environments/{place}",)
    for path in (*PAGES, *looks):
        person.page.goto(person.server.url + path)
        person.page.wait_for_load_state("networkidle")
        overhang = "document.documentElement.scrollWidth - window.innerWidth"
        assert person.page.evaluate(overhang) <= 0, path
        cut = "all => all.filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.innerText)"
        assert person.page.locator(".mantine-Badge-label").evaluate_all(cut) == [], path
        assert violations(person) == [], path
        ids = f"{session_id}|{task}|{vault}|{webhook}|{deployment}|{place}"
        shown = re.sub(ids, "x", path).partition("?")
        person.shoot(f"{width}-{scheme}{shown[0].replace('/', '-')}{'-open' if shown[1] else ''}")


def test_a_page_that_waits_for_the_server_can_be_read(person: Person):
    need("axe-core", AXE.exists(), "make setup")
    person.log_in()
    person.page.route("**/v1/environments*", lambda route: None)  # never answered
    person.page.goto(person.server.url + "/environments")
    expect(person.page.get_by_role("status", name="Loading")).to_be_visible()
    assert violations(person) == []


def violations(person: Person) -> list[str]:
    """What the rules for accessible pages have against the page."""
    # A script element is what the page's own policy forbids, so it is run as the debugger.
    person.page.evaluate(AXE.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21aa"]
    found = person.page.evaluate("tags => axe.run({runOnly: tags})", tags)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def test_everything_can_be_done_with_the_keyboard_alone(person: Person):
    page = person.page
    page.goto(person.server.url)
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(person.server.key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    person.complaints.clear()
    for path, button, name in (
        ("/agents", "New agent", "keyboard agent"),
        ("/environments", "New environment", "keyboard place"),
    ):
        page.goto(person.server.url + path)
        press(person, button)
        expect(page.get_by_role("dialog").get_by_label("Name")).to_be_focused()
        page.keyboard.type(name)
        page.keyboard.press("Enter")
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    page.goto(person.server.url)
    press(person, "New session")
    expect(page.get_by_role("dialog").get_by_label("Title")).to_be_focused()
    page.keyboard.type("By keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions/sesn_*")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    person.hears("I have seen 1 user message")


def test_a_session_begins_for_who_submits_the_moment_the_choices_come(person: Person):
    """The choice is made then, and its text follows: a browser that asks for the text would refuse."""
    person.log_in()
    person.make_parts()
    page = person.page
    held: list[Route] = []
    page.route("**/v1/environments*", lambda route: held.append(route))
    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    form = page.get_by_role("dialog").locator("form")
    expect(form.get_by_role("combobox", name="Agent")).to_have_value("coder")
    form.evaluate(
        """form => new MutationObserver((_, watch) => { watch.disconnect(); form.requestSubmit() })
             .observe(form, {subtree: true, childList: true, attributes: true})"""
    )
    for route in held:
        route.continue_()
    page.wait_for_url("**/sessions/sesn_*")


def press(person: Person, name: str) -> None:
    """Tab to a button of that name, and press it."""
    button = person.page.get_by_role("button", name=name)
    expect(button).to_be_visible()
    for _ in range(30):
        person.page.keyboard.press("Tab")
        if button.evaluate("element => element === document.activeElement"):
            person.page.keyboard.press("Enter")
            return
    raise AssertionError(f"{name} cannot be reached with Tab")


def test_a_key_is_shown_once_and_works_until_it_is_revoked(person: Person):
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("for a friend")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_role("dialog").locator("pre").inner_text()
    ask = {"url": f"{person.server.url}/auth/me", "headers": {"x-api-key": secret}}
    assert httpx2.get(**ask).status_code == 200
    page.reload()
    card = page.get_by_role("listitem").filter(has_text="for a friend")
    expect(card).to_be_visible()
    assert secret not in page.content()
    card.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Name").fill("for a good friend")
    page.get_by_role("button", name="Save").click()
    card = page.get_by_role("listitem").filter(has_text="for a good friend")
    card.get_by_role("button", name="Revoke").click()
    assert httpx2.get(**ask).status_code == 200  # it asks first
    page.get_by_role("dialog").get_by_role("button", name="Revoke the key").click()
    expect(card).to_have_count(0)
    assert httpx2.get(**ask).status_code == 401


def test_the_keys_of_workers_are_made_and_revoked_where_their_environment_is(person: Person):
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/environments")
    page.get_by_role("button", name="New environment").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("the rack")
    dialog.get_by_label("On machines of yours").check()
    expect(dialog.get_by_label("Allowed hosts")).to_have_count(0)
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("link", name="the rack").click()
    expect(page.get_by_text("No keys yet.")).to_be_visible()
    environment = page.url.rsplit("/", 1)[1]
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").get_by_label("Name").fill("first machine")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_role("dialog").locator("pre").inner_text()
    assert environment in page.get_by_role("dialog").inner_text()
    at = f"{person.server.url}/v1/environments/{environment}/work/poll"
    given = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
    ask = {"url": at, "headers": {"authorization": f"Bearer {secret}", **given}}
    assert httpx2.get(**ask).json() is None
    page.reload()
    card = page.get_by_role("listitem").filter(has_text="first machine")
    expect(card).to_be_visible()
    assert secret not in page.content()
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Name").fill("the other rack")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="the other rack", exact=True)).to_be_visible()
    card.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke the key").click()
    expect(card).to_have_count(0)
    assert httpx2.get(**ask).status_code == 401


def test_who_is_logged_out_sees_nothing(person: Person):
    person.log_in()
    session_id = person.begin_session("Secret plans")
    person.page.get_by_role("button", name="Log out").click()
    expect(person.page.get_by_label("API key")).to_be_visible()
    person.page.goto(f"{person.server.url}/sessions/{session_id}")
    expect(person.page.get_by_label("API key")).to_be_visible()
    assert "Secret plans" not in person.page.content()
    person.complaints.clear()  # the browser notes each 401


def test_a_wrong_key_is_refused_in_plain_words(person: Person):
    person.page.goto(person.server.url)
    person.page.get_by_label("API key").fill("not-a-key")
    person.page.get_by_role("button", name="Log in").click()
    expect(person.page.get_by_role("alert")).to_contain_text("not valid")
    person.complaints.clear()


def test_an_administrator_is_not_offered_to_revoke_the_key_they_use(person: Person):
    person.log_in()
    person.make("/roost/v1/keys", name="another", role="admin")
    person.page.goto(f"{person.server.url}/keys")
    mine = person.page.get_by_role("listitem").filter(has_text="the key you are using")
    expect(mine).to_contain_text("administrator")
    shown = f"the key you are using{person.server.key[:9]}…{person.server.key[-4:]} · admin"
    expect(mine).to_contain_text(shown)
    expect(mine.get_by_role("button", name="Edit")).to_be_visible()
    expect(mine.get_by_role("button", name="Revoke")).to_have_count(0)
    other = person.page.get_by_role("listitem").filter(has_text="another")
    expect(other.get_by_role("button", name="Revoke")).to_be_visible()


@pytest.mark.parametrize("width", [390])
def test_the_secret_of_a_new_key_can_be_read_whole_on_a_phone(person: Person, width: int):
    person.log_in()
    person.page.goto(f"{person.server.url}/keys")
    person.page.get_by_role("button", name="New key").click()
    person.page.get_by_role("dialog").get_by_label("Name").fill("phone")
    person.page.get_by_role("button", name="Create").click()
    secret = person.page.get_by_role("dialog").locator("pre")
    expect(secret).to_be_visible()
    assert secret.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    box = secret.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


def test_an_address_without_a_page_says_so(person: Person):
    person.log_in()
    for path in (
        "/nowhere",
        "/sessions/sesn_1/nowhere",
        "/sessions/sesn_1",
        "/tasks/task_1",
        "/vaults/vlt_1",
    ):
        person.page.goto(person.server.url + path)
        expect(person.page.get_by_role("heading", name="Page not found")).to_be_visible()
    person.page.get_by_role("link", name="See all sessions").click()
    expect(person.page.get_by_role("heading", name="Sessions")).to_be_visible()
    person.complaints.clear()  # the browser notes that there is no such session


def test_a_new_session_gets_an_agent_with_tools_or_the_one_of_last_time(person: Person):
    person.log_in()
    person.make_parts()
    person.client.beta.agents.create(name="talker", model="claude-opus-5-5")
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    chosen = dialog.get_by_role("combobox", name="Agent")
    expect(chosen).to_have_value("coder")
    chosen.click()
    page.get_by_role("option", name="talker").click()
    expect(dialog).to_contain_text("This agent has no tools")
    dialog.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/sessions/sesn_*")
    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    expect(chosen).to_have_value("talker")


def test_the_first_agent_that_is_made_here_has_tools_and_asks_before_it_changes_anything(
    person: Person,
):
    person.log_in()
    person.page.goto(f"{person.server.url}/agents")
    person.page.get_by_role("button", name="New agent").click()
    person.page.get_by_role("dialog").get_by_label("Name").fill("first")
    person.page.get_by_role("button", name="Save").click()
    expect(person.page.get_by_role("listitem")).to_contain_text("asks before it changes anything")
    (made,) = person.client.beta.agents.list()
    (toolset,) = made.tools
    assert toolset.type == "agent_toolset_20260401"


@pytest.mark.parametrize(
    "settings", [{"ROOST_HARNESS": "claude", "ROOST_TRUST_LEVELS": "sandboxed,vault"}]
)
def test_only_trust_levels_that_the_server_offers_can_be_chosen(person: Person):
    person.log_in()
    person.make_parts()
    person.page.get_by_role("button", name="New session").click()
    dialog = person.page.get_by_role("dialog")
    expect(dialog.get_by_role("radio", name="Vault", exact=True)).to_be_enabled()
    expect(dialog.get_by_role("radio", name="Full access")).to_be_disabled()
    expect(dialog).to_contain_text("This server does not offer it")


def test_the_login_page_speaks_to_people_and_not_to_programs(person: Person):
    person.page.goto(person.server.url)
    person.page.get_by_label("API key").fill("not-a-key")
    person.page.get_by_role("button", name="Log in").click()
    alert = person.page.get_by_role("alert")
    expect(alert).to_contain_text("not valid")
    for word in ("x-api-key", "Bearer", "roost key"):
        expect(alert).not_to_contain_text(word)
    person.complaints.clear()


def test_a_key_can_be_made_for_another_tenant(person: Person):
    person.log_in()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/keys")
    page.get_by_role("button", name="New key").click()
    dialog.get_by_label("Name").fill("guest")
    expect(dialog.get_by_label("Tenant")).to_have_value("default")
    dialog.get_by_label("Tenant").fill("guests")
    expect(dialog.get_by_role("combobox", name="It sees")).to_have_value(re.compile("^Its own"))
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator("pre")).to_be_visible()
    page.reload()
    card = page.get_by_role("listitem").filter(has_text="guest")
    expect(card).to_contain_text("tenant guests · sees its own")
    card.get_by_role("button", name="Edit").click()
    dialog.get_by_role("combobox", name="It sees").click()
    page.get_by_role("option", name="All sessions of its tenant").click()
    dialog.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("tenant guests · sees all")


@pytest.mark.parametrize(
    "settings", [{"ROOST_HARNESS": "claude", "ROOST_TRUST_LEVELS": "sandboxed,vault"}]
)
def test_the_files_of_a_session_in_the_vault_say_that_it_works_elsewhere(person: Person):
    person.log_in()
    parts = person.make_parts()
    open_: Any = {"type": "cloud", "networking": {"type": "unrestricted"}}
    place = person.client.beta.environments.create(name="open", config=open_)
    fields: Any = {"agent": parts["agent"], "environment_id": place.id}
    made = person.client.beta.sessions.create(**fields, extra_body={"trust_level": "vault"})
    person.page.goto(f"{person.server.url}/sessions/{made.id}/files")
    expect(person.page.get_by_role("tabpanel")).to_contain_text("works in the vault")


def test_what_waits_for_somebody_comes_first_and_is_said_wherever_they_are(person: Person):
    person.log_in()
    page, waiting = person.page, person.make_parts("always_ask")
    ask = person.client.beta.sessions.create(title="Needs you", **waiting)
    for n in range(3):
        person.client.beta.sessions.create(title=f"Newer {n}", **waiting)
    page.goto(f"{person.server.url}/agents")
    expect(page).to_have_title("Roost")
    page.wait_for_load_state("networkidle")
    said: Any = [{"type": "text", "text": script(bash("ls"), {"text": "Done."})}]
    person.client.beta.sessions.events.send(
        ask.id, events=[{"type": "user.message", "content": said}]
    )
    expect(page).to_have_title("(1) Needs you waits · Roost")
    note = page.get_by_role("alert").filter(has_text="Needs you waits for you")
    expect(note).to_be_visible()
    assert violations(person) == []
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_role("listitem").first).to_contain_text("Needs you")
    page.get_by_role("link", name="Newer 0").click()
    send = page.get_by_role("button", name="Send")
    place = "it => it.getBoundingClientRect().toJSON()"
    for width in (1100, 390):
        page.set_viewport_size({"width": width, "height": 800})
        expect(send).to_be_visible()
        below, above = send.evaluate(place), note.evaluate(place)
        assert above["bottom"] <= below["top"], "it lies on where a message is sent"
    note.get_by_role("link", name="Answer it").click()
    page.wait_for_url(f"**/sessions/{ask.id}")
    page.get_by_role("button", name="Allow").click()
    person.hears("Done.")
    expect(note).to_have_count(0)
    expect(page).to_have_title("Needs you · Roost")


def test_what_waits_is_asked_for_in_one_request_seldom_out_of_sight_and_not_without_a_login(
    person: Person,
):
    page = person.page
    page.clock.install()
    person.log_in()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(person.server.url)))

    def minute() -> list[str]:
        """What is asked for in a minute, besides the page itself."""
        page.wait_for_load_state("networkidle")
        asked.clear()
        for _ in range(60):
            page.clock.run_for(1000)
            page.wait_for_timeout(50)
        return [address for address in asked if address.startswith(("/v1", "/roost", "/auth"))]

    page.goto(f"{person.server.url}/agents")
    expect(page.get_by_role("heading", name="Agents")).to_be_visible()
    in_sight = minute()
    assert set(in_sight) == {"/v1/sessions?waiting=true&limit=100"}
    assert 6 <= len(in_sight) <= 13
    page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { get: () => true });
            Object.defineProperty(document, "visibilityState", { get: () => "hidden" });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    assert 1 <= len(minute()) <= 3
    other = person.another_tab()
    other.goto(person.server.url)
    other.get_by_role("button", name="Log out").click()
    expect(other.get_by_label("API key")).to_be_visible()
    minute()
    expect(page.get_by_label("API key")).to_be_visible()
    assert minute() == []
    person.complaints.clear()  # the browser notes that the login is over


@pytest.mark.parametrize(("width", "touch"), [(390, True)])
def test_everything_that_is_tapped_in_the_chat_is_as_large_as_a_finger(person: Person):
    person.log_in()
    person.enter_session("Fingers", policy="always_ask")
    page = person.page
    person.page.get_by_label("Message", exact=True).fill(script({"text": "Hello."}))
    page.get_by_role("button", name="Send").click()
    person.hears("Hello.")
    expect(page.get_by_role("button", name="Fork here")).to_be_visible()
    long = bash("ls " + "--and-so-on " * 9 + "--and-all-of-it-is-in-sight")
    person.page.get_by_label("Message", exact=True).fill(script(long, {"text": "Done."}))
    page.get_by_role("button", name="Send").click()
    for name in ("Allow", "Deny", "Rename", "Menu", "Interrupt", "Send", "Attach pictures"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    command = page.locator(".waiting pre")
    assert command.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    small = """() => [...document.querySelectorAll("button, [role=tab], .waiting input")]
        .map((it) => ({ it, box: it.getBoundingClientRect() }))
        .filter(({ it, box }) => it.checkVisibility() && box.width > 1 && Math.min(box.width, box.height) < 44)
        .map(({ it, box }) => [it.ariaLabel || it.textContent, box.width, box.height])"""
    assert page.evaluate(small) == []
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.get_by_role("button", name="Allow").click()
    person.hears("Done.")
    expect(page.get_by_role("button", name="Go back to here")).to_be_visible()
    assert page.evaluate(small) == []
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Tasks")).to_be_visible()
    links = page.get_by_role("navigation", name="Main").get_by_role("link")
    heights = links.evaluate_all("all => all.map((it) => it.getBoundingClientRect().height)")
    assert min(heights) >= 44


def test_a_new_session_says_which_harnesses_there_are_and_why_one_is_not(person: Person):
    lacks = {"message": "the package parrot is missing", "hint": "Install it."}

    def without_one(route: Route) -> None:
        answer = route.fetch().json()
        parrot = {"name": "parrot", "default": False, "available": False, "unavailable": lacks}
        route.fulfill(json={**answer, "data": [*answer["data"], parrot]})

    person.log_in()
    person.make_parts()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.route("**/roost/v1/harnesses", without_one)
    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    choice = dialog.get_by_role("combobox", name="Harness")
    expect(dialog).to_contain_text("or else claude.")
    choice.click()
    page.get_by_role("option", name="parrot (not available)").click()
    expect(dialog).to_contain_text(
        "It is not available here: The package parrot is missing. Install it."
    )
    assert violations(person) == []
    choice.click()
    page.get_by_role("option", name="scripted", exact=True).click()
    expect(dialog.get_by_text("It is not available here")).to_have_count(0)
    dialog.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/sessions/sesn_*")
    made = person.client.beta.sessions.retrieve(page.url.rpartition("/")[2])
    assert made.to_dict()["harness"] == "scripted"
