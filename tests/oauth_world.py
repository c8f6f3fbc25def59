"""A real MCP server that takes the tokens of a small real authorization server, for a server that may reach both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from anyio.from_thread import start_blocking_portal

from roost.serve.http import listening
from tests.authorization_server import AuthorizationServer
from tests.journeys.test_claude_vaults import HOST, Tokens, docs, served


class OAuthWorld:
    """Where both of them are."""

    def __init__(self, authorization: AuthorizationServer, url: str, token_endpoint: str) -> None:
        self.authorization = authorization
        self.url = url
        self.token_endpoint = token_endpoint

    def rules(self) -> dict[str, str]:
        """The settings of a server that may reach them."""
        ports = ",".join(str(urlsplit(url).port) for url in (self.url, self.token_endpoint))
        return {"ROOST_EGRESS_NETWORKS": f"{HOST}/32", "ROOST_EGRESS_PORTS": ports}

    def auth(self, access_token: str) -> dict[str, Any]:
        """A credential that can be renewed."""
        return {
            "type": "mcp_oauth",
            "mcp_server_url": self.url,
            "access_token": access_token,
            "expires_at": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
            "refresh": {
                "client_id": "client",
                "refresh_token": self.authorization.refresh,
                "token_endpoint": self.token_endpoint,
                "token_endpoint_auth": {"type": "none"},
            },
        }


@contextmanager
def oauth_world() -> Iterator[OAuthWorld]:
    """Both of them, as long as it is open."""
    authorization = AuthorizationServer()
    app: Any = docs(Tokens(authorization)).streamable_http_app(host=HOST)
    with start_blocking_portal() as portal, ExitStack() as stack:
        url = stack.enter_context(portal.wrap_async_context_manager(served(app)))
        tokens = listening(authorization.app, HOST, 0)
        at = stack.enter_context(portal.wrap_async_context_manager(tokens))
        yield OAuthWorld(authorization, f"{url}/mcp", f"{at}/token")
