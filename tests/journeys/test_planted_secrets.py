"""A real agent in a real sandbox uses a secret of every kind, and what it can see is searched for them.

All servers outside send back what they were sent, in several ways. Then everything is read from outside: the
memory, environment and arguments of each process in the sandbox, the files that it can see, what its sockets
answer, the answers of all operations, the database, and all that the server has written.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl
from starlette.types import Message, Receive, Scope, Send
from tests.journeys.chat import Chat, bash, client_of, printed, said, script, serving
from tests.journeys.git_server import git_server, repository
from tests.journeys.test_claude_vaults import served
from tests.parts import need
from tests.planted import (
    Planted,
    Walk,
    files_seen_by,
    memory_of,
    search_database,
    search_files,
    walk_all,
)

from roost.api.access.auth import MANAGED_AGENTS
from roost.egress.tls import CertificateAuthority
from roost.sandboxes import procfs
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

pytestmark = pytest.mark.timeout(400)

HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's
CANARY = "canary-of-the-site"
# A program that keeps what it was answered, until the sandbox ends.
KEEP = """
import os, sys, time, urllib.request
key = os.environ["SITE_KEY"]
asked = urllib.request.Request(sys.argv[1], f"key={key}".encode(), {"x-key": key})
said = urllib.request.urlopen(asked).read()
open("/workspace/said", "wb").write(said)
time.sleep(600)
"""
# What the proxies' sockets say to somebody who has no business there.
KNOCK = r"""
import glob, socket
for path in sorted(glob.glob("/run/roost/*.sock")):
    for asked in (
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n",
        b"\x16\x03\x01 what is this",
    ):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.settimeout(20)
            knocking.connect(path)
            knocking.sendall(asked)
            knocking.shutdown(socket.SHUT_WR)
            print(path, knocking.recv(65536))
"""


def quoted(secret: str) -> str:
    """As servers that quote what they were sent may write it."""
    plain = f"Bearer {secret}"
    return " ".join([plain, quote(plain, safe=""), b64encode(plain.encode()).decode(), secret])


class EchoingModel(ScriptedModel):
    """Says in a header which key it was asked with."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope.get("headers") or ()).get(b"authorization", b"").decode()

        async def echo(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = quoted(sent.removeprefix("Bearer ")).encode()
                message["headers"] = [*message["headers"], (b"x-you-sent", said)]
            await send(message)

        await super().__call__(scope, receive, echo)


class EchoingSite(BaseHTTPRequestHandler):
    seen: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.seen += [self.headers["x-key"], *parse_qs(body)["key"]]
        text = f"{CANARY} {self.headers} {quoted(body)} {json.dumps(body)}".encode()
        self.send_response(200)
        self.send_header("x-you-sent", self.headers["x-key"])
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def site(world: CertificateAuthority, seen: list[str]) -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), type("Site", (EchoingSite,), {"seen": seen}))
    server.socket = world.context(HOST).wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def mcp_server(token: str) -> Iterator[str]:
    """One that wants this token, and has a tool that tells it."""

    class Tokens:
        async def verify_token(self, given: str) -> AccessToken | None:
            return AccessToken(token=given, client_id="c", scopes=[]) if given == token else None

    where = AnyHttpUrl(f"http://{HOST}:9")
    settings = AuthSettings(
        issuer_url=where, resource_server_url=where, validate_token_resource=False
    )
    made = MCPServer("docs", token_verifier=Tokens(), auth=settings)

    @made.tool()
    def tell() -> str:
        """Tell what was sent."""
        return f"you sent {quoted(token)}"

    app = served(made.streamable_http_app(host=HOST))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app) as url:
        yield f"{url}/mcp"


class Outside:
    """The servers outside, and the secret that each of them wants."""

    def __init__(self, plant: Planted) -> None:
        self.bearer, self.oauth, self.variable, self.git, self.model = (
            plant.new() for _ in range(5)
        )
        self.urls: dict[str, str] = {}
        self.seen: list[str] = []
        self.llm = EchoingModel(require_key=self.model)

    @contextmanager
    def serving(self, root: Path) -> Iterator[Outside]:
        world = CertificateAuthority()
        (root / "world.pem").write_bytes(world.certificate)
        repository(root / "git", "project", {"README": "hello\n"})
        with (
            mcp_server(self.bearer) as bearer,
            mcp_server(self.oauth) as oauth,
            site(world, self.seen) as port,
            git_server(root / "git", self.git) as git,
            serving(self.llm, HOST) as llm,
        ):
            self.urls = {"bearer": bearer, "oauth": oauth, "git": git, "llm": llm}
            self.urls["site"] = f"https://{HOST}:{port}/"
            yield self

    def settings(self, root: Path) -> dict[str, str]:
        ports = ",".join(str(urlsplit(url).port) for url in self.urls.values())
        return {
            "ROOST_EGRESS_NETWORKS": f"{HOST}/32",
            "ROOST_EGRESS_PORTS": ports,
            "ROOST_GIT_URLS": self.urls["git"],
            "ROOST_LOG_LEVEL": "debug",
            "SSL_CERT_FILE": str(root / "world.pem"),
        }

    def vaults(self, client: Any) -> tuple[list[str], str]:
        """One with a secret of each type, and one with a model's key; and a credential's id."""
        both = client.beta.vaults
        team = both.create(display_name="team").id
        auths: list[dict[str, Any]] = [
            {
                "type": "static_bearer",
                "mcp_server_url": self.urls["bearer"],
                "token": self.bearer,
            },
            {
                "type": "mcp_oauth",
                "mcp_server_url": self.urls["oauth"],
                "access_token": self.oauth,
            },
            {
                "type": "environment_variable",
                "secret_name": "SITE_KEY",
                "secret_value": self.variable,
                "networking": {"type": "limited", "allowed_hosts": [HOST]},
            },
        ]
        made = [both.credentials.create(team, auth=auth).id for auth in auths]
        account = {"roost.role": "llm", "roost.base_url": self.urls["llm"]}
        own = both.create(display_name="account", metadata=account).id
        both.credentials.create(own, auth={"type": "static_bearer", "token": self.model})
        return [team, own], made[0]

    def agent(self) -> dict[str, Any]:
        allow = {"enabled": True, "permission_policy": {"type": "always_allow"}}
        names = ("bearer", "oauth")
        toolsets = [
            {"type": "mcp_toolset", "mcp_server_name": name, "default_config": allow}
            for name in names
        ]
        servers = [{"type": "url", "name": name, "url": self.urls[name]} for name in names]
        return {
            "tools": [{"type": "agent_toolset_20260401"}, *toolsets],
            "mcp_servers": servers,
        }


