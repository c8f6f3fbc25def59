"""Logins: a cookie that stands for a key, and that no other site can use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from tests.api.api_server import HEADERS, ApiServer, api_server, error_of

from roost.api.access.login_attempts import LoginAttempts
from roost.core.access import logins
from roost.errors import RateLimited, Unauthenticated
from roost.ports.catalog import RecordQuery

ORIGIN = {"origin": "http://roost"}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncGenerator[ApiServer]:
    async with api_server(tmp_path) as made:
        yield made


@asynccontextmanager
async def browser_of(
    home: ApiServer, *, check: bool = True, **headers: str
) -> AsyncGenerator[httpx2.AsyncClient]:
    """A browser that has logged in."""
    _, secret = await home.keyring.create(tenant="tenant_1", name="me")
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(home.app), base_url="http://roost"
    ) as browser:
        answer = await browser.post("/auth/login", json={"api_key": secret}, headers=ORIGIN)
        if check:
            assert answer.status_code == 200, answer.text
            assert answer.json()["name"] == "me"
            assert answer.json()["expires_at"]
            cookie = answer.headers["set-cookie"].lower()
            for word in ("httponly", "samesite=strict", "path=/", "max-age=604800"):
                assert word in cookie
            assert "secure" not in cookie
        browser.headers.update({**HEADERS, **headers})
        yield browser


async def test_a_cookie_opens_what_its_key_opens(home: ApiServer) -> None:
    async with browser_of(home, **ORIGIN) as browser:
        assert (await browser.get("/auth/me")).json()["tenant"] == "tenant_1"
        assert (await browser.get("/v1/sessions")).status_code == 200
        made = await browser.post("/v1/environments", json={"name": "home"})
        assert made.status_code == 200, made.text
        error_of(await browser.get("/roost/v1/keys"), 403)  # the key is no administrator's
        assert (await browser.get("/auth/ws-token")).json()["token"]


async def test_a_login_ends_for_good(home: ApiServer) -> None:
    async with browser_of(home, **ORIGIN) as browser:
        cookie = dict(browser.cookies)
        assert (await browser.post("/auth/logout")).status_code == 200
        assert not browser.cookies
        browser.cookies.update(cookie)
        error_of(await browser.get("/auth/me"), 401)


async def test_a_login_ends_with_its_key(home: ApiServer) -> None:
    async with browser_of(home, **ORIGIN) as browser:
        key_id = (await browser.get("/auth/me")).json()["key_id"]
        await home.client.delete(f"/roost/v1/keys/{key_id}")
        error_of(await browser.get("/auth/me"), 401)


@pytest.mark.parametrize(("seconds", "status"), [(600, 200), (0.000001, 401)])
async def test_a_login_ends_at_its_time_whoever_keeps_the_cookie(
    tmp_path: Path, seconds: float, status: int
) -> None:
    async with api_server(tmp_path, login_seconds=seconds) as home:
        _, secret = await home.keyring.create(tenant="tenant_1", name="me")
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(home.app), base_url="http://roost"
        ) as thief:
            answer = await thief.post("/auth/login", json={"api_key": secret}, headers=ORIGIN)
            cookie = answer.headers["set-cookie"].partition(";")[0]
            thief.cookies.clear()  # a browser drops it at its time; who has copied it does not
            shown = await thief.get("/auth/me", headers={**HEADERS, "cookie": cookie})
            assert shown.status_code == status, shown.text


async def test_logins_whose_time_is_over_are_swept(tmp_path: Path) -> None:
    async with api_server(tmp_path, login_seconds=0.000001) as home:
        for _ in range(3):
            async with browser_of(home, check=False):
                pass
        page = await home.store.catalog.page(RecordQuery(kind="login", tenant=""))
        assert len(page) <= 1


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://roost:81", "null", "roost", "http://[roost"]
)
async def test_a_change_from_another_site_is_refused(home: ApiServer, origin: str) -> None:
    async with browser_of(home) as browser:
        refused = await browser.post(
            "/v1/environments", json={"name": "x"}, headers={"origin": origin}
        )
        assert error_of(refused, 403)["details"]["error_code"] == "cross_origin"
        error_of(
            await browser.post("/auth/login", json={"api_key": "x"}, headers={"origin": origin}),
            403,
        )


async def test_a_change_without_an_origin_needs_a_header_no_form_can_send(home: ApiServer) -> None:
    async with browser_of(home) as browser:
        error_of(await browser.post("/auth/logout"), 403)
        allowed = await browser.post("/auth/logout", headers={"x-roost-csrf": "1"})
        assert allowed.status_code == 200


async def test_a_key_needs_no_origin(home: ApiServer) -> None:
    answer = await home.client.post(
        "/v1/environments", json={"name": "x"}, headers={"origin": "http://evil.example"}
    )
    assert answer.status_code == 200  # whoever has the key needs no browser to misuse it


@pytest.mark.parametrize("cookie", ["", "x", "login_none.secret", ".", "a.b.c", "=", "x" * 9000])
async def test_a_cookie_that_is_not_ours_opens_nothing(home: ApiServer, cookie: str) -> None:
    headers = {**HEADERS, "cookie": f"roost_login={cookie}"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(home.app), base_url="http://roost"
    ) as stranger:
        error_of(await stranger.get("/auth/me", headers=headers), 401)


async def test_a_wrong_secret_for_a_real_login_opens_nothing(home: ApiServer) -> None:
    async with browser_of(home) as browser:
        login_id = browser.cookies["roost_login"].partition(".")[0]
        browser.cookies.clear()
        answer = await browser.get("/auth/me", headers={"cookie": f"roost_login={login_id}.wrong"})
        error_of(answer, 401)


async def test_a_wrong_key_does_not_log_in(home: ApiServer) -> None:
    answer = await home.client.post("/auth/login", json={"api_key": "roost_wrong"})
    error_of(answer, 401)
    assert "set-cookie" not in answer.headers


async def test_after_some_wrong_keys_an_address_has_to_wait_and_others_do_not(
    home: ApiServer,
) -> None:
    _, secret = await home.keyring.create(tenant="tenant_1", name="me")

    async def tried(key: str, address: str) -> httpx2.Response:
        transport = httpx2.ASGITransport(home.app, client=(address, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://roost") as browser:
            return await browser.post("/auth/login", json={"api_key": key}, headers=ORIGIN)

    for _ in range(10):
        error_of(await tried("roost_wrong", "192.0.2.1"), 401)
    answer = await tried("roost_wrong", "192.0.2.1")
    assert error_of(answer, 429)["details"]["error_code"] == "rate_limited"
    assert 1 <= int(answer.headers["retry-after"]) <= 6
    assert (await tried(secret, "192.0.2.1")).status_code == 200
    assert (await tried(secret, "192.0.2.2")).status_code == 200


async def test_wrong_keys_without_end_close_their_address_and_no_other() -> None:
    attempts = LoginAttempts()
    for count in range(900):  # some are forgotten meanwhile
        attempts.failed("192.0.2.1", str(count))
        attempts.failed(f"2001:db8::{count:x}", str(count))
    for closed in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::ffff"):
        with pytest.raises(RateLimited):
            attempts.check(closed, "another")
    for free in ("192.0.2.2", "2001:db8:1::1"):
        attempts.check(free, "another")


async def test_a_listing_shows_the_ends_of_a_long_secret_and_nothing_of_a_short_one(
    home: ApiServer,
) -> None:
    long, short = "l" * 9 + "-" * 19 + "long", "s" * 31
    for secret, shown in ((long, "lllllllll…long"), (short, "…")):
        key, _ = await home.keyring.create(tenant="tenant_1", name="me", secret=secret)
        assert key.hint == shown


async def test_a_key_is_not_logged_out(home: ApiServer) -> None:
    error_of(await home.client.post("/auth/logout"), 403)
    assert (await home.client.get("/auth/me")).json()["expires_at"] is None


async def test_me_says_which_trust_levels_the_key_may_ask_for_here(tmp_path: Path) -> None:
    async with api_server(tmp_path, trust_levels="sandboxed,vault") as home:
        assert (await home.get("/auth/me"))["trust_levels"] == ["sandboxed", "vault"]
        async with browser_of(home) as browser:  # its key reaches the first level only
            assert (await browser.get("/auth/me")).json()["trust_levels"] == ["sandboxed"]


async def test_a_key_has_so_many_logins_and_one_more_ends_the_oldest(
    home: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_MOST_OF_A_KEY", 3)
    _, secret = await home.keyring.create(tenant="tenant_1", name="me")
    _, other = await home.keyring.create(tenant="tenant_1", name="you")
    kept = (await home.deps.logins.begin(other))[1]
    cookies = [(await home.deps.logins.begin(secret))[1] for _ in range(5)]
    for cookie in (kept, *cookies[2:]):
        assert await home.deps.logins.recognise(cookie)
    for cookie in cookies[:2]:
        with pytest.raises(Unauthenticated):
            await home.deps.logins.recognise(cookie)


async def test_what_is_remembered_of_logins_has_a_bound(
    home: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_MOST_CACHED", 2)
    _, secret = await home.keyring.create(tenant="tenant_1", name="me")
    cookies = [(await home.deps.logins.begin(secret))[1] for _ in range(4)]
    for cookie in cookies * 2:
        assert (await home.deps.logins.recognise(cookie)).key.name == "me"
        assert len(home.deps.logins._known) <= 2


async def test_what_is_remembered_of_logouts_has_a_bound(
    home: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_MOST_CACHED", 5)
    for n in range(20):
        await home.deps.logins.end(f"login_{n}")
    assert len(home.deps.logins._ended) == 5
