"""A server that is told to end."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from roost.serve import http
from roost.serve.http import listening


class Answering:
    """One page, whose answer waits until it may go."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.go = anyio.Event()
        self.app = Starlette(routes=[Route("/", self.answer)])

    async def answer(self, _: Request) -> PlainTextResponse:
        self.asked.set()
        await self.go.wait()
        return PlainTextResponse("at last")


async def test_an_answer_that_is_under_way_is_given_before_the_server_ends() -> None:
    page, heard = Answering(), []

    async def ask(url: str) -> None:
        async with httpx2.AsyncClient() as client:
            heard.append((await client.get(url)).text)

    async with anyio.create_task_group() as tasks, listening(page.app, "127.0.0.1", 0) as url:
        tasks.start_soon(ask, url)
        await page.asked.wait()
        tasks.start_soon(_after_a_moment, page.go)
    assert heard == ["at last"]


async def _after_a_moment(event: anyio.Event) -> None:
    await anyio.sleep(0.05)
    event.set()


async def test_an_answer_that_never_comes_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_LAST_ANSWERS", 0.1)
    page = Answering()
    async with (
        anyio.create_task_group() as tasks,
        httpx2.AsyncClient() as client,
        listening(page.app, "127.0.0.1", 0) as url,
    ):
        tasks.start_soon(_ask_in_vain, client, url)
        await page.asked.wait()


async def _ask_in_vain(client: httpx2.AsyncClient, url: str) -> None:
    with pytest.raises(httpx2.HTTPError):
        (await client.get(url, timeout=300)).raise_for_status()


async def test_a_connection_that_is_only_kept_open_does_not_hold_the_end_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does a clock: it is told to end, and waits for nobody."""
    monkeypatch.setattr(http, "_LAST_ANSWERS", 600)
    page = Answering()
    page.go.set()
    async with httpx2.AsyncClient() as client, listening(page.app, "127.0.0.1", 0) as url:
        assert (await client.get(url)).text == "at last"


async def test_the_date_of_an_answer_is_that_of_now() -> None:
    page = Answering()
    page.go.set()
    async with listening(page.app, "127.0.0.1", 0) as url, httpx2.AsyncClient() as client:
        first = (await client.get(url)).headers["date"]
        with anyio.fail_after(60):
            while (await client.get(url)).headers["date"] == first:  # noqa: ASYNC110
                await anyio.sleep(0.05)
