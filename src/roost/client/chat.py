"""One session, over as many connections as it takes."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode

import anyio
import httpx2
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from roost.client.messages import (
    Ack,
    AskUserQuestion,
    Error,
    Json,
    Message,
    SdkMessage,
    ToolPermissionRequest,
    read,
)
from roost.ids import mint

_FINAL: Final = frozenset({1000, 1003, 1007, 1009, 4401, 4404})
"""Close codes after which it is no use to come back."""
_POLICY: Final = 1008
"""The close code after which to come back only after the longest pause."""
_REFUSALS: Final = range(400, 500)
_TOO_MANY: Final = 429
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_PASSING: Final = frozenset({"unavailable", "rate_limited", "internal_error"})
_encode: Final = msgspec.json.Encoder().encode


class Refused(Exception):
    """The server does not take what was sent; `code` and `hint` say more."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.code = error.code
        self.hint = error.hint


class Closed(Exception):
    """The session cannot be followed any more: logged out, deleted, or refused."""


class Client:
    """A server, and the key to it."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url.rstrip("/")
        self._key = api_key

    @asynccontextmanager
    async def session(
        self, session_id: str | None = None, *, after: int | None = None, **start: Any
    ) -> AsyncGenerator[Chat, None]:
        """Follow a session after a seq, by default from now on; or create one, with `start`'s fields.

        :raises Closed: it cannot be had
        """
        async with httpx2.AsyncClient(base_url=self._url, headers={"x-api-key": self._key}) as http:
            chat = Chat(http, session_id, after, start)
            try:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(chat.run)
                    yield chat
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                chat.close()


class _Sent:
    """A message that is not acknowledged yet."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.answered = anyio.Event()
        self.answer: Ack | Error | None = None


