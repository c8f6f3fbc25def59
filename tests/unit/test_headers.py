"""Headers of requests: bytes until one is asked for."""

from __future__ import annotations

import pytest

from roost.api.access.headers import RequestHeaders


def test_a_header_is_found_by_its_lower_case_name() -> None:
    headers = RequestHeaders([(b"x-one", b"1"), (b"x-two", b"caf\xe9")])
    assert headers["x-one"] == "1"
    assert headers.get("x-two") == "caf\u00e9"
    assert headers.get("x-three", "none") == "none"
    assert "x-three" not in headers
    assert dict(headers) == {"x-one": "1", "x-two": "caf\u00e9"}
    with pytest.raises(KeyError):
        headers["x-three"]


def test_one_that_is_repeated_is_a_list_with_commas() -> None:
    pairs = [(b"anthropic-beta", b"one"), (b"host", b"here"), (b"anthropic-beta", b"two")]
    headers = RequestHeaders(pairs)
    assert headers["anthropic-beta"] == "one,two"
    assert headers.raw == {b"anthropic-beta": b"one,two", b"host": b"here"}
    assert len(headers) == 2
