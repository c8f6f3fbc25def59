"""What holds for the documentation as a whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.reading import ROOT, text
from tests.parts import need

import roost

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] + [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))
]


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    """All at once, with files of the same name: whoever moves a file mends them in one go."""
    broken = [
        f"{page} links to {target}#{heading}; there is {_namesakes(target)}"
        for page in PAGES
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text(page))
        if "://" not in target and not _leads_somewhere(page, target, heading)
    ]
    assert not broken, "\n".join(broken)


def _leads_somewhere(page: str, target: str, heading: str) -> bool:
    path = (ROOT / page).parent / target if target else ROOT / page
    return path.exists() and (not heading or heading in _headings(path))


def _headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _namesakes(target: str) -> list[str]:
    tree = (ROOT / "src").rglob(Path(target).name or "?")
    return [str(path.relative_to(ROOT)) for path in tree]


def test_the_newest_version_in_the_changelog_is_the_packages() -> None:
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", text("CHANGELOG.md"), re.M)
    assert newest is not None
    assert newest[1] == roost.__version__
    assert f'version = "{roost.__version__}"' in text("pyproject.toml")


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.M))
    for page in PAGES:
        used = re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", text(page), re.M)
        assert {a or b for a, b in used} <= targets, page


def test_the_readmes_python_is_valid() -> None:
    for block in re.findall(r"```python\n(.*?)```", text("README.md"), re.S):
        compile(block, "README.md", "exec")


def test_files_that_are_shipped_name_no_package_index() -> None:
    """The locks install from any mirror only as long as they name none."""
    for lock in [ROOT / "requirements.lock", *(ROOT / "scripts").rglob("*lock*")]:
        if lock.is_file():
            assert not re.search(
                r'"resolved"|--(extra-)?index-url|https?://[^"\s]*\.(whl|tgz|gz)', lock.read_text()
            )


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_missing_part_is_skipped_by_name_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="a wheel is missing; get it with: make wheel"):
        need("a wheel", False, "make wheel")
    need("a wheel", True, "make wheel")
