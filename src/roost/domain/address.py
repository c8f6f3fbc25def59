"""Addresses and hosts that clients give: plain ones, that mean the same to whoever reads them.

Parsers differ in what they forgive: some drop tabs and line feeds, some end a host at a backslash, some turn
look-alike letters into others. What they would disagree on is refused here, before anything is made of it.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from roost.errors import InvalidRequest

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
NAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
"""A pattern: the form of a host's name, and of an IPv4 address."""

_NAME: Final = re.compile(NAME)
_BRACKETED: Final = re.compile(r"\[[0-9A-Fa-f:.]+\](:[0-9]+)?")
_LONGEST_NAME: Final = 253
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_FORM: Final = (
    "Give one such as `https://example.com/path` or `https://192.0.2.1:8443`: a host's name, or its "
    "address in the usual form, and a port from 1 to 65535 if it is not the usual one."
)
_PLAIN: Final = re.compile(r"[!-~]+")
_NOT_IN_ADDRESSES: Final = frozenset('\\"<>^`{|}')
_PRIVATE: Final = (".internal", ".local", ".lan", ".home.arpa", ".localhost", ".svc")


def checked(url: str, field: str) -> SplitResult:
    """The parts of an address. :raises InvalidRequest: naming the field, without the address in it"""
    if not _PLAIN.fullmatch(url) or not _NOT_IN_ADDRESSES.isdisjoint(url):
        raise InvalidRequest(
            f"{field}: spaces, control characters and letters beyond ASCII cannot be in an address",
            hint="Percent-encode them; a host with other letters has a form that begins with `xn--`.",
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidRequest(f"{field}: not an address", hint=_FORM) from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequest(
            f"{field}: the address must begin with https:// or http://", hint=_FORM
        )
    if "@" in parts.netloc:
        raise InvalidRequest(
            f"{field}: a name or a password cannot be part of the address",
            hint="Addresses are shown and logged; a repository has `authorization_token`.",
        )
    if not _is_known(parts.netloc, host) or port == 0 or parts.netloc.endswith(":"):
        raise InvalidRequest(
            f"{field}: the address has no host, or not one that can be", hint=_FORM
        )
    return parts


def check_secret_stays_private(parts: SplitResult, field: str) -> None:
    """Refuse an address at which anybody on the way could read a secret that is sent there.

    :raises InvalidRequest: it has no TLS, and its host is not one of a private network
    """
    if parts.scheme == "http" and not is_private(parts.hostname or ""):
        raise InvalidRequest(
            f"{field}: a key is sent over https only",
            hint="http:// is for private addresses, and for names of a private network such as "
            "`ollama` or `gateway.internal`.",
        )


def check_pattern(pattern: str, field: str) -> None:
    """A host, or all below one (`*.example.com`). :raises InvalidRequest: naming the field"""
    # Something can be below it: nothing is below an address, or below a name that is as long as can be.
    if is_host(f"x.{pattern[2:]}" if pattern.startswith("*.") else pattern):
        return
    raise InvalidRequest(
        f"{field}: give a host such as `example.com` or `*.example.com`, without scheme, port or path",
        hint="A host is a name without a dot at its end, or an IPv4 address such as `192.0.2.1`. Letters "
        "beyond ASCII have a form that begins with `xn--`. `*` can only be in front of a name.",
    )


def is_host(text: str) -> bool:
    """Whether it is a host's name, or an IPv4 address in its usual form."""
    try:
        literal(text)
    except ValueError:
        return False
    return len(text) <= _LONGEST_NAME and _NAME.fullmatch(text) is not None


def literal(name: str) -> IPv4Address | None:
    """The address that a host is written as; None for a name.

    A last label that is a number makes it an address, and then only the plain form will do: the
    system's resolver also takes `127.1`, `0x7f000001` and `2130706433`.

    :raises ValueError: it is an address in another form
    """
    return IPv4Address(name) if _NUMBER.fullmatch(name.rpartition(".")[2]) else None


def is_private(host: str) -> bool:
    """Whether what is sent there stays in a private network. Whether it may be reached is another question."""
    try:
        return not ip_address(host).is_global
    except ValueError:
        return "." not in host or host.lower().endswith(_PRIVATE)


def _is_known(netloc: str, host: str) -> bool:
    """Whether it is a host. What is beside brackets is left out by the one parser, and read by others."""
    if "[" not in netloc:
        return is_host(host.removesuffix("."))
    try:
        return bool(_BRACKETED.fullmatch(netloc) and IPv6Address(host))
    except ValueError:
        return False
