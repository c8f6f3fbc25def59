"""Files of a container whose server has ended: what runs commands there hands them over to the next one that asks.

It ends all commands first, so what is handed over does not change any more.
"""

from __future__ import annotations

import base64
import json
import tempfile
from typing import Any, Final

import anyio
import anyio.to_thread

from roost.dynamic_sessions import CodePool, PoolRefused, PoolUnavailable
from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import Plan
from roost.sandboxes.pool.claims import Claim
from roost.sandboxes.pool.link import EXCHANGE, NONSENSE, Link, called
from roost.sandboxes.pool.transfer import Received, checked_parts, places

_SECONDS: Final = 300.0
_LOOKS: Final = 0.2
_LARGE: Final = 64 * 1024  # characters in an answer
_SMALL: Final = 3_000  # the same where answers are cut at 4,096 characters
_LONGEST: Final = 16 * 1024 * 1024  # characters in all
_ASK: Final = '''\
def _roost_hand_over(_given):
    import base64, json, os, socket, tempfile
    asked = json.loads(base64.b64decode(_given))
    parts = []
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(os.path.join(tempfile.gettempdir(), "roost-" + asked["token"], "door"))
            door.sendall(json.dumps({"do": "hand_over"}).encode() + b"\\n")
            while part := door.recv(65536):
                parts.append(part)
    except OSError:
        return "gone"
    text = base64.b64encode(b"".join(parts)).decode()
    return str(len(text)) + ":" + text[asked["after"] :][: asked["most"]]


_roost_hand_over("'''


async def hands_over(pool: CodePool, identifier: str, claim: Claim) -> bool:
    """Whether the container of this claim still has its files for whoever asks; all its commands are ended.

    :raises PoolUnavailable: :raises PoolRefused:
    """
    return await _piece(pool, identifier, claim, 0, _SMALL) is not None


async def _told(pool: CodePool, identifier: str, claim: Claim) -> dict[str, Any] | None:
    """What it hands over; empty: it is still at it. None: nothing, it has ended.

    :raises PoolUnavailable: :raises PoolRefused:
    """
    text, most = "", _LARGE
    while (found := await _piece(pool, identifier, claim, len(text), most)) is not None:
        size, piece = found
        if len(piece) != min(most, size - len(text)):
            if most == _SMALL:
                raise PoolRefused("the pool cuts even small answers")
            most = _SMALL
            continue
        text += piece
        if len(text) == size:
            return _read(text)
    return None


async def _piece(
    pool: CodePool, identifier: str, claim: Claim, after: int, most: int
) -> tuple[int, str] | None:
    """How long the answer is, and what of it comes after this position; None: there is none."""
    asked = {"token": claim.token, "after": after, "most": most}
    size, _, piece = (await pool.text(identifier, called(_ASK, asked))).partition(":")
    if not size.isdecimal() or len(size) > len(str(_LONGEST)) or not 0 < int(size) <= _LONGEST:
        return None
    return int(size), piece


def _read(text: str) -> dict[str, Any] | None:
    try:
        told = json.loads(base64.b64decode(text, validate=True))
    except NONSENSE:
        return None
    return told if isinstance(told, dict) else None


async def rescued(pool: CodePool, identifier: str, claim: Claim, plan: Plan) -> bool:
    """Put what was changed in that container into the plan's volumes; whether all of it is there."""
    try:
        with anyio.fail_after(_SECONDS):
            while True:
                told = await _told(pool, identifier, claim)
                if told != {}:
                    break
                await anyio.sleep(_LOOKS)
            if told is not None:
                await _put(pool, identifier, claim, plan, told)
    except (PoolRefused, PoolUnavailable, SandboxFailed, TimeoutError, OSError, *NONSENSE):
        return False
    return told is not None


async def _put(
    pool: CodePool, identifier: str, claim: Claim, plan: Plan, told: dict[str, Any]
) -> None:
    known = {each.target: each.source for each in places(plan) if each.comes_back}
    received = Received([known[target] for target in told["kept"]], plan.limits.disk_bytes)
    parts = checked_parts(told["parts"], received.most)
    link = Link(pool, identifier, f"{EXCHANGE}/{claim.token}", "")
    with tempfile.TemporaryFile() as file:
        for name, size, check in parts:
            file.write(await link.file(name, size, check))
        file.seek(0)
        await anyio.to_thread.run_sync(received.apply, file, told["gone"])
