"""Addresses that clients give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.address import checked
from roost.domain.resource import checked_url
from roost.errors import InvalidRequest

GOOD = (
    "https://github.com/owner/name",
    "http://127.0.0.1:8080/x.git",
    "https://[::1]:443/x",
    "https://xn--bcher-kva.example/mcp?a=b%20c",
    "https://under_score.example",
)
BAD = (
    "https://github.com/owner/na\tme",
    "https://github.com/owner/name\n",
    "\nhttps://github.com/owner/name",
    "https://github.com/owner/na me",
    "https://git\u200bhub.com/owner/name",
    "https://g\u0456thub.com/owner/name",
    "https://github.com\\@evil.example/owner/name",
    "https://user:secret@github.com/owner/name",
    "https://@github.com/owner/name",
    "https:///owner/name",
    "https:/github.com/owner",
    "https://github.com:99999/o",
    "https://github.com:/o",
    "https://github.com:0/o",
    "https://-x-.example/o",
    "https://[::1/o",
    "https://a..b/o",
    "ssh://github.com/owner/name",
    "git@github.com:owner/name",
    "file:///etc/passwd",
    "ext::sh -c id",
    "-upload-pack=id",
    "",
    "https://github.com/\x7f",
)


@pytest.mark.parametrize("url", GOOD)
def test_a_plain_address_is_taken(url: str):
    assert checked(url, "url").geturl() == url


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_readers_would_disagree_on_is_refused(url: str):
    with pytest.raises(InvalidRequest) as refused:
        checked(url, "url")
    assert refused.value.message.startswith("url: ")
    assert "secret" not in refused.value.message


@given(st.text())
def test_no_address_of_a_repository_has_what_git_could_trip_over(text: str):
    try:
        url = checked_url(f"https://git.example/{text}", ["https://git.example"], "")
    except InvalidRequest:
        return
    assert url.isascii()
    assert url.isprintable()
    assert " " not in url
