"""Sessions' resources over HTTP; what is in a sandbox of them is in `tests/journeys/test_resources.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic.types import beta
from anthropic.types.beta import sessions as sessions_types
from tests.api.api_server import TENANT, ApiServer, api_server, error_of, official
from tests.api.test_files import notes, objects, sent
from tests.stores import holds

from roost.core.files.resources import Resources
from roost.domain.session import Spec
from roost.errors import CannotUnseal, InvalidRequest
from roost.ports.catalog import RecordQuery
from roost.stores.seal import MasterKeys

TOKEN = "ghp_0123456789abcdef0123456789"
REPOSITORY = {"type": "github_repository", "url": "https://github.com/a/b"}


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of these tests have no sandboxes: nothing works on them."""
    monkeypatch.setattr(Resources, "check", lambda *given: None)


def under(session: Any) -> str:
    return f"/v1/sessions/{session['id']}/resources"


async def secrets(roost: ApiServer, session: Any) -> list[dict[str, Any]]:
    query = RecordQuery(kind="secret", tenant=TENANT, name=session["id"], limit=9)
    return [record.body for record in await roost.store.catalog.page(query)]


def is_written(folder: Path, text: str) -> bool:
    """Whether any file has it, or the database."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return holds(folder, text) or any(text.encode() in path.read_bytes() for path in files)


async def token_of(roost: ApiServer, session: Any) -> str | None:
    """What is put on outside."""
    found = await roost.store.sessions.get(TENANT, session["id"])
    (origin,) = await roost.deps.services[Resources].origins(found)
    return None if origin.credential is None else await origin.credential.secret()


async def test_a_file_is_copied_into_a_session_and_shown_there(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        original = await sent(roost, data=b"one")
        given = {"type": "file", "file_id": original["id"]}
        session = await roost.session(resources=[given, {**given, "mount_path": "/in/data.csv"}])
        official(beta.BetaManagedAgentsSession, session)
        one, two = session["resources"]
        assert one["mount_path"] == f"/mnt/session/uploads/{original['id']}"
        assert two["mount_path"] == "/mnt/session/uploads/in/data.csv"
        assert len({one["file_id"], two["file_id"], original["id"]}) == 3
        assert (await roost.get(under(session)))["data"] == sorted(
            [one, two], key=lambda r: r["id"]
        )
        assert await roost.get(f"{under(session)}/{one['id']}") == one
        page = await roost.get(under(session), limit=1)
        rest = await roost.get(under(session), limit=1, page=page["next_page"])
        assert [*page["data"], *rest["data"]] == sorted([one, two], key=lambda r: r["id"])

        more = await sent(roost, data=b"more")
        added = await roost.post(
            under(session), {"type": "file", "file_id": more["id"], "mount_path": "more"}
        )
        official(sessions_types.BetaManagedAgentsFileResource, added)
        uploads = tmp_path / "session-files" / session["id"] / "uploads"
        assert {path.name: path.read_bytes() for path in uploads.rglob("*") if path.is_file()} == {
            original["id"]: b"one",
            "data.csv": b"one",
            "more": b"more",
        }
        gone = await roost.client.delete(f"{under(session)}/{two['id']}")
        official(sessions_types.BetaManagedAgentsDeleteSessionResource, gone.json())
        assert sorted(path.name for path in uploads.iterdir()) == sorted([original["id"], "more"])
        error_of(await roost.client.delete(f"{under(session)}/{two['id']}"), 404)
        shown = await roost.get("/v1/files", scope_id=session["id"])
        assert {each["id"] for each in shown["data"]} == {one["file_id"], added["file_id"]}

        await roost.client.delete(f"/v1/sessions/{session['id']}")
        assert set(objects(tmp_path)) == {original["id"], more["id"]}
        assert (await notes(roost), uploads.exists()) == (0, False)


async def test_a_token_is_taken_and_never_given_back(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        checkout = {"type": "branch", "name": "main"}
        session = await roost.session(
            resources=[{**REPOSITORY, "authorization_token": TOKEN, "checkout": checkout}]
        )
        (shown,) = session["resources"]
        assert (shown["mount_path"], shown["checkout"]) == ("/workspace/b", checkout)
        path = f"{under(session)}/{shown['id']}"
        newer = await roost.post(path, {"authorization_token": f"{TOKEN}-new"})
        assert newer["updated_at"] >= shown["updated_at"]
        (kept,) = await secrets(roost, session)
        assert kept.keys() == {"name", "resource", "sealed"}
        events = await roost.get(f"/v1/sessions/{session['id']}/events")
        everything = str([session, newer, events, await roost.get(under(session))])
        assert TOKEN not in everything
        assert await token_of(roost, session) == f"{TOKEN}-new"
        assert is_written(tmp_path, kept["sealed"])
        assert not is_written(tmp_path, TOKEN)
        error_of(await roost.client.delete(path), 400)
        await roost.client.delete(f"/v1/sessions/{session['id']}")
        assert await secrets(roost, session) == []


async def test_a_token_from_before_they_were_sealed_works_and_is_sealed_when_it_is_replaced(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        session = await roost.session(resources=[REPOSITORY])
        (shown,) = session["resources"]
        assert await token_of(roost, session) is None
        plain = {"name": session["id"], "resource": shown["id"], "token": TOKEN}
        await roost.store.catalog.add("secret", TENANT, "secret_1", plain, unique_name=False)
        assert await token_of(roost, session) == TOKEN
        await roost.post(f"{under(session)}/{shown['id']}", {"authorization_token": TOKEN})
        (kept,) = await secrets(roost, session)
        assert "token" not in kept
        assert await token_of(roost, session) == TOKEN


async def test_a_token_is_no_others_and_without_its_key_it_is_said_which_one_is_missing(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        given = {**REPOSITORY, "authorization_token": TOKEN}
        one, other = [await roost.session(resources=[given]) for _ in range(2)]
        ((mine,), (theirs,)) = [await secrets(roost, session) for session in (one, other)]
        moved = {**mine, "sealed": theirs["sealed"]}
        await roost.store.catalog.add("secret", TENANT, "secret_1", moved, unique_name=False)
        with pytest.raises(CannotUnseal, match="another record's"):
            await token_of(roost, one)
        resources = roost.deps.services[Resources]
        resources._seal = MasterKeys([bytes(32)])
        with pytest.raises(CannotUnseal, match="sealed with the master key"):
            await token_of(roost, other)
        # What cannot be opened can be replaced.
        path = f"{under(other)}/{other['resources'][0]['id']}"
        await roost.post(path, {"authorization_token": TOKEN})
        assert await token_of(roost, other) == TOKEN
        resources._seal = MasterKeys([])
        refused = error_of(await roost.client.post(path, json={"authorization_token": TOKEN}), 400)
        assert refused["details"]["error_code"] == "master_key_missing"
        body = {"agent": one["agent"]["id"], "environment_id": one["environment_id"]}
        refused = await roost.client.post("/v1/sessions", json={**body, "resources": [given]})
        error_of(refused, 400)
        assert await notes(roost) == 0


@pytest.mark.parametrize(
    ("resource", "problem"),
    [
        ({"type": "file", "file_id": "file_nowhere"}, "resources.0.file_id"),
        ({**REPOSITORY, "url": "https://github.com.evil.example/a/b"}, "not allowed"),
        ({**REPOSITORY, "url": "http://github.com/a/b"}, "not allowed"),
        ({**REPOSITORY, "url": "https://user:pass@github.com/a/b"}, "resources.0.url"),
        ({**REPOSITORY, "url": "https://github.com/a/../../b"}, "resources.0.url"),
        ({**REPOSITORY, "url": "https://github.com/a/b?x=y"}, "resources.0.url"),
        ({**REPOSITORY, "url": "https://github.com/a/b?"}, "resources.0.url"),
        ({**REPOSITORY, "url": "https://github.com:port/a/b"}, "resources.0.url"),
        (
            {**REPOSITORY, "url": "https://999.1.1.1/a/b"},
            "resources.0.url: the address has no host",
        ),
        ({**REPOSITORY, "mount_path": "/etc/b"}, "mount_path"),
        ({**REPOSITORY, "mount_path": "/workspace/../b"}, "mount_path"),
        ({**REPOSITORY, "checkout": {"type": "branch", "name": "--upload-pack=x"}}, "checkout"),
        ({**REPOSITORY, "checkout": {"type": "commit", "sha": "main"}}, "checkout"),
        ({**REPOSITORY, "authorization_token": "two\nlines"}, "authorization_token"),
        ({"type": "memory_store", "memory_store_id": "memstore_1"}, "memory stores"),
    ],
)
async def test_a_resource_that_cannot_be_is_refused_and_leaves_nothing(
    tmp_path: Path, resource: dict[str, Any], problem: str
):
    async with api_server(tmp_path) as roost:
        original = await sent(roost)
        given = [resource, {"type": "file", "file_id": original["id"]}]
        agent, place = await roost.agent(), await roost.environment()
        body = {"agent": agent["id"], "environment_id": place["id"], "resources": given}
        assert (
            problem in error_of(await roost.client.post("/v1/sessions", json=body), 400)["message"]
        )
        body["resources"] = given[::-1]
        error_of(await roost.client.post("/v1/sessions", json=body), 400)
        assert objects(tmp_path) == [original["id"]]
        assert await notes(roost) == 0


async def test_two_resources_are_not_in_one_place(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        original = await sent(roost)
        given = {"type": "file", "file_id": original["id"], "mount_path": "a"}
        session = await roost.session(resources=[given])
        for path in ("/a", "a/b"):
            body = {**given, "mount_path": path}
            assert (
                "two of them"
                in error_of(await roost.client.post(under(session), json=body), 400)["message"]
            )
        assert len(objects(tmp_path)) == 2


async def test_a_stranger_and_a_lesser_key_change_nothing(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as roost:
        original = await sent(roost)
        given = {"type": "file", "file_id": original["id"]}
        session = await roost.session(resources=[given])
        path = f"{under(session)}/{session['resources'][0]['id']}"
        async with await roost.user("tenant_2") as stranger:
            error_of(await stranger.get(under(session)), 404)
            error_of(await stranger.get(path), 404)
            error_of(await stranger.delete(path), 404)
            error_of(await stranger.post(under(session), json=given), 404)
        trusted = await roost.session(trust_level="full")
        async with await roost.user(trust_ceiling="sandboxed", sees="tenant") as lesser:
            error_of(await lesser.post(under(trusted), json=given), 403)


async def test_a_session_without_a_sandbox_is_given_no_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    async with api_server(tmp_path) as roost:
        check = roost.deps.services[Resources].check
        spec = Spec(agent={}, environment_id="env_1", sandbox="bubblewrap")
        check([REPOSITORY], spec)
        for other in (
            Spec(agent={}, environment_id="env_1"),
            Spec(agent={}, environment_id="env_1", sandbox="host", trust_level="full"),
        ):
            with pytest.raises(InvalidRequest):
                check([REPOSITORY], other)
            check([], other)
