"""What is taken out of a sandbox's outputs, whatever it has planted there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.api.api_server import TENANT, ApiServer, api_server

from roost.core.files.outputs import OutputLimits, Outputs
from roost.core.files.store import FileStore
from roost.sandboxes.file_exchange import FolderExchange


async def outputs_of(roost: ApiServer, folder: Path, **bounds: int) -> tuple[Any, Outputs, Path]:
    session = await roost.store.sessions.get(TENANT, (await roost.session())["id"])
    shown = FolderExchange(folder / "session-files", range(0))
    made = Outputs(
        roost.deps.services[FileStore], shown, roost.store.sessions, OutputLimits(**bounds)
    )
    return session, made, await shown.outputs(session.id)


async def kept(roost: ApiServer, session: Any) -> dict[str, bytes]:
    store = roost.deps.services[FileStore]
    found = {}
    for record in await store.of_session(TENANT, session.id):
        name = record.body["filename"]
        assert name not in found
        found[name] = b"".join([piece async for piece in store.content(record)])
    return found


async def test_what_is_new_or_changed_is_kept_once(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session, outputs, place = await outputs_of(roost, tmp_path)
        assert await outputs.capture(session) is None
        (place / "deep").mkdir()
        (place / "deep" / "report.txt").write_bytes(b"1")
        os.utime(place / "deep" / "report.txt", ns=(1, 1))
        assert await outputs.capture(session) is None
        assert await kept(roost, session) == {"report.txt": b"1"}
        (first,) = await roost.deps.services[FileStore].of_session(TENANT, session.id)
        assert await outputs.capture(session) is None
        assert await roost.deps.services[FileStore].of_session(TENANT, session.id) == [first]
        (place / "deep" / "report.txt").write_bytes(b"22")
        assert await outputs.capture(session) is None
        assert await kept(roost, session) == {"report.txt": b"22"}
        (place / "deep" / "report.txt").unlink()
        assert await outputs.capture(session) is None
        assert await kept(roost, session) == {"report.txt": b"22"}


async def test_nothing_outside_is_taken_and_what_is_left_out_is_said(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session, outputs, place = await outputs_of(roost, tmp_path, files=2, largest=1000)
        (tmp_path / "secret").write_text("the host's")
        (place / "link").symlink_to(tmp_path / "secret")
        (place / "folder").symlink_to(tmp_path)
        os.mkfifo(place / "fifo")
        with (place / "giant").open("wb") as file:
            file.truncate(2**40)
        (place / os.fsdecode(b"caf\xe9")).write_text("x")
        for name in ("x", "y", "z"):
            (place / name).write_text(name)
        said = await outputs.capture(session)
        assert said is not None
        for words in ("link (link)", "fifo (fifo)", "giant (too large)", "and 1 more"):
            assert words in said
        assert await kept(roost, session) == {"x": b"x", "y": b"y"}
        assert await outputs.capture(session) is None  # it was said


async def test_a_sparse_file_is_kept_with_its_holes_filled(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session, outputs, place = await outputs_of(roost, tmp_path)
        with (place / "sparse").open("wb") as file:
            file.seek(300_000)
            file.write(b"end")
            file.truncate(600_000)
        assert await outputs.capture(session) is None
        expected = bytes(300_000) + b"end" + bytes(299_997)
        assert await kept(roost, session) == {"sparse": expected}


async def test_a_session_that_is_deleted_meanwhile_keeps_nothing(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session, outputs, place = await outputs_of(roost, tmp_path)
        (place / "late").write_text("x")
        await roost.store.sessions.delete(TENANT, session.id)
        await outputs.capture(session)
        assert await kept(roost, session) == {}
