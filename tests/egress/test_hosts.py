"""Which hosts and addresses may be reached: the rules on their own."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.address import check_pattern
from roost.egress.dial import allowed, public
from roost.egress.hosts import HostList, ProxyTarget, target_of
from roost.egress.reports import Refusal
from roost.errors import InvalidRequest


def connect(text: str) -> ProxyTarget:
    return target_of(b"CONNECT", text.encode())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.com:443", "example.com", 443),
        ("EXAMPLE.Com.:443", "example.com", 443),
        ("xn--bcher-kva.example:80", "xn--bcher-kva.example", 80),
        ("under_score.example:443", "under_score.example", 443),
        ("93.184.216.34:443", "93.184.216.34", 443),
        ("[2606:4700::1111]:443", "2606:4700::1111", 443),
        (f"{'a.' * 126}a:443", f"{'a.' * 126}a", 443),  # as long as a name can be
        ("[2606:4700:0:0:0:0:0:1111]:443", "2606:4700::1111", 443),
    ],
)
def test_a_host_and_a_port_are_understood_in_one_form(text: str, host: str, port: int):
    target = connect(text)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "example.com",
        "example.com:",
        "example.com:0",
        "example.com:65536",
        "example.com:99999",
        "example.com:443/",
        "user@example.com:443",
        "user:secret@example.com:443",
        "allowed.example:443@evil.example:443",
        "example.com:443#",
        "exa mple.com:443",
        "example.com%0d%0a:443",
        "ex\u00e4mple.com:443",
        "-example.com:443",
        "example..com:443",
        ".example.com:443",
        ":443",
        "[::1]",
        "[::1%25eth0]:443",
        "[fe80::1%eth0]:443",
        "[::1",
        "::1:443",
        "2130706433:443",
        "0x7f000001:443",
        "0x7f.1:443",
        "127.1:443",
        "0177.0.0.1:443",
        "127.0.0.01:443",
        "1.2.3.4.5:443",
        "example.com.1:443",
        f"{'a' * 64}.example:443",
        f"{'a.' * 126}aa:443",
        "http://example.com:443",
    ],
)
def test_anything_else_is_no_host_and_port(text: str):
    with pytest.raises(Refusal) as caught:
        target_of(b"CONNECT", text.encode())
    assert caught.value.status == 400
    assert caught.value.reason is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://example.com", ProxyTarget("example.com", 80, "/")),
        ("http://example.com/a?b=c", ProxyTarget("example.com", 80, "/a?b=c")),
        ("HTTP://example.com:8080?q", ProxyTarget("example.com", 8080, "/?q")),
        ("http://[2606::1]/x", ProxyTarget("2606::1", 80, "/x", IPv6Address("2606::1"))),
    ],
)
def test_a_plain_address_is_taken_apart(text: str, expected: ProxyTarget):
    assert target_of(b"GET", text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "/",
        "*",
        "https://example.com/",
        "ftp://example.com/",
        "http:///x",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://example.com:80:80/",
        "http://example.com\\@evil.example/",
        "http://127.1/",
        "example.com:80",
    ],
)
def test_what_is_no_plain_address_is_refused(text: str):
    with pytest.raises(Refusal):
        target_of(b"GET", text.encode())


def test_the_host_header_names_the_port_when_it_must():
    assert ProxyTarget("example.com", 80).authority == "example.com"
    assert ProxyTarget("example.com", 8080).authority == "example.com:8080"
    assert ProxyTarget("2606::1", 80).authority == "[2606::1]"


@given(st.binary(max_size=80), st.sampled_from([b"CONNECT", b"GET", b"POST"]))
def test_no_target_whatever_is_more_than_refused(text: bytes, method: bytes):
    try:
        target = target_of(method, text)
    except Refusal:
        return
    assert 0 < target.port < 65536
    assert target.host.isprintable()


@pytest.mark.parametrize(
    ("host", "permitted"),
    [
        ("example.com", True),
        ("EXAMPLE.COM.", True),
        ("www.example.com", False),
        ("a.wild.example", True),
        ("a.b.wild.example", True),
        ("wild.example", False),
        ("evilwild.example", False),
        ("wild.example.evil.com", False),
        ("example.com.evil.com", False),
        ("10.9.8.7", True),
        ("10.9.8.8", False),
    ],
)
def test_a_list_has_names_and_suffixes(host: str, permitted: bool):
    hosts = HostList(["Example.com", "*.wild.example", "10.9.8.7", "*.8.8"])
    assert hosts.has(connect(f"{host}:443")) is permitted


LABELS = ("a", "B", "example", "EXAMPLE", "com", "xn--bcher-kva", "_x", "10", "0", "1", "0x7f")
ODD = ("", ".", "*", ":80", "/", " ", "\n", "\0", "@", "\u00e4", "\u3002", "[", "%2e", "-", "?")
names = st.lists(st.sampled_from(LABELS), min_size=1, max_size=5).map(".".join)
patterns = st.tuples(st.sampled_from(["", "", "*.", "*"]), names, st.sampled_from(ODD)).map("".join)


def is_taken(pattern: str) -> bool:
    try:
        check_pattern(pattern, "allowed_hosts.0")
    except InvalidRequest as refused:
        assert refused.message.startswith("allowed_hosts.0: give a host")
        assert refused.hint
        return False
    return True


def is_meant(pattern: str, host: str) -> bool:
    """As a person reads it: label by label, and an address only by itself."""
    wanted, labels = pattern.lower().split("."), host.lower().split(".")
    if wanted[0] != "*":
        return wanted == labels
    below = len(labels) > len(wanted[1:]) and labels[-len(wanted[1:]) :] == wanted[1:]
    return below and not labels[-1].isdigit()


@given(patterns, names, st.sampled_from(["", "."]))
def test_what_is_allowed_lets_through_what_a_person_reads_in_it_and_nothing_else(
    pattern: str, host: str, dot: str
):
    if not is_taken(pattern):
        return
    assert set(pattern.removeprefix("*.").lower()) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    try:
        target = connect(f"{host}{dot}:443")
    except Refusal:
        return  # it is no host in any case
    assert HostList([pattern]).has(target) is is_meant(pattern, host)


@given(patterns)
def test_what_is_allowed_lets_something_through(pattern: str):
    """What could never match is refused when it is given, not found out when it is needed."""
    if is_taken(pattern):
        assert HostList([pattern]).has(connect(f"{pattern.replace('*', 'x')}:443"))


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "*", "*.", "**.a", "*.*.a", "a.*", "*a.com", "a.com.", ".a.com", "a..com", "-a.com"),
        *("https://a.com", "a.com:443", "a.com/x", "user@a.com", "a b.com", "a.com\n", "a\0.com"),
        *("b\u00fccher.example", "a\u3002com", "::1", "[::1]", "127.1", "0x7f000001", "256.1.1.1"),
        *("*.0.0.1", "*.10.0.0.1", "a.1", f"{'a' * 64}.com", f"*.{'a.' * 126}a", f"{'a.' * 127}a"),
    ],
)
def test_a_host_that_is_none_is_refused(pattern: str):
    assert not is_taken(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "A.Com",
        "*.com",
        "under_score.a",
        "192.0.2.1",
        "xn--bcher-kva.example",
        f"{'a.' * 126}a",
    ],
)
def test_a_host_is_taken(pattern: str):
    assert is_taken(pattern)


def test_an_address_of_ipv6_is_on_the_list_in_whatever_form_it_is_written():
    hosts = HostList(["2606:4700:0:0:0:0:0:ABCD"])
    assert hosts.has(connect("[2606:4700::abcd]:443"))
    assert not hosts.has(connect("[2606:4700::abce]:443"))


def test_an_empty_list_has_nothing():
    assert not HostList([]).has(connect("example.com:443"))


NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.255",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:93.184.216.34",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::5db8:d822",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1111%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_known(text: str):
    assert not public(ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111"])
def test_an_address_of_the_internet_is_public(text: str):
    assert public(ip_address(text))


def test_the_operator_can_name_networks_that_may_be_reached_all_the_same():
    networks = [ip_network("10.1.0.0/16"), ip_network("fd12::/64")]
    assert allowed(ip_address("10.1.2.3"), networks)
    assert allowed(ip_address("fd12::9"), networks)
    assert not allowed(ip_address("10.2.2.3"), networks)
    assert not allowed(ip_address("::ffff:10.1.2.3"), networks)


@given(st.ip_addresses())
def test_nothing_is_public_that_the_standard_library_knows_to_be_private(address: object):
    assert not (public(address) and not address.is_global)  # type: ignore[arg-type, attr-defined]
