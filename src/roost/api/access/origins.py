"""Which pages may use a browser's login: this server's own, and those the operator names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from roost.errors import CrossOrigin

_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443"}
_SAFE: Final = ("GET", "HEAD")
CSRF_HEADER: Final = "x-roost-csrf"
"""A page of another site cannot send a header of its own: not without asking us first."""


def check_origin(headers: Mapping[str, str], scheme: str, allowed: str | None) -> bool:
    """Whether the request says that it comes from a page that may; False if it does not say where it comes from.

    :raises CrossOrigin: it is from another page
    """
    origin = headers.get("origin")
    if origin is None:
        return False
    if _is_own(origin, headers.get("host", ""), scheme) or _is_named(origin, allowed):
        return True
    raise CrossOrigin(f"this request comes from a page of {origin[:200]!r}")


def check_change(method: str, headers: Mapping[str, str], scheme: str, allowed: str | None) -> None:
    """Check a request that has a cookie and changes something. :raises CrossOrigin: it may be forged"""
    if method in _SAFE or check_origin(headers, scheme, allowed):
        return
    if CSRF_HEADER not in headers:
        raise CrossOrigin(
            "a change with a login needs an Origin header",
            hint=f"Send `{CSRF_HEADER}: 1` if the client is not a browser.",
        )


def _is_own(origin: str, host: str, scheme: str) -> bool:
    # The scheme is not compared: behind a proxy that ends TLS, only the browser knows it.
    try:
        page = urlsplit(origin)
    except ValueError:  # a bracket without its other one, for example
        return False
    return bool(page.netloc) and _full(page.netloc, page.scheme) == _full(
        host, page.scheme or scheme
    )


def _is_named(origin: str, allowed: str | None) -> bool:
    named = {name.strip().rstrip("/").lower() for name in (allowed or "").split(",")}
    return origin.lower() in named - {""}


def _full(netloc: str, scheme: str) -> str:
    """Host and port, in lower case; the port is added where it is the default one."""
    _, colon, port = netloc.lower().rpartition(":")
    if colon and port.isdigit():
        return netloc.lower()
    return f"{netloc.lower()}:{_PORTS.get(scheme, '')}"
