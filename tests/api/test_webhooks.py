"""`/roost/v1/webhooks` as clients see it. What is sent is in `tests/core/test_webhooks.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import ApiServer, api_server, error_of

from roost.domain.webhook import Attempt

AT = "/roost/v1/webhooks"
URL = "https://hooks.example/in"


async def created(roost: ApiServer, **fields: Any) -> Any:
    return await roost.post(AT, {"url": URL, **fields})


async def test_an_endpoint_is_made_shown_changed_and_removed_and_its_secret_shown_once(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        made = await created(roost, name="ci", enabled_events=["session.idled", "agent.created"])
        secret = made.pop("signing_secret")
        assert secret.startswith("whsec_")
        assert made["enabled_events"] == ["agent.created", "session.idled"]
        assert (made["state"], made["disabled_reason"]) == ("enabled", "")
        assert await roost.get(f"{AT}/{made['id']}") == made
        assert (await roost.get(AT))["data"] == [made]
        changed = await roost.post(f"{AT}/{made['id']}", {"name": "ci 2", "state": "disabled"})
        assert (changed["name"], changed["state"], changed["url"]) == ("ci 2", "disabled", URL)
        other = await roost.post(f"{AT}/{made['id']}/regenerate_signing_secret", {})
        assert other["signing_secret"] not in (secret, None)
        answer = await roost.client.delete(f"{AT}/{made['id']}")
        assert answer.json() == {"id": made["id"], "type": "webhook_deleted"}
        error_of(await roost.client.get(f"{AT}/{made['id']}"), 404)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "ftp://hooks.example"}, "url"),
        ({"url": "http://hooks.example"}, "https only"),
        ({"url": "https://user:pass@hooks.example"}, "url"),
        ({"url": "https://hooks.example/#x"}, "fragment"),
        ({"url": "https://2130706433/"}, "url"),
        ({"url": "https://hooks.example/" + "x" * 3000}, "url"),
        ({"enabled_events": []}, "one type"),
        ({"enabled_events": ["session.idled", "memory_store.created"]}, "enabled_events.1"),
        ({"secret": "whsec_mine"}, "secret"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_field(
    tmp_path: Path, fields: dict[str, Any], said: str
):
    async with api_server(tmp_path) as roost:
        error = error_of(await roost.client.post(AT, json={"url": URL, **fields}), 400)
        assert said in error["message"]
        made = await created(roost)
        error_of(await roost.client.post(f"{AT}/{made['id']}", json=fields), 400)


async def test_webhooks_are_for_keys_that_see_their_whole_tenant(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await created(roost)
        async with await roost.user(sees="own") as user:
            for path in (AT, f"{AT}/{made['id']}", f"{AT}/{made['id']}/deliveries"):
                error_of(await user.get(path), 403)
            error_of(await user.post(AT, json={"url": URL}), 403)
            error_of(await user.post(f"{AT}/{made['id']}", json={"name": "x"}), 403)
            error_of(await user.post(f"{AT}/{made['id']}/replay", json={}), 403)
            error_of(await user.delete(f"{AT}/{made['id']}"), 403)
        async with await roost.user(sees="tenant") as user:
            assert (await user.get(f"{AT}/{made['id']}")).status_code == 200
        async with await roost.user(tenant="tenant_2", role="admin") as stranger:
            assert (await stranger.get(AT)).json()["data"] == []
            error_of(await stranger.get(f"{AT}/{made['id']}"), 404)


async def test_deliveries_are_listed_in_pages_and_sent_again(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await created(roost, enabled_events=["agent.created"])
        agents = [(await roost.agent(name=f"agent {i}"))["id"] for i in range(3)]
        at = f"{AT}/{made['id']}/deliveries"
        first = await roost.get(at, limit=2)
        second = await roost.get(at, limit=2, page=first["next_page"])
        told = [*first["data"], *second["data"]]
        assert [each["subject_id"] for each in told] == list(reversed(agents))
        assert second["next_page"] is None
        assert {each["state"] for each in told} == {"pending"}
        rows = roost.store.webhooks
        for claimed in await rows.claim(3, 60):
            await rows.ended(claimed, Attempt(status=500, note="no"), None, 10**9)
        failed = (await roost.get(at, state="failed"))["data"]
        assert [each["error"] for each in failed] == ["no"] * 3
        one = failed[0]
        again = await roost.post(f"{at}/{one['id']}/replay", {})
        assert (again["state"], again["id"]) == ("pending", one["id"])
        since = failed[1]["created_at"]
        assert (await roost.post(f"{AT}/{made['id']}/replay", {"since": since}))["replayed"] == 1
        assert (await roost.post(f"{AT}/{made['id']}/replay", {}))["replayed"] == 1
        await roost.post(f"{AT}/{made['id']}", {"state": "disabled"})
        error_of(await roost.client.post(f"{AT}/{made['id']}/replay", json={}), 409)
        error_of(await roost.client.get(f"{at}/whe_none"), 404)
        error_of(await roost.client.get(at, params={"page": "x"}), 400)


async def test_secrets_of_webhooks_are_sealed_anew_with_another_master_key(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await created(roost)
        before = (await roost.store.webhooks.all("tenant_1"))[0].sealed
        assert made["signing_secret"] not in before
        counts = (await roost.get("/roost/v1/master_key"))["sealed_with"]
        assert list(counts.values()) == [1]
