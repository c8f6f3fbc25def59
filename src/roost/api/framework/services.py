"""What handlers are given besides the call: parts of the core, found by their types.

`serve/wiring.py` makes each part once and lists it. A handler names what it needs as parameters; that all
of it is there is checked when the application is built, not when the first request comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import get_annotations
from typing import Any, TypeVar

from starlette.types import ASGIApp

Handler = Callable[..., Awaitable[ASGIApp]]
"""Answers a call, which is its first parameter."""

T = TypeVar("T")


class Services:
    """Parts of the core, found by their class; there is one of each."""

    def __init__(self, *parts: object) -> None:
        self._parts: dict[type, Any] = {type(part): part for part in parts}

    def __getitem__(self, kind: type[T]) -> T:
        if kind not in self._parts:
            raise LookupError(f"a handler needs {kind.__name__}: list it in serve/wiring.py")
        part: T = self._parts[kind]
        return part

    def given_to(self, handler: Handler) -> Handler:
        """The handler with its parts, so that only the call is left. :raises LookupError: one is missing"""
        kinds = get_annotations(handler, eval_str=True)  # `get_type_hints` takes four times as long
        parts = {name: self[kind] for name, kind in kinds.items() if name not in ("call", "return")}
        return partial(handler, **parts) if parts else handler
