"""Thousands of bad requests: never a 5xx, and every refusal in the API's own envelope.

Two generators: schemathesis breaks what our published OpenAPI document describes; Hypothesis mangles
valid requests and raw bytes. Both aim at resources that exist, so that requests get past the 404.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from roost.testing.live import LiveServer

HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
NOT_JSON = {"/metrics", "/openapi.json"}
SEED = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))

OAUTH: dict[str, Any] = {
    "type": "mcp_oauth",
    "mcp_server_url": "http://127.0.0.1:9/mcp",  # no server may ask that, so nothing goes out
    "access_token": "t",
    "expires_at": "2099-01-01T00:00:00Z",
    "refresh": {
        "client_id": "c",
        "refresh_token": "r",
        "token_endpoint": "http://127.0.0.1:9/token",
        "token_endpoint_auth": {"type": "client_secret_post", "client_secret": "s"},
        "scope": "s",
    },
}


class Target:
    """A live server with one of each resource, and a tally of what it answered."""

    def __init__(self, server: LiveServer) -> None:
        self.http = httpx2.Client(
            base_url=server.url, headers={"x-api-key": server.key, **HEADERS}, timeout=300
        )
        self.url = server.url
        self.tally: Counter[int] = Counter()
        self.ids: dict[str, str] = {"key_id": "apikey_absent"}

    def renew(self) -> None:
        """Resources that exist, again: requests may have archived or deleted the last ones."""
        agent = self._made("/v1/agents", {"name": "a", "model": "scripted"})
        environment = self._made("/v1/environments", {"name": f"e {random.random()}"})
        body = {"agent": agent["id"], "environment_id": environment["id"]}
        session = self._made("/v1/sessions", body)
        vault = self._made("/v1/vaults", {"display_name": "v"})
        credential = self._made(f"/v1/vaults/{vault['id']}/credentials", {"auth": OAUTH})
        threads = self.http.get(f"/v1/sessions/{session['id']}/threads").json()
        self.ids |= {
            "agent_id": agent["id"],
            "environment_id": environment["id"],
            "session_id": session["id"],
            "thread_id": threads["data"][0]["id"],
            "vault_id": vault["id"],
            "credential_id": credential["id"],
        }

    def _made(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def try_it(self, method: str, path: str, **request: Any) -> None:
        """Send it, look only at the beginning of the answer, and judge."""
        try:
            with self.http.stream(method, path, **request) as answer:
                self.judge(answer, path)
        except (httpx2.LocalProtocolError, httpx2.InvalidURL, UnicodeError):
            pass  # the client itself refuses to send such a thing

    def judge(self, answer: httpx2.Response, path: str) -> None:
        self.tally[answer.status_code] += 1
        assert answer.status_code < 500, answer.read()
        if answer.status_code < 400 or path in NOT_JSON:
            return
        assert answer.headers["request-id"].startswith("req_")
        if answer.request.method == "HEAD":
            return
        body = json.loads(answer.read())
        assert body["type"] == "error"
        assert set(body["error"]) <= {"type", "message", "details"}
        assert body["error"]["message"]
        assert body["request_id"] == answer.headers["request-id"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    data = tmp_path_factory.mktemp("fuzz")
    with LiveServer(data, ROOST_LOG_LEVEL="error") as server:
        made = Target(server)
        made.renew()
        yield made
        made.http.close()
        print(f"ROOST_TEST_SEED={SEED}; answers: {dict(made.tally)}")
        assert "Traceback" not in server.output


def scale(quick: int, full: int) -> list[Any]:
    """So many examples in every run, so many in `make chaos`."""
    chaos = [pytest.mark.chaos, pytest.mark.timeout(1800)]
    return [quick, pytest.param(full, marks=chaos)]


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("count", scale(3, 160))
def test_requests_that_break_the_published_schema_are_refused_properly(target: Target, count: int):
    """Every operation, so often in both of schemathesis's modes; in the short form in one of them."""
    schema = schemathesis.openapi.from_url(f"{target.url}/openapi.json")
    chance = random.Random(SEED)
    for found in schema.get_all_operations():
        operation = found.ok()
        modes = [GenerationMode.NEGATIVE, GenerationMode.POSITIVE]
        for mode in modes if count > 3 else [chance.choice(modes)]:
            with suppress(Unsatisfiable):  # an operation without parameters cannot be got wrong
                _play(target, operation, mode, count)
        target.renew()


def _play(target: Target, operation: Any, mode: GenerationMode, count: int) -> None:
    @seed(SEED)
    @examples(count)
    @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
    def play(case: Any, real: bool) -> None:
        if real:
            known = {
                name: target.ids.get(name, value) for name, value in case.path_parameters.items()
            }
            case.path_parameters.update(known)
        request = case.as_transport_kwargs(base_url=target.url)
        target.try_it(
            request["method"],
            request["url"],
            params=_listed(request.get("params")),
            headers=_sendable(request.get("headers")),
            **_body(request),
        )

    play()


def _body(request: dict[str, Any]) -> dict[str, Any]:
    if "json" in request:
        return {"json": request["json"]}
    return {"content": request["data"]} if isinstance(request.get("data"), bytes | str) else {}


def _listed(params: Any) -> Any:
    if not isinstance(params, dict):
        return params
    return {k: v if isinstance(v, list | str | int | float) else str(v) for k, v in params.items()}


