"""The table against the installed SDK: every operation it has is served, or refused on purpose."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import anthropic.resources.beta
import pytest
from tests.api.api_server import api_server, error_of

from roost.api.framework.routes import Operation, Routes
from roost.api.operations import OPERATIONS, OTHER_APIS

ELSEWHERE = {
    "messages",  # the model's own API: not this server's
    "organization",  # the Console's administration
    "webhooks",  # checks signatures, calls nothing
}
VERBS = {
    "_get": "GET",
    "_get_api_list": "GET",
    "_post": "POST",
    "_delete": "DELETE",
    "_patch": "PATCH",
    "_put": "PUT",
}


def operations_of_the_sdk() -> dict[str, tuple[str, str]]:
    """Name → method and path of each resource method, read from the package's source."""
    root = Path(anthropic.resources.beta.__file__).parent
    found: dict[str, tuple[str, str]] = {}
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0].removesuffix(".py") in ELSEWHERE:
            continue
        for made in ast.parse(file.read_text()).body:
            if isinstance(made, ast.ClassDef) and not made.name.startswith("Async"):
                found |= dict(_requests(made))
    return found


def _requests(resource: ast.ClassDef) -> list[tuple[str, tuple[str, str]]]:
    calls = [node for node in ast.walk(resource) if isinstance(node, ast.Call)]
    return [
        (_span(call), (VERBS[call.func.attr], _path(call.args[0])))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in VERBS
    ]


def _path(argument: ast.expr) -> str:
    """Either the path itself, or `path_template(path, …)`."""
    constant = argument.args[0] if isinstance(argument, ast.Call) else argument
    assert isinstance(constant, ast.Constant)
    return str(constant.value)


def _span(call: ast.Call) -> str:
    """The SDK's own name for the operation, as it puts it on traces."""
    [name] = [
        node.value.value
        for node in ast.walk(call)
        if isinstance(node, ast.keyword)
        and node.arg == "span_name"
        and isinstance(node.value, ast.Constant)
    ]
    return str(name).removeprefix("anthropic.")


def test_every_operation_of_the_sdk_is_in_the_table():
    official = [o for o in OPERATIONS if o.official and o not in OTHER_APIS]
    table = {o.name: (o.method, o.path) for o in official}
    assert table == operations_of_the_sdk()
    assert len(table) >= 112


def test_no_two_operations_answer_the_same_request():
    places = [(o.method, re.sub(r"\{.*?\}", "{}", o.path)) for o in OPERATIONS]
    assert len(places) == len(set(places)) == len(OPERATIONS)


def test_every_operation_is_found_by_its_path():
    routes = Routes(OPERATIONS)
    for operation in OPERATIONS:
        found, params = routes.find(operation.method, _filled(operation))
        assert found is operation
        assert list(params) == re.findall(r"\{(.*?)\}", operation.path)


@pytest.mark.parametrize("served", [True, False])
async def test_what_the_table_says_is_what_happens(tmp_path: Path, served: bool):
    async with api_server(tmp_path) as roost:
        for operation in OPERATIONS:
            if operation.served is not served or not operation.official:
                continue
            params = None if served else {"block_ms": "1"}  # nobody gets as far as looking at it
            response = await roost.client.request(
                operation.method, _filled(operation), params=params
            )
            if served:
                code = response.json().get("error", {}).get("details", {}).get("error_code")
                assert code != "not_served", operation.name
                refused = (
                    403 if operation.name == "environments.work.poll" else 404
                )  # only for workers
                assert response.status_code in (200, 400, refused), operation.name
                continue
            error = error_of(response, 404)
            assert error["type"] == "not_found_error"
            assert error["details"]["error_code"] == "not_served"
            assert error["message"].startswith(f"{operation.name} is not served: ")
            assert response.headers["x-should-retry"] == "false"


async def test_a_refusal_is_told_to_known_callers_only(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        del roost.client.headers["x-api-key"]
        error_of(await roost.client.get("/v1/vaults"), 401)


def _filled(operation: Operation) -> str:
    return re.sub(r"\{.*?\}", "x_1", operation.path)
