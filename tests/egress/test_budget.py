"""What requests cost, and when it is enough."""

from __future__ import annotations

from decimal import Decimal

import anyio
import pytest
from anyio.abc import ByteStream

from roost.domain.budget import Budget, Price, Spent
from roost.domain.usage import Usage
from roost.egress.metering import BodyScan, StreamScan
from roost.ports.egress import Account
from tests.egress.both_sides import (
    STREAM_HEAD,
    EgressSetup,
    Seen,
    answer,
    chunk,
    connect,
    frame,
    message,
    spoken,
    streamed,
)

PRICE = Price(
    input=Decimal(3), output=Decimal(15), cache_read=Decimal("0.3"), cache_write=Decimal("3.75")
)


def used(input_tokens: int = 0, output_tokens: int = 0, **more: int) -> dict[str, object]:
    return {
        "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens} | more,
        "type": "message",
    }


async def test_an_answer_in_one_piece_is_accounted_for(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(
        used(10, 20, cache_read_input_tokens=3, cache_creation_input_tokens=4)
    )
    async with egress_setup.opened() as inside:
        await inside.ask(model="claude-y")
    (account,) = egress_setup.accounts
    assert account.usage == Usage(10, 20, 3, 4)
    assert (account.session_id, account.model, account.status) == ("sesn_1", "claude-y", 200)
    assert account.complete
    assert 0 < account.seconds < 5


async def test_an_answer_that_streams_is_accounted_for(egress_setup: EgressSetup):
    egress_setup.far.reply = streamed(
        *spoken('say "usage": {"output_tokens": 999}', output_tokens=42)
    )
    async with egress_setup.opened() as inside:
        await inside.ask(stream=True)
    assert egress_setup.accounts[0].usage == Usage(10, 42, 7, 0)
    assert egress_setup.accounts[0].complete


async def test_counting_tokens_uses_none(egress_setup: EgressSetup):
    egress_setup.far.reply = answer({"input_tokens": 1000})
    async with egress_setup.opened() as inside, inside.model() as client:
        await client.post("/v1/messages/count_tokens", json={"model": "m"})
    assert egress_setup.accounts[0].usage == Usage()


async def test_after_the_last_request_the_next_is_refused(egress_setup: EgressSetup):
    async with egress_setup.opened(budget=Budget(max_requests=2)) as inside:
        statuses = [(await inside.ask()).status_code for _ in range(3)]
        refused = await inside.ask()
    assert statuses == [200, 200, 402]
    assert refused.json() == {
        "type": "error",
        "error": {
            "type": "billing_error",
            "message": "roost: the session's budget of 2 requests is used up",
            "code": "budget_reached",
        },
    }
    assert len(egress_setup.far.seen) == 2
    assert [report.reason for report in egress_setup.refusals] == ["budget_reached"] * 2


async def test_a_budget_that_was_raised_meanwhile_holds_at_once(egress_setup: EgressSetup):
    asked: list[int] = []

    async def raised() -> Budget:
        asked.append(len(egress_setup.far.seen))
        return Budget(max_requests=3)

    async with egress_setup.opened(budget=Budget(max_requests=2), raised=raised) as inside:
        statuses = [(await inside.ask()).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 402, 402]
    assert asked == [2], "only when it would be refused, and not again and again"


async def test_a_budget_of_tokens_counts_what_was_spent_before(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(used(30, 20, cache_creation_input_tokens=10))
    budget, spent = Budget(max_tokens=1000), Spent(requests=5, tokens=900)
    async with egress_setup.opened(budget=budget, spent=spent) as inside:
        statuses = [(await inside.ask()).status_code for _ in range(3)]
    assert statuses == [200, 200, 402]


async def test_counters_carry_a_budget_over_a_restart(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(used(30, 20))
    budget, spent = Budget(max_requests=3, max_tokens=10_000), Spent()
    statuses = []
    for generation in range(1, 5):
        async with egress_setup.opened(budget=budget, spent=spent, generation=generation) as inside:
            statuses.append((await inside.ask()).status_code)
        for account in egress_setup.accounts:
            spent = spent.plus(Spent.on(account.usage, None))
        egress_setup.accounts.clear()
    assert statuses == [200, 200, 200, 402]
    assert (spent.requests, spent.tokens) == (3, 150)


async def test_a_budget_of_money_is_kept_by_list_prices(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(used(1_000_000, 100_000, cache_read_input_tokens=1_000_000))
    budget = Budget(max_cost=Decimal(9))
    async with egress_setup.opened(budget=budget, prices={"claude-x": PRICE}) as inside:
        statuses = [(await inside.ask(model="claude-x-20260101")).status_code for _ in range(3)]
        unpriced = await inside.ask(model="claude-unknown")
    assert statuses == [200, 200, 402]  # 4.80 each
    assert "no list price" in unpriced.json()["error"]["message"]


async def test_requests_under_way_hold_their_part_of_the_budget(egress_setup: EgressSetup):
    release = anyio.Event()

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await release.wait()
        await answer(used(1, 1))(seen, stream)

    egress_setup.far.reply = reply
    async with (
        egress_setup.opened(budget=Budget(max_tokens=500)) as inside,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: inside.ask(max_tokens=1000))
        await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
        second = await inside.ask(max_tokens=1000)
        assert (second.status_code, second.headers["retry-after"]) == (429, "2")
        release.set()
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
        assert (await inside.ask(max_tokens=1000)).status_code == 200


async def test_hanging_up_before_the_answer_is_not_free(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await anyio.sleep_forever()

    egress_setup.far.reply = reply
    body = b'{"model":"m","max_tokens":7,"text":"%s"}' % (b"x" * 4000)
    async with egress_setup.opened(budget=Budget(max_tokens=1000)) as inside:
        async with await connect(inside.path("model.sock")) as stream:
            await stream.send(message(body))
            await egress_setup.until(lambda: len(egress_setup.far.seen) == 1)
            await anyio.sleep(0.1)
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
        assert (await inside.ask()).status_code == 402
    assert egress_setup.accounts[0].usage == Usage(1009, 7)
    assert not egress_setup.accounts[0].complete


async def test_hanging_up_before_the_last_line_is_not_free(egress_setup: EgressSetup):
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await streamed(*spoken(*["word " * 20] * 50)[:-2])(seen, stream)

    egress_setup.far.reply = reply
    async with egress_setup.opened() as inside:
        await inside.ask(stream=True)
    assert 1000 < egress_setup.accounts[0].usage.output_tokens < 2500


async def hung_up_on(egress_setup: EgressSetup, *sent: bytes) -> Usage:
    """What is charged for an answer of which the agent has seen a beginning."""

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD + b"".join(map(chunk, sent)))
        await anyio.sleep_forever()

    egress_setup.far.reply = reply
    body = b'{"model":"m","stream":true,"max_tokens":5000,"text":"%s"}' % (b"x" * 4000)
    async with egress_setup.opened() as inside:
        async with await connect(inside.path("model.sock")) as stream:
            await stream.send(message(body))
            received = b""
            last = sent[-1] if sent else b"\r\n\r\n"
            while received.count(last) < max(1, sent.count(last)):
                received += await stream.receive()
        await egress_setup.until(lambda: len(egress_setup.accounts) == 1)
    assert not egress_setup.accounts[0].complete
    return egress_setup.accounts[0].usage


async def test_each_short_piece_of_an_answer_that_is_hung_up_on_is_charged(
    egress_setup: EgressSetup,
):
    used = await hung_up_on(egress_setup, *spoken(*["a"] * 50)[:-2])
    assert used.input_tokens == 10
    assert used.output_tokens >= 50


async def test_an_answer_that_has_said_nothing_of_its_use_is_charged_by_the_request(
    egress_setup: EgressSetup,
):
    """As a stream of chat completions, which says it at its end at most."""
    pieces = [b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'] * 20
    used = await hung_up_on(egress_setup, *pieces)
    assert used.input_tokens > 1000
    assert used.output_tokens >= 20


async def test_an_answer_that_was_hung_up_on_after_its_head_is_not_free(egress_setup: EgressSetup):
    used = await hung_up_on(egress_setup)
    assert used.input_tokens > 1000
    assert used.output_tokens >= 1


async def test_an_answer_that_ends_without_saying_what_it_used_is_not_free(
    egress_setup: EgressSetup,
):
    egress_setup.far.reply = answer({"type": "message"})
    async with egress_setup.opened() as inside:
        await inside.ask(max_tokens=50, text="x" * 4000)
        egress_setup.far.reply = answer({"type": "error"}, 400)
        await inside.ask(max_tokens=50, text="x" * 4000)
    charged, refused = egress_setup.accounts
    assert charged.usage.input_tokens > 1000
    assert charged.usage.output_tokens >= 1
    assert refused.usage == Usage()


@pytest.mark.parametrize("failure", ["raises", "hangs"])
async def test_a_report_that_fails_harms_nobody(
    egress_setup: EgressSetup, failure: str, caplog: pytest.LogCaptureFixture
):
    async def account(report: Account) -> None:
        if failure == "raises":
            raise RuntimeError("the log is down")
        await anyio.sleep_forever()

    async with egress_setup.opened(account=account, budget=Budget(max_requests=2)) as inside:
        statuses = [(await inside.ask()).status_code for _ in range(3)]
    assert statuses == [200, 200, 402]
    assert "a report was not taken" in caplog.text


def test_the_responses_api_is_understood_too():
    scan = StreamScan()
    usage = {
        "input_tokens": 100,
        "output_tokens": 9,
        "input_tokens_details": {"cached_tokens": 60},
    }
    scan.feed(frame("response.created", response={"id": "r", "usage": None}))
    scan.feed(frame("response.completed", response={"id": "r", "usage": usage}))
    scan.finish()
    assert (scan.usage, scan.complete) == (Usage(40, 9, 60, 0), True)


def test_chat_completions_are_understood_too():
    scan = BodyScan()
    scan.feed(b'{"usage":{"prompt_tokens":100,"completion_tokens":9,')
    scan.feed(b'"prompt_tokens_details":{"cached_tokens":1}}}')
    scan.finish()
    assert (scan.usage, scan.complete) == (Usage(99, 9, 1, 0), True)


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"usage"',
        b'data: {"usage":"many"}\n',
        b'data: {"usage":{"output_tokens":-5}}\n',
        b'data: {"message":"usage","usage":3}\n',
        b"data\n" * 10,
        b"\xff" * 100 + b"\n",
        b"x" * (5 * 1024 * 1024),
    ],
)
def test_nonsense_in_an_answer_counts_as_nothing(data: bytes):
    for scan in (StreamScan(), BodyScan()):
        scan.feed(data)
        scan.finish()
        assert scan.usage == Usage()
