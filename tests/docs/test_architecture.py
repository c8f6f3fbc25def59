"""The page that newcomers read first: its picture is the code's, and its parts are complete."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise

from tests.docs.reading import ROOT, rows, text

Arrows = set[tuple[str, str]]

SOURCE = ROOT / "src" / "roost"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
CONTRACTS = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]


def test_the_page_is_read_in_ten_minutes() -> None:
    assert len(text("docs/architecture.md").split()) <= 1500


def test_the_picture_shows_every_room_once() -> None:
    drawn = list(_rooms(_picture()))
    assert sorted(drawn) == sorted(
        _floors("roost").keys() - {"core"} | _floors("roost.core").keys()
    )


def test_every_arrow_of_the_picture_points_down_as_the_contracts_say() -> None:
    for container in ("roost", "roost.core"):
        floor = _floors(container)
        wrong = {
            (a, b)
            for a, b in _arrows(_picture())
            if a in floor and b in floor and floor[a] >= floor[b]
        }
        assert wrong == set(), container


def test_the_picture_has_no_arrow_that_a_contract_forbids() -> None:
    arrows = _arrows(_picture())
    assert arrows & _forbidden(indirectly=False) == set()
    assert _reached(arrows) & _forbidden(indirectly=True) == set()


def test_every_import_between_rooms_goes_along_the_arrows() -> None:
    assert _imports() - _reached(_arrows(_picture())) == set()


def test_the_glossary_has_few_words_each_once() -> None:
    words = [row[0].strip("*") for row in rows("docs/glossary.md")[2:]]
    assert len(words) == len(set(words)) <= 25


def test_every_decision_is_a_short_dated_page() -> None:
    for number, page in enumerate(DECISIONS, 1):
        body = page.read_text()
        assert re.match(rf"# {number:03}\. .+\n\nDate: \d{{4}}-\d\d-\d\d\n\n## Context\n", body), (
            f"{page.name}: a title with the next free number, a date and the context"
        )
        assert re.findall(r"^## (.+)", body, re.M) == ["Context", "Decision", "What follows"]
        assert len(body.split()) <= 500, f"{page.name} is long: is it two decisions?"


def test_the_index_has_every_decision_once_with_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", text("docs/decisions/README.md"), re.M)
    titles = [
        (page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in DECISIONS
    ]
    assert sorted(listed) == sorted(titles)


def _picture() -> list[str]:
    """The lines of the page's flowchart."""
    found = re.search(r"```mermaid\nflowchart TB\n(.*?)```", text("docs/architecture.md"), re.S)
    assert found is not None
    return [line.strip() for line in found[1].splitlines()]


def _groups(picture: list[str]) -> dict[str, set[str]]:
    """The rooms inside of each subgraph."""
    groups: dict[str, set[str]] = {}
    inside = ""
    for line in picture:
        if line.startswith("subgraph"):
            inside = line.split()[1]
        elif line == "end":
            inside = ""
        elif inside:
            groups.setdefault(inside, set()).update(re.findall(r"\w+", line))
    return groups


def _rooms(picture: list[str]) -> Iterator[str]:
    groups = _groups(picture)
    lines = (line for line in picture if not line.startswith("subgraph") and line != "end")
    yield from {word for line in lines for word in re.findall(r"\w+", line)} - groups.keys()


def _arrows(picture: list[str]) -> Arrows:
    """Every arrow between two rooms; one at a group is one at each room in it."""
    groups = _groups(picture)
    arrows: Arrows = set()
    for line in picture:
        ends = [re.findall(r"\w+", end) for end in line.split("-->")]
        for sources, targets in pairwise(ends):
            arrows |= {
                (a, b)
                for source in sources
                for target in targets
                for a in groups.get(source, {source})
                for b in groups.get(target, {target})
            }
    return arrows


def _reached(arrows: Arrows) -> Arrows:
    """Which room can be reached from which, along any number of arrows."""
    reached = set(arrows)
    while True:
        further = {(a, d) for a, b in reached for c, d in arrows if b == c} - reached
        if not further:
            return reached
        reached |= further


def _floors(container: str) -> dict[str, int]:
    """Each room of a container with its floor, counted from the top."""
    [contract] = [c for c in CONTRACTS if c.get("containers") == [container]]
    return {
        room.strip(): floor
        for floor, rooms in enumerate(contract["layers"])
        for room in rooms.split("|")
    }


def _forbidden(*, indirectly: bool) -> Arrows:
    """The arrows between rooms that a contract forbids, those to each room of the core among them."""
    inner = _floors("roost.core").keys()
    pairs: Arrows = set()
    for contract in CONTRACTS:
        direct_only = contract.get("allow_indirect_imports", False)
        if contract["type"] == "forbidden" and not (indirectly and direct_only):
            for a in map(_room, contract["source_modules"]):
                for b in map(_room, contract["forbidden_modules"]):
                    pairs |= {(a, each) for each in (inner if b == "core" else {b})}
    return pairs


def _imports() -> Arrows:
    """Which room imports which, as the code has it."""
    pairs: Arrows = set()
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roost."):
                pairs.add((_room(module), _room(node.module or "")))
    outside = {"core", "__init__", "__main__"}
    return {(a, b) for a, b in pairs if a != b and not outside & {a, b}}


def _room(module: str) -> str:
    """`core/` has rooms of its own."""
    parts = [*module.split("."), ""]
    return (parts[2] or "core") if parts[1] == "core" else parts[1]
