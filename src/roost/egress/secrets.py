"""Puts a secret on a request, and takes it out of the answer in each form that a server may quote it in."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from roost.ports.egress import Put

SHORTEST_KEY: Final = 16
"""A shorter key of a model is a stand-in (`none`, `ollama`), and a word that answers may well have in them."""

SHORTEST_SECRET: Final = 6
"""A password or a token may be short, and is none of those words."""

_MOST_VALUES: Final = 4
"""How many values of one secret are looked for in answers: the newest, and those it had before."""

_HEAD: Final = 128
"""By how many bytes a form is found: more than secrets of one kind begin with (`-----BEGIN PRIVATE KEY-----`)."""

_MOST_OVERLAPS: Final = 16
"""How often in a piece the beginning of a form is looked for inside of another one, and how many of those that go
on in the next piece are compared: only a secret that is all alike has more."""

_READABLE: Final = frozenset(("", "identity", "gzip", "deflate"))
"""How a body may be encoded. What cannot be read cannot be searched for a secret, and is not passed on."""

_SAFE_IN_ADDRESSES: Final = ("", "/", "!'()*", "!'()*/", "!#$&'()*+,/:;=?@")
"""What programs leave as it is in addresses: Python's and Go's ways, and the two of JavaScript."""


_ESCAPED: Final = re.compile(r"\\u([0-9a-f]{4})")
_QUOTES_IN_HTML: Final = (
    ("&quot;", "&#x27;"),
    ("&quot;", "&#39;"),
    ("&quot;", "&#039;"),
    ("&#34;", "&#39;"),
)
"""Python's way, JavaScript's and PHP's, and that of Go and of Python's templates."""


def can_be_sent(secret: str) -> bool:
    """Whether a header can carry it. What cannot must not be tried: libraries quote it in their errors."""
    return bool(secret) and all("!" <= letter <= "~" for letter in secret)


def is_readable(encodings: str) -> bool:
    """Whether a body with this `Content-Encoding` can be searched."""
    return _READABLE.issuperset(each.strip() for each in encodings.lower().split(","))


class PutOn(NamedTuple):
    """A secret as one request carries it, and every form of it that must not come back."""

    headers: Sequence[tuple[bytes, bytes]]
    forms: Sequence[bytes]


NOTHING: Final = PutOn((), ())
"""For an origin without a credential."""


def put_on(secret: str, put: Put, *, shortest: int = SHORTEST_KEY) -> PutOn:
    """The header that carries a secret. One that is shorter than `shortest` is not looked for in answers."""
    value = secret.encode()
    if put == "basic":  # as git servers take tokens: any name, and the token as password
        header = (b"authorization", b"Basic " + b64encode(b"x-access-token:" + value))
        return PutOn([header], forms_of(value, [header], shortest=SHORTEST_SECRET))
    header = (b"x-api-key", value) if put == "x-api-key" else (b"authorization", b"Bearer " + value)
    return PutOn([header], forms_of(value, [header], shortest=shortest))


def forms_of(
    secret: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    written: Iterable[bytes] = (),
    shortest: int = SHORTEST_KEY,
) -> Sequence[bytes]:
    """What must not come back: the secret, what its headers carry, how else it is `written` into requests, and
    each of these as a server may write it.

    That is as they are, as part of an address, of JSON or of HTML, and in base64, also as part of
    something longer that was put into base64 as a whole. The longest is first.
    """
    carried = [value.rpartition(b" ")[2] for _, value in headers]
    plain = [secret, *carried] if secret else []
    forms = {form for text in plain for form in (*_written(text), *_encoded(text))}
    # What is escaped already has little left that another library would write in another way.
    forms |= {
        form for text in written for form in (text, quote(text, safe="").encode(), *_encoded(text))
    }
    return sorted((form for form in forms if len(form) >= shortest), key=len, reverse=True)


def _written(text: bytes) -> set[bytes]:
    quoted = [quote(text, safe=safe) for safe in _SAFE_IN_ADDRESSES]
    quoted += [each.replace("%20", "+") for each in quoted]  # as the fields of a form
    quoted.append(quote(text, safe="*").replace("%20", "+").replace("~", "%7E"))
    # A secret that is no text is not written by these means.
    plain = text.decode("utf-8", "replace")
    forms = (*quoted, *map(_lower_escapes, quoted), *_in_json(plain), *_in_html(plain))
    return {text, *(each.encode() for each in forms)}


def _in_json(plain: str) -> set[str]:
    """As libraries write it: with letters beyond ASCII or without, and more or less careful about HTML."""
    found = {json.dumps(plain, ensure_ascii=each)[1:-1] for each in (True, False)}
    found |= {
        each.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        for each in found
    }
    found |= {_ESCAPED.sub(lambda match: "\\u" + match[1].upper(), each) for each in found}
    return found | {each.replace("/", "\\/") for each in found}


def _in_html(plain: str) -> set[str]:
    """As libraries write it: they agree about all but quotes, and one escapes the plus sign."""
    base = html.escape(plain, quote=False)
    found = {base.replace('"', double).replace("'", single) for double, single in _QUOTES_IN_HTML}
    return {base} | found | {each.replace("+", "&#43;") for each in found}


def _lower_escapes(quoted: str) -> str:
    """`%2f` where it says `%2F`; the rest stays as it is."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _encoded(secret: bytes) -> set[bytes]:
    """Its base64 wherever it stands in something longer, without the letters that others have a part in."""
    encoders: tuple[Callable[[bytes], bytes], ...] = (b64encode, urlsafe_b64encode)
    found = set()
    for before in range(3) if secret else ():
        first, end = (before * 8 + 5) // 6, (before + len(secret)) * 8 // 6
        found |= {encode(b"\0" * before + secret)[first:end] for encode in encoders}
    return found


