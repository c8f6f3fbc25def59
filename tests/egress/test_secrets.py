"""What is taken out of answers: a secret in every form that a server may quote it in."""

from __future__ import annotations

import html
import json
import operator
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from functools import partial
from itertools import pairwise, takewhile
from urllib.parse import quote, quote_plus

import hypothesis.strategies as st
import pytest
from hypothesis import given

from roost.egress.secrets import SHORTEST_SECRET, Forms, RecentForms, Redactor, forms_of, put_on
from tests.egress.both_sides import KEY

TOKEN = 'ghp_a/b+c=&"<0123456789>-xyz'
PHRASE = 'it\'s "grün" & o~k/é+0123456789'
FORMS = {
    "raw": lambda text: text,
    "in an address": lambda text: quote(text, safe=""),
    "in an address, small letters": lambda text: re.sub(
        "%..", lambda found: found[0].lower(), quote(text, safe="")
    ),
    "in a form": quote_plus,
    "in an address, slashes left": quote,
    "in an address, as JavaScript's encodeURI": lambda text: quote(text, safe="!#$&'()*+,/:;=?@"),
    "in JSON": lambda text: json.dumps(text)[1:-1],
    "in JSON, with escaped slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "in JSON, with letters as they are": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "in JSON, with large letters in escapes": lambda text: re.sub(
        r"(?<=\\u)....", lambda found: found[0].upper(), json.dumps(text)[1:-1]
    ),
    "in HTML": html.escape,
    "in HTML, by templates": lambda text: (
        html.escape(text, quote=False).replace('"', "&#34;").replace("'", "&#39;")
    ),
    "in HTML, by PHP": lambda text: html.escape(text).replace("&#x27;", "&#039;"),
    "in base64": lambda text: b64encode(text.encode()).decode(),
    "in base64 for addresses": lambda text: urlsafe_b64encode(text.encode()).decode(),
    "in base64, behind one byte": lambda text: b64encode(b":" + text.encode()).decode(),
    "in base64, behind two bytes": lambda text: b64encode(b"u:" + text.encode()).decode(),
    "in base64, inside": lambda text: b64encode(f"Auth: Bearer {text}, so".encode()).decode(),
    "as sent": lambda text: "Basic " + b64encode(f"x-access-token:{text}".encode()).decode(),
    "as sent, inside something in base64": lambda text: b64encode(
        b"Basic " + b64encode(f"x-access-token:{text}".encode())
    ).decode(),
    "in an address, as sent": lambda text: quote(
        "Basic " + b64encode(f"x-access-token:{text}".encode()).decode(), safe=""
    ),
}


def forms(secret: str) -> list[bytes]:
    return list(forms_of(secret.encode(), put_on(secret, "basic").headers))


def left_of(written: str, secret: str) -> int:
    """The longest run of letters of what was quoted that is left."""
    clean = Redactor.of(forms(secret)).whole(written.encode())
    runs = "".join(
        "." if a == b else " " for a, b in zip(written.encode(), clean, strict=True)
    ).split()
    return max(map(len, runs), default=0)


@pytest.mark.parametrize("secret", [TOKEN, KEY, PHRASE])
@pytest.mark.parametrize("how", FORMS)
def test_nothing_of_a_secret_is_left_in_any_form(how: str, secret: str):
    written = FORMS[how](secret)
    constant = ("Basic " + b64encode(b"x-access-token:").decode(), "Auth: Bearer ", "QXV0aDog")
    allowed = max(map(len, constant)) + 2 if "inside" in how or "sent" in how else 4
    assert left_of(written, secret) <= allowed
    assert b"*" * (len(secret) - 2) in Redactor.of(forms(secret)).whole(written.encode())


