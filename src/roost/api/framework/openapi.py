"""`/openapi.json`, written from the same table and shapes that requests are checked with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from roost import __version__
from roost.api.access.auth import MANAGED_AGENTS, VERSIONS
from roost.api.framework import official
from roost.api.framework.routes import Operation

REF: Final = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "request_id": {"type": "string"},
        "error": {
            "type": "object",
            "required": ["type", "message", "details"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {
                    "type": "object",
                    "required": ["error_code"],
                    "properties": {"error_code": {"type": "string"}, "hint": {"type": "string"}},
                },
            },
        },
    },
}
_OFFICIAL_HEADERS = [
    {
        "name": "anthropic-version",
        "in": "header",
        "required": True,
        "schema": {"enum": list(VERSIONS)},
    },
    {
        "name": "anthropic-beta",
        "in": "header",
        "required": True,
        "schema": {"const": MANAGED_AGENTS},
    },
]


def described(operations: Sequence[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document. Operations that are refused are listed, not described."""
    served = [operation for operation in operations if operation.served]
    schemas, components = _schemas(served)
    paths: dict[str, dict[str, Any]] = {}
    for operation in served:
        described = _operation(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Roost", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "x-not-served": [f"{o.method} {o.path}" for o in operations if not o.served],
    }


def _schemas(served: Iterable[Operation]) -> tuple[dict[tuple[str, str], Any], dict[str, Any]]:
    """The schemas of bodies and replies by operation and mode, and the ones they refer to."""
    made: dict[tuple[str, str], Any] = {}
    bodies: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    replies, components = official.replies()
    for operation in served:
        if operation.body is not None:
            bodies.append((operation.name, "validation", operation.body.adapter))
        if operation.reply is not None:
            made[operation.name, "serialization"] = replies[operation.reply]
    schemas, definitions = TypeAdapter.json_schemas(bodies, ref_template=REF)
    made |= {(str(name), str(mode)): schema for (name, mode), schema in schemas.items()}
    return made, dict(sorted({**components, **definitions.get("$defs", {})}.items()))


def _operation(operation: Operation, schemas: dict[tuple[str, str], Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (operation.handler.__doc__ or "").strip(),
        "parameters": _parameters(operation),
        "responses": _responses(operation, schemas),
    }
    if not operation.open:
        described["security"] = [{"key": []}, {"bearer": []}]
    if operation.body is not None:
        schema = schemas[operation.name, "validation"]
        described["requestBody"] = {
            "required": bool(operation.body.adapter.json_schema().get("required")),
            "content": {"application/json": {"schema": schema}},
        }
    if operation.uploads:
        described["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": operation.uploads}},
        }
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in operation.path.split("/")
        if part.startswith("{")
    ]
    known = operation.query.adapter.json_schema().get("properties", {})
    in_query = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in known.items()
    ]
    headers = _OFFICIAL_HEADERS[: 2 if operation.beta else 1] if operation.official else []
    return in_path + in_query + headers


def _responses(operation: Operation, schemas: dict[tuple[str, str], Any]) -> dict[str, Any]:
    kind = "text/event-stream" if operation.form == "stream" else operation.media
    schema = schemas.get((operation.name, "serialization"), {})
    if operation.form in ("page", "pages"):
        schema = _page(schema, both=operation.form == "pages")
    error = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    return {
        "200": {"description": "Done.", "content": {kind: {"schema": schema}}},
        "default": {"description": "An error, in the one envelope.", "content": error},
    }


def _page(item: dict[str, Any], *, both: bool) -> dict[str, Any]:
    cursor = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["data", "next_page", *(["prev_page"] if both else [])],
        "properties": {
            "data": {"type": "array", "items": item},
            "next_page": cursor,
            **({"prev_page": cursor} if both else {}),
        },
    }
