"""What the server answers a browser with, without one."""

from __future__ import annotations

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
