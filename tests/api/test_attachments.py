"""Files that messages name: what is accepted, what is kept of it, and what an agent is given."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.api.api_server import ApiServer, api_server, error_of, message
from tests.api.dying import HOUR, Killed, Later, Writes, notes
from tests.api.test_files import objects, sent

from roost.core.files.attachments import Attachments, ShowingFiles
from roost.core.files.store import FileStore
from roost.domain.attachment import MOST_IMAGE, MOST_TEXT, MOST_TOGETHER
from roost.domain.events import Entry
from roost.ports.drafts import new_draft
from roost.ports.harness import Brief, Output, StartMode, TurnEnd
from roost.ports.harness_profile import HarnessProfile
from roost.testing.fake_harness import IN_SANDBOX, FakeHarness
from roost.testing.in_memory_runner import AGENT

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PDF = b"%PDF-1.4\n" + bytes(range(256))


def naming(kind: str, file: Any, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "file", "file_id": file["id"]}, **fields}


def said(*blocks: Any) -> dict[str, Any]:
    return {"events": [{"type": "user.message", "content": list(blocks)}]}


def events_of(session: Any) -> str:
    return f"/v1/sessions/{session['id']}/events"


async def copies(roost: ApiServer, session: Any) -> list[Any]:
    page = await roost.get("/v1/files", scope_id=session["id"])
    return page["data"]


async def given(roost: ApiServer, session: Any) -> list[Any]:
    """The newest message of a session, as an agent is given it."""
    found = await roost.store.sessions.find(session["id"])
    entries = await roost.store.log.read(session["id"], 0, 1000)
    last = [entry for entry in entries if entry.type == "user.message"][-1]
    return (await roost.deps.services[Attachments].told(found, last)).fields["content"]


def base64_of(media_type: str, data: bytes) -> dict[str, str]:
    encoded = base64.b64encode(data).decode()
    return {"type": "base64", "media_type": media_type, "data": encoded}


async def test_an_agent_is_given_what_a_message_names_though_the_originals_are_deleted(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        image, pdf = await sent(roost, "a.png", PNG), await sent(roost, "b.pdf", PDF)
        text = await sent(roost, "c.md", "héllo".encode())
        blocks = [
            {"type": "text", "text": "Look"},
            naming("image", image),
            naming("document", pdf, title="The plan"),
            naming("document", text),
            naming("image", image),
        ]
        made = await roost.post(events_of(session), said(*blocks))
        assert made["data"][0]["content"] == blocks
        kept = await copies(roost, session)
        assert sorted(copy["filename"] for copy in kept) == ["a.png", "b.pdf", "c.md"]
        for file in (image, pdf, text):
            await roost.client.delete(f"/v1/files/{file['id']}")
        plain = {"type": "text", "media_type": "text/plain", "data": "héllo"}
        assert await given(roost, session) == [
            {"type": "text", "text": "Look"},
            {"type": "image", "source": base64_of("image/png", PNG)},
            {"type": "document", "title": "The plan", "source": base64_of("application/pdf", PDF)},
            {"type": "document", "title": "c.md", "source": plain},
            {"type": "image", "source": base64_of("image/png", PNG)},
        ]
        listed = (await roost.get(events_of(session)))["data"]
        assert [event["content"] for event in listed if event["type"] == "user.message"] == [blocks]
        # A copy that somebody deleted as well: then it is a name, and nothing fails.
        for copy in kept:
            await roost.client.delete(f"/v1/files/{copy['id']}")
        assert (await given(roost, session))[1:] == blocks[1:]


async def test_a_file_is_copied_once_for_a_session_and_goes_with_it(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        image = await sent(roost, "a.png", PNG)
        one, two = [await roost.session() for _ in range(2)]
        for session in (one, one, two):
            await roost.post(events_of(session), said(naming("image", image)))
            await roost.rest(session)
        assert [len(await copies(roost, session)) for session in (one, two)] == [1, 1]
        assert len(objects(tmp_path)) == 3
        for session in (one, two):
            await roost.client.delete(f"/v1/sessions/{session['id']}")
        assert objects(tmp_path) == [image["id"]]


async def test_a_session_can_begin_with_files_and_one_that_is_not_made_leaves_none(tmp_path: Path):
    async with api_server(tmp_path, max_sessions=1) as roost:
        image = await sent(roost, "a.png", PNG)
        first = said(naming("image", image))["events"]
        session = await roost.session(initial_events=first)
        assert (await given(roost, session))[0]["source"]["type"] == "base64"
        fields = {name: session[name] for name in ("environment_id",)}
        body = {**fields, "agent": session["agent"]["id"], "initial_events": first}
        error_of(await roost.client.post("/v1/sessions", json=body), 429)
        assert len(objects(tmp_path)) == 2
        lost = said(naming("image", {"id": "file_nowhere"}))["events"]
        refused = await roost.client.post("/v1/sessions", json={**body, "initial_events": lost})
        error = error_of(refused, 404)
        assert "initial_events.0.content.0.source.file_id" in error["message"]


async def test_a_message_that_is_refused_leaves_no_copy_and_one_sent_again_finds_its_own(
    tmp_path: Path,
):
    async with api_server(tmp_path, max_queued=1) as roost:
        session, image = await roost.session(), await sent(roost, "a.png", PNG)
        key = {"idempotency-key": "once"}
        body = said(naming("image", image))
        first = await roost.post(events_of(session), body, headers=key)
        await roost.client.delete(f"/v1/files/{image['id']}")
        assert await roost.post(events_of(session), body, headers=key) == first
        other = await sent(roost, "b.png", PNG)
        body = said(naming("image", other))
        error_of(await roost.client.post(events_of(session), json=body), 429)
        assert len(await copies(roost, session)) == 1


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("image", b"<svg/>", "no PNG, JPEG, GIF or WebP"),
        ("image", PNG + bytes(MOST_IMAGE), "models take 3,932,160 of one image"),
        ("document", b"\xff\xfe\x00", "neither a PDF nor text"),
        ("document", b" \n", "neither a PDF nor text"),
        ("document", b"x" * (MOST_TEXT + 1), "models take 4,194,304 at most"),
        ("document", PDF + bytes(MOST_TOGETHER), "models take 20,971,520 of one PDF"),
    ],
)
async def test_what_no_model_takes_is_refused(tmp_path: Path, kind: str, data: bytes, why: str):
    async with api_server(tmp_path) as roost:
        session, file = await roost.session(), await sent(roost, "a", data)
        refused = await roost.client.post(events_of(session), json=said(naming(kind, file)))
        error = error_of(refused, 400)
        assert error["message"].startswith("events.0.content.0.source.file_id: the file")
        assert why in error["message"]
        assert await copies(roost, session) == []


async def test_files_that_are_too_much_together_or_somebody_elses_are_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        large = await sent(roost, "a.pdf", PDF + bytes(MOST_TOGETHER // 2))
        both = [naming("document", large)] * 2
        error = error_of(await roost.client.post(events_of(session), json=said(*both)), 400)
        assert "together" in error["message"]
        small = await sent(roost)
        many = [naming("document", small)] * 101
        error_of(await roost.client.post(events_of(session), json=said(*many)), 400)
        async with await roost.user("tenant_other", role="admin", trust_ceiling="full") as other:
            upload = await other.post("/v1/files", files={"file": ("a.png", PNG)})
            theirs = naming("image", upload.json())
        error_of(await roost.client.post(events_of(session), json=said(theirs)), 404)
        result = {
            "type": "user.custom_tool_result",
            "custom_tool_use_id": "sevt_1",
            "content": [naming("document", small)],
        }
        error = error_of(
            await roost.client.post(events_of(session), json={"events": [result]}), 400
        )
        assert "files are served in messages only" in error["message"]
        assert await copies(roost, session) == []


class _Listening(FakeHarness):
    """A harness that notes what its agent is given, and whether it was interrupted."""

    name = "listening"

    def __init__(self, profile: HarnessProfile) -> None:
        self.profile = profile
        self.heard: list[Any] = []
        self.interrupts = 0

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Any, None]:
        self.heard += [entry.fields["content"] async for entry in brief.history()]
        yield self

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        self.interrupts = 0
        return self._turn(inputs)

    async def _turn(self, inputs: Sequence[Entry]) -> AsyncGenerator[Output, None]:
        self.heard += [entry.fields["content"] for entry in inputs]
        yield TurnEnd({"type": "end_turn"})

    async def up(self) -> bool:
        return True

    async def interrupt(self) -> None:
        self.interrupts += 1


@pytest.mark.parametrize("profile", [FakeHarness.profile, IN_SANDBOX])
async def test_an_agent_hears_the_content_and_one_without_a_record_hears_all_of_it_again(
    tmp_path: Path, profile: HarnessProfile
):
    async with api_server(tmp_path) as roost:
        made, image = await roost.session(), await sent(roost, "a.png", PNG)
        await roost.post(events_of(made), said(naming("image", image)))
        session = await roost.store.sessions.find(made["id"])
        entries = await roost.store.log.read(session.id, 0, 1000)
        [entry] = [each for each in entries if each.type == "user.message"]

        async def history() -> AsyncIterator[Entry]:
            yield entry

        inner = _Listening(profile)
        harness = ShowingFiles(inner, roost.deps.services[Attachments])
        assert (harness.name, harness.profile, harness.mounts) == ("listening", profile, ())
        assert (harness.check(), harness.models(AGENT)) == ("fake", ["scripted"])
        plain = replace(entry, body=new_draft("user.message", **message("hello")).body)
        async with harness.open(Brief(session, history, StartMode.RESUME)) as conversation:
            assert await conversation.up()
            for inputs in ([entry], [plain]):
                outputs = [out async for out in conversation.turn(inputs, again=False)]
                assert outputs == [TurnEnd({"type": "end_turn"})]
            # An interrupt that comes while the files are read is one of the turn that begins then.
            turn = conversation.turn([entry], again=False)
            await conversation.interrupt()
            assert [out async for out in turn] == outputs
            assert inner.interrupts == 1
        kinds = [content[0]["type"] for content in inner.heard]
        assert kinds == ["image", "image", "text", "image"]
        sources = [content[0].get("source", {}).get("type") for content in inner.heard]
        assert sources == ["file" if profile.needs_sandbox else "base64", "base64", None, "base64"]


async def test_who_sees_a_session_sees_the_files_that_its_messages_name(tmp_path: Path):
    async with api_server(tmp_path) as roost, await roost.user() as viewer:
        workspace = await roost.post("/roost/v1/workspaces", {"name": "shared"})
        permissions = f"/roost/v1/workspaces/{workspace['id']}/permissions"
        await roost.post(permissions, {"everyone": True, "access": "read"})
        image, other = await sent(roost, "a.png", PNG), await sent(roost, "b.png", PNG)
        session = await roost.session(workspace=workspace["id"])
        await roost.post(events_of(session), said(naming("image", image)))
        error_of(await viewer.get(f"/v1/files/{image['id']}/content"), 404)
        at = f"/roost/v1/sessions/{session['id']}/attachments"
        seen = await viewer.get(f"{at}/{image['id']}/content")
        assert (seen.status_code, seen.content) == (200, PNG)
        error_of(await viewer.get(f"{at}/{other['id']}/content"), 404)  # no message names it
        await roost.client.delete(f"/v1/files/{image['id']}")
        assert (await viewer.get(f"{at}/{image['id']}/content")).content == PNG
        await roost.post(permissions, {"everyone": True, "access": "none"})
        error_of(await viewer.get(f"{at}/{image['id']}/content"), 404)


LARGE = PNG + bytes(100_000)


async def shown_to(roost: ApiServer, session: Any, image: Any) -> bytes:
    """What a session that has this image in its conversation shows of it, to people and to its agent."""
    path = f"/roost/v1/sessions/{session['id']}/attachments/{image['id']}/content"
    answer = await roost.client.get(path)
    assert answer.status_code == 200, answer.text
    assert (await given(roost, session))[-1]["source"] == base64_of("image/png", answer.content)
    return answer.content


async def forked(roost: ApiServer, session: Any, **fields: Any) -> Any:
    return await roost.post(f"/roost/v1/sessions/{session['id']}/fork", fields)


async def holds(roost: ApiServer) -> int:
    return len(await roost.store.catalog.every("file_hold", limit=99))


async def test_a_fork_has_the_files_of_its_conversation_and_nobody_pays_twice(tmp_path: Path):
    async with api_server(tmp_path, max_stored_bytes=3 * len(LARGE) - 10_000) as roost:
        image, session = await sent(roost, "a.png", LARGE), await roost.session()
        await roost.post(events_of(session), said(naming("image", image)))
        await roost.rest(session)
        child = await forked(roost, session)
        grandchild = await forked(roost, child)
        assert len(objects(tmp_path)) == 2
        await sent(roost, "b.txt", bytes(len(LARGE) // 2))
        for file in (image, *await copies(roost, session)):
            await roost.client.delete(f"/v1/files/{file['id']}")
        await roost.client.delete(f"/v1/sessions/{session['id']}")
        for fork in (child, grandchild):
            assert await shown_to(roost, fork, image) == LARGE
        refused = await roost.client.post("/v1/files", files={"file": ("c", bytes(2 * len(LARGE)))})
        assert error_of(refused, 400)["details"]["error_code"] == "storage_quota_exceeded"
        await roost.client.delete(f"/v1/sessions/{child['id']}")
        assert await shown_to(roost, grandchild, image) == LARGE
        await roost.client.delete(f"/v1/sessions/{grandchild['id']}")
        assert (len(objects(tmp_path)), await holds(roost), await notes(roost)) == (1, 0, 0)


async def test_a_fork_has_nothing_that_was_named_after_its_turn(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        first, second = [await sent(roost, name, PNG) for name in ("a.png", "b.png")]
        session = await roost.session()
        for image in (first, second):
            await roost.post(events_of(session), said(naming("image", image)))
            await roost.rest(session)
        fork = await forked(roost, session, at=1)
        assert [copy["filename"] for copy in await copies(roost, fork)] == ["a.png"]
        assert await shown_to(roost, fork, first) == PNG


@pytest.mark.parametrize("first", ["original", "fork"])
async def test_wherever_a_fork_or_a_delete_dies_no_bytes_are_lost_and_none_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
):
    """Dies at each write in turn; hours later, whoever is there has its files, and nothing else is kept."""
    async with api_server(tmp_path) as roost:
        died = 0
        while True:
            image, session = await sent(roost, "a.png", PNG), await roost.session()
            await roost.post(events_of(session), said(naming("image", image)))
            await roost.rest(session)
            await roost.client.delete(f"/v1/files/{image['id']}")
            with monkeypatch.context() as patch:
                writes = Writes(patch, died + 1)
                writes.count(roost.deps.services[FileStore]._blobs, "put", "delete")
                writes.count(roost.store.catalog, "add", "change", "delete")
                writes.count(roost.store.sessions, "fork")
                try:
                    fork = await forked(roost, session)
                    gone = session if first == "original" else fork
                    await roost.client.delete(f"/v1/sessions/{gone['id']}")
                except Killed:
                    died += 1
                    whole = False
                else:
                    whole = True
            await Later(roost, 2 * HOUR).janitor.look()
            left = (await roost.get("/v1/sessions"))["data"]
            for each in left:
                assert await shown_to(roost, each, image) == PNG, died
            for each in left:
                await roost.client.delete(f"/v1/sessions/{each['id']}")
            assert (objects(tmp_path), await holds(roost), await notes(roost)) == ([], 0, 0), died
            if whole:
                break
        assert died >= 8
