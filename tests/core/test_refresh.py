"""Access tokens are renewed once for all nodes, and a new one is stored before anybody has it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from starlette.responses import JSONResponse, PlainTextResponse, Response
from tests.authorization_server import CLIENT_SECRET, AuthorizationServer
from tests.egress.both_sides import LOOPBACK

from roost.core.vaults import refresh as module
from roost.core.vaults.mcp import McpValidation
from roost.core.vaults.refresh import OAuthRefresh
from roost.core.vaults.secrets import opened_parts, sealed
from roost.domain.vault import (
    CredentialSecrets,
    McpOAuth,
    RefreshConfig,
    StaticBearer,
    TokenEndpointAuth,
    VaultCredential,
)
from roost.egress.dial import Dialer, resolve
from roost.egress.options import EgressBounds
from roost.egress.outbound import RestrictedHttp
from roost.errors import InvalidRequest, Unavailable
from roost.ports.outbound import HttpAnswer, NoAnswer, Outbound
from roost.ports.store import Store
from roost.serve.http import listening
from roost.stores.postgres import PostgresStore
from roost.stores.seal import MasterKeys
from roost.stores.sqlite import SqliteStore
from roost.testing.postgres import PostgresServer

SEAL = MasterKeys([b"k" * 32])
TENANT = "default"
ANY_PORT = frozenset(range(1, 65536))
ROOT = Path(__file__).parents[2]


def outbound() -> RestrictedHttp:
    return RestrictedHttp(Dialer(resolve, LOOPBACK, 5), EgressBounds(), ANY_PORT)


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def aged(credential: VaultCredential, seconds: int = 3600) -> VaultCredential:
    """As if its token had been there for a while."""
    return replace(credential, updated_at=credential.updated_at - seconds * 1_000_000)


class Setting:
    """A credential in a store, its authorization server, and nodes that renew it."""

    def __init__(self, stores: Sequence[Store], server: AuthorizationServer, url: str) -> None:
        self.stores = stores
        self.server = server
        self.url = url
        self.nodes = [OAuthRefresh(each.credentials, SEAL, outbound()) for each in stores]

    @property
    def credentials(self) -> Any:
        return self.stores[0].credentials

    async def add(
        self, expires_in: float | None = 30, how: str = "none", **config: Any
    ) -> VaultCredential:
        vault = await self.stores[0].catalog.add(
            "vault", TENANT, "vlt_1", {"display_name": "v", "metadata": {}}, unique_name=False
        )
        refresh = RefreshConfig(
            client_id="client",
            token_endpoint=f"{self.url}/token",
            token_endpoint_auth=TokenEndpointAuth(how),  # type: ignore[arg-type]
            **config,
        )
        auth = McpOAuth(
            mcp_server_url="https://mcp.example/mcp",
            expires_at=None if expires_in is None else soon(expires_in),
            refresh=refresh,
        )
        new = VaultCredential(id="vcrd_1", tenant=TENANT, vault_id=vault.id, auth=auth)
        parts = CredentialSecrets(
            value=self.server.access,
            refresh_token=self.server.refresh,
            client_secret=None if how == "none" else CLIENT_SECRET,
        )
        return await self.credentials.add(replace(new, sealed=sealed(SEAL, new, parts)))

    async def now(self) -> VaultCredential:
        return await self.credentials.find("vcrd_1")

    async def parts(self) -> CredentialSecrets:
        return opened_parts(SEAL, await self.now())

    async def expire(self) -> VaultCredential:
        """Let its token be out of date."""

        def changed(now: VaultCredential, _: int) -> VaultCredential:
            assert isinstance(now.auth, McpOAuth)
            return replace(now, auth=replace(now.auth, expires_at=soon(-5)))

        return await self.credentials.change(await self.now(), changed)


@asynccontextmanager
async def setting_on(stores: Sequence[Store], **how: Any) -> AsyncGenerator[Setting, None]:
    server = AuthorizationServer(**how)
    async with listening(server.app, "127.0.0.1", 0) as url:
        yield Setting(stores, server, url)


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncGenerator[Setting, None]:
    async with SqliteStore.open(tmp_path / "roost.db") as store, setting_on([store]) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
async def two_nodes(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[Setting, None]:
    """Two nodes on one database; of SQLite's, two that know nothing of each other in one process."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            store = await stack.enter_async_context(SqliteStore.open(tmp_path / "roost.db"))
            stores: list[Any] = [store, store]
        else:
            postgres: PostgresServer = request.getfixturevalue("postgres")
            url = await postgres.new()
            stores = [await stack.enter_async_context(PostgresStore.open(url)) for _ in range(2)]
        yield await stack.enter_async_context(setting_on(stores))


