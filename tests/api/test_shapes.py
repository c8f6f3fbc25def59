"""Shapes derived from the official types."""

from __future__ import annotations

import importlib
import pkgutil
import time
from typing import Annotated, Any, Required, TypedDict

import anthropic.types.beta
import pytest
from anthropic.types.beta import AgentCreateParams, AgentUpdateParams, SessionListParams
from anthropic.types.beta.sessions import EventSendParams
from anthropic.types.beta.sessions.threads import EventListParams
from pydantic import Field
from typing_extensions import is_typeddict

from roost.api.framework.query import Query, span_of
from roost.api.framework.shapes import Shape
from roost.api.operations import OPERATIONS
from roost.errors import InvalidRequest

SEND = Shape(EventSendParams)
CREATE = Shape(AgentCreateParams)
UPDATE = Shape(AgentUpdateParams)
LIST = Query(SessionListParams)


MULTIPART = {
    "FileUploadParams",
    "SkillCreateParams",
    "VersionCreateParams",
}  # bodies of another kind


def official_params() -> list[Any]:
    """Every request type of the installed package's beta resources."""
    found = {}
    package = anthropic.types.beta
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        elsewhere = ".message" in module.name or ".organization" in module.name
        if module.name.endswith("_params") and not elsewhere:
            for name, kind in vars(importlib.import_module(module.name)).items():
                if is_typeddict(kind) and name not in MULTIPART:
                    found[f"{module.name}.{name}"] = kind
    return list(found.values())


def test_every_official_request_type_can_be_derived():
    kinds = official_params()
    assert len(kinds) > 150
    for kind in kinds:
        assert Shape(kind).adapter.json_schema()["type"] == "object"


def test_omitted_and_null_stay_two_things():
    assert UPDATE.parse({}) == {}
    assert UPDATE.parse({"system": None, "tools": None}) == {"system": None, "tools": None}


def test_a_text_that_may_be_null_is_not_taken_for_a_name():
    long = {"system": "x" * 100_000, "description": ""}
    assert UPDATE.parse(long) == long


def test_what_comes_out_is_what_went_in():
    body = {
        "events": [
            {
                "type": "user.message",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image", "source": {"type": "url", "url": "https://x"}},
                ],
            },
            {"type": "user.interrupt", "session_thread_id": None},
        ]
    }
    assert SEND.parse(body) == body


@pytest.mark.parametrize(
    ("shape", "body", "words"),
    [
        (CREATE, {"name": 1, "model": "m"}, "name: Input should be a valid string"),
        (CREATE, {"name": "a", "model": True}, "model: Input should be a valid string"),
        (CREATE, {"name": "a", "model": "m" * 257}, "model: String should have at most 256"),
        (UPDATE, {"version": "1"}, "version: Input should be a valid integer"),
        (UPDATE, {"version": 1.0}, "version: Input should be a valid integer"),
        (UPDATE, {"version": True}, "version: Input should be a valid integer"),
        (UPDATE, {"version": 0}, "version: Input should be greater than or equal to 1"),
        (UPDATE, {"version": 2**40}, "version: Input should be less than or equal to"),
        (UPDATE, {"tools": {"0": 1}}, "tools: Input should be an array"),
        (UPDATE, {"tools": [None]}, "tools.0: Input should be an object"),
        (UPDATE, {"metadata": []}, "metadata: Input should be an object"),
        (UPDATE, {"betas": ["x"]}, "betas: unknown field"),
        (UPDATE, {"workspace_id": "x"}, "workspace_id: unknown field"),
        (UPDATE, {"k" * 500: 1}, f"{'k' * 80}: unknown field"),
        (
            SEND,
            {"events": [{"type": "user.message", "content": [{}]}]},
            "events.0.content.0.type: F",
        ),
        (SEND, {"events": [{"type": None}]}, "events.0.type: Input should be a valid string"),
        (SEND, {"events": "x"}, "events: Input should be an array"),
    ],
)
def test_nothing_is_coerced_and_everything_is_named(shape: Shape, body: Any, words: str):
    with pytest.raises(InvalidRequest) as refused:
        shape.parse(body)
    assert words in refused.value.message


