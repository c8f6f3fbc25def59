"""Which placeholders are replaced by which secrets, in a request to which host.

A sandbox has placeholders only. What is replaced is decided by the host that was connected to, never by what a
request says about itself. Each replacement is one pass from left to right, which does not look at what it has
put in: a secret that looks like a placeholder stays as it is.
"""

from __future__ import annotations

import binascii
import json
import logging
import re
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple
from urllib.parse import quote

from roost.egress.hosts import HostList, ProxyTarget
from roost.egress.reports import Refusal
from roost.egress.secrets import SHORTEST_SECRET, Forms, Prefixes, RecentForms, forms_of
from roost.egress.tls import CertificateAuthority
from roost.egress.wire import in_time
from roost.ports.egress import Networking, Substitution

_log = logging.getLogger(__name__)

_MOST_NOTED: Final = 1000
_PIECE: Final = 65536
_MOST_BYTES: Final = 256 * 1024
"""Of all secrets of a session together: their forms, which answers are searched for, are many times as large."""
_BASIC: Final = re.compile(rb"(basic +)([A-Za-z0-9+/_-]+=*)", re.IGNORECASE)
_JSON: Final = re.compile(rb"application/(?:json|x-ndjson|[^/]+\+json)")
_HEADER: Final = re.compile(rb"[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?")


class SecretsByPlaceholder(dict[bytes, bytes]):
    """Secrets by their placeholders. What is needed to put them in is made once, not for each request."""

    def __repr__(self) -> str:
        return f"<{len(self)} secrets>"

    @cached_property
    def pattern(self) -> re.Pattern[bytes] | None:
        """Finds the placeholders. None: there are none."""
        longest_first = sorted(self, key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, longest_first))) if self else None

    @cached_property
    def prefixes(self) -> Prefixes:
        """Tells how much at the end of a piece may be the beginning of a placeholder."""
        return Prefixes(self)

    @cached_property
    def in_json(self) -> SecretsByPlaceholder:
        """The same, as they are written into a string of JSON."""
        return SecretsByPlaceholder({each: _in_json(secret) for each, secret in self.items()})

    @cached_property
    def in_form(self) -> SecretsByPlaceholder:
        """The same, as they are written into a field of a form."""
        return SecretsByPlaceholder({each: _in_form(secret) for each, secret in self.items()})


class Replacer:
    """Replaces placeholders in a stream. Only bytes that can begin one wait for what comes after them.

    A secret may be a thousand times as long as its placeholder, so at most `most_bytes` are put in.
    """

    def __init__(self, secrets: SecretsByPlaceholder, most_bytes: int) -> None:
        self._secrets = secrets
        self._pattern = secrets.pattern
        self._most_bytes = most_bytes
        self._put_in = 0
        self._held = b""
        self.replaced: set[bytes] = set()

    def __bool__(self) -> bool:
        return self._pattern is not None

    def whole(self, data: bytes) -> bytes:
        """A complete piece with the secrets in it. :raises Refusal: that is too many"""
        return data if self._pattern is None else self._pattern.sub(self._secret, data)

    def feed(self, data: bytes) -> Generator[bytes, None, None]:
        """As much of the stream as can be passed on now, in pieces of which none is large.

        :raises Refusal: there are too many secrets in it
        """
        if self._pattern is None:
            yield data
            return
        data, begin, ready = self._held + data, 0, bytearray()
        for found in self._pattern.finditer(data):
            ready += data[begin : found.start()] + self._secret(found)
            begin = found.end()
            if len(ready) >= _PIECE:
                yield bytes(ready)
                ready.clear()
        # What was put in is not looked at again: only the rest can begin a placeholder.
        cut = len(data) - self._secrets.prefixes.at_end(data[begin:])
        self._held = data[cut:]
        if ready or cut > begin:
            yield bytes(ready) + data[begin:cut]

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest

    def _secret(self, found: re.Match[bytes]) -> bytes:
        secret = self._secrets[found[0]]
        self._put_in += len(secret)
        if self._put_in > self._most_bytes:
            raise Refusal(413, f"at most {self._most_bytes} bytes can be put in for placeholders")
        self.replaced.add(found[0])
        return secret


