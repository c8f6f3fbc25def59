"""The servers of models that the operator named: a file of several, and the one of the plain settings."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from os import stat_result
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pydantic import SecretStr

from roost.builtin_model import BuiltinModel
from roost.config import Settings
from roost.domain.budget import Price
from roost.domain.upstream import Upstream, Upstreams, pattern_problem, searches_web
from roost.egress.options import ModelUpstream, anthropic, openai
from roost.egress.routes import OWN
from roost.errors import StartupError, Unavailable
from roost.harnesses import ModelAddress
from roost.ports.egress import Credential, Origin, Put
from roost.serve.http import listening
from roost.serve.prices import price_problem

_log = logging.getLogger(__name__)

REAL_MODEL: Final = "https://api.anthropic.com"
_REAL_OPENAI: Final = "https://api.openai.com/v1"
_HINT: Final = "docs/models.md shows a file of upstreams."
_SMALLEST_WINDOW: Final = 8192
_PUT: Final[Mapping[str, Put]] = {"anthropic": "x-api-key", "openai": "bearer"}


@dataclass(frozen=True)
class ModelServers:
    """The servers of models that this server's agents can ask, in the operator's order; what people are told
    about where the model is, and whether it is a real one.
    """

    served: list[ModelUpstream]
    description: str
    is_real: bool

    @property
    def known(self) -> Upstreams:
        """The models that the upstreams serve."""
        return Upstreams([each.upstream for each in self.served])

    def origin_of(self, api: str, model: str) -> Origin:
        """Where requests for a model go. :raises ModelNotServed: nowhere"""
        self.known.check(model, api)
        found = self.known.of(model, api)
        return next(each.origin for each in self.served if each.upstream is found)

    async def addresses(self) -> dict[str, ModelAddress]:
        """The first server of each API, for harnesses that ask it themselves."""
        found: dict[str, ModelAddress] = {}
        for each in self.served:
            if each.upstream.api not in found:
                found[each.upstream.api] = await _address(each.origin)
        return found


@asynccontextmanager
async def serving_models(settings: Settings) -> AsyncGenerator[ModelServers, None]:
    """Those that are configured; the built-in model if none is. :raises StartupError: what is configured is wrong"""
    served = configured(settings)
    said = ", ".join(map(_described, served))
    if settings.upstreams is not None or any(each.upstream.api == "anthropic" for each in served):
        real = settings.upstreams is not None or settings.anthropic_api_key is not None
        yield ModelServers(served, said, real)
        return
    async with listening(BuiltinModel(), "127.0.0.1", 0) as url:
        builtin = [ModelUpstream.default(anthropic(url, None))]
        others = served or [ModelUpstream.default(openai(f"{url}/v1", None))]
        scripted = "scripted (set ANTHROPIC_API_KEY for a real one)"
        yield ModelServers([*builtin, *others], f"{scripted}, {said}" if said else scripted, False)


def configured(settings: Settings) -> list[ModelUpstream]:
    """The servers that the settings name, in their order. :raises StartupError: one cannot be used"""
    served = [] if settings.upstreams is None else _read(settings.upstreams)
    named = {each.upstream.name for each in served}
    for origin in _plain(settings):
        if origin.protocol in named:
            variables = f"{origin.protocol.upper()}_API_KEY and {origin.protocol.upper()}_BASE_URL"
            raise StartupError(
                f"ROOST_UPSTREAMS: `{origin.protocol}` is the name of the one that {variables} set",
                hint="Give the one in the file another name, or unset those.",
            )
        served.append(ModelUpstream.default(origin))
    return served


def _plain(settings: Settings) -> Iterator[Origin]:
    """The servers that have settings of their own."""
    if settings.anthropic_api_key or settings.anthropic_base_url:
        url = settings.anthropic_base_url or REAL_MODEL
        yield anthropic(url, settings.anthropic_api_key)
    if settings.openai_api_key or settings.openai_base_url:
        url = settings.openai_base_url or _REAL_OPENAI
        yield openai(url, settings.openai_api_key)


class _Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""

    url: str
    models: list[str]
    dialect: Literal["anthropic", "openai"] = "anthropic"
    put: Literal["x-api-key", "bearer"] | None = None
    key: str | None = None
    key_file: str | None = None
    prices: dict[str, Price] = {}
    web_search: bool | None = None
    window: int | None = None

    def __repr__(self) -> str:
        return f"_Listed({self.url!r})"


def _read(path: Path) -> list[ModelUpstream]:
    try:
        tables = tomllib.loads(path.read_text(), parse_float=Decimal)
    except OSError as error:
        raise StartupError(f"ROOST_UPSTREAMS: {path}: {error.strerror}", hint=_HINT) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"ROOST_UPSTREAMS: {path}: {error}", hint=_HINT) from None
    if not tables:
        raise StartupError(f"ROOST_UPSTREAMS: {path} names no upstream", hint=_HINT)
    return [_upstream(name, table, path) for name, table in tables.items()]


def _upstream(name: str, table: Any, path: Path) -> ModelUpstream:
    at = f"ROOST_UPSTREAMS: {path}: {name}"
    try:
        listed = msgspec.convert(table, _Listed, strict=False)
    except msgspec.MsgspecError as error:
        raise StartupError(f"{at}: {error}", hint=_HINT) from None
    if problem := _problem(name, listed):
        raise StartupError(f"{at}: {problem}", hint=_HINT)
    searches = listed.web_search
    upstream = Upstream(
        name=name,
        api=listed.dialect,
        models=listed.models,
        prices=listed.prices,
        web_search=searches_web(listed.dialect, listed.url) if searches is None else searches,
        window=listed.window,
    )
    origin = Origin(
        url=listed.url, protocol=listed.dialect, credential=_credential(listed, path.parent)
    )
    return ModelUpstream(upstream, origin)


def _problem(name: str, listed: _Listed) -> str | None:
    """What is wrong with a table, in words; None: nothing."""
    if name == OWN:
        return f"{OWN!r} is what a session's own server is called"
    if listed.key is not None and listed.key_file is not None:
        return "there is a `key` and a `key_file`"
    if not listed.models:
        return "`models` is empty: no request would go there"
    for pattern in listed.models:
        if problem := pattern_problem(pattern):
            return f"models: {pattern!r}: {problem}"
    if listed.window is not None and listed.window < _SMALLEST_WINDOW:
        return f"`window` is {listed.window} tokens: agents need at least {_SMALLEST_WINDOW}"
    return price_problem(listed.prices)


def _credential(listed: _Listed, folder: Path) -> Credential | None:
    put = listed.put or _PUT[listed.dialect]
    if listed.key_file is not None:
        return Credential(KeyFile(folder / listed.key_file).read, put)
    return None if listed.key is None else Credential.fixed(listed.key, put)


class KeyFile:
    """A key in a file of its own, read again when the file is another one or has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._key = ""

    async def read(self) -> str:
        """The key that is in it now. :raises Unavailable: it cannot be read"""
        try:
            now = _version(self._path.stat())
            if now != self._seen:
                self._key = self._path.read_text().strip()
                self._seen = now
        except (OSError, UnicodeDecodeError) as error:
            # The path is for the operator; what is raised is told to the session.
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            _log.error("the key file %s cannot be read: %s", self._path, why)
            raise Unavailable("its key cannot be read") from None
        return self._key


def _version(found: stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _described(each: ModelUpstream) -> str:
    url = each.origin.url
    return url if each.upstream.name == each.upstream.api else f"{each.upstream.name} at {url}"


async def _address(origin: Origin) -> ModelAddress:
    key = None if origin.credential is None else await origin.credential.secret()
    return ModelAddress(url=origin.url, key=None if key is None else SecretStr(key))
