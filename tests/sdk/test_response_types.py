"""What the server answers, against the types of every SDK that is supported: older ones have fewer nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import ApiServer, api_server, message
from tests.sdk.types_of_sdks import EVENT, PYTHONS, Answers, check_types

REFRESH = {
    "client_id": "c",
    "refresh_token": "r",
    "token_endpoint": "https://a.example",
    "token_endpoint_auth": {"type": "none"},
}
VARIABLE = {"type": "environment_variable", "secret_value": "v"}
AUTHS: list[dict[str, Any]] = [
    {"type": "static_bearer", "mcp_server_url": "https://a.example", "token": "t"},
    {"type": "mcp_oauth", "mcp_server_url": "https://b.example", "access_token": "t"},
    {
        "type": "mcp_oauth",
        "mcp_server_url": "https://c.example",
        "access_token": "t",
        "refresh": REFRESH,
    },
    {**VARIABLE, "secret_name": "A", "networking": {"type": "unrestricted"}},
    {**VARIABLE, "secret_name": "B", "networking": {"type": "limited", "allowed_hosts": []}},
]


async def answers(roost: ApiServer) -> Answers:
    """One of each thing, with as little given as can be: what is not given is where nulls are."""
    agent, place = await roost.agent(), await roost.environment()
    session = await roost.session(agent=agent["id"], environment_id=place["id"])
    at = f"/v1/sessions/{session['id']}"
    await roost.say(session, "hello")
    await roost.rest(session)
    file = await roost.post("/v1/files", files={"file": ("a.txt", b"1")})
    described = await roost.environment(name="other", description=None)
    cleared = await roost.post(f"/v1/environments/{place['id']}", {"description": None})
    found: list[tuple[tuple[str, ...], Any]] = [
        (("BetaManagedAgentsAgent",), agent),
        (("BetaManagedAgentsSession",), await roost.get(at)),
        (("BetaFileMetadata", "FileMetadata"), file),
    ]
    found += [(("BetaEnvironment",), each) for each in (place, described, cleared)]
    vault = await roost.post("/v1/vaults", {"display_name": "v"})
    found.append((("BetaManagedAgentsVault",), vault))
    for auth in AUTHS:
        made = await roost.post(f"/v1/vaults/{vault['id']}/credentials", {"auth": auth})
        found.append((("vaults.BetaManagedAgentsCredential",), made))
    gone = (await roost.client.delete(f"/v1/vaults/{vault['id']}")).json()
    found.append((("BetaManagedAgentsDeletedVault",), gone))
    plain = {"name": "d", "agent": agent["id"], "environment_id": place["id"]}
    plain["initial_events"] = [message("go")]
    schedule = {"type": "cron", "expression": "0 9 * * *", "timezone": "UTC"}
    for params in (plain, {**plain, "schedule": schedule}):
        deployment = await roost.post("/v1/deployments", params)
        found.append((("BetaManagedAgentsDeployment",), deployment))
    run = await roost.post(f"/v1/deployments/{deployment['id']}/run")
    found.append((("BetaManagedAgentsDeploymentRun",), run))
    threads = (await roost.get(f"{at}/threads"))["data"]
    found += [(("sessions.BetaManagedAgentsSessionThread",), each) for each in threads]
    events = (await roost.get(f"{at}/events"))["data"]
    return found + [(EVENT, each) for each in events]


@pytest.mark.parametrize("version", PYTHONS)
async def test_what_is_answered_is_what_the_types_of_each_sdk_say(tmp_path: Path, version: str):
    async with api_server(tmp_path) as roost:
        found = await answers(roost)
    check_types(version, found)