class RequestSecrets(NamedTuple):
    """What one request may be given."""

    header: SecretsByPlaceholder
    body: SecretsByPlaceholder


def written_in(
    secrets: SecretsByPlaceholder, kind: bytes, beginning: bytes
) -> SecretsByPlaceholder:
    """The secrets as a program would have written them into a body of this `Content-Type`, had it had them.

    Many programs call everything a form that they are not told about: what begins like JSON is JSON.
    """
    kind = kind.partition(b";")[0].strip().lower()
    is_form = kind == b"application/x-www-form-urlencoded"
    if _JSON.fullmatch(kind) or (is_form and beginning.lstrip()[:1] in (b"{", b"[")):
        return secrets.in_json
    return secrets.in_form if is_form else secrets


def _in_form(secret: bytes) -> bytes:
    return quote(secret, safe="").encode()


def _in_json(secret: bytes) -> bytes:
    return json.dumps(secret.decode(), ensure_ascii=False)[1:-1].encode()


def replaced_in_header(replacer: Replacer, name: bytes, value: bytes) -> bytes:
    """A header's value with the secrets in it, also inside of what Basic authentication encodes."""
    basic = _BASIC.fullmatch(value) if name == b"authorization" else None
    if basic is None:
        return replacer.whole(value)
    try:
        plain = b64decode(basic[2], validate=True)
    except binascii.Error:
        return replacer.whole(value)
    given = replacer.whole(plain)
    return value if given == plain else basic[1] + b64encode(given)


class HostSubstitutions:
    """The substitutions of one session that are meant for one host."""

    def __init__(self, host: str, of: SessionSubstitutions, chosen: Sequence[Substitution]) -> None:
        self._host = host
        self._of = of
        self._chosen = chosen
        self._variables = {each.placeholder.encode(): each.variable for each in chosen}
        self._values: Sequence[str | None] = ()
        self._given = RequestSecrets(SecretsByPlaceholder(), SecretsByPlaceholder())
        self._known = 0
        self._forms = Forms(())

    def __bool__(self) -> bool:
        return bool(self._chosen)

    async def secrets(self) -> RequestSecrets:
        """What they are now. One that cannot be had is left out: its placeholder goes out as it is."""
        values = [await self._of.secret(each) for each in self._chosen]
        if values != self._values:
            self._values, self._given = values, self._given_with(values)
        return self._given

    def _given_with(self, values: Sequence[str | None]) -> RequestSecrets:
        header, body = SecretsByPlaceholder(), SecretsByPlaceholder()
        for each, secret in zip(self._chosen, values, strict=True):
            if not secret:
                continue
            placeholder, value = each.placeholder.encode(), secret.encode()
            if each.header and _HEADER.fullmatch(value):
                header[placeholder] = value
            if each.body:
                body[placeholder] = value
        return RequestSecrets(header, body)

    def forms(self) -> Forms:
        """How a server may write what it was sent, on this connection or another one, now or before."""
        if self._known != self._of.known:
            self._known = self._of.known
            self._forms = self._of.forms(self._chosen)
        return self._forms

    def note_replaced(self, replacer: Replacer, where: str) -> None:
        """Log which placeholders were replaced, and where: their variables' names, and nothing else."""
        for placeholder in replacer.replaced:
            self._of.note(self._variables[placeholder], self._host, f"replaced in {where}")

    def note_compressed(self) -> None:
        """Log that a body is passed on as it is, because it is compressed."""
        for each in self._chosen:
            if each.body:
                self._of.note(each.variable, self._host, "the body is compressed: not looked at")