def test_a_long_list_of_problems_is_cut_short():
    with pytest.raises(InvalidRequest) as refused:
        SEND.parse({f"field_{i}": 0 for i in range(50)})
    assert refused.value.message.endswith("field_3: unknown field; and 46 more")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"events": [0] * 1_000_000}, "events.0: Input should be an object"),
        ({f"field_{i}": 0 for i in range(200_000)}, "body: 200001 fields are unknown or wrong"),
    ],
)
def test_a_body_that_is_wrong_in_very_many_places_costs_little(body: Any, words: str):
    began = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        SEND.parse(body)
    assert refused.value.message == words
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        b"statuses[]=idle&statuses[]=running",
        b"statuses%5B%5D=idle&statuses%5B%5D=running",
        b"statuses=idle&statuses=running",
        b"beta=true&statuses[]=idle&statuses=running",
    ],
)
def test_lists_come_with_or_without_brackets(text: bytes):
    assert LIST.parse(text) == {"statuses": ["idle", "running"]}


def test_moments_are_read_with_their_offset():
    query = LIST.parse(
        b"created_at[gt]=2026-03-15T10:00:00Z&created_at[lte]=2026-03-15T12:00:00%2B01:00"
    )
    since, until = span_of(query)
    assert since is not None
    assert until is not None
    assert until - since == 3600 * 1_000_000 - 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"limit=ten", "limit: Input should be a valid integer"),
        (b"limit=1.0", "limit: Input should be a valid integer"),
        (b"limit=%201", "limit: Input should be a valid integer"),
        (b"limit=0", "limit: Input should be greater than or equal to 1"),
        (b"limit=1001", "limit: Input should be less than or equal to 1000"),
        (b"limit=", "limit: Input should be a valid integer"),
        (b"limit=1&limit=2", "limit: given more than once"),
        (b"limit[]=1", "limit[]: unknown query parameter"),
        (b"include_archived=1", "include_archived: Input should be a valid boolean"),
        (b"include_archived=TRUE", "include_archived: Input should be a valid boolean"),
        (b"order=up", "order: Input should be 'asc' or 'desc'"),
        (b"statuses[]=asleep", "statuses.0: Input should be 'rescheduling', "),
        (b"created_at[gte]=yesterday", "created_at[gte]: give a moment in RFC 3339"),
        (b"created_at[gte]=1773568800", "created_at[gte]: give a moment in RFC 3339"),
        (b"created_at[gte]=2026-03-15", "created_at[gte]: give a moment in RFC 3339"),
        (b"created_at[gte]=2026-03-15T10:00:00", "created_at[gte]: give a moment"),
        (b"created_at[gte]=2026-02-30T10:00:00Z", "created_at[gte]: give a moment"),
        (b"created_at_gte=2026-03-15T10:00:00Z", "created_at_gte: unknown query parameter"),
        (b"agent_ids=x", "agent_ids: unknown query parameter"),
        (b"betas=x", "betas: unknown query parameter"),
        (b"page=%ff", "not valid percent-encoded UTF-8"),
        (b"agent_id=%00", "must not contain NUL"),
        (b"&".join([b"statuses[]=idle"] * 600), "not valid"),
        ("page=\u00e9".encode("latin-1"), "not valid"),
    ],
)
def test_a_wrong_parameter_is_named(text: bytes, words: str):
    with pytest.raises(InvalidRequest) as refused:
        LIST.parse(text)
    assert words in refused.value.message


class BoundedParams(TypedDict, total=False):
    at: Required[Annotated[str, Field(min_length=1, max_length=3)]]
    limit: Annotated[int, Field(ge=5, le=10)]
    many: Annotated[list[str], Field(max_length=2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"at=", "at: String should have at least 1 character"),
        (b"at=long", "at: String should have at most 3 characters"),
        (b"limit=4", "limit: Input should be greater than or equal to 5"),
        (b"limit=11", "limit: Input should be less than or equal to 10"),
        (b"many=a&many=b&many=c", "many: List should have at most 2 items"),
    ],
)
def test_a_bound_that_a_parameter_is_declared_with_holds(text: bytes, words: str):
    query = Query(BoundedParams)
    assert query.parse(b"at=now&limit=5&many=a") == {"at": "now", "limit": 5, "many": ["a"]}
    with pytest.raises(InvalidRequest) as refused:
        query.parse(text)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("operation", "text"),
    [("roost.sessions.export", b"at=" + b"x" * 129), ("auth.ws_token", b"sessionId=")],
)
def test_the_bounds_of_an_operations_own_parameters_hold(operation: str, text: bytes):
    (query,) = (known.query for known in OPERATIONS if known.name == operation)
    with pytest.raises(InvalidRequest):
        query.parse(text)


def test_parameters_that_travel_in_the_path_are_not_asked_for_again():
    assert set(Query(EventListParams, path=["session_id", "thread_id"]).kinds) == {
        "include_rewound",  # Roost's own
        "limit",
        "page",
    }
