"""Files and skills while the blob store is not this installation's: nothing is lost, and nothing looks lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import ApiServer, api_server, error_of, skill_files
from tests.api.test_attachments import PNG, events_of, naming, said
from tests.api.test_files import sent

from roost.disk import remove


@contextmanager
def wrong(store: Path, how: str) -> Iterator[None]:
    """The store is another one in the body, to which nothing must be written."""
    right = store.rename(store.with_name("right"))
    if how != "unmounted":
        store.mkdir()
    if how == "foreign":
        (store / "installation").write_bytes(b'{"id":"inst_another"}')
    before = list(store.rglob("*"))
    yield
    assert list(store.rglob("*")) == before
    remove(store)
    right.rename(store)


async def answers(roost: ApiServer, image: Any, skill: Any, session: Any) -> list[Any]:
    """Everything that reads or writes the store, once; what deletes comes last."""
    ask, file, version = (
        roost.client.request,
        f"/v1/files/{image['id']}",
        skill["latest_version_id"],
    )
    attached = f"/roost/v1/sessions/{session['id']}/attachments/{image['id']}/content"
    versions = f"/v1/skills/{skill['id']}/versions"
    return [
        await ask("GET", f"{file}/content"),
        await ask("GET", attached),
        await ask("POST", "/v1/files", files={"file": ("b.txt", b"new")}),
        await ask("POST", events_of(session), json=said(naming("image", image))),
        await ask("GET", f"{versions}/{version}/content"),
        await ask("POST", versions, files=skill_files("greeting")),
        await ask("POST", "/v1/skills", files=skill_files("another")),
        await ask("DELETE", file),
        await ask("DELETE", f"{versions}/{version}"),
        await ask("DELETE", f"/v1/skills/{skill['id']}"),
    ]


@pytest.mark.parametrize("how", ["unmounted", "empty", "foreign"])
async def test_a_wrong_store_takes_nothing_and_loses_nothing_and_the_right_one_goes_on(
    tmp_path: Path, how: str
):
    async with api_server(tmp_path) as roost:
        image, skill, session = await sent(roost, "a.png", PNG), await roost.skill(), None
        session = await roost.session()
        await roost.post(events_of(session), said(naming("image", image)))
        with wrong(tmp_path / "blobs", how):
            for answer in await answers(roost, image, skill, session):
                error = error_of(answer, 503)
                assert error["details"]["error_code"] == "blobs_wrong", answer.request.url
                assert int(answer.headers["retry-after"]) > 0
            assert (await roost.get(f"/v1/files/{image['id']}"))["id"] == image["id"]
        found = await answers(roost, image, skill, session)
        assert [answer.status_code for answer in found] == [200] * len(found)
        assert found[0].content == found[1].content == PNG


async def test_an_object_that_the_right_store_lacks_is_not_said_to_be_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        file, skill = await sent(roost), await roost.skill()
        for kind in ("files", "skills"):
            remove(tmp_path / "blobs" / kind)
        version = f"/v1/skills/{skill['id']}/versions/{skill['latest_version_id']}"
        for path in (f"/v1/files/{file['id']}/content", f"{version}/content"):
            error = error_of(await roost.client.get(path), 503)
            assert error["details"]["error_code"] == "blob_not_found"
