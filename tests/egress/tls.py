"""TLS on both sides of the proxy: a server that answers for every name, and real clients."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


@cache
def _certificate() -> bytes:
    """A certificate that nobody trusts, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "front.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM) + private


class Front:
    """A server that serves every name it is asked for, as a shared front of many sites does.

    `names` are those it was asked for: the hole is open exactly if a foreign one is among them.
    """

    def __init__(self) -> None:
        self.port = 0
        self.names: list[str | None] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with NamedTemporaryFile() as file:
            Path(file.name).write_bytes(_certificate())
            self.context.load_cert_chain(file.name)
        self.context.sni_callback = lambda _, name, __: self.names.append(name)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Front, None]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        async with (
            TLSListener(listener, self.context, standard_compatible=False) as secured,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(secured.serve, self._talk)
            yield self
            tasks.cancel_scope.cancel()

    async def _talk(self, stream: TLSStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfront")


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def ask(path: str, host: str, port: int, name: str | None) -> str:
    """CONNECT to a host, ask for a name there by TLS, and hear what the front says.

    :raises ssl.SSLError: with the alert that came instead
    """
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(path)
        raw.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        head = raw.recv(1000)
        assert head.startswith(b"HTTP/1.1 200"), head
        with client_context().wrap_socket(raw, server_hostname=name) as stream:
            stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return stream.recv(1000)[-5:].decode()


class Client:
    """A TLS client whose bytes are in the test's hands."""

    def __init__(self, name: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context().wrap_bio(self._in, self._out, server_hostname=name)

    def says(self, heard: bytes = b"") -> bytes:
        """What it sends next."""
        self._in.write(heard)
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()
