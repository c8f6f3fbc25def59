"""Vaults with the key for a model's API: their metadata says which agent runs, and where its requests go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec

from roost.domain import address
from roost.domain.environment import RESERVED
from roost.errors import InvalidRequest

ROLE: Final = f"{RESERVED}role"
ENGINE: Final = f"{RESERVED}engine"
BASE_URL: Final = f"{RESERVED}base_url"
KEY_HEADER: Final = f"{RESERVED}key_header"

_SANDBOX0: Final = "sandbox0.managed_agents."
_ALSO: Final = {
    ROLE: f"{_SANDBOX0}role",
    ENGINE: f"{_SANDBOX0}engine",
    BASE_URL: f"{_SANDBOX0}llm_base_url",
    KEY_HEADER: "",
}
"""Our own keys, and those of sandbox0, whose clients need not change them."""

DEFAULT_ENGINE: Final = "claude"
_ENGINE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ADDRESSES: Final = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
}

KeyHeader = Literal["x-api-key", "bearer"]


class LlmVault(msgspec.Struct, frozen=True, kw_only=True):
    """What a vault's metadata says about the model's account: the harness that runs with it, and where the
    requests go, if that is not where the makers of the API are.
    """

    engine: str = DEFAULT_ENGINE
    base_url: str | None = None
    key_header: KeyHeader | None = None

    def url(self, api: str) -> str | None:
        """Where the requests of an agent go that speaks this API; None: nobody says."""
        return self.base_url or _ADDRESSES.get(api)

    def put(self, api: str) -> KeyHeader:
        """How the key is put on. Gateways take a bearer, whichever API they speak; Anthropic's own takes keys."""
        if self.key_header is not None:
            return self.key_header
        is_anthropics = api == "anthropic" and self.base_url in (None, _ADDRESSES["anthropic"])
        return "x-api-key" if is_anthropics else "bearer"


def is_for_models(metadata: Mapping[str, str]) -> bool:
    """Whether a vault has the key for a model's API, and not credentials for an agent's tools."""
    return _noted(metadata, ROLE) is not None


def llm_vault(metadata: Mapping[str, str]) -> LlmVault:
    """What the metadata of such a vault says, which was checked when it was written."""
    return LlmVault(
        engine=_noted(metadata, ENGINE) or DEFAULT_ENGINE,
        base_url=_noted(metadata, BASE_URL),
        key_header=cast(KeyHeader | None, _noted(metadata, KEY_HEADER)),
    )


def check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """A vault's metadata. :raises InvalidRequest: a reserved key has no meaning, or not this one"""
    for key in metadata:
        prefix = next((each for each in (RESERVED, _SANDBOX0) if key.startswith(each)), None)
        if prefix is not None and key not in (*_ALSO, *_ALSO.values()):
            raise InvalidRequest(f"metadata.{key}: unknown; `{prefix}` is reserved")
    for ours, theirs in _ALSO.items():
        if len({metadata[key] for key in (ours, theirs) if key in metadata}) > 1:
            raise InvalidRequest(f"metadata.{ours}: differs from metadata.{theirs}")
    _check_values(metadata)
    return metadata


def check_not_moved(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Metadata of a vault that has a key. :raises InvalidRequest: the key would be sent to another address"""
    if llm_vault(before).base_url != llm_vault(after).base_url:
        raise InvalidRequest(
            f"metadata.{BASE_URL}: cannot be changed while the vault has a key",
            hint="Archive the credential with the key first, and add one for the other address then.",
        )


def _check_values(metadata: Mapping[str, str]) -> None:
    role = _noted(metadata, ROLE)
    if role not in (None, "llm"):
        raise InvalidRequest(f"metadata.{_key(metadata, ROLE)}: Input should be 'llm'")
    for key in (ENGINE, BASE_URL, KEY_HEADER):
        if role is None and _noted(metadata, key) is not None:
            raise InvalidRequest(
                f"metadata.{_key(metadata, key)}: only a vault with `{ROLE}: llm` has one"
            )
    engine, base_url = _noted(metadata, ENGINE), _noted(metadata, BASE_URL)
    if engine is not None and not _ENGINE.fullmatch(engine):
        raise InvalidRequest(f"metadata.{_key(metadata, ENGINE)}: not the name of an engine")
    if base_url is not None:
        _check_base_url(base_url, f"metadata.{_key(metadata, BASE_URL)}")
    if _noted(metadata, KEY_HEADER) not in (None, "x-api-key", "bearer"):
        raise InvalidRequest(f"metadata.{KEY_HEADER}: Input should be 'x-api-key' or 'bearer'")


def _check_base_url(url: str, field: str) -> None:
    parts = address.checked(url, field)
    if not {"?", "#"}.isdisjoint(url):
        raise InvalidRequest(f"{field}: it cannot have a query or a fragment")
    address.check_secret_stays_private(parts, field)


def _noted(metadata: Mapping[str, str], key: str) -> str | None:
    """What is said under one of our keys, or under the one that sandbox0 has for it."""
    return metadata.get(key, metadata.get(_ALSO[key]))


def _key(metadata: Mapping[str, str], key: str) -> str:
    return key if key in metadata else _ALSO[key]
