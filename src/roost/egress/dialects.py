"""The APIs of models that are spoken here: what may be asked, and how programs inside find the model.

What was checked is what is sent. The body's top level is taken apart and written again, so that a
second `model` in it, or one spelled with escapes, cannot mean one thing here and another there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from roost.domain.usage import Usage
from roost.egress.reports import Refusal
from roost.egress.wire import Headers

MODEL_SOCKET: Final = "/run/roost/model.sock"
"""Where a sandbox finds the model."""

_PORT: Final = 8701
_PLACEHOLDER: Final = "placeholder"
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._:@-]*"
_LIMITS = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_USUAL_OUTPUT = 8192
_BYTES_PER_TOKEN = 4
_MOST_INPUT = 200_000
"""Beyond this, a body is large because of the pictures in it, which are cheaper than their bytes."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_number = msgspec.json.Decoder(int)


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API of models.

    `prefix` is the part of a path that is in front inside, and is already in the origin's URL. `environ`
    tells programs about the model; those that cannot connect to a unix socket need the `port`, and may have to be
    told in another way (`environ_on_port`).
    """

    routes: Sequence[str]
    environ: Mapping[str, str]
    prefix: str = ""
    port: int | None = None
    environ_on_port: Mapping[str, str] | None = None

    def on_port(self) -> Dialect:
        """The same, for programs that cannot connect to a unix socket."""
        environ = self.environ if self.environ_on_port is None else self.environ_on_port
        return msgspec.structs.replace(self, port=_PORT, environ=environ)


NO_MODEL: Final = Dialect(routes=(), environ={})
"""For programs that ask no model."""

DIALECTS: Final[Mapping[str, Dialect]] = {
    "anthropic": Dialect(
        routes=(
            "POST /v1/messages",
            "POST /v1/messages/count_tokens",
            "GET /v1/models",
            "GET /v1/models/*",
        ),
        environ={
            "ANTHROPIC_UNIX_SOCKET": MODEL_SOCKET,
            # It must be http: with https the agent's command line speaks TLS to the socket.
            "ANTHROPIC_BASE_URL": "http://localhost",
            "ANTHROPIC_API_KEY": _PLACEHOLDER,
        },
        environ_on_port={
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{_PORT}",
            "ANTHROPIC_API_KEY": _PLACEHOLDER,
        },
    ),
    "openai": Dialect(
        routes=(
            "POST /v1/responses",
            "POST /v1/responses/compact",
            "POST /v1/chat/completions",
            "GET /v1/models",
            "GET /v1/models/*",
        ),
        environ={
            "OPENAI_BASE_URL": f"http://127.0.0.1:{_PORT}/v1",
            "OPENAI_API_KEY": _PLACEHOLDER,
        },
        prefix="/v1",  # an origin's URL ends in it by custom
        port=_PORT,
    ),
}

_CARRIED_HEADERS = (
    "accept",
    "content-type",
    "user-agent",
    "anthropic-*",
    "openai-beta",
    "x-stainless-*",
    "x-app",
    "x-claude-*",
    "x-client-request-id",
    "x-codex-*",
    "originator",
    "session_id",
    "session-id",
    "thread_id",
    "conversation_id",
    "idempotency-key",
)
"""Request headers that go on to the model. A list of what passes, because what must not is endless:
gateways obey headers that name another target or another key, and would send ours there."""


class ModelRequest(msgspec.Struct, frozen=True):
    """A request that may go to the model. `most` is the most it is expected to use."""

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""
    model: str = ""
    most: Usage = Usage()


class ModelRules:
    """What may be asked in one dialect. `models` are ids, or beginnings of ids that end in `*`; None: any."""

    def __init__(self, dialect: Dialect, models: Sequence[str] | None) -> None:
        self._routes = [_route(route) for route in dialect.routes]
        self._models = None if models is None else _wildcards(models)
        self._prefix = dialect.prefix.encode()

    def head(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> ModelRequest:
        """The request without its body. :raises Refusal: it is not on the list"""
        path, _, _ = target.partition(b"?")
        line = f"{method.decode()} {path.decode()}"
        if not any(route.fullmatch(line) for route in self._routes):
            raise Refusal(
                404,
                "that is not one of the model's operations served here",
                reason="path_not_allowed",
            )
        named = ((name.lower(), value) for name, value in headers)
        carried = [(name, value) for name, value in named if _carried.fullmatch(name.decode())]
        return ModelRequest(method.decode(), target.removeprefix(self._prefix), carried)

    def whole(self, ask: ModelRequest, body: bytes | bytearray) -> ModelRequest:
        """The request with its body. :raises Refusal: it is malformed, or asks for another model"""
        if ask.method == "GET":
            if body:
                raise Refusal(400, "a GET request has no body")
            return ask
        fields = _parsed(body)
        model = self._model(fields)
        free = ask.target.partition(b"?")[0].endswith(b"/count_tokens")
        most = Usage() if free else _most(fields, len(body))
        return msgspec.structs.replace(
            ask, body=msgspec.json.encode(fields), model=model, most=most
        )

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


_carried = _wildcards(_CARRIED_HEADERS)
