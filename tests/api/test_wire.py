"""What every request meets: keys, headers, bodies, limits, and errors in one envelope."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from tests.api.api_server import HEADERS, TENANT, api_server, client_of, error_of, messages

from roost.api.framework.errors import status_of
from roost.core.records.agents import Agents
from roost.errors import RoostError
from roost.ports.keys import UsageLimits
from roost.serve.http import listening


def bare(roost: Any, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(roost.app), base_url="http://roost", headers=headers
    )


async def test_a_key_is_taken_from_either_header(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        secret = roost.client.headers["x-api-key"]
        for headers in (
            {"x-api-key": secret},
            {"authorization": f"Bearer {secret}"},
            {"authorization": f"bearer {secret}"},
        ):
            response = await bare(roost, **headers, **HEADERS).get("/v1/agents")
            assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": "roost_wrong"},
        {"x-api-key": "x" * 10_000},
        {"authorization": "Basic abc"},
        {"authorization": "Bearer"},
        {"x-api-key": "\u00ff\u00fe"},
    ],
)
async def test_without_a_valid_key_nothing_opens(tmp_path: Path, headers: dict[str, str]):
    async with api_server(tmp_path) as roost:
        raw = [(k.encode(), v.encode("latin-1")) for k, v in {**headers, **HEADERS}.items()]
        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(roost.app), base_url="http://roost"
        )
        response = await client.get("/v1/agents", headers=raw)
        assert error_of(response, 401)["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"anthropic-version": "2026-10-21"}, 200, ""),
        ({"anthropic-version": ""}, 400, "anthropic-version: '' is not a valid version"),
        (
            {"anthropic-version": "2020-01-01"},
            400,
            "anthropic-version: '2020-01-01' is not a valid",
        ),
        ({"anthropic-beta": "message-batches-2024-09-24, managed-agents-2026-04-01"}, 200, ""),
        ({"anthropic-beta": "claude-code-20250219,managed-agents-2026-04-01"}, 200, ""),
        ({"anthropic-beta": "message-batches-2024-09-24"}, 404, "beta header"),
        ({"anthropic-beta": ""}, 404, "beta header"),
        (
            {"anthropic-beta": "managed-agents-2026-04-01,rubbish!"},
            400,
            "Unexpected value(s) `rubbish!` for the `anthropic-beta` header",
        ),
        ({"anthropic-workspace-id": TENANT}, 200, ""),
        ({"anthropic-workspace-id": "wrkspc_other"}, 400, "anthropic-workspace-id:"),
    ],
)
async def test_the_headers_of_the_api_are_checked(
    tmp_path: Path, headers: dict[str, str], status: int, words: str
):
    async with api_server(tmp_path) as roost:
        response = await roost.client.get("/v1/agents", headers=headers)
        assert response.status_code == status
        if status != 200:
            assert words in error_of(response, status)["message"]


async def test_a_missing_version_is_named(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        del roost.client.headers["anthropic-version"]
        error = error_of(await roost.client.get("/v1/agents"), 400)
        assert error["message"] == "anthropic-version: header is required"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "name: Field required"),
        (b"{", "not valid JSON"),
        (b"[]", "body: Input should be an object"),
        (b'"x"', "body: Input should be an object"),
        (b"null", "body: Input should be an object"),
        (b'{"name": NaN}', "not valid JSON"),
        (b'{"name": "\xff"}', "not valid JSON"),
        (b'{"name": "\\ud800"}', "not valid JSON"),
        (b"\xff\xfe{\x00}\x00", "not valid JSON"),
        (b'{"name": "a\\u0000b", "model": "m"}', "name: must not contain NUL characters"),
        (b'{"metadata": {"a\\u0000": ""}}', "metadata: keys must not contain NUL characters"),
        (b'{"tools": [{"x": "\\u0000"}]}', "tools.0.x: must not contain NUL characters"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"name":' * 2000 + b"1" + b"}" * 2000, "nested too deeply"),
        (b'{"name": "a", "model": "m", "version": 1' + b"0" * 400 + b"}", "version: unknown field"),
        (b'{"name": ' + b"1" * 10_000 + b"}", "not valid JSON"),
    ],
)
async def test_a_body_that_is_not_json_is_told_so(tmp_path: Path, body: bytes, words: str):
    async with api_server(tmp_path) as roost:
        response = await roost.client.post(
            "/v1/agents", content=body, headers={"content-type": "application/json"}
        )
        assert words in error_of(response, 400)["message"]


async def test_an_escaped_backslash_before_u0000_is_no_nul(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        response = await roost.client.post(
            "/v1/agents",
            content=b'{"name": "\\\\u0000", "model": "m"}',
            headers={"content-type": "application/json; charset=utf-8"},
        )
        assert response.json()["name"] == "\\u0000"


async def test_the_content_type_must_be_json(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        response = await roost.client.post("/v1/agents", data={"name": "a"})
        assert "send application/json" in error_of(response, 400)["message"]


async def test_an_operation_without_a_body_takes_none(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent()
        path = f"/v1/agents/{agent['id']}/archive"
        response = await roost.client.post(path, json={"why": "x"})
        assert error_of(response, 400)["message"] == "why: unknown field"
        assert (await roost.client.post(path, json={})).status_code == 200


async def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_size(tmp_path: Path):
    async with api_server(tmp_path, max_body_bytes=2000) as roost:

        async def chunks() -> Any:
            for _ in range(30):
                yield b" " * 100

        for content in (b" " * 3000, chunks()):
            response = await roost.client.post(
                "/v1/agents", content=content, headers={"content-type": "application/json"}
            )
            assert error_of(response, 413)["type"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/agents/", 404),
        ("GET", "/v1//agents", 404),
        ("GET", "/v1/agents/agent_x", 404),
        ("GET", "/v1/agents/%00", 404),
        ("GET", "/v1/agents/..%2f..%2fetc", 404),
        ("GET", "/v1/agents/" + "a" * 500, 404),
        ("GET", "/v1/agents/%F0%9F%98%80", 404),
        ("GET", "/v1/sessions/agent_x", 404),
        ("GET", "/v1/sessions/'%20or%201=1--", 404),
        ("PUT", "/v1/agents", 405),
        ("PATCH", "/v1/agents/agent_x", 405),
        ("OPTIONS", "/v1/agents", 405),
        ("DELETE", "/v1/agents/agent_x", 405),
        ("POST", "/healthz", 405),
        ("HEAD", "/v1/sessions/sesn_x/events/stream", 405),
        ("BREW", "/v1/agents", 405),
    ],
)
async def test_a_path_or_method_nobody_has_is_told_so(
    tmp_path: Path, method: str, path: str, status: int
):
    async with api_server(tmp_path) as roost:
        response = await roost.client.request(method, path)
        assert response.headers["request-id"]
        assert response.headers["x-should-retry"] == "false"
        if method != "HEAD":
            error_of(response, status)
        if status == 405:
            assert response.headers["allow"]


async def test_head_is_get_without_the_body(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        assert (await roost.client.head("/healthz")).status_code == 200
        assert (await roost.client.head("/v1/agents")).status_code == 200


async def test_every_request_has_its_own_id(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        ids = {(await roost.client.get("/v1/agents")).headers["request-id"] for _ in range(5)}
        assert len(ids) == 5


async def test_a_fault_of_ours_is_told_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with api_server(tmp_path) as roost:

        async def broken(*_: Any) -> None:
            raise ZeroDivisionError("secret of the server")

        monkeypatch.setattr(roost.deps.services[Agents], "page", broken)
        response = await roost.client.get("/v1/agents")
        assert error_of(response, 500)["type"] == "api_error"
        assert "secret" not in response.text
        assert "secret of the server" in caplog.text


def test_every_error_has_a_status():
    def leaves(kind: type[RoostError]) -> list[type[RoostError]]:
        below = [leaf for child in kind.__subclasses__() for leaf in leaves(child)]
        return [kind, *below]

    for kind in leaves(RoostError):
        status, type_ = status_of(kind.__new__(kind))
        assert 400 <= status < 600
        assert type_.endswith("_error") or type_ == "request_too_large"


async def test_a_key_is_limited_to_its_rate(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        client = await roost.user(limits=UsageLimits(reads_per_minute=2, writes_per_minute=1))
        first = await client.get("/v1/agents")
        assert first.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert first.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        await client.get("/v1/agents")
        refused = await client.get("/v1/agents")
        assert error_of(refused, 429)["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert "x-should-retry" not in refused.headers
        written = await client.post("/v1/agents", json={"name": "a", "model": "m"})
        assert written.headers["anthropic-ratelimit-requests-limit"] == "1"
        error_of(await client.post("/v1/agents", json={"name": "a", "model": "m"}), 429)
        assert (await roost.client.get("/v1/agents")).status_code == 200  # another key, no limit


async def test_the_servers_limit_holds_for_keys_without_their_own(tmp_path: Path):
    async with api_server(tmp_path, reads_per_minute=600) as roost:
        assert (await roost.client.get("/v1/agents")).headers[
            "anthropic-ratelimit-requests-limit"
        ] == "600"
        free = await roost.user(limits=UsageLimits(reads_per_minute=0))
        headers = (await free.get("/v1/agents")).headers
        assert "anthropic-ratelimit-requests-limit" not in headers


async def test_a_bucket_refills_with_time(tmp_path: Path):
    async with api_server(tmp_path, reads_per_minute=60) as roost:
        with anyio.fail_after(60):
            while (await roost.client.get("/v1/agents")).status_code == 200:
                pass
            while (await roost.client.get("/v1/agents")).status_code != 200:  # noqa: ASYNC110
                await anyio.sleep(0.1)


async def test_a_revoked_key_leaves_no_bucket_behind(tmp_path: Path):
    async with api_server(tmp_path, reads_per_minute=5) as roost:
        made = await roost.post("/roost/v1/keys", {"name": "short-lived"})
        client = client_of(roost.app, made["secret"])
        for _ in range(5):
            await client.get("/v1/agents")
        error_of(await client.get("/v1/agents"), 429)
        await roost.client.delete(f"/roost/v1/keys/{made['id']}")
        error_of(await client.get("/v1/agents"), 401)


async def test_an_administrator_makes_and_revokes_keys(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.post(
            "/roost/v1/keys",
            {
                "name": "ci",
                "tenant": "other",
                "trust_ceiling": "vault",
                "limits": {"max_sessions": 3, "reads_per_minute": None},
            },
        )
        assert made["secret"].startswith("roost_")
        assert made["role"] == "user"
        assert made["limits"]["max_sessions"] == 3
        client = client_of(roost.app, made["secret"])
        assert (await client.get("/v1/agents")).status_code == 200
        listed = (await roost.get("/roost/v1/keys"))["data"]
        assert [key["name"] for key in listed] == ["admin", "ci"]
        assert made["secret"] not in str(listed)
        assert "digest" not in listed[0]
        gone = (await roost.client.delete(f"/roost/v1/keys/{made['id']}")).json()
        assert gone["revoked_at"]
        error_of(await client.get("/v1/agents"), 401)
        error_of(await roost.client.delete("/roost/v1/keys/apikey_none"), 404)


async def test_nobody_revokes_the_key_that_they_use(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        me = (await roost.get("/auth/me"))["key_id"]
        refused = error_of(await roost.client.delete(f"/roost/v1/keys/{me}"), 400)
        assert refused["details"]["error_code"] == "own_key"
        assert "another administrator's key" in refused["details"]["hint"]
        other = await roost.post("/roost/v1/keys", {"name": "other", "role": "admin"})
        async with client_of(roost.app, other["secret"]) as client:
            gone = await client.delete(f"/roost/v1/keys/{me}")
            assert gone.status_code == 200
            refused = error_of(await client.delete(f"/roost/v1/keys/{other['id']}"), 400)
            assert refused["details"]["error_code"] == "own_key"
        error_of(await roost.client.get("/auth/me"), 401)


async def test_a_key_gets_another_name_and_other_limits_at_once_and_keeps_its_secret(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        made = await roost.post("/roost/v1/keys", {"name": "ci"})
        client = client_of(roost.app, made.pop("secret"))
        assert (await client.get("/v1/agents")).status_code == 200
        address = f"/roost/v1/keys/{made['id']}"
        changed = await roost.post(address, {"name": "build", "limits": {"reads_per_minute": 1}})
        assert changed["limits"]["reads_per_minute"] == 1
        assert changed == {**made, "name": "build", "limits": changed["limits"]}
        assert (await client.get("/v1/agents")).status_code == 200
        error_of(await client.get("/v1/agents"), 429)
        error_of(await roost.client.post(address, json={"role": "admin"}), 400)
        await roost.client.delete(address)
        error_of(await roost.client.post(address, json={"name": "late"}), 404)


async def test_only_administrators_see_keys(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        user = await roost.user()
        for response in (
            await user.get("/roost/v1/keys"),
            await user.post("/roost/v1/keys", json={"name": "mine"}),
            await user.post("/roost/v1/keys/apikey_1", json={"name": "mine"}),
            await user.delete("/roost/v1/keys/apikey_1"),
        ):
            assert error_of(response, 403)["type"] == "permission_error"


async def test_a_key_makes_no_key_with_more_trust_than_its_own(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        admin = await roost.user(role="admin", trust_ceiling="vault")
        body = {"name": "x", "trust_ceiling": "full"}
        error_of(await admin.post("/roost/v1/keys", json=body), 403)
        made = await roost.post("/roost/v1/keys", body)
        raised = {"trust_ceiling": "full"}
        error_of(await admin.post(f"/roost/v1/keys/{made['id']}", json=raised), 403)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "name: Field required"),
        ({"name": "x", "role": "king"}, "role: Input should be 'admin' or 'user'"),
        ({"name": "x", "tenant": "a b"}, "tenant: String should match pattern"),
        ({"name": "x", "limits": {"max_sessions": -1}}, "limits.max_sessions: Input should be"),
        ({"name": "x", "limits": {"beers": 1}}, "limits.beers: unknown field"),
    ],
)
async def test_what_is_wrong_with_a_key_is_named(tmp_path: Path, body: Any, words: str):
    async with api_server(tmp_path) as roost:
        response = await roost.client.post("/roost/v1/keys", json=body)
        assert words in error_of(response, 400)["message"]


async def test_health_needs_no_key(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        client = bare(roost)
        assert (await client.get("/healthz")).json()["status"] == "ok"
        assert (await client.get("/readyz")).json() == {"status": "ready", "node": "node_1"}
        roost.broken = True
        assert "disk is full" in error_of(await client.get("/readyz"), 503)["message"]
        assert (await client.get("/healthz")).status_code == 200


async def test_requests_are_counted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        await roost.client.get("/v1/agents")
        await roost.client.get("/v1/agents/agent_x")
        session = await roost.session()
        await roost.post(f"/v1/sessions/{session['id']}/events", messages("a", "b"))
        text = (await bare(roost).get("/metrics")).text
        assert 'roost_http_requests_total{operation="agents.list",status="200"} 1.0' in text
        assert 'roost_http_requests_total{operation="agents.retrieve",status="404"} 1.0' in text
        assert 'roost_http_request_seconds_count{operation="sessions.events.send"} 1.0' in text
        assert "roost_inputs_accepted_total 2.0" in text
        assert "roost_open_streams 0.0" in text


async def test_a_server_that_leaves_answers_until_it_is_gone_and_says_that_it_leaves(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        for leaving in ("draining", "stopping"):
            setattr(roost, leaving, True)
            ready = await roost.client.get("/readyz")
            assert leaving in error_of(ready, 503)["message"]
            assert int(ready.headers["retry-after"]) >= 1
            assert (await roost.client.get("/v1/agents")).status_code == 200
            assert (await roost.client.get("/healthz")).status_code == 200


async def test_an_idempotency_key_is_short_text(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        response = await roost.client.post(
            f"/v1/sessions/{session['id']}/events",
            json=messages("x"),
            headers={"Idempotency-Key": "k" * 256},
        )
        assert "idempotency-key" in error_of(response, 400)["message"]


async def test_a_client_that_hangs_up_mid_body_leaves_nothing_behind(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        sent: list[Any] = []
        steps = iter(
            [
                {"type": "http.request", "body": b'{"name":', "more_body": True},
                {"type": "http.disconnect"},
            ]
        )

        async def receive() -> Any:
            return next(steps)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(k.encode(), v.encode()) for k, v in roost.client.headers.items()]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/agents",
            "query_string": b"",
            "headers": headers,
        }
        await roost.app(scope, receive, send)
        assert sent == []


async def test_other_protocols_are_declined(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        sent: list[Any] = []
        left = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            return left.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await roost.app({"type": "lifespan"}, receive, send)
        await roost.app({"type": "websocket"}, receive, send)
        assert sent == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
            "websocket.close",
        ]


class Stalled:
    """A body that stops coming, over ASGI: what has come so far, then nothing."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)
        self.waiting = anyio.Event()

    async def __call__(self) -> dict[str, Any]:
        if not self._chunks:
            self.waiting.set()
            await anyio.sleep_forever()
        return {"type": "http.request", "body": self._chunks.pop(0), "more_body": True}


