"""Puts a secret on a request, and takes it out of the answer in each form that a server may quote it in."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
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
"""How many beginnings of a long form are looked for in a piece one by one, before those inside of others are passed
over, and how many of those that go on in the next piece are compared: only a secret that is all alike has more."""

_READABLE: Final = frozenset(("", "identity", "gzip", "deflate"))
"""How a body may be encoded. What cannot be read cannot be searched for a secret, and is not passed on."""

_NEVER_ESCAPED: Final = re.compile(rb"[A-Za-z0-9_.-]+")
"""What looks the same in every way of writing but base64."""

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


class Prefixes:
    """The beginnings of some words, which the end of a piece of a stream may be."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._words = sorted(set(words))
        self._longest = max(map(len, self._words), default=0)
        seconds: dict[bytes, set[int]] = {}
        for word in self._words:
            seconds.setdefault(word[:1], set()).update(word[1:2])
        # By two bytes: a single one that some word begins with is found in too many places.
        pairs = (re.escape(first) + _followed(then) for first, then in seconds.items())
        self._begin = re.compile(b"|".join(pairs)) if seconds else None

    def at_end(self, data: bytes) -> int:
        """How many bytes at the end could be the first ones of a word, and not yet all of them."""
        if self._begin is None:
            return 0
        for found in self._begin.finditer(data, max(0, len(data) - self._longest + 1)):
            # What begins like this, if anything does, is the next one in order.
            place = bisect_right(self._words, rest := data[found.start() :])
            if place < len(self._words) and self._words[place].startswith(rest):
                return len(rest)
        return 0


def _followed(then: set[int]) -> bytes:
    """A pattern that looks at what comes next: one of these bytes, or the end."""
    return b"(?=[" + re.escape(bytes(then)) + rb"]|\Z)" if then else rb"\Z"


class FoundForm(NamedTuple):
    """A place with a form, and what is still to come of it if it goes on where the data ends."""

    at: int
    size: int
    rests: Sequence[bytes] = ()


class Forms:
    """What must not come back, ready to be looked for.

    A form is found by its first bytes, its head. The rest of a longer one is compared as it comes, so no more than
    those first bytes ever have to wait, however long a secret is and however much of it is alike.
    """

    def __init__(self, forms: Iterable[bytes], marks: Sequence[bytes] | None = None) -> None:
        self.longest_first = sorted(filter(None, set(forms)), key=len, reverse=True)
        self._by_head: dict[bytes, list[bytes]] = {}
        for form in self.longest_first:
            self._by_head.setdefault(form[:_HEAD], []).append(form)
        self._marks = _marks(self._by_head) if marks is None else marks
        self._shortest = len(min(self._by_head, key=len, default=b""))
        self._prefixes = Prefixes(self._by_head)

    @classmethod
    def together(cls, parts: Sequence[Forms]) -> Forms:
        """The forms of several secrets. Each part knows its own marks: to choose them takes longer than the rest."""
        forms = (form for each in parts for form in each.longest_first)
        return cls(forms, [mark for each in parts for mark in each._marks])

    def found(self, data: bytes) -> list[FoundForm]:
        """Each place with a form, or with the beginning of one that can be told by its head."""
        if len(data) < self._shortest or not any(mark in data for mark in self._marks):
            return []
        found: list[FoundForm] = []
        for head, forms in self._by_head.items():
            found += _places(head, data) if forms == [head] else _beginnings(head, forms, data)
        return found

    def beginning(self, data: bytes) -> int:
        """How many bytes at the end could be the first ones of a form, and not yet enough to tell."""
        return self._prefixes.at_end(data)


def _marks(heads: Iterable[bytes]) -> list[bytes]:
    """What to look for first: each head has one of these in it. One text in many ways of writing has one in common,
    and most data has none.
    """
    marks: list[bytes] = []
    for head in sorted(heads, key=lambda head: (len(head), head)):
        if not any(mark in head for mark in marks):
            longest = max(_NEVER_ESCAPED.findall(head), key=len, default=b"")
            marks.append(longest if len(longest) >= SHORTEST_SECRET else head)
    return marks