@given(
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    how=st.sampled_from(sorted(FORMS)),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_however_a_stream_is_cut_the_same_is_left_out_of_it(
    before: bytes, after: bytes, how: str, cuts: list[int]
):
    data = before + FORMS[how](TOKEN).encode() + after
    out = in_pieces(Redactor.of(forms(TOKEN)), data, cuts)
    assert len(out) == len(data)
    assert not any(form in out for form in forms(TOKEN))
    assert out.startswith(before)
    assert out.endswith(after)


def plainly(data: bytes, forms: Iterable[bytes], head: int = 128) -> bytes:
    """What is to be left: each form is looked for at each place, the rest of a long one for as long as it fits."""
    clean = bytearray(data)
    for form in forms:
        for at in range(len(data)):
            if data.startswith(form[:head], at):
                pairs = zip(form, data[at:], strict=False)
                size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                clean[at : at + size] = b"*" * size
    return bytes(clean)


def in_pieces(redactor: Redactor, data: bytes, cuts: Iterable[int]) -> bytes:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return b"".join(redactor.feed(data[a:b]) for a, b in pairwise(edges)) + redactor.flush()


SEVERAL = [b"hunter2/+hunter2", b"hunter2/+", b"+hunter2/\xc3\xa9&hunter", b"unter2"]
SEVERAL_FORMS = [forms_of(each, [], shortest=SHORTEST_SECRET) for each in SEVERAL]
WORDS = sorted({form for each in SEVERAL_FORMS for form in each})
_PARTS = st.one_of(
    st.sampled_from(WORDS),
    st.builds(operator.getitem, st.sampled_from(WORDS), st.slices(40)),
    st.sampled_from([b"h", b"hunter", b"*", b"\n", b"%2"]),
)


@given(parts=st.lists(_PARTS, max_size=8), cuts=st.lists(st.integers(0, 200), max_size=12))
def test_forms_that_overlap_are_found_as_a_plain_search_finds_them(
    parts: list[bytes], cuts: list[int]
):
    data, expected = b"".join(parts), plainly(b"".join(parts), WORDS)
    together = Forms.together([Forms(each) for each in SEVERAL_FORMS])
    for redactor in (Redactor.of(WORDS), Redactor(lambda: together)):
        assert redactor.whole(data) == expected
        assert in_pieces(redactor, data, cuts) == expected


@st.composite
def long_and_alike(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Forms longer than what they are found by, and parts of them one after another."""
    forms = draw(
        st.lists(st.text("ab", min_size=3, max_size=9).map(str.encode), min_size=1, max_size=3)
    )
    part = st.builds(operator.getitem, st.sampled_from(forms), st.slices(9))
    return forms, b"".join(draw(st.lists(part, min_size=1, max_size=4)))[:19]


@given(long_and_alike(), st.lists(st.integers(0, 19), max_size=4))
def test_long_forms_are_found_by_their_first_bytes_as_a_plain_search_finds_them(
    given: tuple[list[bytes], bytes], cuts: list[int]
):
    forms, data = given
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roost.egress.secrets._HEAD", 4)
        redactor = Redactor.of(forms)
    expected = plainly(data, forms, head=4)
    assert redactor.whole(data) == expected
    assert in_pieces(redactor, data, cuts) == expected


def test_nothing_waits_that_no_form_begins_with():
    redactor = Redactor.of([b"secret-one", b"secret-one-and-more", b"other"])
    assert redactor.feed(b"data: secrets or others\n\n") == b"data: secrets or *****s\n\n"
    assert redactor.feed(b"data: secret-on") == b"data: "
    assert redactor.feed(b"e,") == b"**********,"
    assert redactor.feed(b"other") == b"*****", "there is no longer one that begins so"
    assert redactor.feed(b"secret-one") == b"" and redactor.flush() == b"**********"


def test_a_stream_is_searched_for_what_became_known_meanwhile():
    recent = RecentForms()
    redactor = Redactor(lambda: recent.forms)
    values = [f"value-number-{number}" for number in range(6)]
    for value in values:
        before = redactor.feed(b"%s," % value.encode())
        forms = forms_of(value.encode(), [], shortest=SHORTEST_SECRET)
        recent.remember(value, partial(tuple, forms))
        assert before.startswith(b"value"), "nobody knew of it yet"
        assert redactor.feed(b"%s," % value.encode()) == b"*" * len(value) + b","
    said = redactor.feed(",".join(values).encode()) + redactor.flush()
    assert [b"*" in each for each in said.split(b",")] == [False, False, True, True, True, True]


LONG = ("-----BEGIN KEY-----\n" + "".join(f"{n:05}/+" for n in range(3000))).encode()


@pytest.mark.parametrize("size", [1, 100, 127, 129, 4096, 30_000])
@pytest.mark.parametrize("how", ["raw", "in JSON", "in an address"])
def test_of_a_long_secret_only_a_few_bytes_wait_and_nothing_is_left(how: str, size: int):
    written = FORMS[how](LONG.decode()).encode()
    data = b"x" * 77 + written + b"y" * 77
    redactor = Redactor.of(forms_of(LONG, []))
    out = b""
    for at in range(0, len(data), size):
        out += redactor.feed(data[at : at + size])
        assert len(out) > at + size - 128 or at + size > len(data)
    assert out + redactor.flush() == b"x" * 77 + b"*" * len(written) + b"y" * 77


@pytest.mark.parametrize("before", [LONG[:500], LONG[:127], b"-----BEGIN KEY-----\n"])
def test_what_looks_like_a_secret_does_not_hide_the_secret_behind_it(before: bytes):
    data = before + LONG + b"."
    for cut in (1, 100, 200, 400, 600):
        redactor = Redactor.of([LONG])
        out = redactor.feed(data[:cut]) + redactor.feed(data[cut:]) + redactor.flush()
        assert out.endswith(b"*" * len(LONG) + b".") and len(out) == len(data)
    alike = b"a" * 5000 + b"b"
    assert Redactor.of([alike]).whole(b"a" + alike) == b"*" * (1 + len(alike))


def test_a_secret_that_is_all_alike_costs_no_more_than_another():
    forms = [b"a" * size + b"b" for size in range(31_000, 31_020)]
    redactor = Redactor.of(forms)
    piece = b"a" * 20_000 + b"c" + b"a" * 12_000
    began = time.process_time()
    for _ in range(20):
        redactor.feed(piece)
    assert time.process_time() - began < 5  # it was more than a minute


def test_a_short_token_of_a_server_is_a_secret_all_the_same():
    assert b"secret7" in put_on("secret7", "bearer", shortest=SHORTEST_SECRET).forms
    assert b"secret7" in put_on("secret7", "basic").forms
    assert list(put_on("ollama", "bearer").forms) == []


def test_a_stand_in_for_a_key_is_no_secret():
    assert list(forms_of(b"placeholder", [(b"x-api-key", b"placeholder")])) == []
    assert Redactor.of(forms_of(b"", [])).feed(b"as it is") == b"as it is"
