"""A vault's secret in a session with a real agent: it is used, and it is nowhere."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from tests.journeys.chat import Chat, bash, client_of, printed, script

from roost.egress.tls import CertificateAuthority
from roost.testing.live import LiveServer

pytestmark = pytest.mark.timeout(400)  # several starts of a server and of an agent

HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's
SECRETS = ["the-first-secret-of-this-vault-0123", "the-second-secret-of-this-vault-0123"]


class Site:
    """A server with a certificate, and what it was asked with."""

    def __init__(self) -> None:
        self.port = 0
        self.keys: list[str | None] = []

    @contextmanager
    def serving(self, world: CertificateAuthority) -> Iterator[Site]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = self.headers.get("x-key")
                site.keys.append(key)
                said = f"key={key}\n".encode()
                self.send_response(200)
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer((HOST, 0), Handler)
        server.socket = world.context(HOST).wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def variable(name: str, secret: str, *hosts: str) -> dict[str, Any]:
    return {
        "type": "environment_variable",
        "secret_name": name,
        "secret_value": secret,
        "networking": {"type": "limited", "allowed_hosts": list(hosts)},
        "injection_location": {"header": True},
    }


def test_an_agent_uses_a_secret_that_it_never_has(tmp_path: Path):
    world, site = CertificateAuthority(), Site()
    (tmp_path / "world.pem").write_bytes(world.certificate)
    with site.serving(world):
        rules = {"ROOST_EGRESS_NETWORKS": f"{HOST}/32", "ROOST_EGRESS_PORTS": str(site.port)}
        trusts = {"SSL_CERT_FILE": str(tmp_path / "world.pem"), "ROOST_LOG_LEVEL": "debug"}
        with LiveServer(tmp_path / "data", **rules, **trusts) as server:
            _used(server, site)
            log = server.output
        files = [each for each in (tmp_path / "data").rglob("*") if each.is_file()]
        kept = b"".join(each.read_bytes() for each in files)
        assert not any(secret in log or secret.encode() in kept for secret in SECRETS)


def _used(server: LiveServer, site: Site) -> None:
    vaults = client_of(server).beta.vaults
    vault = vaults.create(display_name="of the team")
    auth = variable("SITE_KEY", SECRETS[0], HOST, "unreachable.example")
    credential = vaults.credentials.create(vault.id, auth=auth)  # type: ignore[arg-type]
    vaults.credentials.create(vault.id, auth=variable("LD_PRELOAD", "some-secret", HOST))  # type: ignore[arg-type]
    networking = {"type": "limited", "allowed_hosts": [HOST]}
    chat = Chat(server, networking=networking, vault_ids=[vault.id])
    ask = bash(f'env | grep KEY; curl -sS -H "x-key: $SITE_KEY" https://{HOST}:{site.port}/')

    events = chat.turn(script(ask, {"text": "Done."}))
    first = "".join(printed(events))
    assert site.keys == [SECRETS[0]] and "key=****" in first, first
    assert "SITE_KEY=roost_" in first and not any(secret in first for secret in SECRETS)
    errors = [event.error for event in events if event.type == "session.error"]
    assert {error.type for error in errors} == {"credential_host_unreachable_error"}
    assert {error.vault_id for error in errors} == {vault.id}
    said = " ".join(error.message for error in errors)
    assert "unreachable.example" in said and "LD_PRELOAD" in said and len(errors) == 2

    new: Any = {"type": "environment_variable", "secret_value": SECRETS[1]}
    vaults.credentials.update(credential.id, vault_id=vault.id, auth=new)
    time.sleep(5.1)  # as long as a secret is kept
    chat.turn(script(ask, {"text": "Done."}))
    assert site.keys[-1] == SECRETS[1]

    _killed_and_given_another_master_key(server)
    chat.move_to(server)
    again = "".join(printed(chat.turn(script(ask, {"text": "Done."}))))
    placeholder = first.partition("SITE_KEY=")[2].split()[0]
    assert f"SITE_KEY={placeholder}" in again and site.keys[-1] == SECRETS[1]


def _killed_and_given_another_master_key(server: LiveServer) -> None:
    server.kill()
    old = server._environ.get("ROOST_MASTER_KEY")
    new = b64encode(bytes(range(1, 33))).decode()
    server._environ["ROOST_MASTER_KEY"] = f"{new},{old}" if old else new
    server.start()
    with httpx2.Client(base_url=server.url, headers={"x-api-key": server.key}) as client:
        for after in (None, "secret:"):
            client.post("/roost/v1/master_key/reseal", json={"after": after}).raise_for_status()
        found = client.get("/roost/v1/master_key").json()
    assert list(found["sealed_with"]) == [found["key"]]
