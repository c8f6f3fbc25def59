"""What is told is delivered at least once, with one id, or is given up where people see it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic import Anthropic
from anyio.abc import ByteStream
from msgspec.structs import replace
from tests.egress.both_sides import LOOPBACK, Far, Seen, answer
from tests.egress.secured import SecureFar, trusting
from tests.parts import need
from tests.webhook_receiver import Receiver

from roost.core.webhooks import sender as module
from roost.core.webhooks.endpoints import WebhookEndpoints
from roost.core.webhooks.sender import WebhookSender
from roost.domain.webhook import Delivery, DeliveryPolicy, Webhook
from roost.egress import connections, outbound
from roost.egress.dial import WebhookDialer, resolve
from roost.egress.options import EgressBounds
from roost.egress.outbound import RestrictedHttp
from roost.egress.tls import CertificateAuthority
from roost.ports.keys import Key
from roost.ports.store import Store
from roost.ports.webhooks import DeliveryQuery
from roost.stores.postgres import PostgresStore
from roost.stores.seal import MasterKeys
from roost.stores.sqlite import SqliteStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import TENANT, Stage

SEAL = MasterKeys([b"k" * 32])
QUICK = replace(DeliveryPolicy(), look_seconds=0.02, rest_seconds=0.02)
ADMIN = Key(
    id="key_1", tenant=TENANT, name="admin", digest=b"", hint="", role="admin", created_at=0
)
Networks = Sequence[IPv4Network]


class Scene:
    """A store, a receiver, and nodes that send."""

    def __init__(self, stores: Sequence[Store], far: Far) -> None:
        self.stores = stores
        self.far = far
        self.rows = stores[0].webhooks
        self.endpoints = WebhookEndpoints(self.rows, SEAL)
        self.stage = Stage(stores[0])
        self.resolve: Any = resolve
        self.networks: Any = LOOPBACK
        self.policy = QUICK

    async def endpoint(self, *events: str, url: str | None = None) -> tuple[Webhook, str]:
        params = {"url": url or self.far.url, "enabled_events": list(events or ["*"])}
        return await self.endpoints.create(ADMIN, params)

    def sender(self, store: Store) -> WebhookSender:
        dialer = WebhookDialer(self.resolve, self.networks, 5)
        post = RestrictedHttp(dialer, EgressBounds(), None)
        return WebhookSender(store.webhooks, store.catalog, SEAL, post, self.policy)

    @asynccontextmanager
    async def sending(self, *which: int) -> AsyncGenerator[None, None]:
        """The nodes at work; when the context ends they are gone, as if they were killed."""
        async with anyio.create_task_group() as tasks:
            for i in which or (0,):
                await tasks.start(self.sender(self.stores[i]).run)
            yield
            tasks.cancel_scope.cancel()

    async def states(self, webhook: Webhook) -> list[str]:
        page = await self.rows.page(DeliveryQuery(webhook=webhook, limit=1000))
        return [each.state for each in reversed(page)]

    async def until(self, webhook: Webhook, *states: str) -> None:
        """Wait until the deliveries are in these states."""
        with anyio.fail_after(120):
            while await self.states(webhook) != list(states):  # noqa: ASYNC110 - a database
                await anyio.sleep(0.02)

    async def noted(self, webhook: Webhook) -> Delivery:
        """The oldest delivery, once something was wrong with it."""
        with anyio.fail_after(120):
            while True:
                [*_, oldest] = await self.rows.page(DeliveryQuery(webhook=webhook, limit=1000))
                if oldest.note:
                    return oldest
                await anyio.sleep(0.02)

    async def disabled(self, webhook: Webhook) -> Webhook:
        """The endpoint, once it is."""
        with anyio.fail_after(120):
            while True:
                now = await self.rows.get(TENANT, webhook.id)
                if now.state == "disabled":
                    return now
                await anyio.sleep(0.02)


def ids(seen: Sequence[Seen]) -> list[str]:
    return [dict(each.headers)["webhook-id"] for each in seen]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncGenerator[Scene, None]:
    async with SqliteStore.open(tmp_path / "roost.db") as store, Far().listening() as far:
        far.reply = answer({})
        yield Scene([store], far)


def unwrapped(seen: Seen, key: str, body: bytes | None = None) -> Any:
    """What the official SDK makes of a request. :raises: it does not accept it"""
    need("standardwebhooks", importlib.util.find_spec("standardwebhooks"), "make setup")
    text = (seen.body if body is None else body).decode()
    client = Anthropic(api_key="none", webhook_key=key)
    return client.beta.webhooks.unwrap(text, headers=dict(seen.headers))


async def test_the_official_sdk_accepts_what_is_sent_and_refuses_a_changed_byte(scene: Scene):
    webhook, secret = await scene.endpoint("session.created", "session.thread_idled")
    async with scene.sending():
        session_id = await scene.stage.idle()
        await scene.until(webhook, "delivered", "delivered")
    created, idled = sorted(scene.far.seen, key=lambda seen: ids([seen]))
    event = unwrapped(created, secret)
    assert (event.type, event.data.type, event.data.id) == (
        "event",
        "session.created",
        session_id,
    )
    assert event.id == ids([created])[0]
    assert event.data.organization_id.startswith("org_")
    assert event.data.workspace_id.startswith("wrkspc_")
    other = unwrapped(idled, secret)
    assert other.data.session_thread_id == (await scene.stage.state(session_id)).thread_id
    assert other.data.workspace_id == event.data.workspace_id
    for place in (0, len(created.body) // 2, len(created.body) - 1):
        changed = bytearray(created.body)
        changed[place] ^= 1
        with pytest.raises(Exception, match=r"(?i)signature"):
            unwrapped(created, secret, bytes(changed))


async def test_a_rotated_secret_and_the_one_before_both_sign_for_a_while(scene: Scene):
    webhook, old = await scene.endpoint("session.created")
    _, new = await scene.endpoints.regenerate_secret(ADMIN, webhook.id, overlap=3600)
    async with scene.sending():
        await scene.stage.session()
        await scene.until(webhook, "delivered")
        for key in (old, new):
            unwrapped(scene.far.seen[0], key)
        _, newest = await scene.endpoints.regenerate_secret(ADMIN, webhook.id, overlap=0)
        await scene.stage.session()
        await scene.until(webhook, "delivered", "delivered")
    unwrapped(scene.far.seen[1], newest)
    for key in (old, new):
        with pytest.raises(Exception, match=r"(?i)signature"):
            unwrapped(scene.far.seen[1], key)


async def for_an_hour(scene: Scene, webhook: Webhook, times: int) -> Delivery:
    """A delivery that was tried for an hour of the policy's time, and not fewer times than in an hour."""
    began = anyio.current_time()
    with anyio.fail_after(120):
        while True:
            found = await scene.rows.page(DeliveryQuery(webhook=webhook))
            if found and found[0].attempts >= 5 and found[0].note:
                break
            await anyio.sleep(0.02)
    await anyio.sleep(3600 / times - (anyio.current_time() - began))
    return found[0]


