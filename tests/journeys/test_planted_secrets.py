"""Each agent in a real sandbox uses a secret of every kind, and what it can see is searched for them.

All servers outside send back what they were sent, in several ways. Each agent searches by its own tool what it finds:
environments, files, and the memory of processes. Then everything is read from outside: the memory, environment and
arguments of each process in the sandboxes, the files that they can see, what their sockets answer, the answers of all
operations, the database, and all that the server has written.
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
from tests.harnesses import codex_session
from tests.hostile.test_agents import AGENTS
from tests.journeys.chat import Chat, client_of, printed, said, script, serving
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
from roost.harnesses.claude.harness import INSIDE as CLAUDE
from roost.harnesses.codex.harness import INSIDE as CODEX
from roost.harnesses.messages.guest import INSIDE as TOOLS
from roost.sandboxes import procfs
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

pytestmark = pytest.mark.timeout(900)

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
# What a hostile agent would run. It knows what secrets begin with, in two parts, so that it does not find itself.
SEARCH = r"""
import json, os, re, stat
from base64 import b64encode
mark, canary = b"planted-" + b"secret-", b"canary-of-" + b"the-site"
coded = [b64encode(before + mark)[4:-4] for before in (b"", b"x", b"xx")]
marks = [mark, mark.hex().encode(), mark.hex().upper().encode(), mark.decode().encode("utf-16-le"), *coded]
found, seen, looked = [], [], {"environ": 0, "memory": 0, "denied": 0, "file": 0}
def look(kind, where, parts):
    try:
        for data in parts:
            looked[kind] += 1
            found.extend(where for each in marks if each in data)
            seen.extend([where] if canary in data else [])
    except OSError:
        looked["denied"] += 1
def contents(path):
    if stat.S_ISREG(os.lstat(path).st_mode):
        with open(path, "rb") as file:
            yield file.read(64 * 1024**2)