async def test_a_token_that_has_long_to_live_is_given_as_it_is(setting: Setting):
    credential = await setting.add(expires_in=3600)
    assert await setting.nodes[0].token(credential) == "access-0-0123456789"
    assert setting.server.seen == []


async def test_a_token_that_lives_shortly_is_not_renewed_in_the_first_half_of_its_life(
    setting: Setting,
):
    credential = await setting.add(expires_in=45)
    assert await setting.nodes[0].token(credential) == "access-0-0123456789"
    assert setting.server.seen == []
    assert await setting.nodes[0].token(aged(credential, 60)) == "access-1-0123456789"


async def test_many_requests_on_two_nodes_renew_a_token_once(two_nodes: Setting):
    credential = await two_nodes.add(expires_in=-5)
    two_nodes.server.takes = 0.1
    got: list[str] = []

    async def ask(node: OAuthRefresh) -> None:
        got.append(await node.token(credential))

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(ask, two_nodes.nodes[number % 2])
    assert set(got) == {"access-1-0123456789"}
    assert len(two_nodes.server.seen) == 1
    assert two_nodes.server.reused == []
    parts = await two_nodes.parts()
    assert (parts.value, parts.refresh_token) == (two_nodes.server.access, two_nodes.server.refresh)
    now = await two_nodes.now()
    assert isinstance(now.auth, McpOAuth)
    assert now.auth.expires_at is not None
    assert now.auth.expires_at > soon(3500)


async def test_it_is_renewed_again_and_again_by_whoever_needs_it(two_nodes: Setting):
    await two_nodes.add(expires_in=-5)
    for number in range(6):
        credential = await two_nodes.expire()
        await two_nodes.nodes[number % 2].token(credential)
    assert two_nodes.server.reused == []
    assert two_nodes.server.access == "access-6-0123456789"


async def test_while_one_renews_others_use_what_is_still_good(setting: Setting):
    credential = aged(await setting.add(expires_in=30))  # due, but good
    assert await setting.credentials.lease(credential, "another", 15)
    with anyio.fail_after(2):
        assert await setting.nodes[0].token(credential) == "access-0-0123456789"


async def test_a_token_that_was_turned_down_is_renewed_if_nobody_has_yet(setting: Setting):
    credential = await setting.add(expires_in=None)
    node = setting.nodes[0]
    assert await node.replaced(credential, "access-0-0123456789")
    assert len(setting.server.seen) == 1
    # Who comes with the old one is told that there is a new one.
    assert await node.replaced(await setting.now(), "access-0-0123456789")
    # A server that turns the new one down as well does not make us ask again and again.
    assert not await node.replaced(await setting.now(), "access-1-0123456789")
    assert len(setting.server.seen) == 1


