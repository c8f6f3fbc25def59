"""`/v1/files` over HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anthropic.types import beta
from tests.api.api_server import TENANT, ApiServer, api_server, client_of, error_of, official
from tests.api.dying import HOUR, Killed, Later, Writes, notes

from roost.core.files.resources import Resources
from roost.core.files.store import Allowance, FileStore
from roost.domain.file import PART, StoredFile, named
from roost.errors import (
    BlobsFailed,
    Conflict,
    FileExpired,
    NotFound,
    StorageQuotaExceeded,
    Unavailable,
)
from roost.ports.catalog import SYSTEM_TENANT


async def sent(roost: ApiServer, name: str = "a.txt", data: bytes = b"hello", **fields: str) -> Any:
    made = await roost.post("/v1/files", files={"file": (name, data)}, data=fields)
    official(beta.BetaFileMetadata, made)
    return made


def objects(tmp_path: Path) -> list[str]:
    found = (tmp_path / "blobs" / "files").rglob("*")
    return sorted(path.parent.name for path in found if path.is_file())


@asynccontextmanager
async def with_headers(roost: ApiServer, **headers: str) -> AsyncGenerator[httpx2.AsyncClient]:
    _, secret = await roost.keyring.create(tenant=TENANT, name="plain", sees="tenant")
    async with client_of(roost.app, secret) as client:
        del client.headers["anthropic-beta"]
        client.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        yield client


async def test_a_file_is_uploaded_shown_listed_read_and_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        data = os.urandom(PART + 100)
        first, second = await sent(roost, "dir/data.bin", data), await sent(roost)
        assert (first["filename"], first["size_bytes"]) == ("data.bin", len(data))
        assert (second["mime_type"], second["scope"], second["expires_at"]) == (
            "text/plain",
            None,
            None,
        )
        assert await roost.get(f"/v1/files/{first['id']}") == first
        page = await roost.get("/v1/files", limit=1)
        assert page["data"] == [second]
        assert page["next_page"].startswith("page_")
        assert (await roost.get("/v1/files", page=page["next_page"]))["data"] == [first]
        ids = [("ids[]", first["id"]), ("ids[]", "file_nowhere"), ("ids[]", first["id"])]
        found = await roost.client.get("/v1/files", params=ids)
        assert found.json() == {"data": [first], "next_page": None}

        content = await roost.client.get(f"/v1/files/{first['id']}/content")
        assert content.content == data
        assert content.headers["content-disposition"].startswith("attachment")
        span = {"range": f"bytes={PART - 2}-{PART + 1}"}
        part = await roost.client.get(f"/v1/files/{first['id']}/content", headers=span)
        assert (part.status_code, part.content) == (206, data[PART - 2 : PART + 2])

        gone = (await roost.client.delete(f"/v1/files/{first['id']}")).json()
        official(beta.BetaDeletedFile, gone)
        error_of(await roost.client.get(f"/v1/files/{first['id']}"), 404)
        error_of(await roost.client.delete(f"/v1/files/{first['id']}"), 404)
        assert objects(tmp_path) == [second["id"]]
        assert await notes(roost) == 0


async def test_an_empty_file_is_a_file(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await sent(roost, "nothing", b"")
        assert (made["size_bytes"], made["mime_type"]) == (0, "application/octet-stream")
        assert named("", "text/html; charset=x") == ("unnamed.html", "text/html")
        answer = await roost.client.get(f"/v1/files/{made['id']}/content")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_older_clients_get_lists_in_their_own_form(tmp_path: Path):
    async with (
        api_server(tmp_path) as roost,
        with_headers(roost, anthropic_beta="files-api-2025-04-14") as client,
    ):
        ids = [(await sent(roost, f"{i}.txt"))["id"] for i in range(5)][::-1]

        async def page(**params: Any) -> tuple[list[str], bool]:
            body = (await client.get("/v1/files", params=params)).json()
            shown = [each["id"] for each in body["data"]]
            assert (body["first_id"], body["last_id"]) == (shown[0], shown[-1])
            return shown, body["has_more"]

        assert await page(limit=2) == (ids[:2], True)
        assert await page(limit=2, after_id=ids[1]) == (ids[2:4], True)
        assert await page(limit=2, after_id=ids[2]) == (ids[3:], False)
        assert await page(limit=2, before_id=ids[4]) == (ids[2:4], True)
        assert await page(limit=2, before_id=ids[2]) == (ids[:2], False)
        error_of(await client.get("/v1/files", params={"page": "x"}), 400)
        error_of(await roost.client.get("/v1/files", params={"after_id": ids[0]}), 400)


async def test_no_beta_is_needed_but_for_the_files_of_a_session(tmp_path: Path):
    async with api_server(tmp_path) as roost, with_headers(roost) as client:
        assert (await client.get("/v1/files")).status_code == 200
        refused = error_of(await client.get("/v1/files", params={"scope_id": "sesn_1"}), 400)
        assert "managed-agents" in refused["details"]["hint"]
        error_of(await roost.client.get("/v1/files", params={"scope_id": "agent_1"}), 400)
        assert (await roost.get("/v1/files", scope_id="sesn_1"))["data"] == []


async def test_another_tenants_file_does_not_exist(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await sent(roost)
        async with await roost.user("tenant_2") as stranger:
            for path in ("", "/content"):
                error_of(await stranger.get(f"/v1/files/{made['id']}{path}"), 404)
            error_of(await stranger.delete(f"/v1/files/{made['id']}"), 404)
            params = {"ids[]": made["id"]}
            assert (await stranger.get("/v1/files", params=params)).json()["data"] == []
            assert (await stranger.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("request_", "status", "problem"),
    [
        ({"json": {}}, 400, "content-type"),
        ({"files": [("file", ("a", b"1")), ("file", ("b", b"2"))]}, 400, "Too many files"),
        ({"data": {"x": "y"}, "files": {"file": ("a", b"")}}, 400, "x"),
        ({"files": {"file": ("a", b"1")}, "data": {"expires_in_seconds": "60"}}, 400, "expires"),
        ({"files": {"file": ("a" * 300, b"1")}}, 400, "255"),
        ({"files": {"other": ("a", b"1")}}, 400, "other"),
        ({"files": {"file": ("a", b"1" * 5000)}}, 413, "accepted"),
    ],
)
async def test_what_is_no_upload_is_refused_and_nothing_is_kept(
    tmp_path: Path, request_: dict[str, Any], status: int, problem: str
):
    async with api_server(tmp_path, max_file_bytes=4096) as roost:
        assert (
            problem in error_of(await roost.client.post("/v1/files", **request_), status)["message"]
        )
        assert (objects(tmp_path), await notes(roost)) == ([], 0)


async def test_a_tenant_keeps_no_more_than_its_quota(tmp_path: Path):
    async with api_server(tmp_path, max_stored_bytes=10_000) as roost:
        made = await sent(roost, data=b"x" * 8_000)
        over = await roost.client.post("/v1/files", files={"file": ("b", b"x" * 3_000)})
        assert error_of(over, 400)["details"]["error_code"] == "storage_quota_exceeded"
        await roost.client.delete(f"/v1/files/{made['id']}")
        await sent(roost, data=b"x" * 3_000)


async def test_small_files_count_in_a_quota_and_copies_for_sessions_do(tmp_path: Path):
    async with api_server(tmp_path, max_stored_bytes=3 * 1024) as roost:
        made = await sent(roost, data=b"")
        await sent(roost, data=b"x")
        store, key = (
            roost.deps.services[FileStore],
            (await roost.keyring.create(tenant=TENANT, name="x"))[0],
        )
        record = await store.get(TENANT, made["id"])
        copy = await store.copy(key, record, "sesn_1")
        with pytest.raises(StorageQuotaExceeded):
            await store.attach(key, record, "sesn_1")
        await store.delete(TENANT, copy.id)
        await store.attach(key, record, "sesn_1")


async def test_a_large_quota_is_counted_seldom_and_holds() -> None:
    allowance, used, counts = Allowance(1000), 0, 0

    async def count() -> int:
        nonlocal counts
        counts += 1
        return used

    while await allowance.take("a", 1, count) is None:
        used += 1
    assert used == 1000
    assert counts < 150
    used = 500
    assert await allowance.take("a", 1, count) is None


async def test_copies_count_for_the_quota_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Resources, "check", lambda *given: None)  # nothing works on this session
    async with api_server(tmp_path, max_stored_bytes=20_000) as roost:
        made = await sent(roost, data=b"x" * 8_000)
        given = {"type": "file", "file_id": made["id"]}
        session = await roost.session(resources=[given])
        add = f"/v1/sessions/{session['id']}/resources"
        over = await roost.client.post(add, json=given)
        assert error_of(over, 400)["details"]["error_code"] == "storage_quota_exceeded"
        await roost.client.delete(f"/v1/files/{made['id']}")
        await sent(roost, data=b"x" * 8_000)


async def test_a_file_whose_time_is_up_is_gone_with_its_bytes(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await sent(roost, expires_in_seconds="3600")
        assert made["expires_at"] is not None
        await Later(roost, HOUR // 2).janitor.look()
        assert objects(tmp_path) == [made["id"]]
        later = Later(roost, 2 * HOUR)
        with pytest.raises(FileExpired):
            await later.store.get(TENANT, made["id"])
        await later.janitor.look()
        error_of(await roost.client.get(f"/v1/files/{made['id']}"), 404)
        assert (objects(tmp_path), await notes(roost)) == ([], 0)


async def test_the_files_of_a_session_go_with_it(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session, kept = await roost.session(), await sent(roost)
        file = StoredFile(filename="out", mime_type="text/plain", name=session["id"])
        record = await roost.deps.services[FileStore].add(
            TENANT, file, BytesIO(b"1"), created_by="me"
        )
        page = await roost.get("/v1/files", scope_id=session["id"])
        assert [each["id"] for each in page["data"]] == [record.id]
        assert page["data"][0]["scope"] == {"type": "session", "id": session["id"]}
        await roost.client.delete(f"/v1/sessions/{session['id']}")
        assert (objects(tmp_path), await notes(roost)) == ([kept["id"]], 0)


@pytest.mark.parametrize("step", range(1, 13))
async def test_wherever_an_upload_or_a_delete_dies_no_bytes_and_no_empty_record_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    """Dies at each write in turn; an hour later, what is listed can be read, and nothing else is kept."""
    async with api_server(tmp_path) as roost:
        store, writes = roost.deps.services[FileStore], Writes(monkeypatch, step)
        writes.count(store._blobs, "put", "delete")
        writes.count(store._catalog, "add", "change", "delete")
        file = StoredFile(filename="f", mime_type="text/plain")
        try:
            record = await store.add(TENANT, file, BytesIO(b"x" * (PART + 1)), created_by="me")
            await store.delete(TENANT, record.id)
        except Killed:
            pass
        writes.left = 1000
        await Later(roost, 2 * HOUR).janitor.look()
        kept = (await roost.get("/v1/files"))["data"]
        for each in kept:
            assert len((await roost.client.get(f"/v1/files/{each['id']}/content")).content) == (
                PART + 1
            )
        assert set(objects(tmp_path)) == {each["id"] for each in kept}
        assert await notes(roost) == 0


async def test_an_upload_that_is_given_up_meanwhile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with api_server(tmp_path) as roost:
        store = roost.deps.services[FileStore]
        real = store._catalog.add

        async def slowly(kind: str, *args: Any, **more: Any) -> Any:
            if kind == "file":
                await Later(roost, 2 * HOUR).janitor.look()
            return await real(kind, *args, **more)

        monkeypatch.setattr(store._catalog, "add", slowly)
        with pytest.raises(Unavailable):
            await store.add(
                TENANT, StoredFile(filename="f", mime_type="a/b"), BytesIO(b"x"), created_by="me"
            )
        assert ((await roost.get("/v1/files"))["data"], objects(tmp_path)) == ([], [])


async def test_an_upload_that_is_just_being_given_up_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Who gives it up has said so, and has removed nothing yet, nor the note; then it died."""
    async with api_server(tmp_path) as roost:
        store = roost.deps.services[FileStore]
        real = store._catalog.add

        async def slowly(kind: str, *args: Any, **more: Any) -> Any:
            if kind == "file":
                writes.left = 1
                with pytest.raises(Killed):
                    await Later(roost, 2 * HOUR).janitor.look()
                writes.left = 0
            return await real(kind, *args, **more)

        with monkeypatch.context() as patch:
            writes = Writes(patch, 0)
            writes.count(store._blobs, "delete")
            patch.setattr(store._catalog, "add", slowly)
            with pytest.raises(Unavailable):
                await store.add(
                    TENANT,
                    StoredFile(filename="f", mime_type="a/b"),
                    BytesIO(b"x"),
                    created_by="me",
                )
        assert (await roost.get("/v1/files"))["data"] == []
        await Later(roost, 2 * HOUR).janitor.look()
        assert (objects(tmp_path), await notes(roost)) == ([], 0)


