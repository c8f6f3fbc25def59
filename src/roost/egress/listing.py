"""Asks servers of models what they have: for `GET /v1/models`, and for `roost doctor`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import anyio
import httpx2
import msgspec

from roost.egress.options import ModelUpstream
from roost.egress.secrets import NOTHING, PutOn, Redactor, can_be_sent, put_on
from roost.errors import RoostError
from roost.ports.egress import Origin
from roost.ports.models import ListedModel

_log = logging.getLogger(__name__)

_PATHS: Final = {"anthropic": "/v1/models?limit=1000", "openai": "/models"}
_SECONDS: Final = 5.0
_FRESH_SECONDS: Final = 60.0
_MOST_BYTES: Final = 4 * 1024**2
_MOST_MODELS: Final = 1000
_LONGEST: Final = 256
_FORBIDDEN: Final = (401, 403)

_tls = cache(httpx2.create_ssl_context)  # once: reading all certificates takes a while


class ModelListFailed(Exception):
    """A server of models did not say what it has. `works`: agents may be able to use it all the same."""

    def __init__(self, message: str, *, works: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.works = works


class UpstreamModelLists:
    """`ports.models.ModelLists`: asks each server at most once a minute."""

    def __init__(self, upstreams: Sequence[ModelUpstream]) -> None:
        self._origins = {each.upstream.name: each.origin for each in upstreams}
        self._known: dict[str, tuple[float, Sequence[ListedModel]]] = {}
        self._asking = {name: anyio.Lock() for name in self._origins}

    async def listed(self, name: str) -> Sequence[ListedModel]:
        async with self._asking[name]:
            asked_at, known = self._known.get(name, (-_FRESH_SECONDS, ()))
            if anyio.current_time() - asked_at >= _FRESH_SECONDS:
                known = await self._asked(name)
                self._known[name] = anyio.current_time(), known
            return known

    async def _asked(self, name: str) -> Sequence[ListedModel]:
        try:
            return await models_at(self._origins[name])
        except ModelListFailed as failed:
            _log.warning("no list of models from %s: %s", name, failed.message)
            return ()


async def models_at(origin: Origin) -> Sequence[ListedModel]:
    """What a server of models lists. :raises ModelListFailed: in words, without the key"""
    given = await _put_on(origin)
    client = httpx2.AsyncClient(verify=_tls(), trust_env=False, timeout=_SECONDS)
    url = origin.url.rstrip("/") + _PATHS[origin.protocol]
    headers = [*given.headers, (b"anthropic-version", b"2023-06-01")]
    try:
        with anyio.fail_after(_SECONDS):
            async with client, client.stream("GET", url, headers=headers) as response:
                status, body = response.status_code, await _read(response)
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError):
        raise ModelListFailed("it does not answer") from None
    if status != 200:
        if status in _FORBIDDEN:
            raise ModelListFailed(f"it does not take the key (status {status})")
        raise ModelListFailed(f"it has no list of models (status {status})", works=status < 500)
    return _parsed(Redactor.of(given.forms).whole(body))


async def _put_on(origin: Origin) -> PutOn:
    if origin.credential is None:
        return NOTHING
    try:
        secret = await origin.credential.secret() or ""
    except RoostError as failed:
        raise ModelListFailed(failed.message) from None
    if not can_be_sent(secret):
        raise ModelListFailed("its key is empty, or has a space or a line break in it")
    return put_on(secret, origin.credential.put)


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MOST_BYTES:
            raise ModelListFailed("its list of models is too long")
    return bytes(body)


def _parsed(body: bytes) -> list[ListedModel]:
    """The entries that make sense: another machine's word is not trusted to have any shape."""
    try:
        entries = msgspec.json.decode(body)["data"][:_MOST_MODELS]
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError):
        raise ModelListFailed("its list of models cannot be read") from None
    return [_model(each) for each in entries if isinstance(each, dict) and _is_id(each.get("id"))]


def _model(entry: dict[str, Any]) -> ListedModel:
    return ListedModel(
        id=entry["id"],
        display_name=_text(entry.get("display_name")),
        created_at=_text(entry.get("created_at")) or _moment(entry.get("created")),
        max_input_tokens=_count(entry.get("max_input_tokens")),
        max_tokens=_count(entry.get("max_tokens")),
    )


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isprintable()


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < 2**53 else None


def _moment(seconds: object) -> str:
    """The OpenAI API has seconds where the other has text."""
    if not isinstance(seconds, int) or not 0 <= seconds < 2**33:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
