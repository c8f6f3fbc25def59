"""A resource declares its operations beside the functions that carry them out:

    RESOURCE = Resource(bounds={"EnvironmentCreateParams.name": NAME})

    @RESOURCE.post("environments.create", "/v1/environments", "beta.EnvironmentCreateParams")
    async def create(call: ApiCall, environments: Environments) -> ASGIApp: ...

The function is given the call, and what else it names, by type (`framework/services.py`). Its docstring is
the operation's summary in `/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from pydantic.fields import FieldInfo

from roost.api.framework import bounds as register
from roost.api.framework.query import Query
from roost.api.framework.routes import Operation, names_in
from roost.api.framework.services import Handler
from roost.api.framework.shapes import Shape

H = TypeVar("H", bound=Handler)


class Nothing(TypedDict):
    """The body of a request that needs none."""


class Resource:
    """The operations of one resource, in the order in which they are declared.

    `bounds`, `fields` and `nullable` are what the official types leave out: see `framework/bounds.py`.
    `beta`: it exists only for clients that ask for the beta. `refuses`: the beta whose shapes it does not have.
    """

    def __init__(
        self,
        *,
        bounds: Mapping[str, FieldInfo] | None = None,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        nullable: Mapping[str, frozenset[str]] | None = None,
        beta: bool = True,
        refuses: str | None = None,
    ) -> None:
        self.operations: list[Operation] = []
        self._headers: dict[str, Any] = {"beta": beta, "refuses": refuses}
        register.add(bounds or {}, fields or {}, nullable or {})

    def get(self, name: str, path: str, query: Any = None, **more: Any) -> Callable[[H], H]:
        """An operation that reads. `query`: a TypedDict, or the name of an official one."""
        return self._declared("GET", name, path, query=Query(query, path=names_in(path)), **more)

    def post(
        self, name: str, path: str, body: Any = Nothing, query: Any = None, **more: Any
    ) -> Callable[[H], H]:
        """An operation with a JSON body. `body` and `query`: a TypedDict, or the name of an official one."""
        shape, asked = Shape(body, path=names_in(path)), Query(query, path=names_in(path))
        return self._declared("POST", name, path, body=shape, query=asked, **more)

    def upload(
        self, name: str, path: str, *files: str, fields: Sequence[str] = (), **more: Any
    ) -> Callable[[H], H]:
        """An operation that takes files, in parts of these names; with `[]` behind it, several."""
        one = {"type": "string", "format": "binary"}
        parts = {
            file: {"type": "array", "items": one} if file.endswith("[]") else one for file in files
        }
        schema = {
            "type": "object",
            "required": list(files),
            "properties": parts | {field: {"type": "string"} for field in fields},
        }
        return self._declared("POST", name, path, uploads=schema, **more)

    def delete(self, name: str, path: str, query: Any = None, **more: Any) -> Callable[[H], H]:
        """An operation that removes something. `query`: as for `get`."""
        return self._declared("DELETE", name, path, query=Query(query), **more)

    def _declared(self, method: str, name: str, path: str, **more: Any) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            self.operations.append(
                Operation(
                    name=name, method=method, path=path, handler=handler, **self._headers, **more
                )
            )
            return handler

        return declare
