"""Somebody who uses the browser app, and notices when it complains."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright
from tests.parts import need

from roost.testing.live import LiveServer

SHOTS = Path(os.environ.get("ROOST_TEST_SHOTS", ".tools/screenshots"))
# A page whose server is killed says so in the console; nothing in the page can prevent that.
_OF_A_LOST_SERVER = re.compile("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|WebSocket connection")

_QUIET = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_PATIENCE = 240_000  # milliseconds: a busy machine is slow, not wrong
expect.set_options(timeout=_PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, where there is one; else the test is skipped."""
    found = shutil.which("chromium")
    need("chromium", found, "scripts/install-test-parts chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=_QUIET)
        yield launched
        launched.close()


class Person:
    """One browser tab. `complaints` are what its console said that it should not have."""

    def __init__(
        self,
        name: str,
        browser: Browser,
        server: LiveServer,
        *,
        width: int = 1100,
        touch: bool = False,
    ) -> None:
        self.server = server
        self._name = name
        self.complaints: list[str] = []
        self._context = browser.new_context(
            viewport={"width": width, "height": 800}, has_touch=touch, is_mobile=touch
        )
        self._context.set_default_timeout(_PATIENCE)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.client = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)

    def leave(self, *, content: bool) -> None:
        """Close the tab. Who is not `content` keeps a picture; who is has nothing to complain of."""
        if not content:
            self.shoot(f"failed-{self._name}")
        self._context.close()
        self.client.close()
        assert not (content and self.complaints), self.complaints

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _OF_A_LOST_SERVER.search(message.text):
            self.complaints.append(message.text)

    def another_tab(self) -> Page:
        return self._context.new_page()

    def log_in(self, key: str | None = None) -> None:
        self.page.goto(self.server.url)
        self.page.get_by_label("API key").fill(key or self.server.key)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("heading", name="Sessions")).to_be_visible()
        self.complaints.clear()  # the browser notes that nobody was logged in yet

    def make_parts(self, policy: str = "always_allow") -> dict[str, str]:
        """An agent and an environment, by the API; as a session names them."""
        tools = [
            {
                "type": "agent_toolset_20260401",
                "default_config": {"permission_policy": {"type": policy}},
            }
        ]
        agent = self.client.beta.agents.create(name="coder", model="claude-opus-5-5", tools=tools)
        limited: Any = {"type": "cloud", "networking": {"type": "limited"}}
        name = f"quiet {agent.id[-6:]}"
        place = self.client.beta.environments.create(name=name, config=limited)
        return {"agent": agent.id, "environment_id": place.id}

    def enter_session(self, title: str, *, policy: str = "always_allow") -> str:
        """A session made by the API, and its page."""
        made = self.client.beta.sessions.create(title=title, **self.make_parts(policy))
        self.page.goto(f"{self.server.url}/sessions/{made.id}")
        return made.id

    def begin_session(self, title: str, *, policy: str = "always_allow") -> str:
        """Make an agent and an environment, then the session with the form."""
        self.make_parts(policy)
        self.page.goto(self.server.url)
        self.page.get_by_role("button", name="New session").click()
        self.page.get_by_label("Title").fill(title)
        self.page.get_by_role("button", name="Begin").click()
        self.page.wait_for_url("**/sessions/sesn_*")
        return self.page.url.rsplit("/", 1)[-1]

    def make(self, path: str, **fields: Any) -> str:
        """Something made by the API; its id."""
        made = self.client.post(path, body=fields, cast_to=object)
        assert isinstance(made, dict)
        return str(made["id"])

    def make_task(self, title: str, **fields: Any) -> str:
        """A task made by the API."""
        return self.make("/roost/v1/tasks", title=title, **fields)

    def make_vault(self, name: str) -> str:
        """A vault with a variable, made by the API."""
        vaults = self.client.beta.vaults
        made = vaults.create(display_name=name, metadata={"team": "web"})
        hosts = ["api.example.org", "*.a-rather-long-name-of-a-host.example.org"]
        auth: Any = {
            "type": "environment_variable",
            "secret_name": "A_RATHER_LONG_NAME_OF_A_VARIABLE",
            "secret_value": "secret-of-a-page-0123456789",
            "networking": {"type": "limited", "allowed_hosts": hosts},
        }
        vaults.credentials.create(made.id, auth=auth)
        return made.id

    def make_deployment(self, name: str) -> str:
        """A deployment with a schedule that is seldom due, and its first run, made by the API."""
        says: Any = {"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}
        when: Any = {"type": "cron", "expression": "0 9 29 2 *", "timezone": "Asia/Tokyo"}
        deployments = self.client.beta.deployments
        made = deployments.create(
            name=name, initial_events=[says], schedule=when, **self.make_parts()
        )
        deployments.run(made.id)
        return made.id

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log", name="Conversation")

    def hears(self, text: str) -> None:
        """The agent has said this, once."""
        spoken = self.log.locator(".said-agent").get_by_text(text)
        expect(spoken).to_have_count(1)

    def sees(self, text: str) -> None:
        """The conversation shows this, besides what was said."""
        shown = self.log.locator(".call, [role=alert]").get_by_text(text, exact=True)
        expect(shown).to_have_count(1)

    def waits_until(self, status: str) -> None:
        expect(self.page.locator(".heading .status")).to_have_text(status)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")