def memory(pid):
    page, present = os.sysconf("SC_PAGE_SIZE"), re.compile(rb"[\x40-\xff]+")
    with open(f"/proc/{pid}/mem", "rb", 0) as memory, open(f"/proc/{pid}/pagemap", "rb", 0) as pages:
        for line in open(f"/proc/{pid}/maps"):
            span, may, *_ = line.split()
            start, end = (int(each, 16) for each in span.split("-"))
            for at in range(start, end, 64 * 1024**2) if "w" in may else ():
                pages.seek(at // page * 8)
                flags = pages.read(min(64 * 1024**2, end - at) // page * 8)[7::8]
                for there in present.finditer(flags):
                    memory.seek(at + there.start() * page)
                    yield memory.read((there.end() - there.start()) * page)
for pid in filter(str.isdigit, os.listdir("/proc")):
    look("environ", f"{pid} environ", contents(f"/proc/{pid}/environ"))
    look("environ", f"{pid} cmdline", contents(f"/proc/{pid}/cmdline"))
    if int(pid) != os.getpid():
        look("memory", f"{pid} memory", memory(pid))
for top in ("home", "workspace", "tmp", "run", "etc", "mnt", "var", "opt", "root", "srv", "dev/shm"):
    for folder, _, names in os.walk(f"/{top}"):
        for path in (os.path.join(folder, name) for name in names):
            look("file", path, contents(path))
print("SEARCHED " + json.dumps({"found": found, "seen": seen, "looked": looked}))
"""
# Who looks: the program in the sandbox, the path of the model's server, and the model.
PROGRAMS = {
    "claude": (CLAUDE, "", "claude-opus-5-5"),
    "codex": (f"{CODEX}/bin/codex", "/v1", codex_session.MODEL),
    "messages": (TOOLS, "", "claude-opus-5-5"),
}


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
            "ROOST_SLEEP_AFTER": "600",
            "SSL_CERT_FILE": str(root / "world.pem"),
        }

    def vaults(self, client: Any) -> tuple[str, str, dict[str, str]]:
        """One with a secret of each type, and its first credential; and for each agent one with a model's key."""
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
        accounts = {}
        for name, (_, path, _) in PROGRAMS.items():
            url = self.urls["llm"] + path
            about = {"roost.role": "llm", "roost.engine": name, "roost.base_url": url}
            accounts[name] = own = both.create(display_name=name, metadata=about).id
            both.credentials.create(own, auth={"type": "static_bearer", "token": self.model})
        return team, made[0], accounts

    def agent(self, model: str) -> dict[str, Any]:
        allow = {"enabled": True, "permission_policy": {"type": "always_allow"}}
        names = ("bearer", "oauth")
        toolsets = [
            {"type": "mcp_toolset", "mcp_server_name": name, "default_config": allow}
            for name in names
        ]
        servers = [{"type": "url", "name": name, "url": self.urls[name]} for name in names]
        return {
            "model": model,
            "tools": [{"type": "agent_toolset_20260401"}, *toolsets],
            "mcp_servers": servers,
        }


def test_nothing_that_a_sandbox_can_see_has_a_secret(tmp_path: Path):
    codex_session.installed_codex()
    plant, data = Planted(), tmp_path / "data"
    outside = Outside(plant)
    with outside.serving(tmp_path), LiveServer(data, **outside.settings(tmp_path)) as server:
        team, credential_id, accounts = outside.vaults(client_of(server))
        for harness, account in accounts.items():
            chat = _worked(server, outside, [team, account], harness)
        _search_sandboxes(plant, server)
        search_database(data)
        headers = {"x-api-key": server.key, "anthropic-beta": MANAGED_AGENTS}
        headers["anthropic-version"] = "2023-06-01"
        ids = {
            "session_id": chat.session.id,
            "agent_id": chat.session.agent.id,
            "environment_id": chat.session.environment_id,
            "vault_id": team,
            "credential_id": credential_id,
        }
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
            walk_all(Walk(client, plant), plant, ids)
        server.kill()
    for asked, content in plant.answers:
        assert plant.found_in(content) == [], asked
    assert any(CANARY.encode() in content for _, content in plant.answers)
    search_files(plant, data)


def _worked(server: LiveServer, outside: Outside, vault_ids: list[str], harness: str) -> Chat:
    """A session that has used all of them, and whose agent is still there."""
    project = {
        "type": "github_repository",
        "url": f"{outside.urls['git']}/project",
        "authorization_token": outside.git,
    }
    networking = {"type": "limited", "allowed_hosts": [HOST], "allow_mcp_servers": True}
    options = {"vault_ids": vault_ids, "resources": [project], "harness": harness}
    agent, bash = outside.agent(PROGRAMS[harness][2]), AGENTS[harness]
    chat = Chat(server, networking=networking, agent=agent, **options)
    keep = f"python3 -c '{KEEP}' {outside.urls['site']}"
    steps = [
        bash("git -C /workspace/project fetch -q origin && cat /workspace/project/README"),
        bash(f"setsid {keep} >/dev/null 2>&1 & until [ -s said ]; do sleep 0.1; done; echo kept"),
        {"tool": "mcp__bearer__tell", "input": {}},
        {"tool": "mcp__oauth__tell", "input": {}},
        bash("cat /workspace/said; env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'"),
        bash(f"python3 - <<'EOF'\n{KNOCK}\nEOF"),
        bash(f"python3 - <<'EOF'\n{SEARCH}\nEOF"),
    ]
    events = chat.turn(script(*steps, {"text": "Done."}))
    told = printed(events)
    assert said(events) == ["Done."] and "hello" in told[0] and CANARY in told[2], told
    assert "SITE_KEY=roost_" in told[2] and "/run/roost/proxy.sock b'HTTP/1.1" in told[3]
    searched = json.loads(told[4].partition("SEARCHED ")[2])
    assert searched["found"] == [] and "/workspace/said" in searched["seen"], searched
    looked = searched["looked"]  # at memory, if the machine lets a process look at its siblings'
    assert min(looked["environ"], looked["file"], looked["memory"] + looked["denied"]) > 2, looked
    tools = [each.content[0].text for each in events if each.type == "agent.mcp_tool_result"]
    assert len(tools) == 2 and all("you sent Bearer ****" in text for text in tools), tools
    assert outside.seen == [outside.variable] * len(outside.seen) != []
    assert outside.llm.requests[-1].headers["authorization"] == f"Bearer {outside.model}"
    return chat


def _search_sandboxes(plant: Planted, server: LiveServer) -> None:
    """The processes in the sandboxes, and what they see. That the search finds what is there, it shows by what
    it finds: the placeholder and an answer inside, and the secrets in the server itself.
    """
    inside = [each.pid for each in procfs.descendants([server.pid]) if each.pid != server.pid]
    commands = {pid: procfs.command_line(pid) for pid in inside}
    keepers = [pid for pid in inside if commands[pid][:2] == [b"python3", b"-c"]]
    named = {part.decode() for command in commands.values() for part in command}
    assert len(keepers) == len(PROGRAMS) and named >= {program for program, *_ in PROGRAMS.values()}
    try:
        next(memory_of(keepers[0]))
    except PermissionError:
        need("the memory of other users' processes", False, "run the tests as root")
    for pid in inside:
        shown = procfs.raw(pid, "environ") + procfs.raw(pid, "cmdline")
        assert plant.found_in(shown) == [], commands[pid]
        for part in memory_of(pid):
            assert plant.found_in(part) == [], commands[pid]
    for keeper in keepers:
        seen = dict(files_seen_by(keeper))
        for path, content in seen.items():
            assert plant.found_in(content) == [], path
        assert CANARY.encode() in seen["/workspace/said"] and "/run/roost/ca.pem" in seen
        assert b"SITE_KEY=roost_" in procfs.raw(keeper, "environ")
        assert any(CANARY.encode() in part for part in memory_of(keeper))
    assert any(plant.found_in(part) for part in memory_of(server.pid))