async def test_of_tokens_that_were_turned_down_nothing_is_kept_for_long(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_BETWEEN_REJECTIONS", 0.0)
    credential = await setting.add(expires_in=None)
    node = setting.nodes[0]
    assert await node.replaced(credential, "access-0-0123456789")
    assert await node.replaced(await setting.now(), "access-1-0123456789")
    assert len(setting.server.seen) == 2
    assert node._may_ask_now("vcrd_another")
    assert list(node._rejected) == ["vcrd_another"]


async def test_a_static_token_is_never_renewed(setting: Setting):
    credential = await setting.add()
    bearer = replace(credential, auth=StaticBearer(mcp_server_url="https://mcp.example/mcp"))
    assert await setting.nodes[0].token(bearer) == "access-0-0123456789"
    assert not await setting.nodes[0].replaced(bearer, "access-0-0123456789")
    assert setting.server.seen == []


@pytest.mark.parametrize("how", ["none", "client_secret_basic", "client_secret_post"])
async def test_the_client_says_who_it_is_as_the_credential_wants(setting: Setting, how: str):
    credential = await setting.add(-5, how, resource="https://mcp.example/mcp", scope="a b")
    await setting.nodes[0].token(credential)
    (form,) = setting.server.seen
    common = {
        "grant_type": "refresh_token",
        "refresh_token": "refresh-0-0123456789",
        "resource": "https://mcp.example/mcp",
        "scope": "a b",
    }
    own = {
        "none": {"client_id": "client"},
        "client_secret_basic": {"basic": f"client:{CLIENT_SECRET}"},
        "client_secret_post": {"client_id": "client", "client_secret": CLIENT_SECRET},
    }
    assert form == common | own[how]


@pytest.mark.parametrize(
    "answer",
    [
        JSONResponse({"error": "invalid_grant"}, 400),
        JSONResponse({"error": "invalid_grant"}, 403),
        PlainTextResponse("no", 200),
        JSONResponse({"access_token": ""}, 200),
        JSONResponse(["access_token"], 200),
        JSONResponse({"error": "invalid_client"}, 401),
        JSONResponse({"error": "bad_refresh_token"}, 200),
    ],
)
async def test_a_grant_that_is_gone_is_said_and_not_tried_again(setting: Setting, answer: Response):
    credential = await setting.add(expires_in=-5)
    setting.server.answer = lambda: answer
    with pytest.raises(Unavailable, match=r"gives no new one: \d\d\d") as failed:
        await setting.nodes[0].token(credential)
    assert "refresh-0" not in failed.value.message
    assert (await setting.now()).refresh_failed
    with pytest.raises(Unavailable, match="turned the refresh token down"):
        await setting.nodes[0].token(await setting.now())
    assert not await setting.nodes[0].replaced(await setting.now(), "access-0-0123456789")
    assert len(setting.server.seen) == 1
    assert (await setting.parts()).refresh_token == "refresh-0-0123456789"


@pytest.mark.parametrize(
    "answer",
    [
        *(
            PlainTextResponse("later", status)
            for status in (400, 403, 404, 408, 425, 429, 500, 503)
        ),
        JSONResponse({"error": "invalid_grant"}, 500),
        JSONResponse({"error": "slow_down"}, 400),
        Response(status_code=302, headers={"location": "http://127.0.0.1/evil"}),
    ],
    ids=lambda answer: str(answer.status_code),
)
async def test_a_server_that_cannot_answer_now_is_asked_again_later(
    setting: Setting, answer: Response, monkeypatch: pytest.MonkeyPatch
):
    """Also something before it that answers in its place, and knows nothing of OAuth's errors."""
    monkeypatch.setattr(module, "_LEASE_SECONDS", 0.3)
    credential = await setting.add(expires_in=-5)
    setting.server.answer = lambda: answer
    with pytest.raises(Unavailable, match=str(answer.status_code)):
        await setting.nodes[0].token(credential)
    assert not (await setting.now()).refresh_failed
    setting.server.answer = None
    assert await setting.nodes[0].token(await setting.now()) == "access-1-0123456789"


async def test_a_due_token_is_used_while_its_server_is_away(setting: Setting):
    credential = aged(await setting.add(expires_in=30))
    setting.server.answer = lambda: PlainTextResponse("later", 500)
    assert await setting.nodes[0].token(credential) == "access-0-0123456789"
    assert len(setting.server.seen) == 1


async def test_an_address_inside_is_not_asked(tmp_path: Path):
    async with SqliteStore.open(tmp_path / "roost.db") as store, setting_on([store]) as setting:
        credential = await setting.add(expires_in=-5)
        guarded = RestrictedHttp(Dialer(resolve, (), 5), EgressBounds(), ANY_PORT)
        node = OAuthRefresh(store.credentials, SEAL, guarded)
        with pytest.raises(Unavailable, match="not public"):
            await node.token(credential)
    assert setting.server.seen == []


async def test_a_port_that_the_operator_does_not_allow_is_not_asked(setting: Setting):
    credential = await setting.add(expires_in=-5)
    guarded = RestrictedHttp(Dialer(resolve, LOOPBACK, 5), EgressBounds(), frozenset((80, 443)))
    node = OAuthRefresh(setting.credentials, SEAL, guarded)
    with pytest.raises(Unavailable, match=r"port \d+ is not allowed"):
        await node.token(credential)
    assert setting.server.seen == []


async def test_a_refresh_token_stays_where_none_is_given_and_an_odd_lifetime_is_unknown(
    setting: Setting,
):
    credential = await setting.add(expires_in=-5)
    setting.server.answer = lambda: JSONResponse({"access_token": "new-token", "expires_in": -1})
    assert await setting.nodes[0].token(credential) == "new-token"
    assert (await setting.parts()).refresh_token == "refresh-0-0123456789"
    now = await setting.now()
    assert isinstance(now.auth, McpOAuth)
    assert now.auth.expires_at is None


async def test_a_token_that_no_request_can_carry_is_refused_but_the_new_refresh_token_kept(
    setting: Setting,
):
    credential = await setting.add(expires_in=-5)
    bad = {"access_token": "two\nlines", "refresh_token": "refresh-new-0123456789"}
    setting.server.answer = lambda: JSONResponse(bad)
    with pytest.raises(Unavailable):
        await setting.nodes[0].token(credential)
    parts = await setting.parts()
    assert (parts.value, parts.refresh_token) == ("access-0-0123456789", "refresh-new-0123456789")


class Paused:
    """Answers are in, and wait before anybody sees them."""

    def __init__(self, inner: Outbound) -> None:
        self.inner = inner
        self.answered = anyio.Event()
        self.go_on = anyio.Event()

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, secrets: Sequence[str]
    ) -> HttpAnswer | NoAnswer:
        answer = await self.inner.post(url, headers, body, secrets)
        self.answered.set()
        await self.go_on.wait()
        return answer


