"""The worked example of a resource is made of lines that exist."""

from __future__ import annotations

import re

from tests.docs.reading import ROOT, text

FOUR_FILES = (
    "core/records/environments.py",
    "api/resources/environments.py",
    "api/operations.py",
    "serve/wiring.py",
)


def section() -> str:
    page = text("CONTRIBUTING.md")
    return page[page.index("### Add a resource") : page.index("### Add a harness")]


def source(name: str) -> list[str]:
    return [line.strip() for line in (ROOT / "src" / "roost" / name).read_text().splitlines()]


def test_the_example_of_a_resource_quotes_the_code_as_it_is():
    known = {line for name in FOUR_FILES for line in source(name)}
    blocks = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    quoted = [line.strip() for block in blocks for line in block.splitlines()]
    assert len(quoted) > 10
    assert [line for line in quoted if line not in known | {"...", ""}] == []


def test_a_plain_resource_is_named_in_four_files():
    for name in FOUR_FILES:
        assert f"(src/roost/{name})" in section()
    assert "environments.RESOURCE," in source("api/operations.py")
    assert any("Environments(store.catalog" in line for line in source("serve/wiring.py"))
