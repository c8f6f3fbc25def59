"""Requests to the model that begin in the server's process: as those of a sandbox, without a connection."""

from __future__ import annotations

from itertools import count
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream

from roost.domain.budget import Budget
from roost.egress.host import serving
from roost.ports.egress import ModelReply
from roost.testing.cancelling import cancelled_at_each_step
from tests.egress.both_sides import (
    KEY,
    PATIENT,
    STREAM_HEAD,
    EgressSetup,
    Inside,
    Seen,
    answer,
    chunk,
    spoken,
    streamed,
)

ONE_AT_A_TIME = msgspec.structs.replace(
    PATIENT, connections=1, held_bytes=100_000, body_bytes=60_000
)


async def begun(inside: Inside, path: str = "/v1/messages", **body: Any) -> ModelReply:
    assert inside.opened.ask_model is not None
    headers = [(b"Anthropic-Version", b"2023-06-01"), (b"x-api-key", b"placeholder")]
    data = msgspec.json.encode({"model": "claude-x"} | body)
    return await inside.opened.ask_model("POST", path.encode(), headers, data)


async def asked(inside: Inside, path: str = "/v1/messages", **body: Any) -> tuple[int, bytes]:
    reply = await begun(inside, path, **body)
    try:
        return reply.status, b"".join([piece async for piece in reply])
    finally:
        await reply.aclose()


async def test_the_real_key_goes_out_and_nothing_of_it_comes_back(egress_setup: EgressSetup):
    egress_setup.far.reply = answer({"said": KEY, "usage": {"input_tokens": 3}}, set_cookie="s=1")
    async with egress_setup.opened() as inside:
        reply = await begun(inside)
        body = b"".join([piece async for piece in reply])
        await reply.aclose()
    assert msgspec.json.decode(body)["said"] == "*" * len(KEY)
    assert "set-cookie" not in str(reply.headers)
    (seen,) = egress_setup.far.seen
    assert (seen.header("x-api-key"), seen.header("anthropic-version")) == (KEY, "2023-06-01")
    (account,) = egress_setup.accounts
    assert (account.status, account.complete, account.usage.input_tokens) == (200, True, 3)


async def test_a_stream_comes_piece_by_piece(egress_setup: EgressSetup):
    pieces = spoken("Hel", "lo")
    proceed = anyio.Semaphore(0)

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD)
        for piece in pieces:
            await proceed.acquire()
            await stream.send(chunk(piece))
        await stream.send(b"0\r\n\r\n")

    egress_setup.far.reply = reply
    received: list[bytes] = []
    async with egress_setup.opened() as inside:
        answered = await begun(inside)
        proceed.release()
        async for piece in answered:
            received.append(piece)
            proceed.release()
        await answered.aclose()
    assert received == pieces


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/files", {}, 404),
        ("/v1/messages", {"model": "claude-b"}, 400),
        ("/v1/messages", {"text": "x" * 60_000}, 413),
    ],
)
async def test_what_a_sandbox_is_refused_is_refused_in_the_same_words(
    egress_setup: EgressSetup, path: str, body: dict[str, Any], status: int
):
    async with (
        egress_setup.opened({"bounds": ONE_AT_A_TIME}, models=["claude-x"]) as inside,
        inside.model() as client,
    ):
        refused = await asked(inside, path, **body)
        by_socket = await client.post(path, json={"model": "claude-x"} | body)
    assert refused == (status, by_socket.content)
    assert by_socket.status_code == status
    assert egress_setup.far.seen == []
    assert len({report.reason for report in egress_setup.refusals}) <= 1


async def test_the_budget_is_one_for_both_ways(egress_setup: EgressSetup):
    async with egress_setup.opened(budget=Budget(max_requests=2)) as inside:
        statuses = [(await asked(inside))[0], (await inside.ask()).status_code]
        refused, body = await asked(inside)
    assert [*statuses, refused] == [200, 200, 402]
    assert msgspec.json.decode(body)["error"]["code"] == "budget_reached"
    assert len(egress_setup.accounts) == 2


