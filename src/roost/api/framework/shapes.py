"""What a request may contain, derived from the official package's types.

Its request types are TypedDicts: their lists are `Iterable`, their unions carry no discriminator,
and unknown keys pass. Derived here they become strict: lists are lists, a union is chosen by the
field its members differ in, an unknown field is refused, nothing is coerced. Values come out as
plain dicts that hold exactly what was sent, so that "omitted" and "null" stay two things.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict, is_typeddict

from roost.api.framework import official
from roost.api.framework.bounds import HEADERS, LARGEST_INT, bound_of, is_nullable, own_fields
from roost.errors import InvalidRequest

_MOST_PROBLEMS = 5
_MOST_LISTED = 1000  # listing a problem costs more than finding it; a body may have millions
_LONGEST_STEP = 80  # a path may go through a key the client made up
_PLAIN = "<plain>"
_INT = Annotated[int, Field(ge=0, le=LARGEST_INT)]
_NAME = Annotated[str, Field(min_length=1, max_length=256)]
_KEY = Annotated[str, Field(min_length=1, max_length=64)]
_VALUE = Annotated[str, Field(max_length=512)]
# Types made at run time: to mypy these are values, not types.
_typed_dict: Any = TypedDict
_one_of: Any = Union
_annotated: Any = Annotated
_list_of: Any = list
_dict_of: Any = dict
_JSON_WORDS = {
    "extra_forbidden": "unknown field",
    "missing": "Field required",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
    "none_required": "Input should be null",
}


class Shape:
    """A request body: `parse` gives it back checked, or says which field is wrong.

    `path` are parameters of the operation's path: some official types have them among their fields.
    """

    def __init__(self, source: Any, *, path: Iterable[str] = ()) -> None:
        self.source = source
        """A TypedDict, or the name of an official one."""
        self._path = frozenset(path)

    @cached_property
    def adapter(self) -> TypeAdapter[dict[str, Any]]:
        """What checks it; made at the first use, because making all of them delays the start."""
        return TypeAdapter(derived(source_of(self.source), self._path))

    def parse(self, value: object) -> dict[str, Any]:
        """The value, checked against its shape.

        :raises InvalidRequest: names up to five fields that are wrong
        """
        try:
            return self._checked(value)
        except ValidationError:
            pass  # what is wrong is said by the adapter
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise InvalidRequest(explained(error)) from None

    @cached_property
    def _checked(self) -> Callable[[object], dict[str, Any]]:
        """Lets through what the adapter does, and says less about the rest."""
        checker = SchemaValidator(_by_field(self.adapter.core_schema))
        check: Callable[[object], dict[str, Any]] = checker.validate_python
        return check


def _by_field(schema: Any) -> Any:
    """The same schema, with the members of a union chosen by the field itself: that takes no function of ours. With
    one, an error says which steps of its path are words that have chosen.
    """
    if isinstance(schema, list):
        return [_by_field(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _by_field(each) for key, each in schema.items()}
    if made.get("type") == "tagged-union" and _PLAIN not in made["choices"]:
        made["discriminator"] = made["discriminator"].__name__
        made["choices"] = {word[1:-1]: each for word, each in made["choices"].items()}
    return made


def explained(error: ValidationError, root: str = "body") -> str:
    """What is wrong, by the path of each field: `events.0.content.1.type: Field required`."""
    if error.error_count() > _MOST_LISTED:
        return f"{root}: {error.error_count()} fields are unknown or wrong"
    problems = error.errors(include_url=False, include_context=True)
    words = [_problem(problem, root) for problem in problems[:_MOST_PROBLEMS]]
    left = len(problems) - len(words)
    return "; ".join(words) + (f"; and {left} more" if left else "")


def source_of(source: Any) -> Any:
    """The TypedDict that is meant: itself, or the official one of that name."""
    return official.request(source) if isinstance(source, str) else source


@cache
def derived(source: Any, without: frozenset[str] = frozenset()) -> Any:
    """A strict TypedDict with the fields of an official one, without some."""
    hints = get_type_hints(source, include_extras=True)
    fields = {
        name: _field(source.__name__, name, hint)
        for name, hint in {**hints, **own_fields(source.__name__)}.items()
        if name not in HEADERS | without
    }
    free = getattr(source, "__extra_items__", None) is object
    made = strict_dict(source.__name__, fields, extra="allow" if free else "forbid")
    made.__doc__ = source.__doc__
    return made


def strict_dict(name: str, fields: dict[str, Any], *, extra: Literal["allow", "forbid"]) -> Any:
    """A TypedDict that pydantic checks without coercing anything."""
    made = _typed_dict(name, fields, total=False)
    made.__pydantic_config__ = ConfigDict(strict=True, extra=extra)
    return made


def _field(owner: str, name: str, hint: Any) -> Any:
    required = get_origin(hint) is Required
    kind = _kind(get_args(hint)[0] if required else hint)
    bound = bound_of(owner, name)
    if bound is not None:
        kind = _bounded(kind, bound)
    if is_nullable(owner, name):
        kind = _one_of[kind, None]
    return Required[kind] if required else NotRequired[kind]


def _bounded(kind: Any, bound: Any) -> Any:
    members = get_args(kind) if get_origin(kind) is Union else ()
    if type(None) in members:
        inner = _one_of[tuple(m for m in members if m is not type(None))]
        return _one_of[_annotated[inner, bound], None]
    return _annotated[kind, bound]


def _kind(hint: Any) -> Any:
    """One type as the official package has it, made strict."""
    if is_typeddict(hint):
        return derived(hint)
    if hint is int:
        return _INT
    origin = get_origin(hint)
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](get_args(hint))
    return hint


def _list(args: tuple[Any, ...]) -> Any:
    # One bad item is enough: a list of millions must not become as many problems.
    return _annotated[_list_of[_kind(args[0])], Field(fail_fast=True)]


def _map(args: tuple[Any, ...]) -> Any:
    values = {str: _VALUE, _one_of[str, None]: _one_of[_VALUE, None]}
    return _dict_of[_KEY, values[args[1]]] if args[1] in values else _dict_of[args]


def _union(members: tuple[Any, ...]) -> Any:
    """Objects are told apart by a field, and from plain values by being objects."""
    plain = [m for m in members if m is not type(None) and not is_typeddict(m)]
    objects = [m for m in members if is_typeddict(m)]
    if str in plain and (objects or len(plain) > 1):
        plain = [_NAME]  # a name beside its long form; the literals are only examples of it
    parts = [_kind(m) for m in plain]
    choice = _one_of[tuple(parts)] if parts else None
    if objects:
        choice = _chosen(objects, choice)
    return _one_of[choice, None] if type(None) in members else choice


def _chosen(objects: Sequence[Any], plain: Any) -> Any:
    if len(objects) == 1 and plain is None:
        return derived(objects[0])
    field = _telling_field(objects)
    tagged = [
        _annotated[derived(member), Tag(f"<{word}>")]
        for member in objects
        for word in _words(member, field)
    ]
    if plain is not None:
        tagged.append(_annotated[plain, Tag(_PLAIN)])
    return _annotated[
        _one_of[tuple(tagged)], Discriminator(_chooser(field, plain=plain is not None))
    ]


def _telling_field(objects: Sequence[Any]) -> str:
    for field in ("type", "name"):
        if all(_is_required(member, field) and _words(member, field) for member in objects):
            return field
    return ""  # one object beside plain values: nothing to tell apart


def _is_required(source: Any, field: str) -> bool:
    return get_origin(get_type_hints(source, include_extras=True).get(field)) is Required


def _words(source: Any, field: str) -> tuple[str, ...]:
    hint = get_type_hints(source).get(field)
    return get_args(hint) if get_origin(hint) is Literal else ("object",) if not field else ()


def _chooser(field: str, *, plain: bool) -> Callable[[Any], str | None]:
    def choose(value: Any) -> str | None:
        if not isinstance(value, dict):
            return _PLAIN if plain else None
        if not field:
            return "<object>"
        word = value.get(field)
        return f"<{word}>" if isinstance(word, str) else None

    choose.__name__ = field or "object"  # comes back in the error
    return choose


_CONTAINERS: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    list: _list,
    Iterable: _list,
    Sequence: _list,
    dict: _map,
    Union: _union,
    types.UnionType: _union,
}


def _problem(problem: Any, root: str) -> str:
    where = [str(step)[:_LONGEST_STEP] for step in problem["loc"] if not _is_tag(step)]
    kind = problem["type"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        step, words = _unchosen(kind, problem)
        where += step
    else:
        words = _JSON_WORDS.get(kind, problem["msg"].removeprefix("Value error, "))
    return f"{'.'.join(where) or root}: {words}"


def _is_tag(step: object) -> bool:
    return isinstance(step, str) and (step == "[key]" or (step[:1] == "<" and step[-1:] == ">"))


def _unchosen(kind: str, problem: Any) -> tuple[list[str], str]:
    if not isinstance(problem["input"], dict):
        return [], "Input should be an object"
    field = problem["ctx"]["discriminator"].removesuffix("()")
    if kind == "union_tag_not_found":
        missing = field not in problem["input"]
        return [field], "Field required" if missing else "Input should be a valid string"
    tags = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
    words = [repr(tag.strip("<>")) for tag in tags if tag != _PLAIN]
    listed = ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else words[0]
    return [field], f"Input should be {listed}"