class Found(NamedTuple):
    """A place with a form, and what is still to come of it if it goes on where the data ends."""

    at: int
    size: int
    rests: Sequence[bytes]


class Forms:
    """What must not come back, ready to be looked for.

    A form is found by its first bytes. The rest of a longer one is compared as it comes, so no more than those
    first bytes ever have to wait, however long a secret is and however much of it is alike.
    """

    def __init__(self, forms: Iterable[bytes]) -> None:
        self.longest_first = sorted(filter(None, set(forms)), key=len, reverse=True)
        self._by_head: dict[bytes, list[bytes]] = {}
        for form in self.longest_first:
            self._by_head.setdefault(form[:_HEAD], []).append(form)
        self._heads = sorted(self._by_head)
        first = re.escape(bytes({head[0] for head in self._heads}))
        self._first = re.compile(b"[" + first + b"]") if first else None

    def found(self, data: bytes) -> Generator[Found, None, None]:
        """Each place with a form, or with the beginning of one that can be told by its first bytes."""
        for head, forms in self._by_head.items():
            at, left = data.find(head), _MOST_OVERLAPS
            while at >= 0:
                sizes = [(_alike(form, data, at), form) for form in forms]
                size, form = max(sizes)
                is_at_end = at + size == len(data)
                rests = [form[size:] for each, form in sizes if is_at_end and each == size]
                yield Found(at, size, [rest for rest in rests if rest])
                # If something else follows, the whole of it may begin inside of what looked like it.
                is_odd = size < len(form) and not is_at_end
                left -= is_odd
                at = data.find(head, at + (1 if is_odd and left > 0 else size))

    def beginning(self, data: bytes) -> int:
        """How many bytes at the end could be the first ones of a form, and not yet enough to tell."""
        if self._first is None:
            return 0
        for found in self._first.finditer(data, max(0, len(data) - _HEAD + 1)):
            # What begins like this, if anything does, is the next one in order.
            place = bisect_left(self._heads, rest := data[found.start() :])
            if place < len(self._heads) and self._heads[place].startswith(rest):
                return len(data) - found.start()
        return 0


class RecentForms:
    """The forms of the newest values of one secret.

    An answer may last for hours, and quote a value that is newer than its request, or older.
    """

    def __init__(self) -> None:
        self._values: dict[str, Sequence[bytes]] = {}
        self.forms = Forms(())

    def remember(self, secret: str, forms: Callable[[], Sequence[bytes]]) -> bool:
        """The secret has this value now. Whether that is one more."""
        is_new = secret not in self._values
        # The newest is last.
        self._values[secret] = forms() if is_new else self._values.pop(secret)
        if is_new:
            if len(self._values) > _MOST_VALUES:
                del self._values[next(iter(self._values))]
            self.forms = Forms(form for each in self._values.values() for form in each)
        return is_new


class Redactor:
    """Replaces the forms of a secret by as many asterisks, in a stream that must not be held up.

    A model's server does not send our key back; a gateway that quotes the request in an error does.
    Lengths stay as they are, so a Content-Length stays true. Only the last few bytes, if they could be the
    beginning of a form, wait for what comes after them. The forms are asked for with each piece: there may be
    more by then.
    """

    def __init__(self, forms: Callable[[], Forms]) -> None:
        self._forms = forms
        self._held = b""
        self._going_on: list[bytes] = []

    @classmethod
    def of(cls, forms: Iterable[bytes]) -> Redactor:
        """For forms that stay as they are."""
        fixed = Forms(forms)
        return cls(lambda: fixed)

    def whole(self, data: bytes) -> bytes:
        """A complete piece without the secret."""
        return self._cleaned(data)[0]

    def feed(self, data: bytes) -> bytes:
        """As much of the stream as can be passed on now."""
        clean, going_on = self._cleaned(self._held + self._gone_on(data))
        self._going_on = (self._going_on + going_on)[:_MOST_OVERLAPS]
        end = len(clean) - self._forms().beginning(clean)
        self._held = clean[end:]
        return clean[:end]

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest

    def _cleaned(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """With asterisks, and what may still follow of forms that go on where the data ends."""
        clean: bytearray | None = None
        going_on: list[bytes] = []
        for found in self._forms().found(data):
            clean = clean or bytearray(data)
            clean[found.at : found.at + found.size] = b"*" * found.size
            going_on += found.rests
        return data if clean is None else bytes(clean), going_on

    def _gone_on(self, data: bytes) -> bytes:
        """The next piece, without what it continues."""
        sizes = [(_alike(rest, data, 0), rest) for rest in self._going_on]
        most = max((size for size, _ in sizes), default=0)
        self._going_on = [
            rest[size:] for size, rest in sizes if size == len(data) and size < len(rest)
        ]
        return b"*" * most + data[most:]


def _alike(form: bytes, data: bytes, at: int) -> int:
    """How many bytes of a form are there at a place."""
    low, high = 0, min(len(form), len(data) - at)
    while low < high:  # by halves: slices are compared much faster than single bytes
        middle = (low + high + 1) // 2
        if form[low:middle] == data[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