class Chat:
    """A session that is followed. `seq` is how far it was seen."""

    def __init__(
        self, http: httpx2.AsyncClient, session_id: str | None, after: int | None, start: Json
    ) -> None:
        self.session_id = session_id
        self.seq = after
        self.connections = 0
        self._http = http
        self._start = {"id": mint("start"), **start} if session_id is None else start
        self._unacked: dict[str, _Sent] = {}
        self._beyond: set[tuple[str, int]] = set()
        self._asked: set[str] = set()
        self._sending = anyio.Lock()
        self._line: ClientConnection | None = None
        # Without a bound: who only sends must not wait for somebody who reads.
        self._put, self._get = anyio.create_memory_object_stream[Message](math.inf)

    # What to say

    async def send(self, content: str | list[Json], *, id: str | None = None) -> Ack:
        """Tell the agent something; returns when that is committed. :raises Refused:"""
        return await self._say({"type": "message", "content": content}, id)

    async def allow(self, request_id: str, modified_input: Json | None = None) -> Ack:
        """Let a tool be used, with another input if one is given.

        :raises Refused: somebody has answered already
        """
        return await self._respond(request_id, "allow", modifiedInput=modified_input)

    async def deny(self, request_id: str, message: str | None = None) -> Ack:
        """Do not let it. :raises Refused: somebody has answered already"""
        return await self._respond(request_id, "deny", message=message)

    async def answer(self, request_id: str, answers: Any, *, is_error: bool = False) -> Ack:
        """Answer a question, or give a custom tool's result. :raises Refused:"""
        word = {"type": "ask_user_answer", "requestId": request_id, "answers": answers}
        return await self._say({**word, "isError": is_error})

    async def interrupt(self) -> Ack:
        """Stop the running turn. :raises Refused:"""
        return await self._say({"type": "interrupt"})

    async def _respond(self, request_id: str, decision: str, **more: Any) -> Ack:
        word = {"type": "permission_response", "requestId": request_id, "decision": decision}
        return await self._say({**word, **more})

    async def _say(self, word: Json, id: str | None = None) -> Ack:
        id = id or mint("msg")
        sent = _Sent(_encode({**word, "id": id}))
        async with self._sending:
            self._unacked[id] = sent
            await self._try_to_send(sent)
        try:
            await sent.answered.wait()
        finally:
            self._unacked.pop(id, None)
        if isinstance(sent.answer, Error):
            raise Refused(sent.answer)
        assert sent.answer is not None
        return sent.answer

    async def _try_to_send(self, sent: _Sent) -> None:
        if self._line is not None:
            with suppress(ConnectionClosed):  # it is sent again on the next connection
                await self._line.send(sent.frame, text=True)

    # What is shown

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._get.__aiter__()

    def close(self) -> None:
        """Nobody reads any more."""
        self._get.close()

    # Staying connected

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Connect, again and again. :raises Closed: that is over"""
        pause = _FIRST_PAUSE
        with self._put:
            while True:
                before = self.connections
                code = await self._connect_once(task_status)
                pause = _FIRST_PAUSE if self.connections > before else pause * 2
                pause = _LONGEST_PAUSE if code == _POLICY else pause
                await anyio.sleep(min(pause, _LONGEST_PAUSE) * random.uniform(0.5, 1))

    async def _connect_once(self, task_status: anyio.abc.TaskStatus[None]) -> int | None:
        """The code it was closed with, if any. :raises Closed:"""
        code = None
        try:
            address = await self._address()
            async with connect(address, compression=None, max_size=None) as line:
                await self._follow(line, task_status)
        except InvalidStatus as refused:
            if refused.response.status_code in _REFUSALS:
                raise Closed(f"the server refuses: {refused}") from None
        except ConnectionClosed as end:
            if end.rcvd is not None and end.rcvd.code in _FINAL:
                raise Closed(f"closed: {end.rcvd.code} {end.rcvd.reason}") from None
            code = end.rcvd.code if end.rcvd is not None else None
        except (OSError, httpx2.HTTPError, WebSocketException):
            pass  # nobody is there just now
        finally:
            self._line = None
        return code

    async def _address(self) -> str:
        answer = await self._http.get("/auth/ws-token", params=self._named())
        if answer.status_code in _REFUSALS and answer.status_code != _TOO_MANY:
            raise Closed(answer.json()["error"]["message"])
        answer.raise_for_status()
        query = {"token": answer.json()["token"], **self._named()}
        base = str(self._http.base_url).rstrip("/").replace("http", "ws", 1)
        return f"{base}/ws/v2?{urlencode(query)}"

    def _named(self) -> dict[str, str]:
        return {} if self.session_id is None else {"sessionId": self.session_id}

    async def _follow(
        self, line: ClientConnection, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        start = {"type": "start", **(self._start if self.session_id is None else self._named())}
        await line.send(
            _encode(start if self.seq is None else {**start, "after": self.seq}), text=True
        )
        async for frame in line:
            message = read(frame)
            if isinstance(message, Ack) and message.session_id is not None:
                await self._attached(line, message)
                if self.connections == 1:
                    task_status.started()
            elif isinstance(message, Error) and self._line is None:
                if message.code not in _PASSING:
                    raise Closed(message.message)
                return
            elif message is not None:
                self._take(message)

    async def _attached(self, line: ClientConnection, ack: Ack) -> None:
        """The session is at hand: what was not acknowledged is sent again, before all else."""
        self.session_id = ack.session_id
        self.seq = ack.seq
        self.connections += 1
        async with self._sending:
            self._line = line
            for sent in list(self._unacked.values()):
                await self._try_to_send(sent)

    def _take(self, message: Message) -> None:
        if isinstance(message, Ack | Error) and message.id is not None:
            if sent := self._unacked.get(message.id):
                sent.answer = message
                sent.answered.set()
            return
        if self._is_new(message):
            self._put.send_nowait(message)

    def _is_new(self, message: Message) -> bool:
        """Each message once: an entry that a broken connection cut in two comes again as a whole."""
        seq: int | None = getattr(message, "seq", None)
        if seq is None:
            return True
        assert self.seq is not None
        if isinstance(message, ToolPermissionRequest | AskUserQuestion):
            known = message.request_id in self._asked  # shown again on each connection
            self._asked.add(message.request_id)
            return not known
        if isinstance(message, SdkMessage):
            known, self.seq = seq <= self.seq, max(seq, self.seq)
            self._beyond = {pair for pair in self._beyond if pair[1] > self.seq}
            return not known
        this = type(message).__name__, seq
        known = this in self._beyond or seq <= self.seq
        self._beyond.add(this)
        return not known
