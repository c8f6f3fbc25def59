"""A disk that one tenant fills, and what becomes of the others: on a small file system of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.api.api_server import ApiServer, api_server, error_of, messages
from tests.parts import need

from roost.disk import free

MIB = 1 << 20
SIZE, LEAST = 24, 8  # MiB: of the whole disk, and what is left for the database


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "roost-test", str(place)]
    may = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    need("the right to mount a file system", may, "running the tests as root, outside a container")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def upload(client: httpx2.AsyncClient, size: int) -> httpx2.Response:
    return await client.post("/v1/files", files={"file": ("a.bin", os.urandom(size))})


async def said(client: httpx2.AsyncClient, session: Any) -> list[str]:
    found: list[str] = []
    params: dict[str, Any] = {"types[]": "user.message"}
    while True:
        answer = await client.get(f"/v1/sessions/{session['id']}/events", params=params)
        page = answer.json()
        found += [event["content"][0]["text"] for event in page["data"]]
        if page["next_page"] is None:
            return found
        params["page"] = page["next_page"]


async def talk(client: httpx2.AsyncClient, session: Any, text: str) -> httpx2.Response:
    return await client.post(f"/v1/sessions/{session['id']}/events", json=messages(text))


async def tenant_with_a_session(roost: ApiServer, tenant: str) -> tuple[httpx2.AsyncClient, Any]:
    client = await roost.user(tenant, role="admin")
    agent = await client.post("/v1/agents", json={"name": "helper", "model": "claude-x"})
    environment = await client.post("/v1/environments", json={"name": "home"})
    made = {"agent": agent.json()["id"], "environment_id": environment.json()["id"]}
    return client, (await client.post("/v1/sessions", json=made)).json()


async def fill(client: httpx2.AsyncClient) -> list[str]:
    """Upload until that is refused; gives what was taken, the largest first."""
    kept = []
    for size in (4 * MIB, MIB // 4):
        while (answer := await upload(client, size)).status_code == 200:
            kept.append(answer.json()["id"])
        error = error_of(answer, 507)
        assert error["details"]["error_code"] == "disk_full"
        assert "ROOST_MIN_FREE_DISK" in error["details"]["hint"]
    return kept


async def test_a_tenant_that_fills_the_disk_costs_the_others_nothing_that_they_have(disk: Path):
    async with api_server(disk, min_free_disk=LEAST) as roost:
        other, session = await tenant_with_a_session(roost, "tenant_2")
        mine = (await upload(other, MIB)).json()
        content = f"/v1/files/{mine['id']}/content"
        files = f"/roost/v1/sessions/{session['id']}/files"
        before = (await other.get(content)).content
        assert (await talk(other, session, "before")).status_code == 200
        kept = await fill(roost.client)
        assert (LEAST - 2) * MIB < free(disk) < (LEAST + 1) * MIB

        for text in ("during", "x" * MIB):
            assert (await talk(other, session, text)).status_code == 200
        assert (await other.get(content)).content == before
        rest = free(disk) - LEAST * MIB
        (disk / "homes").mkdir(exist_ok=True)
        (disk / "homes" / "another").write_bytes(bytes(max(rest, 0) + 4096))  # by its agent
        put = await other.post(files, files=[("files[]", ("a", b"x"))])
        for refused in (await upload(other, 1), put):
            assert error_of(refused, 507)["details"]["error_code"] == "disk_full"

        await roost.client.delete(f"/v1/files/{kept[0]}")
        await roost.client.delete(f"/v1/files/{kept[1]}")
        assert (await upload(other, 2 * MIB)).status_code == 200
        assert (await other.post(files, files=[("files[]", ("a", b"x"))])).status_code == 200
        assert await said(other, session) == ["before", "during", "x" * MIB]
    async with api_server(disk, min_free_disk=LEAST) as roost:
        again = await roost.user("tenant_2", role="admin")
        assert await said(again, session) == ["before", "during", "x" * MIB]
        assert (await again.get(content)).content == before


async def test_where_not_a_byte_is_left_what_was_accepted_stays_and_the_rest_is_refused(disk: Path):
    async with api_server(disk, min_free_disk=LEAST) as roost:
        other, session = await tenant_with_a_session(roost, "tenant_2")
        mine = (await upload(other, MIB)).json()
        accepted, filler = [], disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(64 << 10)):
                    pass
            except OSError:
                pass
        for number in range(40):
            answer = await talk(other, session, f"{number} " + "x" * (64 << 10))
            if answer.status_code == 200:
                accepted.append(f"{number} " + "x" * (64 << 10))
            else:
                assert error_of(answer, 503)["details"]["error_code"] == "unavailable"
        assert await said(other, session) == accepted
        assert len((await other.get(f"/v1/files/{mine['id']}/content")).content) == MIB
        filler.unlink()
        assert (await talk(other, session, "after")).status_code == 200
        assert await said(other, session) == [*accepted, "after"]
