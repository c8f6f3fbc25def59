"""A session's trust level over HTTP: who may ask for it, and that nothing changes it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.api.api_server import ApiServer, api_server, error_of, message, messages

EVERY = "sandboxed,vault,full"


async def reference(roost: ApiServer, **environment: Any) -> dict[str, str]:
    """An agent and an environment, for a session to be made of."""
    agent, place = await roost.agent(), await roost.environment(**environment)
    return {"agent": agent["id"], "environment_id": place["id"]}


async def test_a_key_asks_for_no_more_trust_than_it_has(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        body = await reference(roost)
        for ceiling, asked, status in (
            ("sandboxed", "sandboxed", 200),
            ("sandboxed", "vault", 403),
            ("vault", "vault", 200),
            ("vault", "full", 403),
            ("full", "full", 200),
        ):
            client = await roost.user(trust_ceiling=ceiling)
            response = await client.post("/v1/sessions", json={**body, "trust_level": asked})
            assert response.status_code == status
            if status == 403:
                assert error_of(response, 403)["type"] == "permission_error"


@pytest.mark.parametrize("field", ["trust_level", "sandbox_fallback"])
async def test_out_of_the_box_a_server_offers_sandboxed_alone(tmp_path: Path, field: str):
    async with api_server(tmp_path) as roost:
        body = await reference(roost)
        for level in ("vault", "full"):
            response = await roost.client.post("/v1/sessions", json={**body, field: level})
            error = error_of(response, 400)
            assert error["message"] == f"{field}: this server does not offer '{level}'"
            assert "ROOST_TRUST_LEVELS" in error["details"]["hint"]
        assert (await roost.get("/v1/sessions"))["data"] == []


async def test_an_environment_has_the_level_of_sessions_that_name_none(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        vault = await reference(roost, metadata={"roost.trust_level": "vault"})
        assert (await roost.post("/v1/sessions", vault))["trust_level"] == "vault"
        for level in ("sandboxed", "full"):
            made = await roost.post("/v1/sessions", {**vault, "trust_level": level})
            assert made["trust_level"] == level
        low = await roost.user(trust_ceiling="sandboxed")
        assert "at most" in error_of(await low.post("/v1/sessions", json=vault), 403)["message"]
        path = f"/v1/environments/{vault['environment_id']}"
        await roost.post(path, {"metadata": {"roost.trust_level": ""}})
        assert (await roost.post("/v1/sessions", vault))["trust_level"] == "sandboxed"


async def test_an_environment_gives_no_more_trust_than_whoever_writes_it_has(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        low = await roost.user(trust_ceiling="vault", sees="tenant")
        place = await roost.environment()
        for key in ("roost.trust_level", "roost.sandbox_fallback"):
            asked = {"metadata": {key: "full"}}
            for path, body in (
                ("/v1/environments", {"name": "mine", **asked}),
                (f"/v1/environments/{place['id']}", asked),
            ):
                assert key in error_of(await low.post(path, json=body), 403)["message"]
        fine = {"name": "mine", "metadata": {"roost.trust_level": "vault"}}
        assert (await low.post("/v1/environments", json=fine)).status_code == 200


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"roost.trust_level": "root"}, "metadata.roost.trust_level: Input should be 'full' or"),
        ({"roost.colour": "red"}, "metadata.roost.colour: unknown"),
    ],
)
async def test_what_an_environment_cannot_give_is_named(
    tmp_path: Path, metadata: dict[str, str], message: str
):
    async with api_server(tmp_path) as roost:
        body = {"name": "odd", "metadata": metadata}
        response = await roost.client.post("/v1/environments", json=body)
        assert message in error_of(response, 400)["message"]


async def test_follow_ups_never_change_the_trust_level(tmp_path: Path):
    """A message that carries none, the same, another one; an update; another session's metadata."""
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        session = await roost.session(trust_level="sandboxed", metadata={"a": "1"})
        path = f"/v1/sessions/{session['id']}"
        await roost.say(session, "a follow-up that carries no trust level")
        for body in (
            {**messages("and one that does"), "trust_level": "full"},
            messages("or in the event", trust_level="full"),
        ):
            response = await roost.client.post(f"{path}/events", json=body)
            assert "trust_level" in error_of(response, 400)["message"]
        for body in ({"trust_level": "full"}, {"metadata": {"roost.trust_level": "full"}}):
            response = await roost.client.post(path, json=body)
            assert "trust_level" in error_of(response, 400)["message"]
        changed = await roost.post(path, {"metadata": {"b": "2"}})
        assert changed["metadata"] == {"a": "1", "b": "2"}
        assert (await roost.get(path))["trust_level"] == "sandboxed"
        said = [e for e in (await roost.get(f"{path}/events"))["data"] if "content" in e]
        assert len(said) == 1


async def test_an_unknown_session_is_not_found_and_none_is_made(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        for body in (messages("Hello?"), {**messages("Hello?")}):
            response = await roost.client.post("/v1/sessions/sesn_unknown/events", json=body)
            assert error_of(response, 404)["message"] == "session sesn_unknown was not found"
        for path in ("/v1/sessions/sesn_unknown", "/v1/sessions/sesn_unknown/events"):
            error_of(await roost.client.get(path), 404)
        assert (await roost.get("/v1/sessions", include_archived="true"))["data"] == []


async def test_the_trust_level_is_on_every_session_and_in_what_it_says(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        session = await roost.session(trust_level="vault", initial_events=[message("Hello")])
        await roost.rest(session)
        assert [s["trust_level"] for s in (await roost.get("/v1/sessions"))["data"]] == ["vault"]
        events = (await roost.get(f"/v1/sessions/{session['id']}/events"))["data"]
        said = {e["type"]: e["trust_level"] for e in events if "trust_level" in e}
        assert said == {"session.status_running": "vault", "session.status_idle": "vault"}


async def tell(client: httpx2.AsyncClient, session: Any) -> list[httpx2.Response]:
    path = f"/v1/sessions/{session['id']}"
    return [
        await client.post(f"{path}/events", json=messages("rm -r /")),
        await client.post(path, json={"agent": {"tools": []}}),
    ]


async def test_a_key_tells_no_session_what_to_do_that_has_more_trust_than_the_key(tmp_path: Path):
    async with api_server(tmp_path, trust_levels=EVERY) as roost:
        session = await roost.session(trust_level="full")
        low = await roost.user(trust_ceiling="vault", sees="tenant")
        for response in await tell(low, session):
            assert "trust level is 'full'" in error_of(response, 403)["message"]
        assert (await low.get(f"/v1/sessions/{session['id']}")).status_code == 200
        high = await roost.user(trust_ceiling="full", sees="tenant")
        assert (await tell(high, session))[0].status_code == 200
