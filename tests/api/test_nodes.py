"""`/roost/v1/nodes` over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.api.api_server import api_server, error_of

from roost.ports.nodes import About


async def test_an_administrator_sees_the_nodes_and_marks_one(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        for id, name in (("node_1", "red"), ("node_2", "blue")):
            await roost.store.log.renew(id, 30)
            await roost.store.nodes.tell(id, About(name=name, version="1.0", sessions=3, most=64))
        here, other = (await roost.get("/roost/v1/nodes"))["data"]
        assert (here["here"], other["here"]) == (True, False)
        assert (other["name"], other["version"], other["sessions"]) == ("blue", "1.0", 3)
        assert (other["state"], other["draining_since"]) == ("up", None)
        assert 0 < other["lease_seconds_left"] <= 30
        marked = await roost.post("/roost/v1/nodes/blue/drain")
        assert marked["state"] == "draining"
        assert marked["draining_since"]
        assert (await roost.post("/roost/v1/nodes/node_2/resume"))["state"] == "up"


async def test_nodes_are_for_administrators_and_a_node_must_be_there(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        await roost.store.log.renew("node_1", 30)
        error = error_of(await roost.client.post("/roost/v1/nodes/green/drain", json={}), 404)
        assert "green" in error["message"]
        async with await roost.user() as user:
            error_of(await user.get("/roost/v1/nodes"), 403)
            for verb in ("drain", "resume"):
                error_of(await user.post(f"/roost/v1/nodes/node_1/{verb}", json={}), 403)
        assert (await roost.get("/roost/v1/nodes"))["data"][0]["state"] == "up"
