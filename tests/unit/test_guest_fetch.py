"""The program that fetches pages in a sandbox, and the tool that runs it, against a real server."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_guest_tools import Guest

from roost.guest import fetch

PAGE = """<!doctype html><html><head><title>A  page</title><style>p { color: red }</style>
<script>document.write("<p>never</p>")</script></head><body><nav><a href="/up">Up</a></nav>
<h1>Big &amp; bold</h1><p>Some
   words, <a href='next?a=1&amp;b=2'>a <b>link</b></a> and <a href="#here">none</a>.</p>
<ul><li>one<li>two</ul><pre>def f():
    return  1</pre><table><tr><td>x</td><td>y</td></tr></table><svg><text>drawn</text></svg>end</body></html>"""
SHOWN = """A page

[Up]({url}/up)

# Big & bold

Some words, [a link]({url}/next?a=1&b=2) and none.

- one
- two

def f():
    return  1

| x | y

end"""
PNG = bytes.fromhex("89504e470d0a1a0a")


class Site(BaseHTTPRequestHandler):
    """A few pages. `asked` has what was asked for."""

    asked: list[str]
    pages: dict[str, tuple[int, dict[str, str], bytes]]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, headers, body = self.pages.get(self.path, (404, {}, b"not here"))
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def site() -> Generator[type[Site], None, None]:
    class Own(Site):
        asked: list[str] = []  # noqa: RUF012
        pages: dict[str, Any] = {}  # noqa: RUF012
        url = ""

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        Own.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Own
        server.shutdown()
        thread.join()


@pytest.fixture
def guest(tmp_path: Path) -> Generator[Guest, None, None]:
    guest = Guest(tmp_path)
    yield guest
    guest.end()
    with guest.process:
        pass


def html(body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return 200, {"content-type": "text/html", **headers}, body


def test_a_page_is_text_with_its_links(site: Any, guest: Guest) -> None:
    site.pages["/"] = html(PAGE.encode())
    said, failed = guest.call("web_fetch", url=f"{site.url}/#part")
    assert (said, failed) == (f"{site.url}/\n\n{SHOWN.format(url=site.url)}", False)
    assert site.asked == ["/"]


def test_other_text_is_shown_as_it_is_and_pictures_and_documents_as_blocks(site: Any) -> None:
    site.pages |= {
        "/json": (200, {"content-type": "application/json"}, b'{"a":  [1]}'),
        "/png": (200, {"content-type": "image/png"}, PNG),
        "/pdf": (200, {"content-type": "application/pdf"}, b"%PDF-1"),
        "/zip": (200, {"content-type": "application/zip"}, b"PK"),
        "/latin": (200, {"content-type": "text/plain; charset=latin-1"}, b"\xe9"),
        "/meta": html(b'<meta charset="latin-1"><p>\xe9'),
        "/odd": html(b"<p>\xff", **{"content-type": "text/html; charset=nonsense"}),
        "/zipped": html(gzip.compress(b"<p>small"), **{"content-encoding": "gzip"}),
    }
    found: dict[str, Any] = {
        name: fetch.fetched(site.url + name) for name in site.pages if name != "/zip"
    }
    texts = {name: text.split("\n\n")[1] for name, text in found.items() if isinstance(text, str)}
    assert texts == {
        "/json": '{"a":  [1]}',
        "/latin": "é",
        "/meta": "é",
        "/odd": "\ufffd",
        "/zipped": "small",
    }
    assert [found[name][0]["type"] for name in ("/png", "/pdf")] == ["image", "document"]
    with pytest.raises(fetch.FetchError, match="application/zip cannot be shown"):
        fetch.fetched(f"{site.url}/zip")


def test_what_is_large_is_cut_or_refused(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MOST", {"image/png": 1000})
    site.pages["/long"] = html(b"<p>word " * 40_000)
    site.pages["/endless"] = html(b" " * 2 * fetch.PAGE)
    bomb = gzip.compress(b" " * 3 * fetch.PAGE, 1)
    site.pages["/bomb"] = html(bomb, **{"content-encoding": "gzip"})
    for name in ("/long", "/endless", "/bomb"):
        said = fetch.fetched(site.url + name)
        assert isinstance(said, str)
        assert said.endswith("[the rest is left out: only 100000 characters are shown]")
        assert len(said) < fetch.TEXT + 200
    site.pages["/big"] = (200, {"content-type": "image/png"}, PNG * 1000)
    with pytest.raises(fetch.FetchError, match="larger than 1000 bytes"):
        fetch.fetched(f"{site.url}/big")


def test_redirects_are_followed_on_their_host_only(site: Any) -> None:
    other = site.url.replace("127.0.0.1", "localhost")
    site.pages |= {
        "/here": (302, {"location": "/there"}, b""),
        "/there": html(b"<p>found"),
        "/away": (302, {"location": f"{other}/there"}, b""),
        "/file": (302, {"location": "file:///etc/passwd"}, b""),
        "/user": (302, {"location": site.url.replace("//", "//me@") + "/there"}, b""),
        "/round": (302, {"location": "/round"}, b""),
    }
    assert fetch.fetched(f"{site.url}/here") == f"{site.url}/there\n\nfound"
    site.asked.clear()
    said = fetch.fetched(f"{site.url}/away")
    assert f"redirects to {other}/there, which is on another host" in said
    assert "another host" in fetch.fetched(f"{site.url}/user")
    with pytest.raises(fetch.FetchError, match="not allowed"):
        fetch.fetched(f"{site.url}/file")
    with pytest.raises(fetch.FetchError, match="answer is 302"):
        fetch.fetched(f"{site.url}/round")
    assert "/there" not in site.asked


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/",
        "data:,x",
        "example.com",
        "",
        "http://",
        "http://[",
        " ",
    ],
)
def test_only_the_web_is_fetched(guest: Guest, url: str) -> None:
    said, failed = guest.call("web_fetch", url=url)
    assert failed
    assert said.startswith("web_fetch: ")
    assert "root:" not in said


def test_what_cannot_be_had_is_told(site: Any, guest: Guest) -> None:
    said, failed = guest.call("web_fetch", url=f"{site.url}/nowhere")
    assert (said, failed) == (
        f"web_fetch: {site.url}/nowhere: the answer is 404 Not Found\nnot here",
        True,
    )
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "refused" in guest.call("web_fetch", url=f"http://127.0.0.1:{port}/")[0]
    said, _ = guest.call("web_fetch", url=f"http://me:secret@127.0.0.1:{port}/")
    assert "a user or a password" in said
    assert guest.call("web_fetch") == ("web_fetch: url is required", True)


def test_a_server_that_never_answers_is_not_waited_for_after_a_cancel(guest: Guest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        guest.send(call="slow", tool="web_fetch", input={"url": url})
        connected, _ = silent.accept()
        with connected:
            guest.send(cancel="slow")
            frame = guest.receive()
            assert (frame["done"], frame["is_error"]) == ("slow", True)
            assert "interrupted" in frame["content"][0]["text"]
            connected.settimeout(60)
            while connected.recv(4096):  # its process is gone, and the connection with it
                pass
