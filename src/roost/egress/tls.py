"""TLS for hosts to which placeholders are replaced: our certificate towards the sandbox, theirs towards us.

What is replaced has to be read, so these connections, and no others, end here and begin anew. The certificate
authority belongs to one grant. Its keys are only in the memory of this process and end with the grant; a
sandbox is shown its certificate, and every other sandbox trusts another one.
"""

from __future__ import annotations

import os
import re
import ssl
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpx2
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from roost.ports.sandbox_provider import SYSTEM_CERTIFICATES

if TYPE_CHECKING:
    from cryptography import x509

HTTP: Final = "http/1.1"
"""The one protocol that is spoken on both sides, by its name in ALPN."""

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_MOST_CONTEXTS: Final = 64
_BACKDATED: Final = timedelta(days=1)  # clocks of sandboxes and servers need not agree
_VALID: Final = timedelta(days=365)  # no grant lasts as long


class CertificateAuthority:
    """Vouches for the hosts of one grant. One key serves all of them, so a further host costs one signature."""

    def __init__(self) -> None:
        # Imported where it is used: most grants need none of it.
        from cryptography.hazmat.primitives.asymmetric import ec

        curve = ec.SECP256R1()
        self._key, self._leaf_key = ec.generate_private_key(curve), ec.generate_private_key(curve)
        self._own = self._root()
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    @property
    def certificate(self) -> bytes:
        """What a sandbox is to trust, as PEM. There is no secret in it."""
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._own.public_bytes(Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """To be this host for a client that trusts this authority; those used last are kept."""
        found = self._contexts.get(host) or self._context(host)
        self._contexts[host] = found
        self._contexts.move_to_end(host)
        if len(self._contexts) > _MOST_CONTEXTS:
            self._contexts.popitem(last=False)
        return found

    def _context(self, host: str) -> ssl.SSLContext:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        private = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([HTTP])
        _load(context, self._leaf(host).public_bytes(Encoding.PEM) + private)
        return context

    def _root(self) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256

        # A name of its own: with one name and many keys, programs would try the wrong one.
        text = f"Roost sandbox {token_hex(8)}"
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        public = self._key.public_key()
        return (
            _dated(name, name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, SHA256())
        )

    def _leaf(self, host: str) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.x509.oid import ExtendedKeyUsageOID

        ours, public = self._key.public_key(), self._leaf_key.public_key()
        # Without the authority's identifier Python refuses it from 3.13 on.
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ours)
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return (
            _dated(x509.Name([]), self._own.subject, public)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(server, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(issuer_id, critical=False)
            .sign(self._key, SHA256())
        )


def _dated(subject: x509.Name, issuer: x509.Name, public: Any) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    number = x509.random_serial_number()
    return x509.CertificateBuilder(issuer, subject, public, number, now - _BACKDATED, now + _VALID)


def _usage(**used: bool) -> x509.KeyUsage:
    from cryptography import x509

    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**dict.fromkeys(names.split(), False) | used)


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Give it a certificate and its key. Python takes them from a file only: this one is in memory."""
    descriptor = os.memfd_create("roost", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def merged(certificate: bytes, systems: tuple[str, ...] = SYSTEM_CERTIFICATES) -> bytes:
    """A list of all certificates that this machine trusts, and this one. Blocks for a moment."""
    found = next(filter(Path.is_file, map(Path, systems)), None)
    return (b"" if found is None else found.read_bytes().rstrip() + b"\n") + certificate


def trust_store(certificates: bytes) -> bytes:
    """A list of certificates as Java reads it (PKCS12), without a password: there is no secret in it. Blocks
    for some hundredths of a second.
    """
    from cryptography.hazmat.primitives.serialization import NoEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import (
        PKCS12Certificate,
        serialize_java_truststore,
    )

    found = (_parsed(each) for each in _PEM.findall(certificates))
    named = [
        PKCS12Certificate(each, str(index).encode()) for index, each in enumerate(found) if each
    ]
    return serialize_java_truststore(named, NoEncryption())


@lru_cache(1024)
def _parsed(pem: bytes) -> x509.Certificate | None:
    """A certificate of a list; None: it is none. Some are older than today's rules: that is not worth a warning."""
    from cryptography import x509

    try:
        with warnings.catch_warnings(action="ignore"):
            return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


@cache
def _upstream_context() -> ssl.SSLContext:
    """What the server itself trusts. Made once: reading all certificates takes a while."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols([HTTP])
    return context


class TlsEnd(ByteStream):
    """One end of a TLS connection, which ends in each direction by itself, as other streams do."""

    def __init__(self, secured: TLSStream) -> None:
        self._secured = secured

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for some bytes. :raises anyio.EndOfStream: there will be no more"""
        try:
            return await self._secured.receive(max_bytes)
        except ssl.SSLError as error:
            raise anyio.BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        """Send all of the bytes. :raises anyio.BrokenResourceError: the other side is gone"""
        try:
            await self._secured.send(item)
        except (ssl.SSLError, anyio.EndOfStream) as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """No more bytes; the other direction stays open."""
        with suppress(
            ssl.SSLError
        ):  # it wants to hear the same from the other side, which may take long
            self._secured.extra(TLSAttribute.ssl_object).unwrap()
        await self._secured._flush_write_bio()

    async def aclose(self) -> None:
        """Close it, and what it was made on."""
        await self._secured.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Those of the connection."""
        return self._secured.extra_attributes


class _Replayed(ByteStream):
    """A stream, some of whose bytes were read before."""

    def __init__(self, stream: ByteStream, early: bytes) -> None:
        self._stream = stream
        self._early = early

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._early:
            return await self._stream.receive(max_bytes)
        data, self._early = self._early[:max_bytes], self._early[max_bytes:]
        return data

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def secured_server(stream: ByteStream, host: str, seconds: float) -> TlsEnd:
    """The connection to a server, once it has shown a certificate for this host.

    :raises ssl.SSLError: it has none that we trust
    :raises OSError: :raises anyio.EndOfStream: :raises anyio.BrokenResourceError: it hung up, or took too long
    """
    with anyio.fail_after(seconds):
        secured = await TLSStream.wrap(
            stream,
            server_side=False,
            hostname=host,
            ssl_context=_upstream_context(),
            standard_compatible=False,
        )
    return TlsEnd(secured)


async def secured_client(
    stream: ByteStream, early: bytes, context: ssl.SSLContext, seconds: float
) -> TlsEnd:
    """The connection to a client whose first bytes were read already.

    :raises ssl.SSLError: it does not trust our certificate
    :raises OSError: :raises anyio.EndOfStream: :raises anyio.BrokenResourceError: it hung up, or took too long
    """
    with anyio.fail_after(seconds):
        secured = await TLSStream.wrap(
            _Replayed(stream, early),
            server_side=True,
            ssl_context=context,
            standard_compatible=False,
        )
    return TlsEnd(secured)
