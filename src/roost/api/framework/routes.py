"""Operations, and the way from a method and a path to one: a look-up for each segment of the path.

It is not Starlette's router, which tries one pattern after the other: with 165 operations that takes 4 to 13
times as long, and its 404 and 405 are not the API's errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.query import Query
from roost.api.framework.services import Handler, Services
from roost.api.framework.shapes import Shape
from roost.errors import MethodNotAllowed, NotFound, NotServed

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_USUAL_PATH = (
    200  # characters of one that is remembered: a client asks for the same ones again and again
)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing a client can do. `open`: without a key. `reply`: the name of the official type."""

    name: str
    method: str
    path: str
    handler: Handler
    body: Shape | None = None
    query: Query = field(default_factory=Query)
    reply: str | None = None
    media: str = "application/json"
    """The type of its answers."""
    form: Literal["one", "page", "pages", "stream", "other"] = "one"
    uploads: Mapping[str, Any] | None = None
    """The schema of its body, if that is a form with files."""
    open: bool = False
    served: bool = True
    beta: bool = True
    """Whether it exists only for clients that ask for the beta; some have left it behind."""
    refuses: str | None = None
    """The beta whose shapes it does not have."""

    @cached_property
    def parameters(self) -> list[str]:
        """The names of what varies in its path."""
        return names_in(self.path)

    @cached_property
    def kind(self) -> Literal["writes", "reads"]:
        """Which of a key's limits it counts against."""
        return "reads" if self.method == "GET" else "writes"

    @cached_property
    def official(self) -> bool:
        """Whether it is part of the Managed Agents API, with its headers."""
        return self.path.startswith("/v1/")

    def with_parts(self, services: Services) -> Operation:
        """The same, with a handler that has what it needs besides the call. :raises LookupError:"""
        return replace(self, handler=services.given_to(self.handler))


def refused(name: str, method: str, path: str, why: str) -> Operation:
    """An operation of the API that this server leaves out on purpose: it answers why."""

    async def refuse(call: ApiCall) -> ASGIApp:
        raise NotServed(f"{name} is not served: {why}")

    return Operation(name=name, method=method, path=path, handler=refuse, served=False)


class Routes:
    """All operations, as a tree of path segments."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            self._root.add(operation)
        self._known = lru_cache(maxsize=4096)(self._found)

    def find(self, method: str, path: str) -> tuple[Operation, Mapping[str, str]]:
        """The operation and its path parameters.

        :raises NotFound: nothing has this path :raises MethodNotAllowed: something else does
        """
        return self._known(method, path) if len(path) <= _USUAL_PATH else self._found(method, path)

    def _found(self, method: str, path: str) -> tuple[Operation, Mapping[str, str]]:
        node, values = self._root.walk(path)
        if node is None or not node.operations:
            raise NotFound(f"there is nothing at {path[:200]}")
        operation = node.operations.get("GET" if method == "HEAD" else method)
        if operation is None or (method == "HEAD" and operation.form == "stream"):
            raise MethodNotAllowed(method, sorted(node.operations))
        return operation, dict(zip(operation.parameters, values, strict=True))


class _Node:
    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self._fixed: dict[str, _Node] = {}
        self._any: _Node | None = None

    def add(self, operation: Operation) -> None:
        node = self
        for segment in operation.path.split("/"):
            if segment.startswith("{"):
                node._any = node._any or _Node()
                node = node._any
            else:
                node = node._fixed.setdefault(segment, _Node())
        node.operations[operation.method] = operation

    def walk(self, path: str) -> tuple[_Node | None, Sequence[str]]:
        node: _Node | None = self
        values: list[str] = []
        for segment in path.split("/"):
            if node is None:
                break
            if segment in node._fixed:
                node = node._fixed[segment]
                continue
            node = node._any if _ID.fullmatch(segment) else None
            values.append(segment)
        return node, values


def names_in(path: str) -> list[str]:
    """The parameters of a path: `session_id` of `/v1/sessions/{session_id}`."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]