def _places(form: bytes, data: bytes) -> Generator[FoundForm, None, None]:
    """Where a form is: as many of the places as it takes to cover all of them."""
    at, size = data.find(form), len(form)
    while at >= 0:
        yield FoundForm(at, size)
        # The last one that begins inside of it, or right behind it, covers those between the two as well.
        overlapping = data.rfind(form, at + 1, at + 2 * size)
        at = overlapping if overlapping >= 0 else data.find(form, at + size)


def _beginnings(
    head: bytes, forms: Sequence[bytes], data: bytes
) -> Generator[FoundForm, None, None]:
    """Where forms with this head begin, and how much of one is there."""
    at, left = data.find(head), _MOST_OVERLAPS
    while at >= 0:
        sizes = [(_alike(form, data, at), form) for form in forms]
        size = max(size for size, _ in sizes)
        is_at_end = at + size == len(data)
        rests = [form[size:] for each, form in sizes if is_at_end and each == size]
        yield FoundForm(at, size, [rest for rest in rests if rest])
        # Another one may begin inside of this, or of what only looked like one.
        following = data.find(head, at + 1)
        left -= at < following < at + size
        at = following if left >= 0 else data.find(head, at + size)


class RecentForms:
    """The forms of the newest values of one secret.

    An answer may last for hours, and quote a value that is newer than its request, or older.
    """

    def __init__(self) -> None:
        self._values: dict[str, Sequence[bytes]] = {}
        self.newest: str | None = None
        self.forms = Forms(())

    def remember(self, secret: str, forms: Callable[[], Sequence[bytes]]) -> bool:
        """The secret has this value now. Whether that is one more."""
        is_new = secret not in self._values
        # The newest is last.
        self._values[secret] = forms() if is_new else self._values.pop(secret)
        self.newest = secret
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
        self._held = b""  # as it came: together with what comes next it may be a form
        self._clean = b""  # the same bytes, without the forms that were found in them
        self._going_on: list[bytes] = []

    @classmethod
    def of(cls, forms: Iterable[bytes]) -> Redactor:
        """For forms that stay as they are."""
        fixed = Forms(forms)
        return cls(lambda: fixed)

    def whole(self, data: bytes) -> bytes:
        """A complete piece without the secret."""
        return _masked(data, self._forms().found(data))

    def feed(self, data: bytes) -> bytes:
        """As much of the stream as can be passed on now."""
        forms, came = self._forms(), self._held + data
        found = forms.found(came)
        if self._going_on:
            found.append(FoundForm(len(self._held), self._gone_on(data)))
        clean = _masked(self._clean + data, found)
        end = len(came) - forms.beginning(came)
        # What begins in the bytes that wait is found again with what comes next.
        rests = (rest for each in found if each.at < end for rest in each.rests)
        self._going_on = [*self._going_on, *rests][:_MOST_OVERLAPS]
        self._held, self._clean = came[end:], clean[end:]
        return clean[:end]

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held, self._clean = self._clean, b"", b""
        return rest

    def _gone_on(self, data: bytes) -> int:
        """How many bytes of the next piece belong to forms that have begun before it."""
        sizes = [(_alike(rest, data, 0), rest) for rest in self._going_on]
        self._going_on = [
            rest[size:] for size, rest in sizes if size == len(data) and size < len(rest)
        ]
        return max(size for size, _ in sizes)


def _masked(data: bytes, found: Iterable[FoundForm]) -> bytes:
    """With asterisks wherever something was found."""
    clean: bytearray | None = None
    for each in found:
        clean = clean or bytearray(data)
        clean[each.at : each.at + each.size] = b"*" * each.size
    return data if clean is None else bytes(clean)


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
