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
    return "told:" + base64.b64encode(b"".join(parts)).decode()


_roost_hand_over("'''


async def asked(pool: CodePool, identifier: str, claim: Claim) -> dict[str, Any] | None:
    """What the container of this claim hands over; empty: it is still at it. None: nothing, it has ended.

    :raises PoolUnavailable: :raises PoolRefused:
    """
    text = await pool.text(identifier, called(_ASK, {"token": claim.token}))
    try:
        told = json.loads(base64.b64decode(text.removeprefix("told:"), validate=True))
    except NONSENSE:
        return None
    return told if isinstance(told, dict) else None


async def rescued(pool: CodePool, identifier: str, claim: Claim, plan: Plan) -> bool:
    """Put what was changed in that container into the plan's volumes; whether all of it is there."""
    try:
        with anyio.fail_after(_SECONDS):
            while True:
                told = await asked(pool, identifier, claim)
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
