"""The fields of the official requests: where each is, and what `fields.toml` says of it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from roost.api.framework import official
from roost.api.framework.routes import Operation
from roost.api.operations import OPERATIONS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLE = HERE / "fields.toml"
_PACKAGE = re.compile(r"^beta\.|Beta(ManagedAgents)?(?=[A-Z])")


def short(source: str) -> str:
    """The name of a shape as it is in the table: without what most of them begin with."""
    return _PACKAGE.sub("", source)


SHAPES: dict[str, Any] = {
    short(name): written
    for name, written in msgspec.json.decode(
        Path(official.__file__).with_name(official.FILE).read_bytes()
    )["requests"].items()
}
"""The official shapes of requests by name."""

HEADERS = {
    "betas": "anthropic-beta",
    "workspace_id": "anthropic-workspace-id",
    "anthropic_worker_id": "anthropic-worker-id",
}
_RANGE = re.compile(r"^(\w+)_(gte?|lte?)$")


@dataclass(frozen=True)
class Said:
    """What the table says of one shape."""

    tests: Mapping[str, str] = field(default_factory=dict)
    """The test that shows a field to have an effect, by the name of the field."""
    refused: Mapping[str, Any] = field(default_factory=dict)
    """The value that is refused of a field; under `*`, the whole shape is."""
    kept: tuple[str, ...] = ()
    same_as: str | None = None
    """The shape of new objects: what it says of its fields holds for an update with them."""

    @property
    def fields(self) -> list[str]:
        return [*self.tests, *self.refused, *self.kept]


@cache
def table() -> dict[str, Said]:
    """What is done with each field, by shape."""
    read = tomllib.loads(TABLE.read_text())
    return {name: _said({**given}) for key, given in read.items() for name in _expanded(key)}


def _expanded(key: str) -> list[str]:
    """The shapes that a key with braces stands for: `{Url,File}Param` for two."""
    before, _, rest = key.partition("{")
    words, _, after = rest.partition("}")
    return [f"{before}{word}{after}" for word in words.split(",")]


def _said(given: dict[str, Any]) -> Said:
    refused = given.pop("refused", {})
    kept = given.pop("kept", "").split()
    same_as = given.pop("same_as", None)
    tests = [(name, test) for test, names in given.items() for name in names.split()]
    assert len(tests) == len(dict(tests)), f"twice: {tests}"
    return Said(dict(tests), {"*": True} if refused == "*" else refused, tuple(kept), same_as)


def only_word(shape: str, name: str) -> str | None:
    """The only word that a field may have, if there is but one: it tells the shape from others."""
    match SHAPES[shape]["fields"][name]:
        case {"required": {"literal": [word]}} | {"literal": [word]}:
            return str(word)
    return None


def telling(shape: str) -> list[str]:
    """The fields that tell a shape from others."""
    return [name for name in SHAPES[shape]["fields"] if only_word(shape, name) is not None]


def to_be_told(shape: str) -> list[str]:
    """The fields of which the table has to say something: of a shape that is a word alone, that word."""
    names = [name for name in SHAPES[shape]["fields"] if name not in HEADERS]
    return [name for name in names if name not in telling(shape)] or names


def on_the_wire(name: str) -> str:
    """A field as a request has it."""
    ranged = _RANGE.match(name)
    return HEADERS.get(name) or (f"{ranged[1]}[{ranged[2]}]" if ranged else name)


# Requests


@dataclass(frozen=True)
class Place:
    """Where a shape is in a request: the field of each shape on the way to it."""

    operation: Operation
    way: tuple[tuple[str, str], ...] = ()

    def path(self, *more: str) -> str:
        """The way to it, as an error and the docs have it, but without the places in lists."""
        return ".".join([*(name for _, name in self.way), *more])


def shape_of(operation: Operation) -> str | None:
    """The official shape of an operation's body or query."""
    for part in (operation.body, operation.query):
        if part is not None and isinstance(part.source, str):
            return short(part.source)
    return None


def bodies() -> list[Operation]:
    """The operations that have an official shape as their body."""
    return [o for o in OPERATIONS if o.body is not None and isinstance(o.body.source, str)]


@cache
def places() -> dict[str, list[Place]]:
    """The shortest way to each shape, in each operation that has it in its body. What is within a shape that is
    refused as a whole is refused with it, and is not here.
    """
    found: dict[str, list[Place]] = {}
    for operation in bodies():
        top = shape_of(operation)
        assert top is not None
        seen, left = {top}, [(top, Place(operation))]
        for shape, place in left:
            found.setdefault(shape, []).append(place)
            if "*" in table().get(shape, Said()).refused:
                continue
            for name, kind in SHAPES[shape]["fields"].items():
                for inner in _within(kind):
                    if inner not in seen:
                        seen.add(inner)
                        left.append((inner, Place(operation, (*place.way, (shape, name)))))
    return found