async def test_what_is_told_while_a_receiver_is_down_for_an_hour_arrives_with_its_id(scene: Scene):
    times = 2000
    scene.policy = DeliveryPolicy().faster(times)
    webhook, secret = await scene.endpoint("session.created")
    scene.far.reply = answer({}, 503)
    async with scene.sending():
        await scene.stage.session()
        delivery = await for_an_hour(scene, webhook, times)
        assert (delivery.state, delivery.status) == ("pending", 503)
        assert delivery.note == "the receiver answered 503"
        assert (await scene.rows.get(TENANT, webhook.id)).failing_since > 0
        scene.far.reply = answer({})
        await scene.until(webhook, "delivered")
    assert len(scene.far.seen) >= 5
    assert len(set(ids(scene.far.seen))) == 1
    unwrapped(scene.far.seen[-1], secret)
    assert (await scene.rows.get(TENANT, webhook.id)).failing_since == 0


async def test_what_is_told_while_nobody_listens_for_an_hour_arrives(scene: Scene):
    times, receiver = 2000, Receiver()
    scene.policy = DeliveryPolicy().faster(times)
    webhook, _ = await scene.endpoint("session.created", url=receiver.url)
    async with scene.sending():
        await scene.stage.session()
        delivery = await for_an_hour(scene, webhook, times)
        assert (delivery.state, delivery.status) == ("pending", None)
        with receiver.listening():
            await scene.until(webhook, "delivered")
    receiver.server_close()
    assert set(receiver.ids) == {delivery.event.id}


