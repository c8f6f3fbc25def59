"""The reading of a TLS client's first message, on its own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.egress.server_name import Hello, HelloReader, Unreadable, asks_again, begins_as_tls
from tests.egress.tls import Client

LIMIT = 32 * 1024


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, data)


def server_name(*names: bytes, kind: bytes = b"\0") -> bytes:
    return extension(0, vector(2, b"".join(kind + vector(2, name) for name in names)))


def message(extensions: bytes | None) -> bytes:
    tail = b"" if extensions is None else vector(2, extensions)
    body = b"\3\3" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\1") + b"\1\0" + tail
    return b"\1" + vector(3, body)


def record(data: bytes, kind: int = 22) -> bytes:
    return bytes([kind, 3, 1]) + vector(2, data)


def read(pieces: Iterable[bytes], **how: bool) -> Hello | None:
    """The hello in the pieces, with those that came after it as its rest."""
    reader, pieces = HelloReader(LIMIT, **how), iter(pieces)
    for piece in pieces:
        if (hello := reader.feed(piece)) is not None:
            return hello._replace(rest=hello.rest + b"".join(pieces))
    return None


@pytest.mark.parametrize(
    ("extensions", "name"),
    [
        (None, None),
        (b"", None),
        (extension(0xFE0D, bytes(200)), None),
        (server_name(b"a.example"), b"a.example"),
        # An encrypted hello has its outer name in the clear.
        (extension(0xFE0D, bytes(200)) + server_name(b"outer.example"), b"outer.example"),
    ],
)
def test_a_name_is_found_or_there_is_none(extensions: bytes | None, name: bytes | None):
    hello = record(message(extensions))
    assert read([hello + b"rest"]) == Hello(name, hello, b"rest")


@pytest.mark.parametrize(
    "sent",
    [
        record(message(server_name(b"a.example", b"b.example"))),
        record(message(server_name(b"a.example") + server_name(b"b.example"))),
        record(message(server_name(b"a.example", kind=b"\1"))),
        record(message(server_name(b""))),
        record(message(server_name())),
        record(message(extension(0, b""))),
        record(message(extension(0, b"\0\4\0\0\1a!"))),
        record(message(b"\0\0\0\xff")),
        record(message(b"\0")),
        record(b"\1\0\0\1\0"),
        record(message(b"") + b"\1"),
        record(message(b"")[:20]) + record(b"", kind=20) + record(message(b"")[20:]),
        record(b"\0", kind=21) + record(message(b"")),
        record(message(extension(7, bytes(LIMIT)))),
        record(message(extension(7, bytes(LIMIT))))[: LIMIT + 1],
        b"".join(record(bytes([b])) for b in message(extension(7, bytes(LIMIT // 6)))),
        record(b"") * (LIMIT // 5 + 1),
        b"\x16\x02",
    ],
)
def test_what_could_be_read_in_two_ways_or_is_too_large_is_not_read(sent: bytes):
    with pytest.raises(Unreadable):
        read([sent])


def test_other_records_are_passed_over_in_front_of_a_second_hello_only():
    hello = record(message(server_name(b"a.example")))
    front = record(b"\1", kind=20) + record(b"early data", kind=23)
    assert read([front + hello], again=True) == Hello(b"a.example", front + hello, b"")
    with pytest.raises(Unreadable):
        read([front + hello])


def test_a_server_asks_again_by_one_value_in_the_place_of_random_bytes():
    retry = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
    asked = record(b"\2\0\0\x4e\3\3" + retry + bytes(44))
    assert [asks_again(asked[:size]) for size in (1, 42, 43)] == [None, None, True]
    assert asks_again(record(b"\2\0\0\x4e\3\3" + bytes(76))) is False
    assert asks_again(record(b"\1\0\0\x4e\3\3" + retry + bytes(44))) is False
    assert asks_again(b"\x15") is False and asks_again(b"220 ready") is False


def test_tls_is_known_by_its_first_byte():
    assert begins_as_tls(Client("a.example").says())
    assert not any(map(begins_as_tls, (b"GET /", b"SSH-2.0", b"\0\0\0\x08", b"\x80\x2e\1")))


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces."""
    ends = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=12)))
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(st.data(), st.none() | st.binary(min_size=1, max_size=60), st.binary(max_size=30))
def test_a_hello_is_read_alike_however_it_is_cut(
    data: st.DataObject, name: bytes | None, rest: bytes
):
    others = [extension(kind, bytes(kind)) for kind in data.draw(st.sets(st.integers(1, 99)))]
    if name is not None:
        others.insert(data.draw(st.integers(0, len(others))), server_name(name))
    whole = message(b"".join(others))
    sent = b"".join(record(piece) for piece in data.draw(cut(whole)))
    assert read(data.draw(cut(sent + rest))) == Hello(name, sent, rest)


@given(
    st.data(),
    st.binary(max_size=200)
    | st.binary(max_size=100).map(record)
    | st.binary(max_size=100).map(message).map(record)
    | st.binary(max_size=60).map(lambda data: record(message(extension(0, data)))),
    st.booleans(),
)
def test_whatever_comes_is_a_hello_or_unreadable_or_not_over_and_cutting_changes_nothing(
    data: st.DataObject, sent: bytes, again: bool
):
    outcomes = []
    for pieces in ([sent], data.draw(cut(sent))):
        try:
            outcomes.append(read(pieces, again=again))
        except Unreadable:
            outcomes.append("unreadable")
    assert outcomes[0] == outcomes[1]
