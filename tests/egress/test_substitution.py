"""Placeholders and secrets: which is replaced where, however the bytes arrive."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from itertools import pairwise
from urllib.parse import parse_qs, quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.egress.hosts import target_of
from roost.egress.reports import Refusal
from roost.egress.secrets import Redactor
from roost.egress.substitution import (
    HostSubstitutions,
    Replacer,
    RequestSecrets,
    SecretsByPlaceholder,
    SessionSubstitutions,
    replaced_in_header,
    unreachable,
    written_in,
)
from roost.ports.egress import Networking, Substitution
from tests.egress.secured import HOST, PLACEHOLDER, SECRET, kept, substitution

A, B = (b"roost_" + each * 32 for each in (b"a", b"b"))
SECRETS = SecretsByPlaceholder({A: b"first", B: A + b"roost_" + b"a" * 31})
"""The second secret looks like the first one's placeholder: what was put in is not looked at again."""

_PIECES = st.sampled_from(
    [A, B, A[:-1], A[:7], b"roost_", b"r", b"x", b"\n", b"a" * 32, b"roost_a"]
)


MOST = 1000


def fed(replacer: Replacer, data: bytes) -> bytes:
    return b"".join(replacer.feed(data))


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    ends = sorted(draw(st.sets(st.integers(0, len(data)), max_size=20)))
    return [data[begin:end] for begin, end in pairwise([0, *ends, len(data)])]


@given(st.data(), st.lists(_PIECES, max_size=12))
def test_a_stream_is_replaced_alike_however_it_is_cut(data: st.DataObject, parts: list[bytes]):
    text = b"".join(parts)
    whole = Replacer(SECRETS, MOST)
    stream = Replacer(SECRETS, MOST)
    pieces = [fed(stream, piece) for piece in data.draw(cut(text))]
    assert b"".join([*pieces, stream.flush()]) == whole.whole(text)
    assert stream.replaced == whole.replaced


@given(st.lists(_PIECES, max_size=12))
def test_each_placeholder_is_replaced_once_from_left_to_right(parts: list[bytes]):
    text, expected, at = b"".join(parts), b"", 0
    while at < len(text):
        found = next((each for each in SECRETS if text.startswith(each, at)), None)
        expected += text[at : at + 1] if found is None else SECRETS[found]
        at += 1 if found is None else len(found)
    assert Replacer(SECRETS, MOST).whole(text) == expected


def test_only_what_can_begin_a_placeholder_waits():
    replacer = Replacer(SECRETS, MOST)
    assert fed(replacer, b"data: x\n\n") == b"data: x\n\n"
    assert fed(replacer, b"data: roost_aa") == b"data: "
    assert fed(replacer, b"x") == b"roost_aax"
    assert fed(Replacer(SecretsByPlaceholder(), 0), A) == A


def test_only_so_much_is_put_in_and_never_much_at_once():
    secret = b"s" * 30_000
    replacer = Replacer(SecretsByPlaceholder({A: secret}), 300_000)
    pieces = list(replacer.feed(A * 10))
    assert b"".join(pieces) == secret * 10 and max(map(len, pieces)) <= 65536 + len(secret)
    for over in (replacer.whole, lambda data: fed(replacer, data)):
        with pytest.raises(Refusal, match="at most 300000 bytes") as refused:
            over(A)
        assert refused.value.status == 413


def basic(text: bytes) -> bytes:
    return b"Basic " + b64encode(text)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"x-api-key", A, b"first"),
        (b"authorization", b"Bearer " + A, b"Bearer first"),
        (b"cookie", b"a=" + A + b"; b=" + A, b"a=first; b=first"),
        (b"authorization", basic(b"user:" + A), basic(b"user:first")),
        (b"authorization", basic(A + b":"), basic(b"first:")),
        (b"authorization", basic(b"user:none"), basic(b"user:none")),
        (b"authorization", b"Basic *" + A, b"Basic *first"),
        (b"authorization", b"Basic " + A, b"Basic first"),
        (b"x-other", basic(b"user:" + A), basic(b"user:" + A)),
    ],
)
def test_headers_are_replaced_also_inside_of_basic(name: bytes, value: bytes, expected: bytes):
    assert replaced_in_header(Replacer(SECRETS, MOST), name, value) == expected