async def test_a_client_that_hangs_up_while_a_token_is_renewed_loses_nothing(setting: Setting):
    credential = await setting.add(expires_in=-5)
    paused = Paused(outbound())
    node = OAuthRefresh(setting.credentials, SEAL, paused)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.token, credential)
        await paused.answered.wait()
        tasks.cancel_scope.cancel()
        paused.go_on.set()
    assert (await setting.parts()).refresh_token == setting.server.refresh


async def test_a_credential_that_was_renamed_meanwhile_keeps_both_changes(setting: Setting):
    credential = await setting.add(expires_in=-5)
    paused = Paused(outbound())
    node = OAuthRefresh(setting.credentials, SEAL, paused)

    async def ask_another_node() -> None:
        with suppress(Unavailable):  # what that node sent is looked at below
            await setting.nodes[0].token(await setting.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.token, credential)
        await paused.answered.wait()
        await setting.credentials.change(
            credential, lambda now, _: replace(now, display_name="renamed")
        )
        # Another node that sees the new name does not send the refresh token again: that one is in use.
        tasks.start_soon(ask_another_node)
        await anyio.sleep(2 * module._LOOK_AGAIN)
        paused.go_on.set()
    assert len(setting.server.seen) == 1
    assert setting.server.reused == []
    assert (await setting.parts()).value == setting.server.access
    assert (await setting.now()).display_name == "renamed"


async def test_whoever_renews_gives_the_lease_back_and_nobody_elses(setting: Setting):
    credential = await setting.add(expires_in=-5)
    assert await setting.credentials.lease(credential, "mine", 15)
    same = await setting.credentials.change(credential, lambda now, _: now, ends_lease="anothers")
    assert await setting.credentials.lease(same, "anothers", 15) is None
    await setting.credentials.change(credential, lambda now, _: now, ends_lease="mine")
    assert await setting.credentials.lease(same, "anothers", 15)


