"""Deployments in the browser app: made, run, paused, changed, archived, and why something did not run."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Route, expect
from tests.parts import need
from tests.web.person import Person
from tests.web.test_pages import AXE, violations

CRON: Any = {"type": "cron", "expression": "0 9 * * 1-5", "timezone": "Asia/Tokyo"}
EVENTS: list[Any] = [{"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}]


def run(n: int, state: str, **more: Any) -> dict[str, Any]:
    """A run as the server shows it."""
    at = f"2026-03-0{n}T00:00:00Z"
    return {
        "id": f"drun_{n}",
        "trigger_context": {"type": "schedule", "scheduled_at": at},
        "state": state,
        "session_id": None,
        "error": None,
        "skipped": None,
        "created_at": at,
        **more,
    }


def live_in_utc(person: Person) -> None:
    """Whatever the zone of this machine is."""
    session = person.page.context.new_cdp_session(person.page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})


def skipped(reason: str, count: int = 1) -> dict[str, Any]:
    return {"reason": reason, "count": count, "since": "2026-02-01T00:00:00Z"}


KEPT = [
    run(7, "open"),
    run(6, "queued"),
    run(5, "skipped", skipped=skipped("missed", 12)),
    run(4, "skipped", skipped=skipped("overlap")),
    run(3, "skipped", skipped=skipped("queue_full")),
    run(2, "skipped", skipped=skipped("replaced")),
    run(
        1,
        "failed",
        error={"type": "environment_archived_error", "message": "environment env_1 is archived"},
    ),
]


def test_a_deployment_is_made_run_paused_changed_and_archived(person: Person):
    person.make_parts()
    live_in_utc(person)
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/deployments")
    expect(page.get_by_text("No deployments yet.")).to_be_visible()
    page.get_by_role("button", name="New deployment").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly")
    dialog.get_by_label("What to do").fill("Hello")
    dialog.get_by_label("Run on a schedule").check()
    dialog.get_by_label("Cron expression").fill("@daily")
    expect(dialog.get_by_text("This is no cron expression yet.")).to_be_visible()
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_label("Cron expression")).to_be_focused()
    person.complaints.clear()  # the browser notes each 400
    dialog.get_by_label("Cron expression").fill("0 9 * * 1-5")
    expect(dialog.get_by_text("At 09:00 from Monday to Friday")).to_be_visible()
    dialog.get_by_role("combobox", name="Time zone").fill("Asia/Tok")
    page.get_by_role("option", name="Asia/Tokyo").click()
    dialog.get_by_role("combobox", name="If the last run still works").click()
    page.get_by_role("option", name="Skip the new run").click()
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()
    expect(page.get_by_text("At 09:00 from Monday to Friday, Asia/Tokyo")).to_be_visible()
    planned = page.get_by_role("region", name="Next").get_by_role("listitem")
    expect(planned).to_have_count(5)
    expect(planned.first).to_contain_text("09:00")
    expect(planned.first).to_contain_text("where you are)")
    ran = page.get_by_role("region", name="Runs")
    expect(ran.get_by_text("It has not run yet.")).to_be_visible()
    page.get_by_role("button", name="Run now").click()
    expect(ran.get_by_text("by hand")).to_be_visible()
    expect(ran.get_by_text("Done")).to_be_visible()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text("It is paused: nothing starts at these times.")).to_be_visible()
    expect(planned.get_by_text("Paused")).to_have_count(5)
    page.get_by_role("button", name="Unpause").click()
    expect(planned.get_by_text("Planned")).to_have_count(5)
    page.get_by_role("button", name="Edit").click()
    expect(dialog.get_by_label("What to do")).to_have_value("Hello")
    dialog.get_by_label("Name").fill("by hand")
    dialog.get_by_label("Run on a schedule").uncheck()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="by hand")).to_be_visible()
    expect(page.get_by_text("by hand only")).to_be_visible()
    expect(page.get_by_role("region", name="Next")).to_have_count(0)
    ran.get_by_role("link", name="See its session").click()
    person.hears("I have seen 1 user message")
    page.goto(f"{person.server.url}/deployments")
    page.get_by_role("button", name="Archive", exact=True).click()
    page.get_by_role("button", name="Archive the deployment").click()
    expect(page.get_by_text("No deployments yet.")).to_be_visible()
    page.get_by_label("Archived").check()
    page.get_by_role("link", name="by hand").click()
    expect(page.get_by_role("heading", name="by hand")).to_be_visible()
    expect(page.get_by_text("Archived", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Run now")).to_have_count(0)


@pytest.mark.parametrize("width", [360])
def test_why_something_did_not_run_is_said_with_what_to_do(person: Person):
    need("axe-core", AXE.exists(), "make setup")
    parts = person.make_parts()
    deployments = person.client.beta.deployments
    made = deployments.create(name="nightly", initial_events=EVENTS, schedule=CRON, **parts)
    person.client.beta.environments.archive(parts["environment_id"])
    failed = deployments.run(made.id)
    assert failed.error is not None
    live_in_utc(person)
    person.log_in()
    page = person.page
    page.goto(f"{person.server.url}/deployments/{made.id}")
    ran = page.get_by_role("region", name="Runs")
    expect(ran.get_by_text("Choose another environment under Edit.")).to_be_visible()

    def kept(route: Route) -> None:
        route.fulfill(json={"data": KEPT, "next_page": None})

    page.route("**/roost/v1/deployments/*/runs*", kept)
    page.reload()
    for said in (
        "No server ran at that time, and such times are not made up for. It stands for 12",
        "The last run still worked, and then the new one is skipped.",
        "The last run still worked, and another one waited already: only one can.",
        "While it waited for the last run, a later one replaced it.",
        "Environment env_1 is archived. Choose another environment under Edit.",
        "Waits for the last run",
        "Saturday 7 March 2026",
    ):
        expect(ran.get_by_text(said)).to_be_visible()
    expect(ran.get_by_role("listitem").first).to_contain_text("09:00 (00:00 where you are)")
    assert violations(person) == []
