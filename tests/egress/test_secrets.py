"""What is taken out of answers: a secret in every form that a server may quote it in."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from functools import partial
from itertools import pairwise
from urllib.parse import quote, quote_plus

import hypothesis.strategies as st
import pytest
from hypothesis import given

from roost.egress.secrets import SHORTEST_SECRET, RecentForms, Redactor, forms_of, put_on
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
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    redactor = Redactor.of(forms(TOKEN))
    out = b"".join(redactor.feed(data[a:b]) for a, b in pairwise(edges)) + redactor.flush()
    assert len(out) == len(data)
    assert not any(form in out for form in forms(TOKEN))
    assert out.startswith(before)
    assert out.endswith(after)


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


def test_a_short_token_of_a_server_is_a_secret_all_the_same():
    assert b"secret7" in put_on("secret7", "bearer", shortest=SHORTEST_SECRET).forms
    assert b"secret7" in put_on("secret7", "basic").forms
    assert list(put_on("ollama", "bearer").forms) == []


def test_a_stand_in_for_a_key_is_no_secret():
    assert list(forms_of(b"placeholder", [(b"x-api-key", b"placeholder")])) == []
    assert Redactor.of(forms_of(b"", [])).feed(b"as it is") == b"as it is"
