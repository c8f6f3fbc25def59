"""What the server answers a browser with, without one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from roost.web.site import Site


@pytest.fixture
def site(tmp_path: Path) -> TestClient:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<p>the app</p>")
    (tmp_path / "assets/app.js").write_text("1")
    (tmp_path / ".built-from").write_text("x")
    return TestClient(Site(PlainTextResponse("the api"), tmp_path))


PAGE = {"accept": "text/html,*/*"}


@pytest.mark.parametrize("path", ["/", "/sessions/sesn_1", "/agents"])
def test_a_browser_that_asks_for_a_page_gets_the_app(site: TestClient, path: str):
    answer = site.get(path, headers=PAGE)
    assert "the app" in answer.text
    assert answer.headers["cache-control"] == "no-cache"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/v1/agents", "/roost/v1/keys", "/auth/me", "/ws/v2"])
def test_the_api_keeps_its_paths_even_from_browsers(site: TestClient, path: str):
    assert site.get(path, headers=PAGE).text == "the api"


@pytest.mark.parametrize("path", ["/healthz", "/sessions/x", "/.built-from", "/../pyproject.toml"])
def test_programs_and_unknown_files_are_left_to_the_api(site: TestClient, path: str):
    assert site.get(path, headers={"accept": "*/*"}).text == "the api"


def test_files_with_a_hash_in_their_name_are_kept_for_ever(site: TestClient):
    assert "immutable" in site.get("/assets/app.js").headers["cache-control"]
    assert site.post("/assets/app.js").text == "the api"


def test_a_package_without_the_app_says_how_to_get_it(tmp_path: Path):
    answer = TestClient(Site(PlainTextResponse("the api"), tmp_path)).get("/", headers=PAGE)
    assert answer.status_code == 404
    assert "make setup" in answer.text


def build(dist: Path, name: str) -> None:
    """Put an app there as its build does, with a script of its own."""
    made = dist.with_name(name)
    (made / "assets").mkdir(parents=True)
    (made / "index.html").write_text(f"<p>the {name} app</p>")
    (made / f"assets/{name}.js").write_text(name)
    if dist.exists():
        dist.rename(dist.with_name(f"before-{name}"))
    made.rename(dist)


def test_an_app_that_is_built_anew_is_served_at_once_and_pages_that_are_open_go_on(tmp_path: Path):
    dist = tmp_path / "dist"
    build(dist, "first")
    site = TestClient(Site(PlainTextResponse("the api"), dist))
    assert "the first app" in site.get("/", headers=PAGE).text
    build(dist, "second")
    assert site.get("/assets/first.js").text == "first"  # a page of before loads a part of itself
    assert "the second app" in site.get("/", headers=PAGE).text
    assert [site.get(f"/assets/{it}.js").text for it in ("first", "second")] == ["first", "second"]
    dist.rename(tmp_path / "away")  # between the two steps in which a build replaces it
    assert "the second app" in site.get("/vaults", headers=PAGE).text
    build(dist, "third")
    assert "the third app" in site.get("/", headers=PAGE).text


@pytest.fixture
def packed(tmp_path: Path) -> TestClient:
    """An app whose build has compressed its files; the forms differ, so that a test can tell them."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<p>the app</p>")
    script = tmp_path / "assets/app.js"
    script.write_text("plain")
    script.with_name("app.js.gz").write_bytes(gzip.compress(b"gzipped"))
    script.with_name("app.js.br").write_bytes(b"brotli")
    return TestClient(Site(PlainTextResponse("the api"), tmp_path))


@pytest.mark.parametrize(
    ("accepted", "form"),
    [
        ("gzip, deflate, br", "br"),
        ("GZIP", "gzip"),
        ("br;q=0, gzip;q=0.5", "gzip"),
        ("br; q=0.000, gzip;q=0", None),
        ("identity", None),
        ("", None),
    ],
)
def test_a_file_comes_in_the_best_form_that_the_browser_takes(
    packed: TestClient, accepted: str, form: str | None
):
    headers = {"accept-encoding": accepted}
    with packed.stream("GET", "/assets/app.js", headers=headers) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding") == form
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["vary"] == "accept-encoding"
    assert int(answer.headers["content-length"]) == len(raw)
    assert (raw == b"brotli", raw == b"plain") == (form == "br", form is None)


def test_each_form_has_a_tag_of_its_own_and_is_not_sent_twice(packed: TestClient):
    tags = set()
    for accepted in ("br", "gzip", "identity"):
        headers = {"accept-encoding": accepted}
        tag = packed.head("/assets/app.js", headers=headers).headers["etag"]
        again = packed.get("/assets/app.js", headers={**headers, "if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
        assert again.headers["vary"] == "accept-encoding"
        tags.add(tag)
    assert len(tags) == 3
    stale = packed.get("/", headers={**PAGE, "if-none-match": min(tags)})
    assert "the app" in stale.text


def test_compressed_forms_have_no_address_of_their_own(packed: TestClient):
    assert packed.get("/assets/app.js.br").text == "the api"
