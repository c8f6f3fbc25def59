"""Addresses that clients give: plain http ones, that mean the same to whoever reads them.

Parsers differ in what they forgive: some drop tabs and line feeds, some end a host at a backslash, some turn
look-alike letters into others. What they would disagree on is refused here, before anything is made of it.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from roost.errors import InvalidRequest

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\]")
_PLAIN: Final = re.compile(r"[!-~]+")
_NOT_IN_ADDRESSES: Final = frozenset('\\"<>^`{|}')


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
        raise InvalidRequest(f"{field}: not an address") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidRequest(f"{field}: the address must begin with https:// or http://")
    if "@" in parts.netloc:
        raise InvalidRequest(
            f"{field}: a name or a password cannot be part of the address",
            hint="Addresses are shown and logged; a repository has `authorization_token`.",
        )
    named = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(named) or len(host) > 253 or port == 0 or parts.netloc.endswith(":"):
        raise InvalidRequest(f"{field}: the address has no host, or not one that can be")
    return parts
