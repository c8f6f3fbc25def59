"""Sealing with AES-256-GCM, by keys that the operator has: what is written names the key it needs.

1.KEY.TEXT    the form, which key by its fingerprint, and nonce and ciphertext in base64
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

from roost.errors import CannotSeal, CannotUnseal

KEY_BYTES: Final = 32
_FORM: Final = "1"
_NONCE: Final = 12


class MasterKeys:
    """`ports.seal.Seal`. The first of the keys seals, all of them open; if not `seals`, none seals."""

    def __init__(self, keys: Sequence[bytes], *, seals: bool = True) -> None:
        self._keys = {fingerprint(key): key for key in keys}
        self._first = next(iter(self._keys), None) if seals else None

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self._keys)})"

    @property
    def key(self) -> str | None:
        return self._first

    def key_of(self, sealed: str) -> str:
        return sealed.split(".")[1] if sealed.count(".") == 2 else "unknown"

    def seal(self, secret: str, about: str) -> str:
        # Imported where it is used: it takes as long as a tenth of a server's start.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._first is None:
            raise CannotSeal
        nonce = os.urandom(_NONCE)
        closed = AESGCM(self._keys[self._first]).encrypt(nonce, secret.encode(), about.encode())
        return f"{_FORM}.{self._first}.{urlsafe_b64encode(nonce + closed).decode()}"

    def open(self, sealed: str, about: str) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        form, _, rest = sealed.partition(".")
        which, _, text = rest.partition(".")
        if form != _FORM:
            raise CannotUnseal("the secret was sealed in a form that this version does not know")
        if which not in self._keys:
            known = ", ".join(self._keys) or "none"
            raise CannotUnseal(
                f"the secret was sealed with the master key {which}, and this server has {known}"
            )
        try:
            data = urlsafe_b64decode(text)
            opened = AESGCM(self._keys[which]).decrypt(data[:_NONCE], data[_NONCE:], about.encode())
        except (InvalidTag, ValueError):
            raise CannotUnseal("the sealed secret is damaged, or another record's") from None
        return opened.decode()

    def derived(self, purpose: str) -> bytes:
        """A key for one purpose, which says nothing of the first master key. :raises CannotSeal: there is none"""
        if self._first is None:
            raise CannotSeal
        return hmac.digest(self._keys[self._first], f"roost {purpose}".encode(), "sha256")


def fingerprint(key: bytes) -> str:
    """What a key is called; says nothing of it."""
    return hashlib.blake2b(key, digest_size=4, person=b"roost master").hexdigest()


def key_of(text: str) -> bytes:
    """A key from its base64. :raises ValueError: it is none"""
    key = urlsafe_b64decode(text.strip().replace("+", "-").replace("/", "_"))
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, and this one has {len(key)}")
    return key