async def test_what_never_arrives_is_given_up_and_sent_again_on_request(scene: Scene):
    scene.policy = replace(QUICK, waits=(0.01, 0.01), patience=3600)
    webhook, _ = await scene.endpoint("session.created")
    scene.far.reply = answer({"no": "thanks"}, 500)
    async with scene.sending():
        await scene.stage.session()
        await scene.until(webhook, "failed")
        assert len(scene.far.seen) == 3
        [delivery] = await scene.rows.page(DeliveryQuery(webhook=webhook))
        assert (delivery.status, delivery.answer) == (500, '{"no":"thanks"}')
        scene.far.reply = answer({})
        assert await scene.endpoints.replay(ADMIN, webhook.id, ["failed"], 0) == 1
        await scene.until(webhook, "delivered")
    assert len(set(ids(scene.far.seen))) == 1


async def test_a_receiver_that_takes_nothing_for_days_is_disabled_and_says_so(scene: Scene):
    scene.policy = replace(QUICK, waits=(0.01,) * 100, patience=0.1)
    webhook, _ = await scene.endpoint("session.created")
    scene.far.reply = answer({}, 500)
    async with scene.sending():
        await scene.stage.session()
        now = await scene.disabled(webhook)
        assert "500" in now.disabled_reason
        assert await scene.states(webhook) == ["held"]
        await scene.stage.session()
        scene.far.reply = answer({})
        await scene.endpoints.update(ADMIN, webhook.id, {"state": "enabled"})
        await scene.until(webhook, "delivered")


@pytest.mark.parametrize("status", [301, 307, 410])
async def test_a_redirect_is_not_followed_and_disables_as_gone_does(scene: Scene, status: int):
    webhook, _ = await scene.endpoint("session.created")
    scene.far.reply = answer({}, status, location=f"{scene.far.url}/elsewhere")
    async with scene.sending():
        await scene.stage.session()
        now = await scene.disabled(webhook)
    assert str(status) in now.disabled_reason
    assert [seen.target for seen in scene.far.seen] == ["/"]


@pytest.mark.parametrize(
    "addresses",
    [
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["fe80::1"],
        ["::ffff:127.0.0.1"],
        ["127.0.0.2", "10.0.0.1"],
    ],
)
async def test_a_private_address_is_refused_after_resolving(scene: Scene, addresses: list[str]):
    async def private(host: str, port: int) -> Sequence[str]:
        return addresses

    scene.resolve, scene.networks = private, (ip_network("127.0.0.2/32"),)
    webhook, _ = await scene.endpoint(url="https://hooks.example/")
    async with scene.sending():
        await scene.stage.session()
        now = await scene.disabled(webhook)
    assert now.disabled_reason == "hooks.example is at an address that is not public"
    assert scene.far.connections == 0


