"""The Messages API over HTTP: one request, streamed, checked and bounded as it arrives.

What comes back is another machine's word: its shape is checked, its size is limited, and whatever
is wrong with it is a `ModelFailure`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import httpx2
import msgspec

from roost.domain.usage import Usage
from roost.harnesses.retries import ModelFailure, asked_to_wait, refused
from roost.ids import mint
from roost.ports.egress import Origin, Put
from roost.ports.harness import Show

TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)  # the API sends a ping long before that
MAX_ANSWER: Final = 10_000_000
"""The most characters an answer may have, in all its parts."""

_MAX_REFUSAL = 65_536
_MAX_COUNT = 10**12
_ADDED: Final = {"citation": "citations"}  # a delta's name for what a block has several of
_CARRIERS: Final = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "partial_json",
    "server_tool_use": "partial_json",
}

Json = dict[str, Any]


class AnswerPart(msgspec.Struct):
    """One content block, as far as it has come. `id` is that of the event it will become, `start` the block as
    it began, and `more` what is added to it besides its text: its signature, and what the API may add.
    """

    kind: str
    id: str
    name: str = ""
    pieces: list[str] = []
    start: Json = {}
    more: dict[str, list[Any]] = {}

    @property
    def text(self) -> str:
        """The text of the block, as far as it has arrived."""
        return "".join(self.pieces)

    def block(self) -> Json:
        """The block as the model has sent it, for sending it back.

        :raises ModelFailure: it is a call whose input is not a JSON object
        """
        added = {
            name: "".join(parts) if all(isinstance(part, str) for part in parts) else parts
            for name, parts in self.more.items()
        }
        if self.kind in ("tool_use", "server_tool_use"):
            return {**self.start, **added, "input": self.arguments()}
        if self.kind in _CARRIERS:
            return {**self.start, **added, self.kind: self.text}
        return {**self.start, **added}

    def arguments(self) -> Json:
        """The input of a call. :raises ModelFailure: it is not a JSON object"""
        whole = self.start.get("input")  # which some servers send at once
        if not self.text and isinstance(whole, dict):
            return whole
        try:
            return msgspec.json.decode(self.text or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ModelFailure(
                f"The model called {self.name} with broken arguments: {error}"
            ) from None


class ModelAnswer:
    """An answer of the model, as far as it has come."""

    def __init__(self) -> None:
        self.content: list[AnswerPart] = []
        self.message_id: str | None = None
        self.usage = Usage()
        self.stop_reason: str | None = None
        self.complete = False
        self._by_index: dict[int, AnswerPart] = {}
        self._size = 0

    @property
    def parts(self) -> list[AnswerPart]:
        """What is said and called. Other blocks mean something to the model only."""
        return [part for part in self.content if part.kind in ("text", "thinking", "tool_use")]

    def add(self, event: Json) -> list[Show]:
        """Take a stream event in; gives what there is to show of it.

        :raises ModelFailure: it is not what the API sends, or the answer is too long
        """
        try:
            return self._add(event)
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFailure(f"The model sent an invalid response: {error!r}") from None

    def _add(self, event: Json) -> list[Show]:
        match event["type"]:
            case "message_start":
                self._count(event["message"]["usage"])
                self.message_id = event["message"].get("id")
            case "content_block_start":
                return self._begin(event["index"], event["content_block"])
            case "content_block_delta":
                return self._carry_on(event["index"], event["delta"])
            case "message_delta":
                self.stop_reason = event["delta"].get("stop_reason")
                self._count(event.get("usage") or {})
            case "message_stop":
                self.complete = True
            case _:
                pass  # pings, and what the API may add
        return []

    def _begin(self, index: int, block: Json) -> list[Show]:
        part = AnswerPart(block["type"], mint("sevt"), str(block.get("name", "")), start=block)
        self._weigh(len(msgspec.json.encode(block)) + 100)
        self._by_index[index] = part
        self.content.append(part)
        return [Show(part.id, "agent.thinking")] if part.kind == "thinking" else []

    def _carry_on(self, index: int, delta: Json) -> list[Show]:
        part = self._by_index.get(index)
        if part is None:
            return []
        carrier = _CARRIERS.get(part.kind)
        for name, piece in delta.items():
            if name not in ("type", carrier) and piece:
                self._weigh(len(msgspec.json.encode(piece)))
                part.more.setdefault(_ADDED.get(name, name), []).append(piece)
        piece = delta.get(carrier) if carrier else None
        if not isinstance(piece, str) or not piece:
            return []
        self._weigh(len(piece))
        part.pieces.append(piece)
        if part.kind != "text":
            return []
        announced = [Show(part.id, "agent.message")] if len(part.pieces) == 1 else []
        return [*announced, Show(part.id, "agent.message", piece)]

    def _weigh(self, size: int) -> None:
        self._size += size
        if self._size > MAX_ANSWER:
            said = f"The model's answer is longer than {MAX_ANSWER:,} characters."
            raise ModelFailure(said, retry="exhausted")

    def _count(self, counts: Json) -> None:
        """Counts are totals: a later one replaces an earlier one."""
        known = {
            name: min(max(value, 0), _MAX_COUNT)
            for name, value in counts.items()
            if name in Usage.__struct_fields__ and isinstance(value, int)
        }
        self.usage = msgspec.structs.replace(self.usage, **known)


class MessagesApi:
    """A model behind the Messages API."""

    @classmethod
    async def at(cls, origin: Origin, client: httpx2.AsyncClient) -> MessagesApi:
        """The one of a server, with the key that it is asked with now."""
        credential = origin.credential
        key = None if credential is None else await credential.secret()
        return cls(
            client, origin.url, key or "none", "x-api-key" if credential is None else credential.put
        )

    def __init__(self, client: httpx2.AsyncClient, base_url: str, api_key: str, put: Put) -> None:
        self._client = client
        self._api_key = api_key
        self._url = httpx2.URL(f"{base_url.rstrip('/')}/v1/messages")
        is_plain = put == "x-api-key"
        self._headers = {
            "x-api-key" if is_plain else "authorization": api_key
            if is_plain
            else f"Bearer {api_key}",
            "anthropic-version": "2023-06-01",
            "content-type": "application/json",
            "accept": "text/event-stream",
        }

    async def ask(self, request: Json | bytes) -> AsyncGenerator[Json, None]:
        """The events of the answer, until the stream ends. A request that is encoded already asks for a stream.

        :raises ModelFailure: there is no connection any more, or the API refused
        """
        try:
            async with aclosing(self._ask(request)) as events:
                async for event in events:
                    yield event
        except ModelFailure as failure:
            if self._api_key:  # whoever is on the way may quote what it was sent
                failure.message = failure.message.replace(self._api_key, "[the key]")
            raise

    async def _ask(self, request: Json | bytes) -> AsyncGenerator[Json, None]:
        if isinstance(request, bytes):
            body = request
        else:
            body = msgspec.json.encode({**request, "stream": True})
        try:
            async with self._client.stream(
                "POST", self._url, content=body, headers=self._headers, timeout=TIMEOUT
            ) as response:
                if response.status_code != 200:
                    raise await _refusal(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        yield event
        except httpx2.LocalProtocolError as error:  # its text quotes the headers, and so the key
            raise ModelFailure(
                "The request to the model is malformed.", retry="exhausted"
            ) from error
        except httpx2.HTTPError as error:
            what = str(error) or type(error).__name__
            raise ModelFailure(f"The connection to the model failed: {what}") from error


async def _events(response: httpx2.Response) -> AsyncGenerator[Json, None]:
    async for message in httpx2.EventSource(response, max_event_size=2 * MAX_ANSWER):
        try:
            event = msgspec.json.decode(message.data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ModelFailure(f"The model sent something that is not JSON: {error}") from None
        if event.get("type") == "error":
            raise refused(*_named(event))
        yield event


async def _refusal(response: httpx2.Response) -> ModelFailure:
    """What a refusal says; its body may be anything, so only its beginning is read."""
    raw = bytearray()
    async for chunk in response.aiter_bytes():
        raw += chunk
        if len(raw) > _MAX_REFUSAL:
            break
    try:
        kind, message = _named(msgspec.json.decode(bytes(raw), type=dict[str, Any]))
    except msgspec.DecodeError:
        kind, message = "error", raw[:200].decode(errors="replace")
    return refused(kind, message, response.status_code, asked_to_wait(response.headers))


def _named(body: Json) -> tuple[str, str]:
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    return str(error.get("type", "error")), str(error.get("message", "no reason given"))