class Told:
    """What a client is told, over ASGI."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        self.body += message.get("body", b"")


def posted(path: str, secret: str = "", **headers: str) -> dict[str, Any]:
    sent = {**HEADERS, "x-api-key": secret, "content-type": "application/json", **headers}
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "scheme": "http",
        "client": ("192.0.2.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }


async def test_without_a_key_no_more_than_a_few_kilobytes_are_read(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        body, told = Stalled(b" " * 1000, *[b" " * 60_000] * 10), Told()
        await roost.app(posted("/auth/login"), body, told)
        assert told.status == 413
        assert not body.waiting.is_set()
        told = Told()
        await roost.app(posted("/auth/login", **{"content-length": "5000"}), body, told)
        assert told.status == 413


async def test_a_body_is_not_read_before_its_key_is_known(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        for path in ("/v1/agents", "/v1/files", "/v1/skills", "/roost/v1/sessions/import"):
            body, told = Stalled(), Told()
            await roost.app(posted(path, "roost_wrong"), body, told)
            assert told.status in (401, 404), path
            assert not body.waiting.is_set()


@pytest.mark.parametrize("path", ["/auth/login", "/v1/agents", "/v1/files", "/v1/skills"])
async def test_a_body_that_stops_coming_is_given_up(tmp_path: Path, path: str):
    async with api_server(tmp_path, body_seconds=0.2) as roost:
        form = {"content-type": "multipart/form-data; boundary=b"} if "v1/" in path else {}
        form = {} if path == "/v1/agents" else form
        told = Told()
        with anyio.fail_after(60):
            secret = roost.client.headers["x-api-key"]
            await roost.app(posted(path, secret, **form), Stalled(b"--b\r\n"), told)
        assert told.status == 408
        assert b'"request_too_slow"' in told.body
        assert roost.deps.bodies.total == roost.deps.uploads.total == 0


async def test_a_body_that_drips_is_given_up(tmp_path: Path):
    """It is not enough that something comes now and then."""

    async def drip() -> dict[str, Any]:
        await anyio.sleep(0.05)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async with api_server(tmp_path, body_seconds=0.5) as roost:
        told = Told()
        with anyio.fail_after(60):
            await roost.app(posted("/v1/agents", roost.client.headers["x-api-key"]), drip, told)
        assert told.status == 408


async def test_bodies_under_way_have_a_bound_for_a_key_and_for_all(tmp_path: Path):
    settings = {"max_body_bytes": 20_000, "max_bodies_bytes": 60_000, "body_seconds": 60}
    async with api_server(tmp_path, **settings) as roost, anyio.create_task_group() as tasks:
        made = [await roost.keyring.create(tenant=TENANT, name=name) for name in ("one", "two")]
        secrets = [roost.client.headers["x-api-key"], *(secret for _, secret in made)]

        async def stall(secret: str) -> Told:
            body, told = Stalled(b" " * 15_000), Told()
            tasks.start_soon(roost.app, posted("/v1/agents", secret), body, told)
            while not (told.status or body.waiting.is_set()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            return told

        first = [await stall(secrets[0]) for _ in range(3)]
        assert [told.status for told in first] == [0, 0, 429]
        assert b'"too_much_at_once"' in first[2].body
        assert int(first[2].headers[b"retry-after"]) >= 1
        second = [await stall(secrets[1]) for _ in range(2)]
        assert [told.status for told in second] == [0, 0]
        third = await stall(secrets[2])
        assert third.status == 503
        assert int(third.headers[b"retry-after"]) >= 1
        assert roost.deps.bodies.total == 60_000
        tasks.cancel_scope.cancel()
    assert roost.deps.bodies.total == 0


async def test_a_body_that_arrives_at_once_has_the_same_bounds(tmp_path: Path):
    settings = {"max_body_bytes": 20_000, "max_bodies_bytes": 20_000}
    async with (
        api_server(tmp_path, **settings) as roost,
        listening(roost.app, "127.0.0.1", 0) as url,
    ):

        async def answer(size: int) -> bytes:
            """To a request that comes with its body and does not say how long it is."""
            said = {**roost.client.headers, "host": "x", "connection": "close"}
            said |= {"content-type": "application/json", "transfer-encoding": "chunked"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
            body = b'{"name": "a", "model": "claude-x"' + b" " * size + b"}"
            head = f"POST /v1/agents HTTP/1.1\r\n{lines}\r\n{len(body):x}\r\n".encode()
            async with await anyio.connect_tcp("127.0.0.1", urlsplit(url).port or 0) as line:
                await line.send(head + body + b"\r\n0\r\n\r\n")
                return b"".join([piece async for piece in line])

        assert (await answer(1)).startswith(b"HTTP/1.1 200")
        assert (await answer(20_000)).startswith(b"HTTP/1.1 413")
        roost.deps.bodies.take("another", 10_000)
        assert (await answer(15_000)).startswith(b"HTTP/1.1 503")
        roost.deps.bodies.release("another", 10_000)
        assert (await answer(15_000)).startswith(b"HTTP/1.1 200")
        assert roost.deps.bodies.total == 0


async def test_a_body_is_let_go_of_before_its_answer_is_read(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        held: list[int] = []

        async def slow(message: Any) -> None:
            held.append(roost.deps.bodies.total)

        async def body() -> dict[str, Any]:
            agent = b'{"name": "a", "model": "claude-x"}'
            return {"type": "http.request", "body": agent, "more_body": False}

        await roost.app(posted("/v1/agents", roost.client.headers["x-api-key"]), body, slow)
        assert held == [0, 0]


async def test_the_preview_of_the_beta_is_the_beta(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        for name, status in (
            ("managed-agents-2026-04-01-research-preview", 200),
            ("managed-agents-2026-04-01-research-preview,files-api-2025-04-14", 200),
            ("managed-agents-2026-04-01-other", 404),
            ("managed-agents-2026-04-01-", 400),
        ):
            headers = {"anthropic-beta": name}
            response = await roost.client.get("/v1/agents", headers=headers)
            assert response.status_code == status, name


async def test_a_body_of_very_many_values_is_refused_before_it_is_taken_apart(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        path, kind = "/v1/agents", {"content-type": "application/json"}
        many = b'{"name": "a", "model": "claude-x", "tools": [' + b"[]," * 1_100_000 + b"[]]}"
        error = error_of(await roost.client.post(path, content=many, headers=kind), 413)
        assert "1000000 values" in error["message"]
        text = b'{"name": "a", "model": "claude-x", "metadata": "' + b'[],\\"' * 1_100_000 + b'"}'
        response = await roost.client.post(path, content=text, headers=kind)
        assert error_of(response, 400)["message"].startswith("metadata")


async def test_uploads_under_way_have_a_bound_for_a_key(tmp_path: Path):
    """Each takes descriptors, however few bytes it has sent."""
    settings = {"max_file_bytes": 100_000, "max_body_bytes": 1024, "body_seconds": 60}
    async with api_server(tmp_path, **settings) as roost, anyio.create_task_group() as tasks:
        secret = roost.client.headers["x-api-key"]
        form = {"content-type": "multipart/form-data; boundary=b"}
        part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
        told = []
        for _ in range(20):
            body, said = Stalled(part), Told()
            told.append(said)
            tasks.start_soon(roost.app, posted("/v1/files", secret, **form), body, said)
            while not (said.status or body.waiting.is_set()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert {each.status for each in told[:10]} == {0}
        assert {each.status for each in told[16:]} == {429}
        tasks.cancel_scope.cancel()
    assert roost.deps.uploads.total == 0


async def test_a_stranger_adds_no_names_to_the_metrics(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        stranger = bare(roost)

        async def names() -> set[str]:
            lines = (await stranger.get("/metrics")).text.splitlines()
            return {line.rpartition(" ")[0] for line in lines if "requests" in line}

        async def ask(n: int) -> None:
            await stranger.get(f"/made-up/{n}")
            await stranger.request(f"MADE{n}", "/healthz")
            await stranger.get(f"/v1/sessions/sesn_{n}", headers={"x-api-key": str(n)})

        await ask(0)
        await names()
        before = await names()
        for n in range(1, 30):
            await ask(n)
        assert await names() == before
