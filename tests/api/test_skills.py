"""Skills over HTTP."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import beta
from anthropic.types.beta import skills as skills_types
from tests.api.api_server import (
    TENANT,
    ApiServer,
    api_server,
    client_of,
    error_of,
    official,
    skill_files,
)
from tests.api.dying import HOUR, Killed, Later, Writes, notes

from roost.core.records.skills import Skills
from roost.domain.skill import Bundle, SkillFile
from roost.errors import Unavailable
from roost.ports.keys import Key

KEY = Key(id="key_1", tenant=TENANT, name="", role="admin", digest=b"", hint="", created_at=0)


def kept_in(tmp_path: Path) -> set[str]:
    """The versions whose files are in the store."""
    return {path.name for path in (tmp_path / "blobs").glob("skills/*")}


async def test_a_skill_is_made_listed_and_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        first, second = await roost.skill("one"), await roost.skill("two")
        official(beta.BetaSkill, first)
        assert first["display_name"] == "one"
        assert await roost.get(f"/v1/skills/{first['id']}") == first
        page = await roost.get("/v1/skills", limit=1)
        assert page["data"] == [second]
        assert (await roost.get("/v1/skills", page=page["next_page"]))["data"] == [first]
        assert (await roost.get("/v1/skills", source="anthropic"))["data"] == []
        gone = (await roost.client.delete(f"/v1/skills/{first['id']}")).json()
        assert gone == {"id": first["id"], "type": "skill_deleted"}
        error_of(await roost.client.get(f"/v1/skills/{first['id']}"), 404)
        assert kept_in(tmp_path) == {second["latest_version_id"]}


async def test_a_skill_has_versions_and_latest_is_the_newest(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        skill = await roost.skill(run=b"#!/bin/sh")
        path = f"/v1/skills/{skill['id']}/versions"
        newer = await roost.post(path, files=skill_files("greeting", "Greets better."))
        official(skills_types.BetaSkillVersion, newer)
        assert (newer["name"], newer["description"]) == ("greeting", "Greets better.")
        assert (
            await roost.get(f"{path}/latest") == await roost.get(f"{path}/{newer['id']}") == newer
        )
        page = await roost.get(path, limit=1)
        assert page["data"] == [newer]
        (older,) = (await roost.get(path, limit=1, page=page["next_page"]))["data"]
        assert older["id"] == skill["latest_version_id"]

        archive = await roost.client.get(f"{path}/{older['id']}/content")
        assert archive.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(BytesIO(archive.content)) as opened:
            assert opened.namelist() == ["greeting/SKILL.md", "greeting/run"]

        other = await roost.client.post(path, files=skill_files("another"))
        assert "the skill is 'greeting'" in error_of(other, 400)["message"]
        gone = (await roost.client.delete(f"{path}/{newer['id']}")).json()
        assert gone == {"id": newer["id"], "type": "skill_version_deleted"}
        assert (await roost.get(f"/v1/skills/{skill['id']}"))["latest_version_id"] == older["id"]
        error_of(await roost.client.get(f"{path}/{newer['id']}"), 404)
        await roost.client.delete(f"{path}/{older['id']}")
        empty = await roost.get(f"/v1/skills/{skill['id']}")
        official(beta.BetaSkill, empty)
        assert empty["latest_version_id"] == ""
        assert (await roost.get(path))["data"] == []
        error_of(await roost.client.get(f"{path}/latest"), 404)
        body = {"name": "a", "model": "m", "tools": [{"type": "agent_toolset_20260401"}]}
        body["skills"] = [{"type": "custom", "skill_id": skill["id"]}]
        error_of(await roost.client.post("/v1/agents", json=body), 400)
        again = (await roost.client.post(path, files=skill_files("greeting"))).json()
        assert (await roost.get(f"/v1/skills/{skill['id']}"))["latest_version_id"] == again["id"]


async def test_an_agent_keeps_the_version_it_was_saved_with(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        skill = await roost.skill()
        named = {"type": "custom", "skill_id": skill["id"], "version": "latest"}
        agent = await roost.agent(tools=[{"type": "agent_toolset_20260401"}], skills=[named])
        newer = await roost.post(
            f"/v1/skills/{skill['id']}/versions", files=skill_files("greeting", "Better.")
        )
        session = await roost.session(agent=agent["id"], harness="able")
        assert session["agent"]["skills"][0]["version"] == skill["latest_version_id"]
        overrides = {"type": "agent_with_overrides", "id": agent["id"], "skills": [named]}
        session = await roost.session(agent=overrides, harness="able")
        assert session["agent"]["skills"][0]["version"] == newer["id"]
        twice = await roost.client.post(f"/v1/agents/{agent['id']}", json={"skills": [named] * 2})
        assert "two skills are named" in error_of(twice, 400)["message"]


async def test_another_tenants_skill_does_not_exist(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        skill = await roost.skill()
        async with await roost.user("tenant_2") as stranger:
            for path in ("", "/versions", "/versions/latest", "/versions/latest/content"):
                error_of(await stranger.get(f"/v1/skills/{skill['id']}{path}"), 404)
            error_of(await stranger.delete(f"/v1/skills/{skill['id']}"), 404)
            body = {"name": "a", "model": "m", "tools": [{"type": "agent_toolset_20260401"}]}
            body["skills"] = [{"type": "custom", "skill_id": skill["id"]}]
            error_of(await stranger.post("/v1/agents", json=body), 400)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"json": {"files": []}}, "content-type"),
        ({"files": [("files[]", ("a/SKILL.md", b"x"))], "data": {"color": "red"}}, "color"),
        ({"files": [("other", ("a/SKILL.md", b"x"))]}, "other"),
        ({"files": skill_files("a"), "data": {"display_name": "two\nlines"}}, "display_name"),
        ({"files": [("files[]", ("a/../x", b"x"))]}, "not a path"),
        (
            {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data"}},
            "cannot be read",
        ),
        (
            {"content": b"--x--", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            "files",
        ),
    ],
)
async def test_a_form_that_is_no_skill_is_refused(
    tmp_path: Path, request_: dict[str, Any], problem: str
):
    async with api_server(tmp_path) as roost:
        error = error_of(await roost.client.post("/v1/skills", **request_), 400)
        assert problem in error["message"]
        assert kept_in(tmp_path) == set()


async def test_skills_need_no_beta_and_the_old_one_is_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        _, secret = await roost.keyring.create(tenant="tenant_1", name="plain")
        async with client_of(roost.app, secret) as client:
            del client.headers["anthropic-beta"]
            assert (await client.get("/v1/skills")).status_code == 200
            client.headers["anthropic-beta"] = "skills-2025-10-02"
            assert "skills-2025-10-02" in error_of(await client.get("/v1/skills"), 400)["message"]


async def a_whole_life(skills: Skills) -> None:
    """Of a skill: made, with a second version, which is deleted, and deleted."""
    bundle = Bundle("greeting", "Greets.", [SkillFile("SKILL.md", b"Say hello.")])
    skill = await skills.create(KEY, bundle, None)
    _, version = await skills.add_version(KEY, skill.id, bundle)
    await skills.delete_version(KEY, skill.id, version["id"])
    await skills.delete(KEY, skill.id)


async def test_wherever_a_server_dies_no_version_lacks_its_files_and_no_files_stay_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Dies at each write in turn; hours later, what is listed can be read, and nothing else is kept."""
    async with api_server(tmp_path) as roost:
        died = 0
        while True:
            with monkeypatch.context() as patch:
                writes = Writes(patch, died + 1)
                writes.count(roost.deps.services[Skills]._files, "keep", "drop")
                writes.count(roost.store.catalog, "add", "change", "archive", "delete")
                try:
                    await a_whole_life(roost.deps.services[Skills])
                except Killed:
                    died += 1
                else:
                    break
            await Later(roost, HOUR // 2).janitor.look()
            await whole(roost)
            await Later(roost, 2 * HOUR).janitor.look()
            kept = await whole(roost)
            assert kept_in(tmp_path) == kept, died
            assert await notes(roost) == 0, died
        assert died == 19


async def whole(roost: ApiServer) -> set[str]:
    """The ids of all versions that are listed, each of which has its files."""
    found: set[str] = set()
    for skill in (await roost.get("/v1/skills", limit=100))["data"]:
        path = f"/v1/skills/{skill['id']}/versions"
        for version in (await roost.get(path))["data"]:
            content = await roost.client.get(f"{path}/{version['id']}/content")
            assert content.status_code == 200, content.text
            found.add(version["id"])
    return found


async def test_an_upload_that_is_given_up_meanwhile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with api_server(tmp_path) as roost:
        real = roost.store.catalog.add

        async def slowly(kind: str, *args: Any, **more: Any) -> Any:
            if kind == "skill":
                await Later(roost, 2 * HOUR).janitor.look()
            return await real(kind, *args, **more)

        monkeypatch.setattr(roost.store.catalog, "add", slowly)
        with pytest.raises(Unavailable):
            await a_whole_life(roost.deps.services[Skills])
        assert (await whole(roost), kept_in(tmp_path)) == (set(), set())
        assert await notes(roost) == 0