async def test_an_answer_that_is_cut_off_is_not_taken_for_a_whole_one(egress_setup: EgressSetup):
    async def cut(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(spoken("x")[0]))
        await stream.aclose()

    async def silent(seen: Seen, stream: ByteStream) -> None:
        await stream.aclose()

    async with egress_setup.opened() as inside:
        egress_setup.far.reply = cut
        with pytest.raises(ConnectionError):
            await asked(inside)
        egress_setup.far.reply = silent
        assert (await asked(inside))[0] == 502
    assert [account.complete for account in egress_setup.accounts] == [False, False]


async def test_a_reader_that_gives_up_ends_the_request(egress_setup: EgressSetup):
    async def endless(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + chunk(spoken("x")[0]))
        await anyio.sleep_forever()

    egress_setup.far.reply = endless
    async with egress_setup.opened() as inside:
        reply = await begun(inside)
        assert await anext(aiter(reply)) == spoken("x")[0]
        await reply.aclose()
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
        egress_setup.far.reply = answer({})
        assert await asked(inside) == (200, b"{}")
    assert [account.complete for account in egress_setup.accounts] == [False, True]


async def test_a_reader_that_is_slow_makes_the_server_wait(egress_setup: EgressSetup):
    pieces = [b"%06d" % n + b"x" * 9994 for n in range(2000)]
    sent = 0

    async def reply(seen: Seen, stream: ByteStream) -> None:
        nonlocal sent
        await stream.send(STREAM_HEAD)
        for piece in pieces:
            await stream.send(chunk(piece))
            sent += 1
        await stream.send(b"0\r\n\r\n")

    egress_setup.far.reply = reply
    async with egress_setup.opened({"bounds": PATIENT}) as inside:
        answered = await begun(inside)
        before = -1
        while before != sent:  # until it can send no more
            before = sent
            await anyio.sleep(0.2)
        assert sent < len(pieces)
        assert b"".join([piece async for piece in answered]) == b"".join(pieces)
        await answered.aclose()


async def test_what_is_under_way_ends_with_the_grant_and_nothing_begins_after_it(
    egress_setup: EgressSetup,
):
    async def silent(seen: Seen, stream: ByteStream) -> None:
        await anyio.sleep_forever()

    egress_setup.far.reply = silent
    ends: list[str] = []

    async def waits(inside: Inside) -> None:
        try:
            await asked(inside)
        except ConnectionError as error:
            ends.append(str(error))

    async with anyio.create_task_group() as tasks:
        async with (
            serving(egress_setup.options()) as egress,
            egress.open(egress_setup.grant()) as opened,
        ):
            inside = Inside(opened, egress)
            tasks.start_soon(waits, inside)
            await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
        assert len(egress_setup.accounts) == 1  # when the grant has ended, and not at some time
    await waits(inside)
    assert ends == ["the answer was cut off", "the session's egress is closed"]


async def test_cancelled_anywhere_it_leaves_nothing_to_the_next_request(egress_setup: EgressSetup):
    numbers = count()

    async def echo(seen: Seen, stream: ByteStream) -> None:
        frames = [*spoken("x"), b"data: %d\n\n" % seen.json()["n"]]
        await streamed(*frames)(seen, stream)

    egress_setup.far.reply = echo
    # One request at a time, and little room: what was not given back would be missed by the next.
    async with egress_setup.opened({"bounds": ONE_AT_A_TIME}) as inside:

        async def one() -> None:
            number = next(numbers)
            status, body = await asked(inside, n=number, text="x" * 50_000)
            assert (status, body.endswith(b"data: %d\n\n" % number)) == (200, True)

        steps = []
        async for step in cancelled_at_each_step(one):
            steps.append(step)
            await one()
        await egress_setup.until(lambda: len(egress_setup.accounts) >= len(egress_setup.far.seen))
    assert len(steps) > 3
    assert inside.egress._held._taken == 0
