"""Agents in a pool whose only door runs code: begins their turns there, and follows them.

    proxy = SessionProxy("https://…/sessionPools/agents", azure_token(), secret="…")
    async for event in proxy.init_sdk_session("chat-1", "team"): ...
    async for event in proxy.stream_sdk_session_chat("chat-1", "Hello"): ...

A turn is a process of its own in the container (`roost/guest`, which is brought along), and its events are read from a
file with a cursor. So a request that is cut off is asked again, and nothing is lost or told twice; and another host
can go on where this one has stopped (`follow`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import AsyncGenerator, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from roost.client.keepers import StateKeeper
from roost.dynamic_sessions import NEWEST, CodePool, PoolRefused, Token
from roost.ids import mint

Json = dict[str, Any]

DEFAULT_TEAM: Final = "omnia-data"
MOST_INPUT: Final = 16 * 1024 * 1024
_PIECE: Final = 48 * 1024  # bytes of an input in one request
_LARGE: Final = 64 * 1024  # bytes of a turn's events in one answer
_SMALL: Final = 2_800  # the same where answers are cut at 4,096 characters
_UPLOADS: Final = "roost-environ"  # a folder of the container's files
_ROOT: Final = Path(__file__).parent.parent
_GUEST: Final = """
    __init__.py guest/__init__.py guest/azure_login.py guest/carry.py guest/confirms.py guest/detached.py
    guest/events.py guest/runner.py guest/session_store.py guest/turn.py
