"""Who may open a socket: decided before the upgrade, answered in the API's envelope."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import jwt
import pytest
from tests.gateway.talk import HEADERS, Api, Json, Talk, address
from tests.stores import Databases
from websockets.exceptions import InvalidStatus

from roost.testing.live import LiveServer


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One that says all it can in its log."""
    with LiveServer(
        tmp_path_factory.mktemp("server") / "data",
        ROOST_ALLOWED_ORIGINS="https://app.example, https://other.example/",
        ROOST_LOG_LEVEL="debug",
    ) as live:
        yield live


def refused(server: LiveServer, origin: str | None = None, **query: Any) -> tuple[int, Json]:
    with pytest.raises(InvalidStatus) as caught:
        Talk(address(server, **query), origin=origin)
    response = caught.value.response
    body: Json = json.loads(bytes(response.body or b""))
    assert body["type"] == "error"
    assert body["request_id"].startswith("req_")
    return response.status_code, body["error"]


def another(api: Api, tenant: str) -> Api:
    made = api.post("/roost/v1/keys", {"name": "other", "tenant": tenant})
    return Api(api.server, made["secret"])


@contextmanager
def logged_in(api: Api) -> Iterator[httpx2.Client]:
    headers = {**HEADERS, "origin": api.server.url}
    with httpx2.Client(base_url=api.server.url, headers=headers, timeout=300) as browser:
        answer = browser.post("/auth/login", json={"api_key": api.server.key})
        assert answer.status_code == 200, answer.text
        yield browser


def test_a_token_is_needed(server: LiveServer, api: Api) -> None:
    session_id = api.session()
    assert refused(server, sessionId=session_id)[0] == 401
    assert refused(server, sessionId=session_id, token="")[0] == 401
    status, error = refused(server, sessionId=session_id, token="not.a.token")
    assert (status, error["type"]) == (401, "authentication_error")


def test_a_forged_token_is_refused(server: LiveServer, api: Api) -> None:
    claims = jwt.decode(api.token(), options={"verify_signature": False})
    for key, algorithm in (("x" * 64, "HS256"), (None, "none")):
        forged = jwt.encode(claims, key, algorithm=algorithm)
        assert refused(server, token=forged)[0] == 401


def test_a_token_of_another_kind_is_refused(server: LiveServer, api: Api) -> None:
    secret = (server.data / "keys" / "jwt.key").read_text().strip()
    claims = jwt.decode(api.token(), secret, algorithms=["HS256"], audience="ws")
    old = {**claims, "exp": time.time() - 1}
    status, error = refused(server, token=jwt.encode(old, secret, algorithm="HS256"))
    assert (status, error["message"]) == (401, "The token has expired.")
    for change in ({"aud": "else"}, {"iss": "else"}, {"sub": "apikey_none"}, {"tenant": "other"}):
        token = jwt.encode({**claims, **change}, secret, algorithm="HS256")
        assert refused(server, token=token)[0] == 401
    assert (server.data / "keys" / "jwt.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("value", [{"a": 1}, ["x"], 7, "a\0b"])
@pytest.mark.parametrize("claim", ["login", "session", "sub", "tenant"])
def test_a_claim_of_the_wrong_kind_is_refused(
    server: LiveServer, api: Api, claim: str, value: Any
) -> None:
    secret = (server.data / "keys" / "jwt.key").read_text().strip()
    claims = jwt.decode(api.token(), secret, algorithms=["HS256"], audience="ws")
    token = jwt.api_jws.encode(
        json.dumps({**claims, claim: value}).encode(), secret, algorithm="HS256"
    )
    assert refused(server, token=token)[0] == 401


def test_another_tenant_s_session_is_refused_like_one_that_is_not_there(
    server: LiveServer, api: Api
) -> None:
    mine = api.session()
    with another(api, "elsewhere") as other:
        answers = [
            refused(server, sessionId=session_id, token=other.token())
            for session_id in (mine, "sesn_none")
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 403
        response = other.http.get("/auth/ws-token", params={"sessionId": mine})
        assert response.status_code == 403
        with other.open() as talk:
            talk.say("start", sessionId=mine)
            assert talk.until("error")["code"] == "not_found"


def test_a_token_for_one_session_opens_no_other(server: LiveServer, api: Api) -> None:
    one, two = api.session(), api.session()
    assert refused(server, sessionId=two, token=api.token(one))[0] == 403
    with Talk(address(server, token=api.token(one))) as talk:
        talk.say("start", sessionId=two)
        assert talk.until("error")["code"] == "forbidden"
        talk.say("start", sessionId=one)
        talk.until("agent_status")


def test_a_page_of_another_origin_is_refused(server: LiveServer, api: Api) -> None:
    for origin in ("https://evil.example", "null", server.url.replace("127.0.0.1", "localhost")):
        status, error = refused(server, origin, token=api.token())
        assert (status, error["details"]["error_code"]) == (403, "cross_origin")
    with Talk(address(server, token=api.token()), origin=server.url):
        pass


def test_an_origin_that_the_operator_names_is_let_in(server: LiveServer, api: Api) -> None:
    for origin in ("https://app.example", "https://other.example"):
        Talk(address(server, token=api.token()), origin=origin).close()
    assert refused(server, "https://app.example.evil", token=api.token())[0] == 403


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 20])
def test_a_wrong_parameter_is_named(server: LiveServer, api: Api, after: str) -> None:
    status, error = refused(server, token=api.token(), after=after)
    assert status == 400
    assert "after" in error["message"]


def test_there_is_one_path(server: LiveServer, api: Api) -> None:
    wrong = address(server, token=api.token()).replace("/ws/v2", "/ws/v1")
    with pytest.raises(InvalidStatus) as caught:
        Talk(wrong)
    assert caught.value.response.status_code == 404


def test_a_login_opens_sockets_until_it_ends(server: LiveServer, api: Api) -> None:
    session_id = api.session()
    with logged_in(api) as browser:
        token = browser.get("/auth/ws-token").json()["token"]
        spare = browser.get("/auth/ws-token").json()["token"]
        talk = Talk(address(server, token=token, sessionId=session_id), origin=server.url)
        talk.say("start")
        talk.until("agent_status")
        assert browser.post("/auth/logout").status_code == 200
        assert talk.close_code()[0] == 4401
    status, error = refused(server, token=spare, sessionId=session_id)
    assert (status, error["message"]) == (401, "The login has ended.")


def test_a_revoked_key_closes_its_sockets(server: LiveServer, api: Api) -> None:
    made = api.post("/roost/v1/keys", {"name": "short-lived"})
    with Api(server, made["secret"]) as other:
        token = other.token()
        talk = Talk(address(server, token=token))
        assert api.http.delete(f"/roost/v1/keys/{made['id']}").status_code == 200
        assert talk.close_code()[0] == 4401
        assert refused(server, token=token)[0] == 401


def test_no_token_reaches_a_log(server: LiveServer, api: Api) -> None:
    session_id = api.session()
    token = api.token(session_id)
    with Talk(address(server, token=token, sessionId=session_id)) as talk:
        talk.say("start")
        talk.say("message", content="Hello")
        talk.until("done")
    refused(server, token=token, sessionId="sesn_other")
    refused(server, token=token + "x")
    assert "accepted 1 inputs" in server.output
    for part in token.split("."):
        assert part not in server.output
