from __future__ import annotations

from typing import get_args

import pytest
from tests.docs.reading import import_errors, rows

from roost.api.framework.errors import status_of
from roost.config import Settings, variable_of
from roost.errors import LeaseLost, RoostError, StartupError
from roost.ports.egress import Reason

PAGE = "docs/errors.md"
REASON_ENDS = (
    "_allowed`",
    "_unreadable`",
    "_reached`",
    "_replaced`",
    "_rejected`",
    "_unavailable`",
)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented_as_it_is(name: str) -> None:
    field = Settings.model_fields[name]
    default = "" if field.default is None else f"`{field.default}`"
    assert [f"`{variable_of(name)}`", default, field.description] in rows("docs/settings.md")


def test_no_setting_is_documented_that_does_not_exist() -> None:
    known = {f"`{variable_of(name)}`" for name in Settings.model_fields}
    told = {row[0] for row in rows("docs/settings.md") if row[0].startswith("`")}
    assert told == known


def test_every_error_is_documented_with_its_code_status_and_hint() -> None:
    import_errors()
    told = rows(PAGE)
    for kind in _errors(RoostError):
        assert _row(kind) in told, f"{PAGE} lacks | {' | '.join(_row(kind))} |"


def test_no_error_is_documented_that_does_not_exist() -> None:
    import_errors()
    known = {f"`{kind.code}`" for kind in _errors(RoostError)}
    assert {row[0] for row in rows(PAGE) if row[0].startswith("`")} == known


def test_every_reason_for_a_refusal_is_documented_and_no_other() -> None:
    told = [row[0].strip("`") for row in rows("docs/egress.md") if row[0].endswith(REASON_ENDS)]
    assert sorted(told) == sorted(get_args(Reason))


def _row(kind: type[RoostError]) -> list[str]:
    # These never reach a client: they end a start, or tell a runner to drop everything.
    inside = issubclass(kind, StartupError | LeaseLost)
    # Its constructor wants what only a request knows; the class is enough to look up a status.
    status = "" if inside else str(status_of(kind.__new__(kind))[0])
    return [f"`{kind.code}`", status, (kind.__doc__ or "").strip(), kind.hint or ""]


def _errors(kind: type[RoostError]) -> list[type[RoostError]]:
    """All that anybody but the module they are made in can meet."""
    known = [below for below in kind.__subclasses__() if not below.__name__.startswith("_")]
    return [kind] + [error for below in known for error in _errors(below)]