def test_a_scheme_is_known_in_any_letters():
    given = replaced_in_header(
        Replacer(SECRETS, MOST), b"authorization", b"bAsIc  " + b64encode(A + b":x")
    )
    assert given.startswith(b"bAsIc  ") and b64decode(given.split()[1]) == b"first:x"


def towards(host: str, *chosen: object) -> HostSubstitutions:
    session = SessionSubstitutions("sesn_1", chosen, 1)  # type: ignore[arg-type]
    return session.towards(target_of(b"CONNECT", f"{host}:443".encode()))


async def secrets_for(host: str, *chosen: object) -> RequestSecrets:
    return await towards(host, *chosen).secrets()


@pytest.mark.parametrize(
    ("hosts", "host", "is_given"),
    [
        ([HOST], HOST, True),
        ([HOST], "API.example.", True),
        ([HOST], "x.api.example", False),
        ([HOST], "api.example.evil.example", False),
        (["*.example"], HOST, True),
        (["*.api.example"], HOST, False),
        (["*.0.0.1"], "127.0.0.1", False),
        ([], HOST, False),
        (None, "anything.example", True),
    ],
)
async def test_a_secret_is_for_its_hosts_and_no_other(
    hosts: list[str] | None, host: str, is_given: bool
):
    given = towards(host, substitution(hosts=hosts))
    found = await given.secrets()
    assert found.header == ({PLACEHOLDER.encode(): SECRET.encode()} if is_given else {})
    assert bool(given.forms().longest_first) == is_given


async def test_a_secret_is_for_the_places_it_is_meant_for():
    found = await secrets_for(HOST, substitution(header=False))
    assert not found.header and found.body
    found = await secrets_for(HOST, substitution(body=False))
    assert found.header and not found.body


@pytest.mark.parametrize("bad", ["a\nb", "a\r", "\0", "a\x7f", " space", "space ", ""])
async def test_what_no_header_can_carry_is_put_into_none(bad: str):
    found = await secrets_for(HOST, substitution(secret=kept(bad)))
    assert not found.header
    assert list(found.body.values()) == ([bad.encode()] if bad else [])


async def test_letters_beyond_ascii_can_be_carried():
    found = await secrets_for(HOST, substitution(secret=kept("grün und so")))
    assert list(found.header.values()) == ["grün und so".encode()]


async def failing() -> str:
    raise RuntimeError("the database is away")


async def test_a_secret_that_cannot_be_had_is_left_out(caplog: pytest.LogCaptureFixture):
    given = towards(
        HOST,
        substitution(secret=failing),
        substitution(variable="B", placeholder=B.decode(), secret=kept(None)),
    )
    assert await given.secrets() == ({}, {}) and given.forms().longest_first == []
    assert "API_KEY cannot be read" in caplog.text


async def test_a_secret_that_was_replaced_is_still_taken_out_of_answers():
    values = ["first-value-of-it", "second-value-of-it"]

    async def secret() -> str:
        return values[0]

    session = SessionSubstitutions("sesn_1", [substitution(secret=secret)], 1)
    target = target_of(b"CONNECT", b"api.example:443")
    first, second = session.towards(target), session.towards(target)
    await first.secrets()
    values.pop(0)
    found = await second.secrets()
    assert list(found.header.values()) == [b"second-value-of-it"]
    for each in (first, second):  # also in what the first one still waits for
        forms = set(each.forms().longest_first)
        assert {b"first-value-of-it", b"second-value-of-it"} <= forms


