"""How a conversation reads: what is in sight, what stays whole, what is said of what happened."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, WebSocketRoute, expect
from tests.journeys.chat import SLOW, bash, script
from tests.stores import Databases
from tests.web.person import Person
from tests.web.test_pages import violations
from tests.web.test_work import PIXEL

from roost.testing.live import LiveServer

PRICE = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": "6.25"}
USED = {"input_tokens": 50_000, "output_tokens": 100}  # 25.25 cents
LONG = "\n\n".join(f"Paragraph {n} of a long answer." for n in range(60))
TABLE = """| Region | Revenue | Comment |
| --- | --- | --- |
| Northumberland | 1,204,000 | extraordinarily satisfactory |
| Westmorland | 987,654,321 | unremarkable |
"""
OTHERS = f"""
- [x] done
- [ ] not done

```py
{"a_long_line_of_code, " * 9}
```
"""


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("reading")
    prices = home / "prices.json"
    prices.write_text(json.dumps({"claude-opus-5-5": PRICE}))
    settings = {"ROOST_HARNESS": "claude", "ROOST_SLEEP_AFTER": "60", "ROOST_PRICES": str(prices)}
    with LiveServer(home / "data", **settings) as live:
        yield live


def from_the_end(person: Person) -> float:
    """How many pixels of the conversation are below what is in sight."""
    away = person.log.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight")
    return float(away)


def at_the_end(person: Person) -> None:
    person.page.wait_for_function(
        "() => { const box = document.querySelector('[role=log]');"
        " return box.scrollHeight - box.scrollTop - box.clientHeight < 2 }"
    )


@pytest.mark.parametrize("width", [390])
def test_words_and_numbers_of_a_table_stay_whole(person: Person, width: int):
    person.log_in()
    person.enter_session("Table")
    person.say(script({"text": TABLE + OTHERS}))
    cells = person.log.locator("td, th")
    expect(cells).to_have_count(9)
    person.waits_until("Idle")
    assert violations(person) == []
    broken = cells.evaluate_all(
        """cells => cells.flatMap((cell) => {
            const text = cell.firstChild;
            return [...text.data.matchAll(/\\S+/g)].filter((word) => {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                return range.getClientRects().length > 1;
            }).map((word) => word[0]);
        })"""
    )
    assert broken == []
    overhang = "document.documentElement.scrollWidth - window.innerWidth"
    assert person.page.evaluate(overhang) <= 0


def test_what_a_session_has_cost_stays_when_it_goes_back(person: Person):
    person.log_in()
    session_id = person.enter_session("Dear")
    heading = person.page.locator(".heading")
    for nth in ("First.", "Second."):
        person.say(script({"text": nth, "usage": USED}))
        person.hears(nth)
        person.waits_until("Idle")
    cost = f"${_cents(person, session_id) / 100:.2f}"
    assert cost > "$0.50"
    expect(heading).to_contain_text(cost)
    person.page.get_by_role("button", name="Go back to here").click()
    person.page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(person.log).to_contain_text("went back to the end of turn 1")
    person.page.wait_for_load_state("networkidle")
    expect(heading).to_contain_text(cost)
    person.page.reload()
    expect(person.log).to_contain_text("went back to the end of turn 1")
    person.page.wait_for_load_state("networkidle")
    expect(heading).to_contain_text(cost)


def _cents(person: Person, session_id: str) -> int:
    usage = person.client.beta.sessions.retrieve(session_id).usage.to_dict()
    cost = usage["list_cost"]
    assert isinstance(cost, dict)
    return int(cost["amount"])


def resize(person: Person, width: int, height: int) -> None:
    """Returns when that is drawn."""
    person.page.set_viewport_size({"width": width, "height": height})
    person.page.wait_for_function(f"() => innerWidth === {width} && innerHeight === {height}")
    person.page.evaluate("""async () => {
        for (const _ of [1, 2, 3]) await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
    }""")


def scroll_up_while_resized(person: Person) -> None:
    """Both before the same drawing, as when a keyboard comes up under a moving finger."""
    person.log.evaluate("""async (box) => {
        const frame = () => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
        box.scrollTop -= 500;
        box.style.maxHeight = "300px";
        for (const _ of [1, 2, 3]) await frame();
        box.style.maxHeight = "";
    }""")
    expect(person.page.get_by_role("button", name="Jump to latest")).to_be_visible()
    assert from_the_end(person) > 300


def picture_comes(person: Person) -> None:
    """What is shown grows just after it was scrolled to its end, as if a picture had come."""
    person.log.evaluate("""async (box) => {
        const frame = () => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
        box.scrollBy(0, -20);
        await frame();
        box.scrollBy(0, 20);
        box.firstElementChild.style.paddingBottom = "400px";
        await frame();
    }""")
    person.page.wait_for_timeout(100)
    expect(person.page.get_by_role("button", name="Jump to latest")).to_have_count(0)


@pytest.mark.parametrize("width", [390])
def test_the_end_stays_in_sight_when_the_screen_shrinks(person: Person, width: int):
    person.log_in()
    person.enter_session("Keyboard", policy="always_ask")
    person.say(script({"text": LONG}))
    person.hears("Paragraph 59 of a long answer.")
    person.say(script(bash("ls"), {"text": "x"}))
    card = person.page.get_by_role("group", name="May the agent use bash?")
    expect(card).to_be_visible()
    at_the_end(person)
    resize(person, width, 430)
    at_the_end(person)
    picture_comes(person)
    resize(person, 844, 390)
    at_the_end(person)
    scroll_up_while_resized(person)
    resize(person, width, 430)
    person.page.wait_for_timeout(200)
    assert from_the_end(person) > 500  # who reads above is left alone


def test_a_message_or_an_answer_that_is_not_sent_yet_is_shown_as_such(person: Person):
    person.log_in()
    person.enter_session("Away", policy="always_ask")
    person.say(script(bash("ls", text=LONG), {"text": "Listed."}))
    allow = person.page.get_by_role("button", name="Allow")
    expect(allow).to_be_visible()
    person.server.kill()
    try:
        expect(person.page.get_by_text("No connection to the server")).to_be_visible()
        allow.click()
        expect(person.log.get_by_text("Sending your answer")).to_be_visible()
        expect(allow).to_be_disabled()  # a second answer would be refused
        person.say("\n".join(f"line {n}" for n in range(12)))
        expect(person.log.get_by_text("sending", exact=True)).to_be_visible()
        at_the_end(person)
    finally:
        person.server.start()  # the others need it
    person.hears("Listed.")
    expect(person.log.get_by_text("sending", exact=True)).to_have_count(0)


def test_a_message_whose_acknowledgement_is_late_is_shown_once(person: Person):
    def late(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        server.on_message(
            lambda frame: route.send(frame) if '"eventId"' not in str(frame) else None
        )

    person.log_in()
    person.page.route_web_socket("**/ws/v2**", late)
    person.enter_session("Late")
    person.say("Once")
    person.hears("I have seen 1 user message")
    expect(person.log.locator(".said-user")).to_have_text("Once")


@pytest.mark.parametrize(("width", "touch"), [(390, True)])
def test_on_a_phone_enter_breaks_the_line_and_the_button_sends(person: Person):
    person.log_in()
    person.enter_session("Phone")
    message = person.page.get_by_label("Message", exact=True)
    message.tap()
    person.page.keyboard.type("one")
    person.page.keyboard.press("Enter")
    person.page.keyboard.type("two")
    expect(message).to_have_value("one\ntwo")
    assert message.evaluate("it => getComputedStyle(it).fontSize") == "16px"
    assert len(message.get_attribute("placeholder") or "") < 25
    person.page.get_by_role("button", name="Send").tap()
    expect(person.log.locator(".said-user")).to_have_text("one\ntwo")
    person.hears("I have seen 1 user message")


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_a_turn_that_waits_for_an_approval_can_be_interrupted(person: Person, way: str):
    person.log_in()
    person.enter_session("Changed my mind", policy="always_ask")
    person.say(script(bash("rm -r ."), {"text": "Understood."}))
    card = person.page.get_by_role("group", name="May the agent use bash?")
    expect(card).to_be_visible()
    person.say("Rather list what is there")
    expect(person.log).to_contain_text(
        "queued until you have answered above; an interrupt withdraws it"
    )
    if way == "button":
        person.page.get_by_role("button", name="Interrupt").click()
    else:
        person.log.focus()
        person.page.keyboard.press("Escape")
    expect(card).to_have_count(0)
    person.sees("Interrupted")
    expect(person.log.get_by_text("withdrawn", exact=True)).to_be_visible()
    expect(person.log.get_by_text("queued")).to_have_count(0)
    person.waits_until("Idle")
    person.say("Rather list what is there, please")
    person.hears("Understood.")
    expect(person.log.locator(".call")).to_contain_text("interrupted")
    expect(person.log.locator(".call")).not_to_contain_text("failed")


def test_a_tool_that_was_interrupted_has_not_failed(person: Person):
    person.log_in()
    person.enter_session("Stop")
    person.say(script(SLOW, {"text": "x"}))
    expect(person.log.get_by_text("Running bash")).to_be_visible()
    person.page.keyboard.press("Escape")
    person.sees("Interrupted")
    person.waits_until("Idle")
    expect(person.log.locator(".call")).to_contain_text("interrupted")
    person.page.reload()
    expect(person.log.locator(".call")).to_contain_text("interrupted")


@pytest.mark.parametrize(
    ("text", "last"),
    [
        pytest.param("Some words. " * 300, "p", id="paragraph"),
        pytest.param("Look:\n\n" + "- some words\n" * 200, "li", id="list"),
        pytest.param("```\n" + "some code\n" * 200, "code", id="code"),
    ],
)
def test_the_cursor_follows_the_text_that_is_written(person: Person, text: str, last: str):
    person.log_in()
    person.enter_session("Cursor")
    person.say(script({"text": text, "chunk_delay": 0.05}))
    written = person.log.locator("[data-streaming=true]")
    expect(written.locator(last).last).to_be_visible()
    shown = written.evaluate(
        """(box, last) => [box, ...box.querySelectorAll('*')]
            .filter((one) => getComputedStyle(one, '::after').content.includes('▍'))
            .map((one) => [one.localName, one === [...box.querySelectorAll(last)].at(-1), one.textContent.endsWith('\\n')])""",
        last,
    )
    assert shown == [[last, True, False]]  # after a line break it would stand a line too low
    person.page.keyboard.press("Escape")
    person.waits_until("Idle")


def test_what_was_typed_is_there_again_after_a_look_elsewhere(person: Person):
    person.log_in()
    session_id = person.enter_session("Draft")
    message = person.page.get_by_label("Message", exact=True)
    message.fill("half a thought")
    person.page.get_by_role("link", name="Sessions").click()
    expect(person.page.get_by_role("heading", name="Sessions")).to_be_visible()
    person.page.goto(f"{person.server.url}/sessions/{session_id}")
    expect(message).to_have_value("half a thought")
    message.press("Enter")
    person.hears("the last one says: half a thought")
    person.page.reload()
    person.hears("the last one says: half a thought")
    expect(message).to_have_value("")


def dropped(person: Person, selector: str, event: str) -> None:
    """Paste a picture into, or let it go over, what the selector names."""
    carried = person.page.evaluate_handle(
        """([bytes, kind]) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(bytes)], "pixel.png", {type: kind}));
            return carried;
        }""",
        [list(PIXEL), "image/png"],
    )
    field = "clipboardData" if event == "paste" else "dataTransfer"
    person.page.evaluate(
        """([selector, event, field, carried]) => {
            const kind = event === 'paste' ? ClipboardEvent : DragEvent;
            const told = new kind(event, {[field]: carried, bubbles: true, cancelable: true});
            document.querySelector(selector).dispatchEvent(told);
        }""",
        [selector, event, field, carried],
    )


def is_drawn(picture: Locator) -> None:
    expect(picture).to_have_attribute("src", re.compile("."))
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1


def test_pictures_are_pasted_dropped_attached_sent_and_seen(person: Person):
    person.log_in()
    session_id = person.enter_session("Pictures")
    page, to_send = person.page, person.page.get_by_role("list", name="Pictures to send")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    dropped(person, "textarea[aria-label=Message]", "paste")
    is_drawn(to_send.locator("img").nth(0))
    dropped(person, ".chat-log", "drop")
    is_drawn(to_send.locator("img").nth(1))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach pictures").click()
    chooser.value.set_files([{"name": "third.png", "mimeType": "image/png", "buffer": PIXEL}])
    is_drawn(to_send.get_by_role("img", name="third.png"))
    assert violations(person) == []
    page.get_by_role("button", name="Remove third.png").click()
    expect(to_send.locator("img")).to_have_count(2)
    page.get_by_label("Message", exact=True).fill("What is this?")
    page.reload()
    is_drawn(to_send.locator("img").nth(1))
    page.get_by_label("Message", exact=True).press("Enter")
    expect(to_send).to_have_count(0)
    bubble = person.log.locator(".said-user")
    expect(bubble).to_contain_text("What is this?")
    is_drawn(bubble.get_by_role("img").nth(1))
    person.hears("the last one says")
    page.reload()
    is_drawn(bubble.get_by_role("img").first)
    assert violations(person) == []
    (sent,) = [
        event
        for event in person.client.beta.sessions.events.list(session_id)
        if event.type == "user.message"
    ]
    assert [block.type for block in sent.content] == ["image", "image", "text"]


def test_a_picture_that_another_client_has_sent_is_seen(person: Person):
    person.log_in()
    session_id = person.enter_session("Sent elsewhere")
    source: Any = {
        "type": "base64",
        "media_type": "image/png",
        "data": base64.b64encode(PIXEL).decode(),
    }
    content: Any = [{"type": "text", "text": "See?"}, {"type": "image", "source": source}]
    person.client.beta.sessions.events.send(
        session_id, events=[{"type": "user.message", "content": content}]
    )
    is_drawn(person.log.locator(".said-user").get_by_role("img"))


def test_who_sees_a_session_sees_pictures_that_others_have_sent(person: Person):
    workspace = person.make("/roost/v1/workspaces", name="shared pictures")
    rights = {"everyone": True, "access": "read"}
    permissions = f"/roost/v1/workspaces/{workspace}/permissions"
    person.client.post(permissions, body=rights, cast_to=object)
    session = person.client.beta.sessions.create(
        title="Shared", **person.make_parts(), extra_body={"workspace": workspace}
    )
    file = person.client.beta.files.upload(file=("own.png", PIXEL, "image/png"))
    source: Any = {"type": "file", "file_id": file.id}
    content: Any = [{"type": "text", "text": "See?"}, {"type": "image", "source": source}]
    person.client.beta.sessions.events.send(
        session.id, events=[{"type": "user.message", "content": content}]
    )
    fields = {"name": "viewer", "role": "user", "sees": "own"}
    viewer: Any = person.client.post("/roost/v1/keys", body=fields, cast_to=object)
    person.log_in(viewer["secret"])
    person.page.goto(f"{person.server.url}/sessions/{session.id}")
    is_drawn(person.log.locator(".said-user").get_by_role("img"))
    address = f"{person.server.url}/v1/files/{file.id}/content"
    response = person.page.request.get(address, headers={"anthropic-version": "2023-06-01"})
    assert response.status == 404  # the file itself stays its owner's


def test_a_picture_of_the_workspace_is_shown_in_an_answer_and_no_other_is_fetched(person: Person):
    person.log_in()
    person.enter_session("Plots")
    write = f"mkdir out; echo {base64.b64encode(PIXEL).decode()} | base64 -d > out/plot.png"
    answer = (
        "![a plot](out/plot.png) ![again](/workspace/out/plot.png) ![gone](nowhere.png) "
        "![far](https://example.org/x.png)"
    )
    asked: list[str] = []
    person.page.on("request", lambda request: asked.append(request.url))
    person.say(script(bash(write), {"text": answer}))
    is_drawn(person.log.get_by_role("img", name="a plot"))
    is_drawn(person.log.get_by_role("img", name="again"))
    expect(person.log).to_contain_text("[image: gone]")
    expect(person.log).to_contain_text("[image: far]")
    assert not any("example.org" in address for address in asked)
    person.complaints.clear()  # the browser notes that one is not there


def test_the_whole_of_an_output_that_was_too_long_can_be_read(person: Person):
    person.log_in()
    person.enter_session("Long output")
    person.say(script(bash("seq 1 30000"), {"text": "Counted."}))
    person.hears("Counted.")
    call = person.log.locator(".call")
    call.get_by_role("button", name="seq 1 30000").click()
    expect(call).not_to_contain_text("29999")
    call.get_by_role("button", name="Show the full output").click()
    expect(call).to_contain_text("29999")
    with person.page.expect_download() as download:
        call.get_by_role("link", name="Download the full output").click()
    assert Path(download.value.path()).read_text().split() == [str(n) for n in range(1, 30_001)]
    assert violations(person) == []


def test_a_long_session_opens_at_its_end_and_shows_what_was_before_on_the_way_up(person: Person):
    person.log_in()
    parts = person.make_parts()
    session = person.client.beta.sessions.create(
        title="Long", **parts, extra_body={"harness": "scripted"}
    )
    for n in range(60):
        said: Any = [{"type": "text", "text": f"Message {n}, and no other."}]
        person.client.beta.sessions.events.send(
            session.id, events=[{"type": "user.message", "content": said}]
        )
        while person.client.beta.sessions.retrieve(session.id).status != "idle":
            person.page.wait_for_timeout(20)
    person.page.goto(f"{person.server.url}/sessions/{session.id}")
    mine = person.log.locator(".said-user")
    expect(mine.last).to_have_text("Message 59, and no other.")
    at_the_end(person)
    assert mine.count() < 60  # the beginning is not asked for until somebody looks
    seen = mine.first
    words = seen.inner_text()
    seen.evaluate("it => it.scrollIntoView()")
    person.log.evaluate("box => box.scrollBy(0, -40)")
    expect(mine).to_have_count(60)
    same = person.log.get_by_text(words, exact=True)
    expect(same).to_be_in_viewport()  # what was read stays where it was
    expect(mine.first).to_have_text("Message 0, and no other.")
    person.page.get_by_role("tab", name="Timeline").click()
    expect(person.page.get_by_role("region", name="Turn 60", exact=True)).to_be_attached()
    expect(person.page.get_by_role("region", name="Turn 1", exact=True)).to_be_attached()