async def test_an_upload_that_was_finished_cannot_be_given_up_any_more(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        catalog, shelf = roost.store.catalog, roost.deps.services[FileStore].shelf
        note_id = await shelf.note(TENANT, file="file_1")
        seen = await catalog.get("file_note", SYSTEM_TENANT, note_id)
        await shelf.finish(note_id)
        with pytest.raises(Conflict):
            await shelf.condemn(seen)
        await shelf.finish(note_id)


async def test_bytes_that_are_not_what_was_stored_are_not_sent(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await sent(roost)
        (path,) = (tmp_path / "blobs" / "files" / made["id"]).iterdir()
        path.write_bytes(b"jello")
        record = await roost.deps.services[FileStore].get(TENANT, made["id"])
        with pytest.raises(BlobsFailed):
            await roost.deps.services[FileStore].part(record, 0)
        with pytest.raises(NotFound):
            await roost.deps.services[FileStore].get("tenant_2", made["id"])


NAMELESS = (
    b'--x\r\ncontent-disposition: form-data; name="%b"\r\n'
    b"content-type: application/octet-stream\r\n\r\n%b\r\n--x--\r\n"
)


async def test_bytes_without_a_filename_are_a_file(tmp_path: Path):
    """As the SDKs send what they are given as bytes, or as a file in memory."""
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with api_server(tmp_path) as roost:
        data = bytes(range(256)) * 40  # neither text, nor as short as a field
        made = await roost.post("/v1/files", content=NAMELESS % (b"file", data), headers=headers)
        assert (made["filename"], made["size_bytes"]) == ("unnamed.bin", len(data))
        got = await roost.client.get(f"/v1/files/{made['id']}/content")
        assert got.content == data
        manifest = b"---\nname: greeting\ndescription: Greets.\n---\nSay hello.\n"
        body = NAMELESS % (b"files[]", manifest)
        skill = await roost.post("/v1/skills", content=body, headers=headers)
        assert skill["display_name"] == "greeting"


async def test_only_what_an_agent_made_is_said_to_be_downloadable(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        upload = await sent(roost)
        assert upload["downloadable"] is False
        file = StoredFile(filename="out.txt", mime_type="text/plain", origin="out.txt 1 1")
        made = await roost.deps.services[FileStore].add(
            TENANT, file, BytesIO(b"1"), created_by="me"
        )
        assert (await roost.get(f"/v1/files/{made.id}"))["downloadable"] is True


async def test_of_a_download_that_nobody_reads_one_piece_is_read(tmp_path: Path) -> None:
    async with api_server(tmp_path) as roost:
        made = await sent(roost, data=os.urandom(3 * PART))
        content = roost.deps.services[FileStore].part
        read: list[int] = []

        async def part(record: Any, index: int) -> bytes:
            read.append(index)
            return await content(record, index)

        pieces: list[int] = []
        headers = roost.client.headers
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/v1/files/{made['id']}/content",
            "raw_path": f"/v1/files/{made['id']}/content".encode(),
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
            "headers": [(n.lower().encode(), v.encode()) for n, v in headers.items()],
        }

        async def receive() -> dict[str, Any]:
            if pieces or scope.get("asked"):
                await anyio.sleep_forever()
            scope["asked"] = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                pieces.append(len(message["body"]))
                await anyio.sleep_forever()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(roost.deps.services[FileStore], "part", part)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(roost.app, scope, receive, send)
                with anyio.fail_after(60):
                    while not pieces:  # noqa: ASYNC110 - nobody is told
                        await anyio.sleep(0.01)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        assert len(pieces) == 1
        assert pieces[0] <= 256 * 1024
        assert read == [0]


async def test_who_gives_up_making_a_session_leaves_nothing_of_it(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        janitor, forgotten = Later(roost, 0).janitor, list[str]()

        async def forget(tenant: str, session_id: str) -> None:
            await anyio.lowlevel.checkpoint()
            forgotten.append(session_id)

        janitor.also.append(forget)
        with anyio.CancelScope() as given_up:
            async with janitor.making("tenant_1", "sesn_1"):
                given_up.cancel()
                await anyio.lowlevel.checkpoint()
        assert forgotten == ["sesn_1"]
        assert await notes(roost) == 0
