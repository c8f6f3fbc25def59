"""Addresses that clients give."""

from __future__ import annotations

import httpx2
import pytest
from hypothesis import example, given
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
    "https://127.1/o",
    "https://0x7f000001/o",
    "https://2130706433/o",
    "https://999.1.1.1/o",
    "https://1.2.3.4.5/o",
    "https://127.0.0.01./o",
    "https://example.1/o",
    "https://[:::]/o",
    "https://[1.2.3.4]/o",
    "https://[fe80::1%25eth0]/o",
    "https://[v1.x]/o",
    "https://evil[::1]/o",
    "https://[::1]evil/o",
    f"https://{'a' * 64}.example/o",
    f"https://{'a.' * 127}aaaaa/o",
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


PIECES = (
    *("a", "B", "example.com", "xn--", "xn--bcher-kva.example", "-", "_", ".", "..", "%41"),
    *("[", "]", "[::1]", "[2606:0::1]", "::", "127", "0x7f", "1.2.3.4", "999.1.1.1", "\t"),
    *(
        ":",
        ":80",
        ":0",
        ":443",
        ":99999",
        ":+1",
        "@",
        "u:p@",
        "/",
        "/o/n",
        "?",
        "#",
        "\\",
        "//",
        " ",
        "\u00e4",
    ),
)


@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=5), st.sampled_from(["http", "https"])
)
@example(["a", "[::1]"], "https")
@example(["999.1.1.1"], "https")
def test_what_is_taken_is_read_alike_by_the_http_client(pieces: list[str], scheme: str):
    url = f"{scheme}://{''.join(pieces)}"
    try:
        parts = checked(url, "url")
    except InvalidRequest:
        return
    read = httpx2.URL(url)
    usual = {"http": 80, "https": 443}[scheme]
    assert (read.scheme, read.userinfo) == (parts.scheme, b"")
    assert read.raw_host.decode().lower() == parts.hostname
    assert (read.port or usual) == (parts.port or usual)


@pytest.mark.parametrize("end", ["?", "#", "/?", "?a=b", "#a", ";?"])
def test_nothing_is_behind_the_address_of_a_repository(end: str):
    with pytest.raises(InvalidRequest, match="the address of a repository"):
        checked_url(f"https://git.example/o/n{end}", ["https://git.example"], "")


@given(st.text())
def test_no_address_of_a_repository_has_what_git_could_trip_over(text: str):
    try:
        url = checked_url(f"https://git.example/{text}", ["https://git.example"], "")
    except InvalidRequest:
        return
    assert url.isascii()
    assert url.isprintable()
    assert " " not in url
