"""A session's own directory over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.api.api_server import ApiServer, api_server, client_of, error_of


def where(session: Any) -> str:
    return f"/roost/v1/sessions/{session['id']}/files"


async def uploaded(roost: ApiServer, session: Any, files: dict[str, bytes], **fields: str) -> Any:
    parts = [("files[]", (name, data)) for name, data in files.items()]
    return await roost.post(where(session), files=parts, data=fields)


async def listed(roost: ApiServer, session: Any, **params: Any) -> Any:
    answer = await roost.client.get(where(session), params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_files_are_put_listed_read_and_removed(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        assert await roost.get(where(session)) == {
            "path": "",
            "data": [],
            "next_page": None,
            "truncated": False,
            "behind": False,
        }
        made = await uploaded(roost, session, {"a.txt": b"hello", "sub/b.bin": b"\0"}, path="docs")
        assert [entry["path"] for entry in made["data"]] == ["docs/a.txt", "docs/sub/b.bin"]
        page = await listed(roost, session, path="docs", limit=1)
        assert [(e["name"], e["kind"]) for e in page["data"]] == [("sub", "directory")]
        page = await listed(roost, session, path="docs", page=page["next_page"])
        assert page["data"] == [made["data"][0]]
        assert (page["data"][0]["size_bytes"], page["next_page"]) == (5, None)

        content = await roost.client.get(f"{where(session)}/content", params={"path": "docs/a.txt"})
        assert content.content == b"hello"
        await roost.post(f"{where(session)}/directories", {"path": "empty/inner"})
        gone = await roost.client.delete(where(session), params={"path": "docs/a.txt"})
        assert gone.json() == {"type": "workspace_entry_deleted", "path": "docs/a.txt"}
        full = await roost.client.delete(where(session), params={"path": "docs"})
        assert "recursive" in error_of(full, 409)["details"]["hint"]
        params = {"path": "docs", "recursive": "true"}
        assert (await roost.client.delete(where(session), params=params)).status_code == 200
        assert [e["name"] for e in (await roost.get(where(session)))["data"]] == ["empty"]


async def test_what_is_put_there_is_in_the_newest_snapshot_when_the_answer_comes(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        await uploaded(roost, session, {"a": b"1"})
        row = await roost.store.workspaces.find(session["id"])
        assert row is not None
        assert (row.state, row.sequence) == ("idle", 1)


@pytest.mark.parametrize(
    ("asked", "status", "body"),
    [
        ("bytes=0-1", 206, b"01"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=0-99", 200, b"0123456789"),
        ("bytes=10-", 416, None),
        ("bytes=5-4", 416, None),
        ("bytes=-", 400, None),
        ("bytes=0-1,3-4", 400, None),
    ],
)
async def test_a_range_is_sent_as_asked(
    tmp_path: Path, asked: str, status: int, body: bytes | None
):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        await uploaded(roost, session, {"f": b"0123456789"})
        answer = await roost.client.get(
            f"{where(session)}/content", params={"path": "f"}, headers={"range": asked}
        )
        if body is None:
            error_of(answer, status)
        else:
            assert (answer.status_code, answer.content) == (status, body)


@pytest.mark.parametrize(
    ("name", "inline", "kind", "shown"),
    [
        ("page.html", "true", "text/html", "attachment"),
        ("drawing.svg", "true", "image/svg+xml", "attachment"),
        ("notes.txt", "true", "text/plain", "inline"),
        ("notes.txt", "false", "text/plain", "attachment"),
        ("x.unknown-kind", "true", "application/octet-stream", "attachment"),
    ],
)
async def test_a_browser_runs_nothing_of_what_it_is_sent(
    tmp_path: Path, name: str, inline: str, kind: str, shown: str
):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        await uploaded(roost, session, {name: b"<script>alert(1)</script>"})
        params = {"path": name, "inline": inline}
        headers = (await roost.client.get(f"{where(session)}/content", params=params)).headers
        assert headers["content-type"] == kind
        assert headers["content-disposition"].startswith(shown)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")


async def test_a_stranger_and_a_lesser_key_see_and_change_nothing(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as roost:
        plain = await roost.session()
        await uploaded(roost, plain, {"a": b"1"})
        trusted = await roost.session(trust_level="full")

        async def attempts(client: httpx2.AsyncClient, session: Any) -> list[httpx2.Response]:
            files = [("files[]", ("b", b"2"))]
            at = where(session)
            return [
                await client.get(at),
                await client.get(f"{at}/content", params={"path": "a"}),
                await client.post(at, files=files),
                await client.post(f"{at}/directories", json={"path": "d"}),
                await client.delete(at, params={"path": "a"}),
            ]

        async with await roost.user("tenant_2") as stranger:
            for answer in await attempts(stranger, plain):
                error_of(answer, 404)
        async with await roost.user(trust_ceiling="sandboxed", sees="tenant") as lesser:
            for answer in await attempts(lesser, trusted):
                error_of(answer, 403)
        assert [e["name"] for e in (await roost.get(where(plain)))["data"]] == ["a"]


async def test_what_cannot_be_is_refused_by_name(tmp_path: Path):
    async with api_server(tmp_path, max_file_bytes=2000) as roost:
        session = await roost.session()
        at = where(session)
        await uploaded(roost, session, {"a": b"1"})
        twice = await roost.client.post(at, files=[("files[]", ("a", b"2"))])
        assert "overwrite" in error_of(twice, 409)["details"]["hint"]
        await uploaded(roost, session, {"a": b"2"}, overwrite="true")
        for request, status in [
            ({"files": [("files[]", ("../up", b"2"))]}, 400),
            ({"files": [("files[]", ("x", b"2"))], "data": {"path": "a"}}, 409),
            ({"files": [("files[]", (".claude/settings.json", b"2"))]}, 404),
            ({"files": [("other", ("x", b"2"))]}, 400),
            ({"files": [("files[]", ("x", b"2" * 3000))]}, 413),
            ({"files": [("files[]", ("x", b"2"))], "data": {"overwrite": "maybe"}}, 400),
            ({"json": {}}, 400),
            ({"files": [("files[]", ("x" * 300, b"2"))]}, 400),
        ]:
            error_of(await roost.client.post(at, **request), status)
        error_of(await roost.client.get(at, params={"path": "nowhere"}), 404)
        error_of(await roost.client.get(at, params={"path": "a"}), 400)
        error_of(await roost.client.get(at, params={"page": "!"}), 400)
        error_of(await roost.client.get(f"{at}/content"), 400)
        error_of(await roost.client.delete(at), 400)
        await roost.post(f"/v1/sessions/{session['id']}/archive")
        closed = await roost.client.post(at, files=[("files[]", ("late", b"2"))])
        assert error_of(closed, 400)["details"]["error_code"] == "session_closed"
        assert (await roost.client.get(f"{at}/content", params={"path": "a"})).content == b"2"


KEPT = ".claude/projects/-workspace/6e81bbfd-c355/tool-results/boztc8tzd.txt"


async def test_a_tool_s_whole_output_is_read_and_nothing_else_of_the_agent_s_own(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        home = tmp_path / "homes" / session["id"]
        (home / KEPT).parent.mkdir(parents=True)
        (home / KEPT).write_text("all of it")
        transcript = home / ".claude/projects/-workspace/6e81bbfd-c355.jsonl"
        transcript.write_text("private")
        (home / KEPT).with_name("linked.txt").symlink_to(transcript)
        (home / ".claude/.credentials.json").write_text("private")
        address = f"/roost/v1/sessions/{session['id']}/tool_outputs/content"
        for path in (KEPT, f"/home/sandbox/{KEPT}", f"/data/vault/.workspaces/x/{KEPT}"):
            answer = await roost.client.get(address, params={"path": path})
            assert (answer.status_code, answer.text) == (200, "all of it")
            assert answer.headers["content-disposition"].startswith("attachment")
        for path in (
            ".claude/.credentials.json",
            ".claude/projects/-workspace/6e81bbfd-c355.jsonl",
            ".claude/projects/../projects/6e81bbfd-c355/tool-results/boztc8tzd.txt",
            f"{KEPT}/../../../6e81bbfd-c355.jsonl",
            KEPT.replace("boztc8tzd", "../x"),
            KEPT.replace("boztc8tzd", "other"),
            f"{KEPT}\n",
            "x" * 4000,
        ):
            error_of(await roost.client.get(address, params={"path": path}), 404)
        linked = KEPT.replace("boztc8tzd", "linked")
        assert (await roost.client.get(address, params={"path": linked})).status_code >= 400
        error_of(await roost.client.get(address), 400)
        error_of(await roost.client.get(f"{where(session)}/content", params={"path": KEPT}), 404)


async def test_a_tool_s_output_is_for_those_who_may_see_the_session(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        other = await roost.post("/roost/v1/keys", {"name": "x", "tenant": "elsewhere"})
        address = f"/roost/v1/sessions/{session['id']}/tool_outputs/content"
        async with client_of(roost.app, other["secret"]) as stranger:
            error_of(await stranger.get(address, params={"path": KEPT}), 404)