async def test_the_secrets_of_a_session_have_a_bound_together(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    sizes = [30_000] * 9

    def sized(number: int) -> Substitution:
        async def secret() -> str:
            return str(number) * sizes[number]

        return substitution(variable=f"V{number}", placeholder=f"roost_{number}", secret=secret)

    given = towards(HOST, *(sized(number) for number in range(9)))
    assert len((await given.secrets()).header) == 8
    assert "V8" in caplog.text and "too large together" in caplog.text
    sizes[0] = 100
    assert len((await given.secrets()).header) == 9


async def test_nothing_shows_a_secret(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    given = substitution()
    session = SessionSubstitutions("sesn_1", [given], 1)
    towards = session.towards(target_of(b"CONNECT", b"api.example:443"))
    secrets = await towards.secrets()
    replacer = Replacer(secrets.header, MOST)
    replacer.whole(PLACEHOLDER.encode())
    for _ in range(2):
        towards.note_replaced(replacer, "a header")
    assert SECRET not in f"{given!r} {secrets!r} {towards!r} {session!r} {replacer!r}{caplog.text}"
    levels = [each.levelname for each in caplog.records]
    assert levels == ["INFO", "DEBUG"] and "API_KEY" in caplog.text and HOST in caplog.text


def limited(*hosts: str, packages: bool = False) -> Networking:
    return Networking(kind="limited", allowed_hosts=hosts, package_managers=packages)


@pytest.mark.parametrize(
    ("networking", "hosts", "lacking"),
    [
        (Networking(kind="unrestricted"), ["a.example"], None),
        (Networking(kind="none"), ["a.example"], ["a.example"]),
        (Networking(kind="none"), None, []),
        (limited(), None, None),
        (limited("a.example"), ["A.example"], None),
        (limited("a.example"), ["a.example", "b.example"], ["b.example"]),
        (limited("*.example"), ["a.example", "*.example", "*.a.example", "example"], ["example"]),
        (limited("a.example"), ["*.example"], ["*.example"]),
        (limited(packages=True), ["pypi.example"], None),
        (limited(), ["pypi.example"], ["pypi.example"]),
    ],
)
def test_hosts_that_the_environment_does_not_allow_are_found(
    networking: Networking, hosts: list[str] | None, lacking: list[str] | None
):
    found = unreachable([substitution(hosts=hosts)], networking, ["pypi.example"])
    assert found == ({} if lacking is None else {"API_KEY": lacking})


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_secret_is_written_into_a_body_so_that_it_is_read_as_it_is(secret: str):
    given_secrets = SecretsByPlaceholder({A: secret.encode()})

    def body(kind: str, text: str) -> bytes:
        put_in = written_in(given_secrets, kind.encode(), text.encode())
        return Replacer(put_in, 1_000_000).whole(text.encode())

    as_json = json.dumps({"key": A.decode()})
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/x.y+json"):
        assert json.loads(body(kind, as_json)) == {"key": secret}
    form = "application/x-www-form-urlencoded"
    assert json.loads(body(form, f" {as_json}")) == {"key": secret}  # as curl calls it by default
    found = parse_qs(body(form, f"a=b&key={A.decode()}&c=d").decode())
    assert found == {"a": ["b"], "key": [secret], "c": ["d"]}
    for kind in ("", "text/plain", "multipart/form-data; boundary=x", "application/jsonx"):
        assert body(kind, f"<{A.decode()}>") == f"<{secret}>".encode()


async def test_what_was_escaped_is_found_as_a_server_may_write_it():
    secret = 'pass "word" + more'
    own = SessionSubstitutions("sesn_1", [substitution(secret=kept(secret))], 1)
    towards = own.towards(target_of(b"CONNECT", f"{HOST}:443".encode()))
    await towards.secrets()
    redactor = Redactor(towards.forms)
    for sent in (json.dumps(secret)[1:-1], quote(secret, safe="")):
        for body in (f"key={sent}", f"xkey={sent}", f"xxkey={sent}"):
            for echo in (body, quote(body, safe=""), b64encode(body.encode()).decode()):
                clean = redactor.whole(echo.encode()).decode()
                assert "***" in clean and "word" not in clean