def _within(kind: Any) -> Iterator[str]:
    match kind:
        case {"request": name}:
            yield short(name)
        case {"union": members}:
            for member in members:
                yield from _within(member)
        case {"required": inner} | {"list": inner} | {"map": inner}:
            yield from _within(inner)


class Bodies:
    """Makes requests of the official shapes. `samples` are values of fields, by `Shape.field` or `field`."""

    def __init__(self, samples: Mapping[str, Any]) -> None:
        self._samples = samples

    def of(self, place: Place, shape: str, **fields: Any) -> Any:
        """The least request that has the shape in its place, with these fields."""
        made = {**self.least(shape)}
        for name, value in fields.items():
            made |= {**self._with(shape, name), name: value}
        for outer, name in reversed(place.way):
            wrapped = self._wrapped(SHAPES[outer]["fields"][name], shape, made)
            made, shape = {**self.least(outer), **self._with(outer, name), name: wrapped}, outer
        return made

    def least(self, shape: str) -> dict[str, Any]:
        """The fields that a shape must have."""
        return {
            name: self.sample(shape, name)
            for name, kind in SHAPES[shape]["fields"].items()
            if isinstance(kind, dict) and "required" in kind and name not in HEADERS
        }

    def sample(self, shape: str, name: str) -> Any:
        """A value that a field may have."""
        for key in (f"{shape}.{name}", name):
            if key in self._samples:
                found = self._samples[key]
                return found() if callable(found) else found
        return self._of_kind(SHAPES[shape]["fields"][name], name)

    def _with(self, shape: str, name: str) -> dict[str, Any]:
        """What else a shape needs for a field to be looked at."""
        found: dict[str, Any] = self._samples.get(f"with {shape}.{name}", {})
        return found

    def _of_kind(self, kind: Any, name: str) -> Any:
        match kind:
            case {"required": inner}:
                return self._of_kind(inner, name)
            case {"literal": [*_, word]}:
                return word
            case {"list": inner}:
                return [self._of_kind(inner, name)]
            case {"map": _}:
                return {"walked": "along"}
            case {"union": [first, *_]}:
                return self._of_kind(first, name)
            case {"request": inner}:
                return self.least(short(inner))
        return {"str": f"a {name}", "int": 7, "bool": True, "datetime": "2099-01-01T00:00:00Z"}[
            kind
        ]

    def _wrapped(self, kind: Any, shape: str, value: Any) -> Any:
        match kind:
            case {"required": inner}:
                return self._wrapped(inner, shape, value)
            case {"list": inner}:
                return [self._wrapped(inner, shape, value)]
            case {"union": members}:
                [member] = [m for m in members if shape in list(_within(m))]
                return self._wrapped(member, shape, value)
        return value


# Tests


@cache
def source_of_test(name: str) -> str | None:
    """The source of a test, with what it uses of the tests' modules. None: there is none of that name."""
    path, _, function = name.partition("::")
    file = HERE.parent / path
    node = _definitions(file).get(function) if file.is_file() else None
    return None if node is None else "\n".join(_text(*part) for part in _used(file, node))


@cache
def _definitions(file: Path) -> dict[str, ast.AST]:
    """What a module defines or imports, by name."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text()).body:
        for each in [node, *(node.body if isinstance(node, ast.ClassDef) else [])]:
            found.update(dict.fromkeys(_names(each), each))
    return found


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom():
            return [alias.name for alias in node.names]
    return []


def _used(file: Path, node: ast.AST) -> Iterator[tuple[Path, ast.AST]]:
    """A definition, and those that it uses, of its module and of helpers of the tests."""
    left, seen = [(file, node)], {(file, node)}
    for where, each in left:
        if isinstance(each, ast.ImportFrom):
            continue
        yield where, each
        for name in _mentioned(each):
            part = _found(where, name)
            if part is not None and part not in seen:
                seen.add(part)
                left.append(part)


@cache
def _mentioned(node: ast.AST) -> set[str]:
    within = list(ast.walk(node))
    names = {each.id for each in within if isinstance(each, ast.Name)}
    return names | {each.arg for each in within if isinstance(each, ast.arg)}  # fixtures


def _found(file: Path, name: str) -> tuple[Path, ast.AST] | None:
    node = _definitions(file).get(name)
    if not isinstance(node, ast.ImportFrom):
        return None if node is None else (file, node)
    room, _, rest = (node.module or "").partition(".")
    root = HERE.parent if room == "tests" else ROOT / "src" / "roost"
    module = root.joinpath(*rest.split(".")).with_suffix(".py")
    ours = room == "tests" or rest.startswith("testing")
    return _found(module, name) if ours and module.is_file() else None


def _text(file: Path, node: Any) -> str:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return "\n".join(_lines(file)[first - 1 : node.end_lineno])


@cache
def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()