class SessionSubstitutions:
    """All substitutions of one session."""

    def __init__(
        self, session_id: str, substitutions: Sequence[Substitution], seconds: float
    ) -> None:
        self._session_id = session_id
        self._seconds = seconds
        self._rules = [
            (None if each.hosts is None else HostList(each.hosts), each) for each in substitutions
        ]
        self._recent: defaultdict[str, RecentForms] = defaultdict(RecentForms)  # by placeholder
        self._sizes: dict[str, int] = {}
        self.known = 0
        self._noted: set[tuple[str, str, str]] = set()

    def towards(self, target: ProxyTarget) -> HostSubstitutions:
        """Those whose host this is; empty: none."""
        chosen = [each for hosts, each in self._rules if hosts is None or hosts.has(target)]
        return HostSubstitutions(target.host, self, chosen)

    @cached_property
    def authority(self) -> CertificateAuthority:
        """Vouches for their hosts inside. Most sessions have none, and make none."""
        return CertificateAuthority()

    async def secret(self, substitution: Substitution) -> str | None:
        """The secret as it is now; None: it cannot be had."""
        try:
            secret = await in_time(self._seconds, substitution.secret())
        except Exception:  # noqa: BLE001 - whatever it does, the request goes on without it
            _log.exception(
                "the secret of %s cannot be read",
                substitution.variable,
                extra={"session_id": self._session_id},
            )
            return None
        recent = self._recent[substitution.placeholder]
        if secret and secret == recent.newest:
            return secret
        if secret and self._has_room(substitution, len(secret.encode())):
            self.known += recent.remember(secret, partial(_forms, secret.encode()))
            return secret
        return None

    def _has_room(self, substitution: Substitution, size: int) -> bool:
        """Whether the secrets of the session may have that much more, or this one's new size."""
        others = sum(self._sizes.values()) - self._sizes.get(substitution.placeholder, 0)
        if others + size <= _MOST_BYTES:
            self._sizes[substitution.placeholder] = size
            return True
        self.note(
            substitution.variable,
            "any host",
            "not replaced: the secrets of the session are too large together",
        )
        return False

    def forms(self, substitutions: Iterable[Substitution]) -> Forms:
        """How a server may write what these were, now or before. They change whenever `known` does."""
        return Forms.together([self._recent[each.placeholder].forms for each in substitutions])

    def note(self, variable: str, host: str, what: str) -> None:
        """Log what was done with a placeholder; the same thing again only at the level of debugging."""
        key = (variable, host, what)
        level = logging.DEBUG if key in self._noted else logging.INFO
        if len(self._noted) < _MOST_NOTED:
            self._noted.add(key)
        _log.log(
            level,
            "the placeholder of %s, on its way to %s: %s",
            variable,
            host,
            what,
            extra={"action": "substitute", "session_id": self._session_id},
        )


def _forms(secret: bytes) -> Sequence[bytes]:
    """How a server may write it, also if it says what it was sent."""
    written = (_in_json(secret), _in_form(secret))
    return forms_of(secret, [], written=written, shortest=SHORTEST_SECRET)


NOBODY: Final = SessionSubstitutions("", (), 0).towards(ProxyTarget("", 0))
"""For a server that must not be sent any secret."""


def unreachable(
    substitutions: Iterable[Substitution], networking: Networking, packages: Sequence[str]
) -> dict[str, list[str]]:
    """The hosts of substitutions that the networking does not allow, by the name of the variable.

    A secret for every host lacks none, unless there is no network at all: then it names no host.
    """
    found = {}
    allowed = [*networking.allowed_hosts, *(packages if networking.package_managers else ())]
    for each in substitutions:
        if networking.kind == "unrestricted" or (each.hosts is None and networking.kind != "none"):
            continue
        lacking = [host for host in each.hosts or () if not _covered(host.lower(), allowed)]
        if networking.kind == "none" or lacking:
            found[each.variable] = lacking
    return found


def _covered(host: str, allowed: Iterable[str]) -> bool:
    """Whether everything that a pattern stands for is allowed."""
    for each in allowed:
        below = each.startswith("*.") and host.removeprefix("*").endswith(each[1:].lower())
        if below or host == each.lower():
            return True
    return False
