"""The table of limits names only what exists: settings, constants, tests."""

from __future__ import annotations

import re

import pytest
from tests.docs.reading import ROOT, rows, text

from roost.config import Settings, variable_of

PAGE = "docs/limits.md"
HEAD = ["who", "what", "memory", "disk", "descriptors", "time", "setting", "test"]
WHO = {"stranger", "key", "sandbox", "slow reader"}
COLUMNS = len(HEAD)
TABLE = [row for row in rows(PAGE) if len(row) == COLUMNS]
LIMITS = [row for row in TABLE if row[0] in WHO]


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_row_of_the_table_is_about_somebody_known() -> None:
    others = [row[0] for row in TABLE if row[0] not in WHO | {"who", "---"}]
    assert LIMITS
    assert not others


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: f"{row[0]}: {row[1]}"[:80])
def test_every_limit_has_a_number_a_setting_and_a_test(row: list[str]) -> None:
    cells = dict(zip(HEAD, row, strict=True))
    for name, cell in cells.items():
        assert cell.strip("`").lower() not in ("", "none", "no limit", "unlimited", "?"), name
    assert _quoted(cells["setting"]), "name a setting or a constant"
    assert _quoted(cells["test"]), "name a test"
    for name in _quoted(cells["setting"]):
        _check_bound(name)
    for name in _quoted(cells["test"]):
        _check_test(name)


def _check_bound(name: str) -> None:
    if name.startswith("ROOST_"):
        assert name in map(variable_of, Settings.model_fields), name
        return
    path, _, constant = name.partition(":")
    source = text(f"src/roost/{path}")
    assert re.search(rf"^ *{re.escape(constant)}(: [^=]+)? = ", source, re.M), name


def _check_test(name: str) -> None:
    path, _, test = name.partition("::")
    assert path.startswith(("tests/", "src/roost/testing/")), (
        name
    )  # a contract that adapters inherit
    assert (ROOT / path).exists(), name
    assert re.search(rf"^ *(async )?def {re.escape(test)}\(", text(path), re.M), name
