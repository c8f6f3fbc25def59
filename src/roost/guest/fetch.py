"""Fetches one page of the web, inside a sandbox, and prints it as a model is to see it.

    python3 -I -S fetch.py URL

It prints one JSON object, `{"content": text or [block], "is_error": bool}`: a web page as text with its links, other
text as it is, a picture or a PDF as a block. It goes the way that the sandbox has (`HTTPS_PROXY`), so what the
session may reach decides. It follows redirects on the same host only: another one is the model's to ask for,
because somebody may have decided which hosts it may ask.

It stands alone: whatever Python a sandbox has, and nothing else. Whoever runs it kills it when it takes too long.
"""

from __future__ import annotations

import binascii
import json
import re
import sys
import zlib
from html.parser import HTMLParser
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

TYPE_CHECKING = False  # as in `tools`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from http.client import HTTPMessage
    from typing import IO, Any

SECONDS = 30.0  # without a byte
PAGE = 10 * 1024**2  # bytes that are read of a page
PIECE = 65_536
TEXT = 100_000  # characters that are shown of it
LONGEST_URL = 8_000
MOST = {
    "image/png": 5 * 1024**2 // 4 * 3,
    "image/jpeg": 5 * 1024**2 // 4 * 3,
    "image/gif": 5 * 1024**2 // 4 * 3,
    "image/webp": 5 * 1024**2 // 4 * 3,
    "application/pdf": 20 * 1024**2,
}
"""What is shown as a block, and how many bytes that may have."""

PLAIN = re.compile(r"text/.*|application/((.*\+)?(json|xml)|javascript|x-ndjson|yaml|x-yaml|toml)")
CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?([A-Za-z0-9_-]+)", re.IGNORECASE)
HEADERS = {
    "User-Agent": "roost",
    "Accept": "text/html, text/markdown, text/plain, application/json, */*;q=0.5",
}


class FetchError(Exception):
    """It cannot be fetched, or not be shown; its text is what the model is told."""