def _sendable(headers: Any) -> dict[str, str]:
    own = {"user-agent", "x-api-key", "authorization"}
    return {
        k: v for k, v in dict(headers or {}).items() if isinstance(v, str) and k.lower() not in own
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
VALID: dict[str, dict[str, Any]] = {
    "/v1/agents": {
        "name": "n",
        "model": {"id": "m", "effort": {"type": "low"}},
        "system": "s",
        "metadata": {"k": "v"},
        "tools": [
            {"type": "agent_toolset_20260401", "configs": [{"name": "bash", "enabled": True}]},
            {"type": "custom", "name": "t", "description": "d", "input_schema": {"type": "object"}},
        ],
    },
    "/v1/agents/{agent_id}": {"name": "n", "version": 1, "metadata": {"k": None}, "tools": None},
    "/v1/environments": {
        "name": "n",
        "config": {
            "type": "cloud",
            "networking": {"type": "limited", "allowed_hosts": ["a.example"]},
        },
    },
    "/v1/sessions": {
        "agent": {"type": "agent", "id": "{agent_id}", "version": 1},
        "environment_id": "{environment_id}",
        "metadata": {"a": "b"},
        "initial_events": [{"type": "user.message", "content": [{"type": "text", "text": "x"}]}],
    },
    "/v1/sessions/{session_id}": {"title": "t", "metadata": {"a": None}},
    "/v1/sessions/{session_id}/events": {
        "events": [
            {"type": "user.message", "content": [{"type": "text", "text": "hi"}], "client_id": "c"},
            {"type": "user.tool_confirmation", "tool_use_id": "sevt_x", "result": "allow"},
            {
                "type": "user.message",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                    }
                ],
            },
        ]
    },
    "/v1/vaults": {"display_name": "n", "metadata": {"roost.role": "llm"}},
    "/v1/vaults/{vault_id}": {"display_name": "n", "metadata": {"k": None}},
    "/v1/vaults/{vault_id}/credentials": {
        "display_name": "n",
        "auth": {
            "type": "environment_variable",
            "secret_name": "A",
            "secret_value": "v",
            "networking": {"type": "limited", "allowed_hosts": ["a.example"]},
            "injection_location": {"header": True, "body": False},
        },
    },
    "/v1/vaults/{vault_id}/credentials/{credential_id}": {
        "display_name": None,
        "auth": {
            "type": "mcp_oauth",
            "access_token": "u",
            "expires_at": "2099-01-01T00:00:00Z",
            "refresh": {"refresh_token": "r", "scope": ""},
        },
    },
    "/roost/v1/keys": {"name": "n", "role": "user", "limits": {"max_sessions": 3}},
}


@st.composite
def mangled(draw: st.DrawFn) -> tuple[str, Any]:
    """A valid body with one place in it replaced, removed, or joined by something unknown."""
    path = draw(st.sampled_from(sorted(VALID)))
    body = json.loads(json.dumps(VALID[path]))
    at: Any = body
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and at[key] and draw(st.booleans()):
            at = at[key]
            continue
        break
    match draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            at[key] = draw(JSON)
        case "remove":
            del at[key]
        case "add" if isinstance(at, dict):
            at[draw(st.text(max_size=12))] = draw(JSON)
    return path, body


@pytest.mark.parametrize("count", scale(150, 4000))
def test_mangled_bodies_are_refused_properly(target: Target, count: int):
    target.renew()

    @seed(SEED)
    @examples(count)
    @given(mangled())
    def play(request: tuple[str, Any]) -> None:
        path, body = request
        text = json.dumps(body)
        for name, value in target.ids.items():
            path, text = path.replace(f"{{{name}}}", value), text.replace(f"{{{name}}}", value)
        target.try_it("POST", path, content=text, headers={"content-type": "application/json"})

    play()


BYTES = st.binary(max_size=60) | st.sampled_from(
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"NaN",
        b'{"a":1,"a":2}',
        b"\xff\xfe",
        b"{}" * 3,
        b"[" * 20_000,
        b'{"a":' * 5_000,
        b'{"name": "\\ud800", "model": "m"}',
        b"1e999",
        b"9" * 5000,
    ]
)
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
HEADER_NAMES = [
    "content-type",
    "anthropic-version",
    "anthropic-beta",
    "idempotency-key",
    "last-event-id",
    "accept",
    "anthropic-workspace-id",
    "authorization",
    "x-api-key",
]
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
PATHS = st.sampled_from(
    [
        *VALID,
        "/v1/sessions/{session_id}/events/stream",
        "/v1/agents/{agent_id}/versions",
    ]
) | st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#"), max_size=20
).map(lambda text: f"/v1/{text}")


@pytest.mark.parametrize("count", scale(150, 4000))
def test_bytes_paths_queries_and_headers_out_of_the_blue_are_refused_properly(
    target: Target, count: int
):
    target.renew()

    @seed(SEED)
    @examples(count)
    @given(
        method=st.sampled_from(METHODS),
        path=PATHS,
        body=BYTES,
        query=st.dictionaries(
            st.sampled_from(
                ["limit", "page", "order", "after", "types[]", "created_at[gte]", "x", "beta"]
            ),
            VALUES,
            max_size=3,
        ),
        headers=st.dictionaries(
            st.sampled_from(HEADER_NAMES),
            VALUES,
            max_size=2,
        ),
    )
    def play(
        method: str, path: str, body: bytes, query: dict[str, str], headers: dict[str, str]
    ) -> None:
        for name, value in target.ids.items():
            path = path.replace(f"{{{name}}}", value)
        headers = {"content-type": "application/json", **headers}
        target.try_it(method, path, content=body, params=query, headers=headers)

    play()