async def test_tokens_that_somebody_puts_in_meanwhile_win(setting: Setting):
    credential = await setting.add(expires_in=-5)
    paused = Paused(outbound())
    node = OAuthRefresh(setting.credentials, SEAL, paused)
    given = CredentialSecrets(value="given-access", refresh_token="given-refresh")

    def replaced(now: VaultCredential, _: int) -> VaultCredential:
        assert isinstance(now.auth, McpOAuth)
        auth = replace(now.auth, expires_at=soon(3600))
        return replace(now, auth=auth, sealed=sealed(SEAL, now, given))

    got: list[str] = []

    async def ask() -> None:
        got.append(await node.token(credential))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await paused.answered.wait()
        await setting.credentials.change(credential, replaced)
        paused.go_on.set()
    assert got == ["given-access"]
    assert await setting.parts() == given


class Failing:
    """A store that cannot write for a while."""

    def __init__(self, inner: Any, failures: int) -> None:
        self._inner = inner
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def change(self, *args: Any, **options: Any) -> VaultCredential:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        return await self._inner.change(*args, **options)


async def test_new_tokens_are_kept_until_they_can_be_stored(setting: Setting):
    credential = await setting.add(expires_in=-5)
    node = OAuthRefresh(Failing(setting.credentials, 2), SEAL, outbound())
    assert await node.token(credential) == "access-1-0123456789"
    assert (await setting.parts()).refresh_token == setting.server.refresh


