"""Which hosts an agent's web tools may be used for: the `allowed_domains` or `blocked_domains` of their configs.

A domain stands for itself and all below it. Pages are fetched inside the sandbox, so what the environment
lets through holds as well. Searches are the model provider's doing, and it is told what to leave out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from roost.harnesses.claude.shapes import Json
from roost.harnesses.fence import ToolRefused

_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_ODD: Final = re.compile(
    r"[\\\s\x00-\x20\x7f]"
)  # the CLI would read such an address in another way


def kept_to(name: str, config: Json, given: Json) -> Json:
    """The input of a web tool as its config lets it be used. :raises Outside:"""
    allowed, blocked = _domains(config, "allowed_domains"), _domains(config, "blocked_domains")
    if not allowed and not blocked:
        return given
    if name == "web_search":
        return _searched(given, allowed, blocked)
    host = _host_of(given.get("url"))
    if (allowed and not _within(host, allowed)) or _within(host, blocked):
        raise ToolRefused(f"Refused: this agent may not fetch pages from {host}.")
    return given


def _searched(given: Json, allowed: Sequence[str], blocked: Sequence[str]) -> Json:
    """The tool takes one of the two lists, and the agent may have given one itself."""
    left = {name: value for name, value in given.items() if not name.endswith("_domains")}
    wanted, unwanted = _domains(given, "allowed_domains"), _domains(given, "blocked_domains")
    if allowed:
        narrowed = [each for each in wanted if _within(each, allowed)]
        return {**left, "allowed_domains": narrowed or list(allowed)}
    if wanted:
        kept = [each for each in wanted if not _within(each, blocked)]
        if not kept:
            raise ToolRefused("Refused: this agent may not search there.")
        return {**left, "allowed_domains": kept}
    return {**left, "blocked_domains": [*unwanted, *blocked]}


def _domains(source: Json, field: str) -> list[str]:
    listed = source.get(field)
    named = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return [each.lower().rstrip(".") for each in named]


def _host_of(url: object) -> str:
    """:raises Outside: it is not certain which host that is"""
    try:
        host = urlsplit(url if isinstance(url, str) and not _ODD.search(url) else "").hostname
    except ValueError:
        host = None
    host = (host or "").rstrip(".")
    if not _HOST.fullmatch(host):
        raise ToolRefused("Refused: give the address with the plain name of a host.")
    return host


def _within(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