async def test_a_public_receiver_is_asked_at_the_port_of_https_only(scene: Scene):
    async def elsewhere(host: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"]

    scene.resolve = elsewhere
    webhook, _ = await scene.endpoint(url="https://hooks.example:8443/")
    async with scene.sending():
        await scene.stage.session()
        now = await scene.disabled(webhook)
    assert now.disabled_reason.startswith("port 8443 is not allowed")


async def test_a_name_that_is_rebound_is_looked_up_once_and_the_checked_address_is_used(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []

    async def rebound(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    authority = CertificateAuthority()
    monkeypatch.setattr(connections, "_tls", lambda: trusting(authority.certificate))
    scene.resolve, scene.networks = rebound, (ip_network("127.0.0.1/32"),)
    async with SecureFar(authority).listening() as far:
        far.reply = answer({})
        at = f"hooks.example:{far.port}"
        webhook, secret = await scene.endpoint("session.created", url=f"https://{at}/a?b=c")
        async with scene.sending():
            await scene.stage.session()
            await scene.until(webhook, "delivered")
        assert asked == ["hooks.example"]
        assert far.names == ["hooks.example"]
        [seen] = far.seen
        assert (seen.target, dict(seen.headers)["host"]) == ("/a?b=c", at)
        unwrapped(seen, secret)
        async with scene.sending():
            await scene.stage.session()
            await scene.disabled(webhook)  # the second time it is somewhere else
    assert len(far.seen) == 1


async def test_an_answer_that_is_slow_is_no_answer_and_holds_up_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbound, "_SECONDS", 0.5)
    at_once, post = [0], RestrictedHttp.post

    async def counted(self: RestrictedHttp, url: str, *args: Any) -> Any:
        under_way = url.startswith(scene.far.url)
        at_once.append(at_once[-1] + under_way)
        try:
            return await post(self, url, *args)
        finally:
            at_once.append(at_once[-1] - under_way)

    monkeypatch.setattr(RestrictedHttp, "post", counted)

    async def drip(seen: Seen, stream: ByteStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.05)

    slow, _ = await scene.endpoint("session.created")
    async with Far().listening() as good:
        good.reply = answer({})
        scene.far.reply = drip
        quick, _ = await scene.endpoint("session.created", url=good.url)
        for _ in range(20):
            await scene.stage.session()
        async with scene.sending():
            await scene.until(quick, *["delivered"] * 20)
            assert 1 <= max(at_once) <= module.MOST_PER_WEBHOOK
            assert "delivered" not in await scene.states(slow)
            first = await scene.noted(slow)
    assert (first.state, first.note) == ("pending", "it takes too long to answer")


async def test_of_an_answer_without_end_only_the_beginning_is_read_and_kept(scene: Scene):
    sent = 0

    async def flood(seen: Seen, stream: ByteStream) -> None:
        nonlocal sent
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        while True:
            await stream.send(b"\0" * 65536)
            sent += 65536

    scene.far.reply = flood
    webhook, _ = await scene.endpoint("session.created")
    async with scene.sending():
        await scene.stage.session()
        await scene.until(webhook, "delivered")
    [delivery] = await scene.rows.page(DeliveryQuery(webhook=webhook))
    assert len(delivery.answer) == 1024
    assert sent < 64 * 1024**2


async def test_one_that_was_sent_when_its_node_died_is_sent_again_with_its_id(scene: Scene):
    scene.policy = replace(QUICK, claim_seconds=0.3)
    webhook, _ = await scene.endpoint("session.created")
    stuck = anyio.Event()

    async def hang(seen: Seen, stream: ByteStream) -> None:
        stuck.set()
        await anyio.sleep_forever()

    scene.far.reply = hang
    async with scene.sending():
        await scene.stage.session()
        with anyio.fail_after(60):
            await stuck.wait()
    assert await scene.states(webhook) == ["pending"]
    scene.far.reply = answer({})
    async with scene.sending():
        await scene.until(webhook, "delivered")
    assert len(scene.far.seen) == 2
    assert len(set(ids(scene.far.seen))) == 1


@asynccontextmanager
async def two_nodes(postgres: PostgresServer, far: Far) -> AsyncGenerator[Scene, None]:
    url = await postgres.new()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(PostgresStore.open(url)) for _ in range(2)]
        yield Scene(stores, far)


async def test_of_two_nodes_one_sends_each_and_what_either_tells_is_sent(
    postgres: PostgresServer,
):
    async with Far().listening() as far, two_nodes(postgres, far) as scene:
        far.reply = answer({})
        webhook, _ = await scene.endpoint("session.created")
        other = Stage(scene.stores[1])
        async with scene.sending(0, 1):
            made = [await stage.session() for _ in range(10) for stage in (scene.stage, other)]
            await scene.until(webhook, *["delivered"] * 20)
    assert sorted(json.loads(seen.body)["data"]["id"] for seen in far.seen) == sorted(made)
    assert len(set(ids(far.seen))) == 20
    named = {json.loads(seen.body)["data"]["organization_id"] for seen in far.seen}
    assert len(named) == 1


async def test_a_node_goes_on_with_what_another_one_had_when_it_died(postgres: PostgresServer):
    async with Far().listening() as far, two_nodes(postgres, far) as scene:
        scene.policy = replace(QUICK, claim_seconds=0.5)
        webhook, _ = await scene.endpoint("session.created")
        stuck = anyio.Event()

        async def hang(seen: Seen, stream: ByteStream) -> None:
            stuck.set()
            await anyio.sleep_forever()

        far.reply = hang
        async with scene.sending(0):
            await scene.stage.session()
            with anyio.fail_after(60):
                await stuck.wait()
        far.reply = answer({})
        async with scene.sending(1):
            await scene.until(webhook, "delivered")
    assert len(set(ids(far.seen))) == 1