def test_nothing_that_a_sandbox_can_see_has_a_secret(tmp_path: Path):
    plant, data = Planted(), tmp_path / "data"
    outside = Outside(plant)
    with outside.serving(tmp_path), LiveServer(data, **outside.settings(tmp_path)) as server:
        vault_ids, credential_id = outside.vaults(client_of(server))
        chat = _worked(server, outside, vault_ids)
        _search_sandbox(plant, outside, server)
        search_database(data)
        headers = {"x-api-key": server.key, "anthropic-beta": MANAGED_AGENTS}
        headers["anthropic-version"] = "2023-06-01"
        ids = {
            "session_id": chat.session.id,
            "agent_id": chat.session.agent.id,
            "environment_id": chat.session.environment_id,
            "vault_id": vault_ids[0],
            "credential_id": credential_id,
        }
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
            walk_all(Walk(client, plant), plant, ids)
        server.kill()
    for asked, content in plant.answers:
        assert plant.found_in(content) == [], asked
    assert any(CANARY.encode() in content for _, content in plant.answers)
    search_files(plant, data)


def _worked(server: LiveServer, outside: Outside, vault_ids: list[str]) -> Chat:
    """A session that has used all of them, and whose agent is still there."""
    project = {
        "type": "github_repository",
        "url": f"{outside.urls['git']}/project",
        "authorization_token": outside.git,
    }
    networking = {"type": "limited", "allowed_hosts": [HOST], "allow_mcp_servers": True}
    options = {"vault_ids": vault_ids, "resources": [project]}
    chat = Chat(server, networking=networking, agent=outside.agent(), **options)
    keep = f"python3 -c '{KEEP}' {outside.urls['site']}"
    steps = [
        {"tool": "mcp__bearer__tell", "input": {}},
        {"tool": "mcp__oauth__tell", "input": {}},
        bash("git -C /workspace/project fetch -q origin && cat /workspace/project/README"),
        bash(f"setsid {keep} >/dev/null 2>&1 & until [ -s /workspace/said ]; do sleep 0.1; done"),
        bash("cat /workspace/said; env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'"),
        bash(f"python3 - <<'EOF'\n{KNOCK}\nEOF"),
    ]
    events = chat.turn(script(*steps, {"text": "Done."}))
    told = printed(events)
    assert said(events) == ["Done."] and "hello" in told[0] and CANARY in told[2], told
    assert "SITE_KEY=roost_" in told[2] and "/run/roost/proxy.sock b'HTTP/1.1" in told[3]
    tools = [each.content[0].text for each in events if each.type == "agent.mcp_tool_result"]
    assert len(tools) == 2 and all("you sent Bearer ****" in text for text in tools), tools
    assert outside.seen == [outside.variable, outside.variable]
    assert outside.llm.requests[-1].headers["authorization"] == f"Bearer {outside.model}"
    return chat


def _search_sandbox(plant: Planted, outside: Outside, server: LiveServer) -> None:
    """The processes in the sandbox, and what they see. That the search finds what is there, it shows by what
    it finds: the placeholder and an answer inside, and the secrets in the server itself.
    """
    inside = [each.pid for each in procfs.descendants([server.pid]) if each.pid != server.pid]
    commands = {pid: procfs.command_line(pid) for pid in inside}
    agent = next(pid for pid in inside if procfs.raw(pid, "comm") == b"claude\n")
    keeper = next(pid for pid in inside if commands[pid][:2] == [b"python3", b"-c"])
    try:
        next(memory_of(agent))
    except PermissionError:
        need("the memory of other users' processes", False, "run the tests as root")
    for pid in inside:
        shown = procfs.raw(pid, "environ") + procfs.raw(pid, "cmdline")
        assert plant.found_in(shown) == [], commands[pid]
        for part in memory_of(pid):
            assert plant.found_in(part) == [], commands[pid]
    seen = dict(files_seen_by(agent))
    for path, content in seen.items():
        assert plant.found_in(content) == [], path
    assert CANARY.encode() in seen["/workspace/said"] and "/run/roost/ca.pem" in seen
    assert b"SITE_KEY=roost_" in procfs.raw(keeper, "environ")
    assert any(CANARY.encode() in part for part in memory_of(keeper))
    assert any(plant.found_in(part) for part in memory_of(server.pid))
