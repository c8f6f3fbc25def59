"""Tests of a kit that take one of its subjects too long for every run."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import pytest

_Kit = TypeVar("_Kit", bound=type)


def at_length(test: Callable[..., Any]) -> Callable[..., Any]:
    """The same test, run by `make chaos` only.

    A mark is put on the function itself, which all users of the kit have: so this is a copy.
    """
    assert isinstance(test, FunctionType)
    copy = FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__
    )
    copy.__dict__.update(test.__dict__)
    copy.__kwdefaults__, copy.__annotations__ = test.__kwdefaults__, test.__annotations__
    return pytest.mark.chaos(pytest.mark.timeout(3600)(copy))


def only_quick(*names: str) -> Callable[[_Kit], _Kit]:
    """Of the kit's tests, only these are part of every run."""

    def mark(kit: _Kit) -> _Kit:
        for name in dir(kit):
            if name.startswith("test_") and name not in names:
                setattr(kit, name, at_length(getattr(kit, name)))
        return kit

    return mark