class SlowLease:
    """A store that takes its time over the first lease; `leases` counts them."""

    def __init__(self, inner: Any, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds
        self.leases = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def lease(self, *args: Any) -> int | None:
        until: int | None = await self._inner.lease(*args)
        self.leases += 1
        if self.leases == 1:
            await anyio.sleep(self._seconds)
        return until


async def test_a_lease_that_came_late_is_asked_for_again_before_the_request(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise it could run out while the request is under way, and another node would send the same token."""
    monkeypatch.setattr(module, "_LEASE_WITHIN", 0.5)
    credential = await setting.add(expires_in=-5)
    slow = SlowLease(setting.credentials, 0.6)
    leases_before_request: list[int] = []

    class Noting:
        async def post(self, *args: Any) -> HttpAnswer | NoAnswer:
            leases_before_request.append(slow.leases)
            return await outbound().post(*args)

    node = OAuthRefresh(slow, SEAL, Noting())  # type: ignore[arg-type]
    assert await node.token(credential) == "access-1-0123456789"
    assert len(leases_before_request) == 1
    assert leases_before_request[0] >= 2


# Killed

_CHILD = """
import os, sys, json, anyio
from pathlib import Path
from roost.core.vaults import refresh
from tests.core.test_refresh import SEAL, outbound, opened
when, url, note = sys.argv[1:]
refresh._LEASE_SECONDS = 1.0

class Stopping:
    async def post(self, *args):
        if when == "before":
            Path(note).write_text("here")
            await anyio.sleep_forever()
        answer = await outbound().post(*args)
        Path(note).write_text("here")
        await anyio.sleep_forever()

async def main():
    async with opened(url) as store:
        node = refresh.OAuthRefresh(store.credentials, SEAL, Stopping())
        await node.token(await store.credentials.find("vcrd_1"))

anyio.run(main)
"""


def opened(url: str) -> Any:
    return PostgresStore.open(url) if url.startswith("postgres") else SqliteStore.open(Path(url))


@pytest.mark.parametrize(("when", "grace"), [("before", 0), ("after", 1), ("after", 0)])
async def test_a_node_that_is_killed_around_a_renewal(
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    grace: int,
):
    """Before the request nothing is lost. After the answer, it depends on the authorization server whether the
    old refresh token is taken once more; nobody uses it twice beside that, and if it is lost, that is said.
    """
    monkeypatch.setattr(module, "_LEASE_SECONDS", 1.0)
    url, note = await postgres.new(), tmp_path / "note"
    async with PostgresStore.open(url) as store, setting_on([store], grace=grace) as setting:
        credential = await setting.add(expires_in=-5)
        command = [sys.executable, "-c", _CHILD, when, url, str(note)]
        child = await anyio.open_process(command, stdout=None, stderr=None, cwd=ROOT)
        try:
            with anyio.fail_after(60):
                while not note.exists():
                    assert child.returncode is None
                    await anyio.sleep(0.02)
        finally:
            child.kill()
            await child.wait()
        got: list[str] = []

        async def ask() -> None:
            try:
                got.append(await setting.nodes[0].token(credential))
            except Unavailable as error:
                got.append(error.message)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
        if when == "after" and not grace:
            assert all("invalid_grant" in each or "turned" in each for each in got)
            assert "may have been lost" in str(got)
            assert setting.server.reused == ["refresh-0-0123456789"]
        else:
            assert set(got) == {setting.server.access}
            assert len(setting.server.reused) == grace
            assert (await setting.parts()).refresh_token == setting.server.refresh


# Validation


async def validated(setting: Setting, answers: Sequence[int | None]) -> dict[str, Any]:
    """As an MCP server answers that is asked once and again."""
    left = list(answers)
    tokens: list[str] = []

    class Asked:
        async def post(
            self, url: str, headers: Mapping[str, str], body: bytes, secrets: Sequence[str]
        ) -> HttpAnswer | NoAnswer:
            tokens.append(headers["authorization"])
            assert json.loads(body)["method"] == "initialize"
            status = left.pop(0)
            if status is None:
                return NoAnswer("away")
            return HttpAnswer(
                status=status, content_type="text/plain", body=b"", shown="said", is_cut=False
            )

    tried = McpValidation(setting.nodes[0], Asked(), SEAL)
    found = await tried.validated(await setting.now())
    assert left == []
    return found | {"tokens": tokens}


@pytest.mark.parametrize(
    ("answers", "status", "refresh"),
    [
        ([200], "valid", None),
        ([503], "unknown", None),
        ([None], "unknown", None),
        ([401, 200], "valid", "succeeded"),
        ([401, 401], "invalid", "succeeded"),
        ([401, None], "unknown", "succeeded"),
    ],
)
async def test_a_credential_is_tried_and_renewed_if_that_helps(
    setting: Setting, answers: list[int | None], status: str, refresh: str | None
):
    await setting.add(expires_in=3600)
    found = await validated(setting, answers)
    assert found["status"] == status
    assert (found["refresh"] or {}).get("status") == refresh
    assert (found["mcp_probe"] is None) == (status == "valid")
    assert len(set(found["tokens"])) == len(answers)


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [(400, "invalid_grant", "invalid"), (400, "blocked", "unknown"), (500, "away", "unknown")],
)
async def test_a_grant_that_is_gone_is_invalid_and_a_server_that_is_away_unknown(
    setting: Setting, code: int, error: str, status: str
):
    await setting.add(expires_in=3600)
    said = '{"error":"%s","about":"%s"}'
    setting.server.answer = lambda: PlainTextResponse(said % (error, "refresh-0-0123456789"), code)
    found = await validated(setting, [401])
    assert (found["status"], found["refresh"]["status"]) == (status, "failed")
    shown = found["refresh"]["http_response"]
    assert (shown["status_code"], shown["body"]) == (code, said % (error, "*" * 20))


@pytest.mark.parametrize(
    "answer",
    [
        JSONResponse(
            {"access_token": "new-access", "refresh_token": "new-refresh", "token_type": "DPoP"}
        ),
        PlainTextResponse("access_token=new-access&refresh_token=new-refresh&token_type=bearer"),
    ],
)
async def test_new_tokens_that_cannot_be_used_are_not_shown(setting: Setting, answer: Response):
    await setting.add(expires_in=3600)
    setting.server.answer = lambda: answer
    found = await validated(setting, [401])
    assert (found["status"], found["refresh"]["status"]) == ("invalid", "failed")
    shown = found["refresh"]["http_response"]
    assert (shown["status_code"], shown["body"], shown["body_truncated"]) == (200, "", True)
    assert "new-" not in json.dumps(found)


async def test_only_oauth_credentials_can_be_validated(setting: Setting):
    credential = await setting.add()
    bearer = replace(credential, auth=StaticBearer(mcp_server_url="https://mcp.example/mcp"))
    with pytest.raises(InvalidRequest):
        await McpValidation(setting.nodes[0], outbound(), SEAL).validated(bearer)
