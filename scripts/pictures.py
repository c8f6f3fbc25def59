"""Takes the pictures of the README: the real app, the real server, the real agent, a scripted model.

    .venv/bin/python scripts/pictures.py

What the model says is in the scripts below. People who look at the pictures should see what somebody
would really write, so a script is put behind each message on its way to the model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import uvicorn
from playwright.sync_api import Page, expect, sync_playwright
from starlette.types import Message, Receive, Scope, Send

from roost.testing.live import LiveServer
from roost.testing.scripted_model import scripted_model

IMAGES = Path("docs/images")
SIZE: Any = {"width": 1180, "height": 890}
PRICES = {"claude-opus-5-5": {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": 6.25}}

SOURCE = '''"""Prices, as customers see them."""


def total(amounts: list[float], discount: float) -> float:
    """What is to be paid, after the discount."""
    return round(sum(amounts) - discount, 1)
'''
TEST = """from prices import total


def test_cents_are_kept():
    assert total([1.25, 2.5], 0.5) == 3.25


print("1 passed") if test_cents_are_kept() is None else None
"""
WHAT = "What is in this project?"
FIX = "The test fails since this morning. Find out why, and fix it."
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    WHAT: [
        {"tool": "Glob", "input": {"pattern": "**/*.py"}},
        {"text": "A small library: `prices.py` adds up amounts, and `test_prices.py` tests it."},
    ],
    FIX: [
        {"text": "I will look at the test, and at what it tests.", "delay": 0.4}
        | {"tool": "Read", "input": {"file_path": "/workspace/test_prices.py"}},
        {"tool": "Read", "input": {"file_path": "/workspace/prices.py"}, "delay": 0.6},
        {
            "text": "`total` rounds to **one** digit, so a total of 3.25 becomes 3.2. "
            "Cents need two:",
            "delay": 0.8,
            "tool": "Edit",
            "input": {
                "file_path": "/workspace/prices.py",
                "old_string": "    return round(sum(amounts) - discount, 1)",
                "new_string": "    return round(sum(amounts) - discount, 2)",
            },
            "usage": {"input_tokens": 9200, "output_tokens": 310},
        },
        {"tool": "Bash", "input": {"command": "python3 test_prices.py"}, "delay": 0.5},
        {"text": "The test passes again.", "delay": 0.4},
    ],
}


class Prompter:
    """A scripted model, in front of which each known message gets its script."""

    def __init__(self) -> None:
        self._model = scripted_model()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def prompted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body = message.get("body", b"")
                while message.get("more_body"):
                    message = await receive()
                    body += message.get("body", b"")
                return {"type": "http.request", "body": _with_scripts(body), "more_body": False}
            return message

        await self._model(scope, prompted, send)


def _with_scripts(body: bytes) -> bytes:
    for said, steps in SCRIPTS.items():
        plain = json.dumps(said)[1:-1].encode()
        script = json.dumps(f"{said} SCRIPT{json.dumps(steps)}")[1:-1].encode()
        body = body.replace(plain, script)
    return body


def main() -> None:
    """Take them all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="roost-pictures-"))
    (home / "prices.json").write_text(json.dumps(PRICES))
    model = uvicorn.Server(uvicorn.Config(Prompter(), port=0, log_level="warning"))
    threading.Thread(target=model.run, daemon=True).start()
    while not model.started:
        time.sleep(0.05)
    port = model.servers[0].sockets[0].getsockname()[1]
    settings = {
        "ROOST_ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
        "ROOST_ANTHROPIC_API_KEY": "scripted",
        "ROOST_PRICES": str(home / "prices.json"),
    }
    try:
        with LiveServer(home / "data", **settings) as server, sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            take(chromium.new_page(viewport=SIZE, color_scheme="light"), server)
            chromium.close()
    finally:
        model.should_exit = True
        shutil.rmtree(home, ignore_errors=True)


def take(page: Page, server: LiveServer) -> None:
    """Go through a conversation, and stop where there is something to see."""
    expect.set_options(timeout=60_000)
    page.goto(server.url)
    page.get_by_label("API key").fill(server.key)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    page.goto(f"{server.url}/sessions/{session_in(server)}")
    say(page, WHAT)
    expect(page.get_by_text("A small library")).to_be_visible()
    page.wait_for_timeout(2500)  # people need a moment to think
    say(page, FIX)
    allow = page.get_by_role("button", name="Allow")
    expect(allow).to_be_visible()
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "chat.png")
    allow.click()
    expect(page.get_by_role("group", name="May the agent use bash?")).to_be_visible()
    page.wait_for_timeout(1500)
    allow.click()
    expect(page.get_by_text("The test passes again.")).to_be_visible()
    expect(page.locator(".heading .status")).to_have_text("Idle")
    page.get_by_role("tab", name="Timeline").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "timeline.png", clip={"x": 0, "y": 0, **SIZE, "height": 540})


def say(page: Page, text: str) -> None:
    """Type it, and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def session_in(server: LiveServer) -> str:
    """A session with some files in it."""
    client = anthropic.Anthropic(base_url=server.url, api_key=server.key)
    config = {"permission_policy": {"type": "auto"}}
    tools: Any = [{"type": "agent_toolset_20260401", "default_config": config}]
    agent = client.beta.agents.create(name="coder", model="claude-opus-5-5", tools=tools)
    place = client.beta.environments.create(name="offline")
    made = client.beta.sessions.create(
        agent=agent.id, environment_id=place.id, title="Repair the price list"
    )
    files = [("files[]", ("prices.py", SOURCE)), ("files[]", ("test_prices.py", TEST))]
    address = f"{server.url}/roost/v1/sessions/{made.id}/files"
    httpx2.post(address, files=files, headers={"x-api-key": server.key}).raise_for_status()
    return made.id


if __name__ == "__main__":
    main()
