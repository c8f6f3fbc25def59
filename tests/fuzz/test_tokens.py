"""A token is signed by us and says anything at all: it opens nothing, or what it names."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.api.access.tokens import SocketTokens, TokenClaims
from roost.errors import Unauthenticated

SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS = SocketTokens(SECRET, seconds=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CLAIMS = ("iss", "aud", "iat", "nbf", "exp", "sub", "tenant", "login", "session", "jti")


def _part(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def signed(claims: Any) -> str:
    """As `jwt` would, but for whatever it would not."""
    head = _part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    said = head + b"." + _part(json.dumps(claims).encode())
    return (said + b"." + _part(hmac.new(SECRET, said, hashlib.sha256).digest())).decode()


def good() -> dict[str, Any]:
    now = time.time()
    named = {"sub": "apikey_1", "tenant": "t", "login": None, "session": None}
    return {"iss": "roost", "aud": "ws", "iat": now, "exp": now + 60, **named}


def test_a_good_token_is_read() -> None:
    assert TOKENS.read(signed(good())) == TokenClaims(key_id="apikey_1", tenant="t")


@pytest.mark.parametrize("claim", CLAIMS)
@given(value=VALUES)
def test_whatever_a_claim_says_the_token_is_read_or_refused(claim: str, value: Any) -> None:
    try:
        read = TOKENS.read(signed({**good(), claim: value}))
    except Unauthenticated:
        return
    for word in (read.key_id, read.tenant, read.login_id, read.session_id):
        assert word is None or (isinstance(word, str) and "\0" not in word)


@pytest.mark.parametrize("claim", ["sub", "tenant", "login", "session"])
@pytest.mark.parametrize("value", [{"a": 1}, ["x"], 7, True, "", "a\0b", "x" * 300])
def test_a_claim_that_is_no_word_is_refused(claim: str, value: Any) -> None:
    with pytest.raises(Unauthenticated):
        TOKENS.read(signed({**good(), claim: value}))


@pytest.mark.parametrize("claims", [[], None, 7, "x", {}, {"exp": float("inf")}])
def test_what_is_no_set_of_claims_is_refused(claims: Any) -> None:
    with pytest.raises(Unauthenticated):
        TOKENS.read(signed(claims))