"""
_LOADER: Final = '''\
def _roost_guest(_given):
    import base64, importlib.util, json, os, sys
    asked = json.loads(base64.b64decode(_given))
    base = os.path.join(os.path.expanduser("~"), ".roost", "guest-" + asked["mark"])
    if not os.path.isdir(base):
        if "files" not in asked:
            return "missing"
        made = base + "." + os.urandom(6).hex()
        for name, text in asked["files"].items():
            path = os.path.join(made, "roost", name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        try:
            os.rename(made, base)
        except OSError:
            pass
    name = "_roost_detached_" + asked["mark"]
    module = sys.modules.get(name)
    if module is None:
        file = os.path.join(base, "roost", "guest", "detached.py")
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return module.answer(asked)


_roost_guest("'''


class SessionProxy:
    """Agents in one pool. `secret` makes identifiers of session ids: who has a token of the pool can reach every
    identifier that he knows, so that they must not be guessed. Hosts that share sessions share the secret.

    `environ` is what the agent's process gets besides: it is sent as a file, never in code, which a pool may keep.
    `python` is what runs it there (by default the pool's own). With a `keeper` conversations survive their container.
    """

    def __init__(
        self,
        endpoint: str,
        token: Token,
        *,
        secret: str,
        api_version: str | None = NEWEST,
        environ: Mapping[str, str] | None = None,
        python: str = "",
        keeper: StateKeeper | None = None,
        wait: float = 2.0,
    ) -> None:
        if len(secret) < 16:
            raise ValueError("secret: give at least 16 characters that nobody can guess")
        self._pool = CodePool(endpoint, token, api_version=api_version)
        self._secret = secret.encode()
        self._environ = json.dumps(dict(environ or {})).encode() if environ else b""
        self._environ_name = f"environ-{self._signed(self._environ)}" if environ else ""
        self._python = python
        self._keeper = keeper
        self._wait = wait
        self._most = _LARGE
        self._files = {name: (_ROOT / name).read_text(encoding="utf-8") for name in _GUEST.split()}
        self._mark = sha256(json.dumps(self._files).encode()).hexdigest()[:16]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its connections. Turns go on."""
        await self._pool.aclose()

    def identifier(self, session_id: str) -> str:
        """How the pool knows a session."""
        return f"roost-{self._signed(session_id.encode('utf-8', 'surrogatepass'))}"

    def _signed(self, data: bytes) -> str:
        return hmac.new(self._secret, data, sha256).hexdigest()[:48]

    # What a session is asked

    async def init_sdk_session(
        self, session_id: str, team: str = DEFAULT_TEAM
    ) -> AsyncGenerator[Json, None]:
        """Begin a session, and sign in where that is needed: its events."""
        async for event in self._turn(session_id, mint("turn"), "init", {"team": team}):
            yield event

    async def stream_sdk_session_chat(
        self,
        session_id: str,
        message: str,
        team: str = DEFAULT_TEAM,
        *,
        turn_id: str | None = None,
    ) -> AsyncGenerator[Json, None]:
        """Take a turn: its events, as they come. Each has a `turn_id` and a `cursor`, with which any host can go on.

        The same `turn_id` again does not take the turn again: its events are told again, or, if they are gone, an
        `error`. Who stops reading does not end it.

        :raises PoolUnavailable: :raises PoolRefused: :raises ValueError: the message is too large
        """
        args = {"message": message, "team": team}
        async for event in self._turn(session_id, turn_id or mint("turn"), "chat", args):
            yield event

    async def follow(
        self, session_id: str, turn_id: str, after: int = 0
    ) -> AsyncGenerator[Json, None]:
        """The events of a turn after a cursor, until it is over. :raises PoolUnavailable: :raises PoolRefused:"""
        held = b""
        while True:
            told, data = await self._read(session_id, turn_id, after + len(held), self._wait)
            held += data
            *lines, held = held.split(b"\n")
            for line in lines:
                after += len(line) + 1
                event = {**json.loads(line), "turn_id": turn_id, "cursor": after}
                if event["type"] == "done" and self._keeper is not None:
                    await self._keep(session_id, self._keeper)
                yield event
                if event["type"] in ("done", "error"):
                    return
            why = _why_over(told)
            if why is not None:
                yield {"type": "error", "error": why, "turn_id": turn_id, "cursor": after}
                return

    async def confirm(
        self, session_id: str, request_id: str, allow: bool, message: str = ""
    ) -> bool:
        """Answer a `confirm_request`, while its turn waits or later; whether it was open."""
        return bool(await self._call(session_id, "confirm", request_id, allow, message))

    async def get_session_status(self, session_id: str) -> Json:
        """What is known of the session in its container."""
        found: Json = await self._call(session_id, "get_status")
        return found

    async def clear_session(self, session_id: str) -> dict[str, str]:
        """End what runs, and forget the conversation."""
        await self._ask(session_id, {"do": "kill"})
        found: dict[str, str] = await self._call(session_id, "clear")
        if self._keeper is not None:
            await self._keeper.forget(session_id)
        return found

    # Turns

    async def _turn(
        self, session_id: str, turn_id: str, run: str, args: Json
    ) -> AsyncGenerator[Json, None]:
        # ASCII, so that any text arrives as it is: half a character is escaped as well.
        given = json.dumps({"run": run, "args": args}).encode()
        why = await self._begin(session_id, turn_id, given)
        if why is not None:
            yield {"type": "error", "error": why, "turn_id": turn_id, "cursor": 0}
            return
        async for event in self.follow(session_id, turn_id):
            yield event

    async def _begin(self, session_id: str, turn_id: str, given: bytes) -> str | None:
        """Begin a turn, or find it begun; why it is neither, in words."""
        if len(given) > MOST_INPUT:
            raise ValueError(f"message: it is larger than {MOST_INPUT} bytes")
        repeated = self._pool.repeated
        container = await self._container(session_id, turn_id)
        kept = None if self._keeper is None else await self._keeper.load(session_id)
        asked: Json = {
            "do": "begin",
            "turn": turn_id,
            "digest": sha256(given).hexdigest(),
            "python": self._python,
            "environ": self._environ_name,
            "is_known": kept is not None,
            "container": container,
        }
        if len(given) <= _PIECE:
            asked["data"] = base64.b64encode(given).decode()
        while True:
            told, _ = await self._ask(session_id, asked)
            is_replaced = told.get("over") and told["container"] != asked["container"]
            if is_replaced and self._keeper is None and self._pool.repeated == repeated:
                # Since it was looked at; no request was sent twice, so the turn was not begun in the one before.
                asked["container"] = told["container"]
            elif told.get("begun") or told.get("over"):
                return told.get("over")
            elif told.get("is_new") and kept is not None:
                await self._restore(session_id, kept)
            elif told.get("missing"):
                await self._put(session_id, turn_id, given)

    async def _container(self, session_id: str, turn_id: str) -> str:
        """The only container in which a turn is taken: this one, or the one in which it was begun before."""
        told, _ = await self._ask(session_id, {"do": "look"})
        found = str(told["container"])
        return (
            found if self._keeper is None else await self._keeper.begin(session_id, turn_id, found)
        )

    async def _put(self, session_id: str, turn_id: str, data: bytes) -> None:
        for offset in range(0, len(data), _PIECE):
            piece = base64.b64encode(data[offset : offset + _PIECE]).decode()
            asked = {"do": "put", "turn": turn_id, "offset": offset, "data": piece}
            await self._ask(session_id, asked)

    async def _keep(self, session_id: str, keeper: StateKeeper) -> None:
        turn_id = mint("pack")
        asked = {"do": "pack", "turn": turn_id, "environ": self._environ_name}
        packed = _returned(await self._ask(session_id, asked))
        size = packed["size"]
        state = b""
        while len(state) < size:
            told, data = await self._read(session_id, turn_id, len(state), 0)
            if not data:
                raise PoolRefused(f"the conversation cannot be read: {told}")
            state += data
        if state:
            await keeper.save(session_id, state, packed["version"])

    async def _restore(self, session_id: str, state: bytes) -> None:
        turn_id = mint("unpack")
        await self._put(session_id, turn_id, state)
        asked = {"do": "unpack", "turn": turn_id, "environ": self._environ_name}
        _returned(await self._ask(session_id, asked))

    async def _call(self, session_id: str, name: str, *args: Any) -> Any:
        asked = {"do": "call", "name": name, "args": args, "environ": self._environ_name}
        return _returned(await self._ask(session_id, asked))

    # Requests

    async def _read(
        self, session_id: str, turn_id: str, after: int, wait: float
    ) -> tuple[Json, bytes]:
        """A piece of what a turn has written; smaller ones where the pool cuts answers."""
        while True:
            asked = {
                "do": "read",
                "turn": turn_id,
                "after": after,
                "most": self._most,
                "wait": wait,
            }
            try:
                return await self._ask(session_id, asked)
            except _Cut:
                if self._most == _SMALL:
                    raise PoolRefused("the pool cuts even small answers") from None
                self._most = _SMALL

    async def _ask(self, session_id: str, asked: Json) -> tuple[Json, bytes]:
        """Run what is asked for in the container, and send what it needs for that. :raises _Cut:"""
        identifier = self.identifier(session_id)
        told, data = await self._asked(identifier, asked)
        for _ in range(3):
            if not told.get("needs_environ"):
                return told, data
            await self._pool.upload(identifier, _UPLOADS, self._environ_name, self._environ)
            told, data = await self._asked(identifier, asked)
        raise PoolRefused("a file that is uploaded to the pool is not in its container")

    async def _asked(self, identifier: str, asked: Json) -> tuple[Json, bytes]:
        """The same, if it has the environment; the guest is brought along if it is not there. :raises _Cut:"""
        whole = {**asked, "mark": self._mark}
        text = await self._pool.text(identifier, _code(whole))
        if text == "missing":
            text = await self._pool.text(identifier, _code({**whole, "files": self._files}))
        return _answer(text)


class _Cut(Exception):
    """There is less of an answer than it says."""


def _code(asked: Json) -> str:
    """The code to run: always the same, but for one word of base64. What users write is never code."""
    return f'{_LOADER}{base64.b64encode(json.dumps(asked).encode()).decode()}")'


def _answer(told: str) -> tuple[Json, bytes]:
    """:raises _Cut: :raises PoolRefused: it is no answer of the guest's"""
    size, colon, text = told.partition(":")
    if not colon or not size.isdigit():
        raise PoolRefused(f"the pool answers with something else: {told[:200]}")
    if len(text) != int(size):
        raise _Cut
    try:
        head, _, data = base64.b64decode(text, validate=True).partition(b"\n")
        found: Json = json.loads(head)
    except (binascii.Error, ValueError):
        raise PoolRefused("the answer was damaged on its way") from None
    return found, data


def _returned(answer: tuple[Json, bytes]) -> Any:
    told, _ = answer
    if "failed" in told:
        raise PoolRefused(f"the guest failed: {told['failed']}")
    return told["value"]


def _why_over(told: Json) -> str | None:
    """Why there will be no more events, though there was no last one; None: there may be."""
    if told.get("missing"):
        return "the container was replaced while the turn ran; what it has told is all there is"
    if "ended" not in told:
        return None
    return f"the turn was ended from outside {told['ended'].get('died', '')}".strip()