class Elsewhere(Exception):
    """The page is said to be on another host."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class Redirects(HTTPRedirectHandler):
    """Follows those that stay on their host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Where to look instead. :raises Elsewhere: on another host"""
        there = urlsplit(newurl)
        if (
            there.hostname != urlsplit(req.full_url).hostname
            or there.scheme not in ("http", "https")
            or "@" in there.netloc
        ):
            raise Elsewhere(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetched(url: str) -> str | list[dict[str, Any]]:
    """What is at an address. :raises FetchError:"""
    try:
        request = Request(plain_url(url), headers=HEADERS)
        with build_opener(Redirects).open(request, timeout=SECONDS) as answer:
            return shown(answer.url, answer.headers, answer.read(max(PAGE, *MOST.values()) + 1))
    except Elsewhere as elsewhere:
        return f"{url} redirects to {elsewhere.url}, which is on another host. Fetch that if it is needed."
    except HTTPError as error:
        with error:
            said = error.read(500).decode("utf-8", "replace").strip()
        raise FetchError(f"{url}: the answer is {error.code} {error.reason}\n{said}") from None
    except (OSError, HTTPException, ValueError, zlib.error) as error:
        raise FetchError(f"{url}: {reason(error)}") from None


def plain_url(url: str) -> str:
    """The address as it is sent. :raises FetchError: it is none that can be fetched"""
    parts = urlsplit(urldefrag(url.strip()).url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > LONGEST_URL:
        raise FetchError(f"{url[:200]}: give an address that begins with https:// or http://")
    if "@" in parts.netloc:
        raise FetchError(f"{url}: an address with a user or a password is not fetched")
    host = parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
    path, query = (quote(part, safe="/%:@!$&'()*+,;=~?") for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, host, path, query, ""))


def reason(error: BaseException) -> str:
    """Why there is no answer, in words."""
    error = getattr(error, "reason", None) or error
    said = str(error) or type(error).__name__
    if "Tunnel connection failed: 403" in said:
        return "this session's networking does not allow it"
    return said


def shown(url: str, headers: HTTPMessage, data: bytes) -> str | list[dict[str, Any]]:
    """An answer as a model is to see it. :raises FetchError: it cannot be shown"""
    kind = headers.get_content_type() if "Content-Type" in headers else "text/html"
    if headers.get("Content-Encoding", "identity").lower() in ("gzip", "deflate"):
        data = zlib.decompressobj(47).decompress(data, max(PAGE, *MOST.values()) + 1)
    if kind in MOST:
        return [block(url, kind, data)]
    if not PLAIN.fullmatch(kind) and kind != "application/xhtml+xml":
        raise FetchError(f"{url}: {kind} cannot be shown; download it by a command instead")
    is_page = kind in ("text/html", "application/xhtml+xml")
    named = headers.get_content_charset() or (charset(data) if is_page else None)
    text = decoded(data[:PAGE], named)
    if is_page:
        text = page_text(url, text)
    if len(text) > TEXT or len(data) > PAGE:
        text = f"{text[:TEXT]}\n[the rest is left out: only {TEXT} characters are shown]"
    return f"{url}\n\n{text}"


def page_text(url: str, source: str) -> str:
    """The text of a web page; no more of it is read than is shown."""
    page = PageText(url)
    for start in range(0, len(source), PIECE):
        page.feed(source[start : start + PIECE])
        if sum(map(len, page.parts)) > 2 * TEXT:
            break
    else:
        page.close()
    return page.text


def block(url: str, kind: str, data: bytes) -> dict[str, Any]:
    """A picture or a document, as a block of a message. :raises FetchError: it is too large"""
    if len(data) > MOST[kind]:
        raise FetchError(f"{url}: it is larger than {MOST[kind]} bytes")
    source = {
        "type": "base64",
        "media_type": kind,
        "data": binascii.b2a_base64(data, newline=False).decode(),
    }
    return {"type": "document" if kind == "application/pdf" else "image", "source": source}


def charset(data: bytes) -> str | None:
    """What a page says of itself."""
    found = CHARSET.search(data[:2048])
    return found[1].decode() if found else None


def decoded(data: bytes, named: str | None) -> str:
    """The text, whatever is wrong with it."""
    try:
        return data.decode(named or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


class PageText(HTMLParser):
    """The text of a web page: headings, lists and links as in Markdown."""

    UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "canvas"})
    BREAKS = re.compile(
        "address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header|li|"
        "main|nav|ol|p|pre|section|table|title|tr|ul"
    )

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.url = url
        self.parts: list[str] = []
        self.unseen: list[str] = []
        self.exact = 0  # how many `pre` are open
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        if tag in self.UNSEEN:
            self.unseen.append(tag)
        if self.BREAKS.fullmatch(tag):
            self.parts.append("\n")
        if tag == "pre":
            self.exact += 1
        elif tag == "li":
            self.parts.append("- ")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.parts.append(f"\n{'#' * int(tag[1])} ")
        elif tag == "a" and not self.unseen:
            href = dict(attrs).get("href") or ""
            self.links.append(urljoin(self.url, href) if href[:1] not in ("", "#") else "")
            self.parts.append("[" if self.links[-1] else "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without anything in it."""
        if self.BREAKS.fullmatch(tag):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """An element ends; what was never closed inside of it ends, too."""
        if tag in self.unseen:
            del self.unseen[self.unseen.index(tag) :]
        if self.BREAKS.fullmatch(tag):
            self.parts.append("\n")
        if tag == "pre":
            self.exact = max(0, self.exact - 1)
        elif tag == "a" and self.links and not self.unseen:
            link = self.links.pop()
            self.parts.append(f"]({link})" if link else "")

    def handle_data(self, data: str) -> None:
        """Text."""
        if not self.unseen:
            # A space that counts is another letter until the others are gone.
            exact = data.replace(" ", "\0")
            self.parts.append(exact if self.exact else re.sub(r"\s+", " ", data))

    @property
    def text(self) -> str:
        """What was read, without the space between the lines that nobody sees."""
        lines = [re.sub(" +", " ", line.strip(" ")) for line in "".join(self.parts).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().replace("\0", " ")


def main(arguments: Sequence[str]) -> int:
    """Print what is at the address, or why it is not."""
    try:
        answer = {"content": fetched(arguments[0]), "is_error": False}
    except FetchError as error:
        answer = {"content": str(error), "is_error": True}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
