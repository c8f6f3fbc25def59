"""A real agent in a real sandbox uses real MCP servers, with tokens that only the server has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl
from tests.authorization_server import AuthorizationServer
from tests.journeys.chat import Chat, bash, client_of, printed, said, script
from tests.stores import holds

from roost.sandboxes import procfs
from roost.serve.http import listening
from roost.testing.live import LiveServer

HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's
TOKEN = "vlt-REAL-0123456789-abcdefghijklmnop"
# Put together inside, so that what is searched for is not itself found in the command.
SEARCH = """
seen=$(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')
set -- $(printf 'vlt-RE%s access-%s refresh-%s' AL-0123 0-01234 0-01234)
for secret in "$@" $(printf 'access-%s' 1-01234); do
  grep -rlsaF -- "$secret" /home/sandbox /workspace /tmp /run/roost --include=* 2>/dev/null | grep -v '/claude$'
  printf '%s' "$seen" | grep -cF -- "$secret"
  env | grep -cF -- "$secret"
done
printf '%s' "$seen" | grep -qF "Bearer placeholder" && echo searched
"""


class Tokens:
    """Accepts a fixed token, or the newest of an authorization server."""

    def __init__(self, server: AuthorizationServer | None = None) -> None:
        self._server = server

    async def verify_token(self, token: str) -> AccessToken | None:
        is_good = token == TOKEN if self._server is None else self._server.is_good(token)
        return AccessToken(token=token, client_id="c", scopes=[]) if is_good else None


def docs(tokens: Tokens) -> MCPServer:
    where = AnyHttpUrl(f"http://{HOST}:9")
    settings = AuthSettings(
        issuer_url=where, resource_server_url=where, validate_token_resource=False
    )
    made = MCPServer("docs", token_verifier=tokens, auth=settings)

    @made.tool()
    def find(what: str) -> str:
        """Find something."""
        return f"found {what}"

    return made


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str, None]:
    async with app.router.lifespan_context(app), listening(app, HOST, 0) as url:
        yield url


class Outside:
    """What is outside: MCP servers that want a bearer, by name, and an authorization server."""

    def __init__(self) -> None:
        self.authorization = AuthorizationServer()
        self.urls: dict[str, str] = {}
        self.token_endpoint = ""

    def ports(self) -> str:
        asked = [*self.urls.values(), self.token_endpoint]
        return ",".join(str(urlsplit(url).port) for url in asked)


@pytest.fixture
def outside() -> Iterator[Outside]:
    made = Outside()
    apps: dict[str, tuple[Any, str]] = {
        "fixed": (docs(Tokens()).streamable_http_app(host=HOST), "/mcp"),
        "older": (docs(Tokens()).sse_app(host=HOST), "/sse"),
        "oauth": (docs(Tokens(made.authorization)).streamable_http_app(host=HOST), "/mcp"),
        "other": (docs(Tokens()).streamable_http_app(host=HOST), "/mcp"),
    }
    with start_blocking_portal() as portal, ExitStack() as stack:
        for name, (app, path) in apps.items():
            url = stack.enter_context(portal.wrap_async_context_manager(served(app)))
            made.urls[name] = url + path
        server = listening(made.authorization.app, HOST, 0)
        url = stack.enter_context(portal.wrap_async_context_manager(server))
        made.token_endpoint = f"{url}/token"
        yield made


def agent_of(outside: Outside) -> dict[str, Any]:
    allow = {"enabled": True, "permission_policy": {"type": "always_allow"}}
    tools: list[dict[str, Any]] = [{"type": "agent_toolset_20260401"}]
    tools += [
        {"type": "mcp_toolset", "mcp_server_name": name, "default_config": allow}
        for name in outside.urls
    ]
    servers = [{"type": "url", "name": name, "url": url} for name, url in outside.urls.items()]
    return {"tools": tools, "mcp_servers": servers}


def vault_with(client: Any, outside: Outside) -> str:
    """A vault with a credential for all of the servers but one, in other words for two of them."""
    vault = client.beta.vaults.create(display_name="team").id
    upper = outside.urls["fixed"].replace("http://", "HTTP://") + "/"
    for url in (upper, outside.urls["older"]):
        auth = {"type": "static_bearer", "mcp_server_url": url, "token": TOKEN}
        client.beta.vaults.credentials.create(vault, auth=auth)
    soon = datetime.now(UTC) + timedelta(seconds=6)  # due before an agent can be up
    refresh = {
        "client_id": "client",
        "refresh_token": outside.authorization.refresh,
        "token_endpoint": outside.token_endpoint,
        "token_endpoint_auth": {"type": "none"},
    }
    auth = {
        "type": "mcp_oauth",
        "mcp_server_url": outside.urls["oauth"],
        "access_token": outside.authorization.access,
        "expires_at": soon.isoformat(),
        "refresh": refresh,
    }
    client.beta.vaults.credentials.create(vault, auth=auth)
    return vault


def test_an_agent_uses_mcp_servers_with_the_tokens_of_a_vault(tmp_path: Path, outside: Outside):
    data = tmp_path / "data"
    rules = {"ROOST_EGRESS_NETWORKS": f"{HOST}/32", "ROOST_EGRESS_PORTS": outside.ports()}
    with LiveServer(data, **rules) as server:
        vault = vault_with(client_of(server), outside)
        networking = {"type": "limited", "allow_mcp_servers": True}
        chat = Chat(server, networking=networking, agent=agent_of(outside), vault_ids=[vault])
        names = ("fixed", "older", "oauth")
        calls = [{"tool": f"mcp__{name}__find", "input": {"what": name}} for name in names]
        events = chat.turn(script(*calls, bash(SEARCH), {"text": "Done."}))
        results = [each.content[0].text for each in events if each.type == "agent.mcp_tool_result"]
        assert all(f"found {name}" in got for name, got in zip(names, results, strict=True))
        assert said(events) == ["Done."]
        # The one for which the vault has nothing was asked without, and said so.
        failed = [each.error for each in events if each.type == "session.error"]
        assert ("mcp_authentication_failed_error", "other") in [
            (error.type, error.mcp_server_name) for error in failed
        ]
        assert {error.mcp_server_name for error in failed} == {"other"}
        (found,) = printed(events)
        assert set(found.split()) == {"0", "searched"}
        # The token was due: it was renewed once, before it was used.
        assert len(outside.authorization.seen) == 1
        assert outside.authorization.reused == []
        shown = "".join(each.to_json() for each in events)
    for secret in (TOKEN, "access-0-0123456789", "access-1-0123456789", "refresh-1-0123456789"):
        assert secret not in shown
        assert not holds(data, secret)


@pytest.mark.parametrize("level", ["vault", "full"])
def test_an_agent_on_the_host_uses_them_too(tmp_path: Path, outside: Outside, level: str):
    data = tmp_path / "data"
    with LiveServer(data, ROOST_TRUST_LEVELS=f"sandboxed,{level}") as server:
        vault = vault_with(client_of(server), outside)
        free = {"type": "unrestricted"}
        agent = agent_of(outside)
        chat = Chat(server, networking=free, agent=agent, vault_ids=[vault], trust_level=level)
        names = ("fixed", "older")
        calls = [{"tool": f"mcp__{name}__find", "input": {"what": name}} for name in names]
        events = chat.turn(script(*calls, {"text": "Done."}))
        results = [each.content[0].text for each in events if each.type == "agent.mcp_tool_result"]
        assert all(f"found {name}" in got for name, got in zip(names, results, strict=True))
        assert said(events) == ["Done."]
        # The one for which the vault has nothing is asked by the agent itself, and says so.
        failed = [each.error for each in events if each.type == "session.error"]
        assert "other" in [getattr(error, "mcp_server_name", "") for error in failed]
        seen = b"".join(
            procfs.raw(each.pid, "cmdline") + procfs.raw(each.pid, "environ")
            for each in procfs.descendants([server.pid])
        )
        assert b"127.0.0.1" in seen and TOKEN.encode() not in seen
    assert not holds(data, TOKEN)
