"""What is asked of the model: checked, and put into the form in which it goes on.

What was checked is what is sent. The body's top level is taken apart and written again, so that a
second `model` in it, or one spelled with escapes, cannot mean one thing here and another there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from roost.domain.usage import Usage
from roost.egress.options import Upstream
from roost.egress.refusal import Refusal
from roost.egress.wire import Headers

_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._:@-]*"
_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_USUAL_OUTPUT = 8192
_BYTES_PER_TOKEN = 4
_MOST_INPUT = 200_000
"""Beyond this, a body is large because of the pictures in it, which are cheaper than their bytes."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_number = msgspec.json.Decoder(int)


class Ask(NamedTuple):
    """A request that may go to the model. `most` is the most it is expected to use."""

    method: str
    target: bytes
    headers: Headers
    body: bytes | AsyncIterable[bytes] = b""
    model: str = ""
    most: Usage = Usage()


class Rules:
    """What may be asked of one upstream."""

    def __init__(self, upstream: Upstream, models: Sequence[str] | None) -> None:
        self._routes = [_route(route) for route in upstream.routes]
        self._headers = _wildcards(upstream.headers)
        self._models = None if models is None else _wildcards(models)
        self._prefix = upstream.guest_prefix.encode()

    def head(self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Ask:
        """The request without its body. :raises Refusal: it is not on the list"""
        path, _, _ = target.partition(b"?")
        line = f"{method.decode()} {path.decode()}"
        if not any(route.fullmatch(line) for route in self._routes):
            raise Refusal(
                404,
                "that is not one of the model's operations served here",
                reason="path_not_allowed",
            )
        carried = [
            (name, value)
            for name, value in headers
            if self._headers.fullmatch(name.decode().lower())
        ]
        return Ask(method.decode(), target.removeprefix(self._prefix), carried)

    def whole(self, ask: Ask, body: bytes | bytearray) -> Ask:
        """The request with its body. :raises Refusal: it is malformed, or asks for another model"""
        if ask.method == "GET":
            if body:
                raise Refusal(400, "a GET request has no body")
            return ask
        fields = _parsed(body)
        model = self._model(fields)
        free = ask.target.partition(b"?")[0].endswith(b"/count_tokens")
        most = Usage() if free else _most(fields, len(body))
        return ask._replace(body=msgspec.json.encode(fields), model=model, most=most)

    def _model(self, fields: dict[str, msgspec.Raw]) -> str:
        # Some gateways read names without regard to case: `Model` would be a second model.
        if [name for name in fields if name.lower() == "model"] != ["model"]:
            raise Refusal(400, "model: exactly one is needed")
        try:
            model = _text.decode(fields["model"])
        except msgspec.MsgspecError:
            raise Refusal(400, "model: must be a string") from None
        if self._models is not None and not self._models.fullmatch(model):
            raise Refusal(
                400, f"model: this session may not use {model[:100]!r}", reason="model_not_allowed"
            )
        return model


def _parsed(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        raise Refusal(400, "the body is not a JSON object") from None


def _most(fields: dict[str, msgspec.Raw], size: int) -> Usage:
    given = next((fields[name] for name in _LIMITS if name in fields), None)
    try:
        output = _USUAL_OUTPUT if given is None else _number.decode(given)
    except msgspec.MsgspecError:
        output = _USUAL_OUTPUT
    return Usage(
        input_tokens=min(size // _BYTES_PER_TOKEN, _MOST_INPUT), output_tokens=max(0, output)
    )


def _route(route: str) -> re.Pattern[str]:
    return re.compile(re.escape(route).replace(r"\*", _SEGMENT))


def _wildcards(patterns: Iterable[str]) -> re.Pattern[str]:
    """Names, or beginnings of names that end in `*`."""
    return re.compile("|".join(re.escape(p).replace(r"\*", r".*") for p in patterns) or r"(?!)")
