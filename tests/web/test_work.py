"""What surrounds the chat: what sessions cost, their files, and tasks. One server for all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, expect
from tests.journeys.chat import bash, script
from tests.stores import Databases
from tests.web.person import Person
from tests.web.test_pages import press, violations

from roost.testing.live import LiveServer

PRICE = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": "6.25"}
USED = {"input_tokens": 5000, "output_tokens": 100}  # 2.75 cents
CHEAP = {"input_tokens": 1, "output_tokens": 1}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc000000301010018dd8db00000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("work")
    prices = home / "prices.json"
    prices.write_text(json.dumps({"claude-opus-5-5": PRICE}))
    settings = {"ROOST_HARNESS": "claude", "ROOST_SLEEP_AFTER": "60", "ROOST_PRICES": str(prices)}
    with LiveServer(home / "data", **settings) as live:
        yield live


def row(person: Person, title: str) -> Locator:
    return person.page.get_by_role("listitem").filter(has_text=title)


@pytest.mark.chaos
def test_a_session_says_what_it_costs_and_whether_it_waits_for_somebody(person: Person):
    person.log_in()
    person.enter_session("Expensive", policy="always_ask")
    person.say(script(bash("echo first > which.txt", usage=USED), {"text": "Ran.", "usage": CHEAP}))
    card = person.page.get_by_role("group", name="May the agent use bash?")
    expect(card).to_be_visible()
    person.page.get_by_role("link", name="Sessions").click()
    expect(row(person, "Expensive")).to_contain_text("Waits for you")
    row(person, "Expensive").get_by_role("link").click()
    card.get_by_role("button", name="Change it").click()
    card.get_by_label("What it may do instead").fill("echo better | tee which.txt")
    assert violations(person) == []
    card.get_by_role("button", name="Allow this").click()
    person.hears("Ran.")
    person.log.get_by_role("button", name="bash").click()
    person.sees("better")
    expect(person.log).to_contain_text("the agent had asked for: echo first > which.txt")
    person.waits_until("Idle")
    expect(person.page.locator(".heading")).to_contain_text("$0.03")
    person.page.get_by_role("tab", name="Timeline").click()
    expect(person.page.get_by_role("region", name="Turn 1")).to_contain_text("$0.03")
    person.page.get_by_role("link", name="Sessions").click()
    expect(row(person, "Expensive")).to_contain_text(
        re.compile("coder.*own workspace.*now.*\\$0.03")
    )
    search = person.page.get_by_label("Search sessions")
    search.fill("nothing like it")
    expect(person.page.get_by_text("None of")).to_be_visible()
    search.fill("expensive")
    person.page.get_by_role("button", name="Actions for Expensive").click()
    person.page.get_by_role("menuitem", name="Archive").click()
    dialog = person.page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be undone")
    expect(row(person, "Expensive")).to_have_count(1)
    dialog.get_by_role("button", name="Archive it").click()
    expect(row(person, "Expensive")).to_have_count(0)
    person.page.get_by_label("Archived too").check(force=True)
    expect(row(person, "Expensive")).to_contain_text("archived")


def test_files_are_looked_at_fetched_and_put_there(person: Person):
    person.log_in()
    session_id = person.enter_session("Files")
    made = (
        "mkdir src; printf 'def f(x):\\n    return x\\n' > src/parser.py; ln -s / out; "
        "head -c 900 /dev/urandom > noise.bin; head -c 1500000 /dev/zero | tr '\\0' a > big.txt"
    )
    person.say(script(bash(made), {"text": "There."}))
    person.hears("There.")
    page = person.page
    page.get_by_role("tab", name="Files").click()
    link(person, "src").focus()
    page.keyboard.press("Enter")
    link(person, "parser.py").focus()
    page.keyboard.press("Enter")
    source = page.get_by_label("What is in parser.py")
    expect(source).to_contain_text("return x")
    expect(source.locator(".hljs-keyword").first).to_have_text("def")
    page.get_by_role("navigation", name="Directory").get_by_role("link", name="workspace").click()
    link(person, "noise.bin").click()
    expect(page.get_by_text("This file is not text")).to_be_visible()
    link(person, "big.txt").click()
    expect(page.get_by_text("too large to be shown")).to_be_visible()
    assert link(person, "out").count() == 0  # links are shown, and lead nowhere

    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload").click()
    chooser.value.set_files([payload("pixel.png", PIXEL), payload("notes.txt", b"one")])
    link(person, "pixel.png").click()
    picture = page.get_by_role("img", name="pixel.png")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    drop(person, "notes.txt", "two")
    page.get_by_role("dialog").get_by_role("button", name="Replace").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    link(person, "notes.txt").click()
    expect(page.get_by_label("What is in notes.txt")).to_have_text("two")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"two"
    person.shoot("files")

    page.get_by_role("tab", name="Chat").click()
    person.say(script(bash("cat notes.txt; rm notes.txt"), {"text": "Read it."}))
    person.hears("Read it.")
    person.log.get_by_role("button", name="cat notes.txt").click()
    person.sees("two")
    page.goto(f"{person.server.url}/sessions/{session_id}/files?file=notes.txt")
    expect(page.get_by_text("“notes.txt” is not there any more.")).to_be_visible()


def link(person: Person, name: str) -> Locator:
    directory = person.page.get_by_role("region", name="Directory")
    return directory.get_by_role("table").get_by_role("link", name=name, exact=True)


def payload(name: str, data: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def drop(person: Person, name: str, text: str) -> None:
    """Let go of a file over the directory."""
    script = """([name, text]) => {
        const carried = new DataTransfer();
        carried.items.add(new File([text], name));
        return carried;
    }"""
    carried: Any = person.page.evaluate_handle(script, [name, text])
    directory = person.page.get_by_role("region", name="Directory")
    for event in ("dragover", "drop"):
        directory.dispatch_event(event, {"dataTransfer": carried})


@pytest.mark.chaos
def test_a_task_is_made_run_followed_and_has_an_outcome(person: Person):
    person.log_in()
    person.make_parts()
    page = person.page
    page.goto(f"{person.server.url}/tasks")
    press(person, "New task")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Title")).to_be_focused()
    page.keyboard.type("Fix the build")
    update = {"tool": "update_task", "input": {"details": "It was a comma."}}
    steps = (bash("sleep 3"), update, {"text": "The build is **green** again."})
    dialog.get_by_label("Description").fill(script(*steps))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    row(person, "Fix the build").get_by_role("button", name="Run").click()
    dialog.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/tasks/task_*")
    address = page.url
    page.get_by_role("link", name="Follow it").click()
    person.hears("The build is green again.")
    page.get_by_role("link", name="its task").click()
    page.wait_for_url(address)
    expect(page.get_by_role("region", name="Outcome")).to_contain_text("The build is green again.")
    expect(page.get_by_role("region", name="Details")).to_contain_text("It was a comma.")
    expect(page.get_by_role("region", name="Runs")).to_contain_text("Succeeded")
    person.shoot("task")
    page.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Title").fill("Fix the build, again")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Fix the build, again")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete the task").click()
    page.wait_for_url("**/tasks")
    expect(page.get_by_text("No tasks yet.")).to_be_visible()


def test_a_task_whose_agent_waits_for_somebody_says_so(person: Person):
    person.log_in()
    fields = person.make_parts("always_ask")
    task = person.make_task("Careful", description=script(bash("ls"), {"text": "x"}), **fields)
    person.make(f"/roost/v1/tasks/{task}/runs")
    person.make_task(
        "Tidy", description="## Goal\n\n- all `tests` are **green**\n- see [why](/docs)"
    )
    person.page.goto(f"{person.server.url}/tasks")
    expect(row(person, "Careful")).to_contain_text("Waits for you")
    expect(row(person, "Tidy")).to_contain_text("Goal all tests are green see why")  # no Markdown


def test_a_task_has_a_schedule_that_is_set_paused_and_taken_away(person: Person):
    person.log_in()
    fields = person.make_parts()
    task = person.make_task("Water the plants", description="Hello", **fields)
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/tasks/{task}")
    page.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Run on a schedule").check()
    dialog.get_by_label("Cron expression").fill("0 25 * * *")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_label("Cron expression")).to_be_focused()
    person.complaints.clear()  # the browser notes each 400
    dialog.get_by_label("Cron expression").fill("0 6 * * *")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Runs by itself: At 06:00 every day")).to_be_visible()
    planned = page.get_by_role("region", name="Next").get_by_role("listitem")
    expect(planned).to_have_count(5)
    assert violations(person) == []
    person.shoot("task-schedule")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("Its schedule is paused: nothing starts")).to_be_visible()
    page.goto(f"{person.server.url}/tasks")
    expect(row(person, "Water the plants")).to_contain_text("Paused")
    page.goto(f"{person.server.url}/tasks/{task}")
    page.get_by_role("button", name="Unpause").click()
    expect(planned.get_by_text("Planned")).to_have_count(5)
    page.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Run on a schedule").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Next")).to_have_count(0)


def test_a_workspace_is_made_shared_used_and_deleted(person: Person):
    person.log_in()
    person.make_parts()
    page, dialog = person.page, person.page.get_by_role("dialog")
    page.goto(f"{person.server.url}/workspaces")
    press(person, "New workspace")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("atlas")
    dialog.get_by_label("One turn at a time").check(force=True)
    dialog.get_by_label("Most gigabytes").fill("2")
    dialog.get_by_role("button", name="Save").click()
    card = row(person, "atlas")
    expect(card).to_contain_text(re.compile("Sandboxed.*one turn at a time.*at most 2.0 GB.*1 key"))
    card.get_by_role("button", name="Share").click()
    dialog.get_by_role("button", name="Share").click()
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    assert violations(person) == []
    person.shoot("workspace-shared")
    page.keyboard.press("Escape")
    expect(card).to_contain_text("every key may work in it")
    card.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Description").fill("Maps.")
    dialog.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("Maps.")

    page.goto(person.server.url)
    page.get_by_role("button", name="New session").click()
    dialog.get_by_label("Title").fill("In the atlas")
    dialog.get_by_role("combobox", name="Workspace").click()
    page.get_by_role("option", name="atlas").click()
    person.shoot("new-session")
    dialog.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/sessions/sesn_*")
    expect(page.locator(".heading")).to_contain_text("in atlas")
    person.say(script({"text": "Mapped."}))
    person.hears("Mapped.")
    page.get_by_role("button", name="Fork here").click()
    copy = dialog.get_by_label("A copy of the workspace, as it was")
    expect(dialog).to_contain_text("nobody else sees them")
    copy.uncheck(force=True)
    expect(dialog).to_contain_text("shares the workspace, with the files as they are now")
    page.keyboard.press("Escape")
    page.goto(person.server.url)
    expect(row(person, "In the atlas")).to_contain_text("atlas")
    page.get_by_label("Search sessions").fill("atlas")
    expect(page.get_by_role("listitem")).to_have_count(1)

    page.goto(f"{person.server.url}/workspaces")
    card.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete the workspace").click()
    refusal = page.get_by_role("alert").filter(has_text="The workspace is used by a session.")
    expect(refusal).to_contain_text("tick the box to delete it all the same")
    assert violations(person) == []
    person.shoot("workspace-in-use")
    dialog.get_by_label("Also if sessions still use it.").check(force=True)
    dialog.get_by_role("button", name="Delete the workspace").click()
    expect(card).to_have_count(0)
    person.complaints.clear()  # the browser notes that the first try was refused


def test_a_session_is_forked_at_a_turn_and_goes_back_to_one(person: Person):
    person.log_in()
    session_id = person.enter_session("Two ways")
    page, dialog = person.page, person.page.get_by_role("dialog")
    person.say(script(bash("echo one > state.txt"), {"text": "It is one."}))
    person.hears("It is one.")
    person.waits_until("Idle")
    person.say(script(bash("echo two > state.txt"), {"text": "It is two."}))
    person.hears("It is two.")
    person.waits_until("Idle")
    page.get_by_role("button", name="Fork here").first.click()
    expect(dialog).to_contain_text("This session stays as it is.")
    person.shoot("fork")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda address: "sesn_" in address and session_id not in address)
    expect(page.get_by_role("heading", name="Two ways (fork)")).to_be_visible()
    person.hears("It is one.")
    expect(person.log.get_by_text("It is two.")).to_have_count(0)
    person.say(script(bash("cat state.txt"), {"text": "Looked."}))
    person.hears("Looked.")
    person.log.get_by_role("button", name="cat state.txt").click()
    person.sees("one")

    page.goto(f"{person.server.url}/sessions/{session_id}/timeline")
    page.get_by_role("region", name="Turn 1").get_by_role("button", name="Go back to here").click()
    expect(dialog).to_contain_text("The log keeps it.")
    person.shoot("rewind")
    dialog.get_by_role("button", name="Go back").click()
    expect(page.get_by_role("region", name="Turn 2")).to_have_count(0)
    page.get_by_role("tab", name="Chat").click()
    expect(person.log.get_by_text("It is two.")).to_have_count(0)
    expect(person.log).to_contain_text("went back to the end of turn 1, and its files with it")
    person.say(script(bash("cat state.txt"), {"text": "Looked again."}))
    person.hears("Looked again.")
    person.log.get_by_role("button", name="cat state.txt").click()
    person.sees("one")
