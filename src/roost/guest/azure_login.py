"""Signing in to Azure's command line with a code that somebody enters in a browser."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from contextlib import suppress
from typing import Final

from roost.guest.events import emit_device_code, emit_progress

SECONDS_VARIABLE: Final = "ROOST_GUEST_LOGIN_SECONDS"
_SECONDS: Final = 900.0
_LOOKS_WITHIN: Final = 60.0
_ADDRESS: Final = re.compile(r"https://[^\s\"'<>]+[^\s\"'<>.,]")
_CODE: Final = re.compile(r"\bcode:?\s+([A-Z0-9]{6,16})\b")


class LoginFailed(Exception):
    """Nobody has signed in."""


async def sign_in() -> None:
    """See to it that `az` is signed in, where there is one. :raises LoginFailed:"""
    az = shutil.which("az")
    if az is None:
        emit_progress("azure", "az is not installed, so nobody signs in")
        return
    emit_progress("azure", "checking whether az is signed in")
    if await _is_signed_in(az):
        emit_progress("azure", "az is signed in")
        return
    await _log_in(az)
    emit_progress("azure", "az is signed in")


async def _is_signed_in(az: str) -> bool:
    process = await _started(az, "account", "show", "--output", "json")
    try:
        async with asyncio.timeout(_LOOKS_WITHIN):
            await process.communicate()
    except TimeoutError:
        return False
    finally:
        await _ended(process)
    return process.returncode == 0


async def _log_in(az: str) -> None:
    """Run `az login` to its end, and tell the code that it prints."""
    seconds = float(os.environ.get(SECONDS_VARIABLE) or _SECONDS)
    process = await _started(az, "login", "--use-device-code", "--output", "none")
    assert process.stdout is not None
    said, told = "", False
    try:
        async with asyncio.timeout(seconds):
            while piece := await process.stdout.read(4096):
                said = (said + piece.decode(errors="replace"))[-8192:]
                told = told or _told(said)
            code = await process.wait()
    except TimeoutError:
        raise LoginFailed(
            f"nobody has signed in to Azure within {seconds:g} seconds; begin again for a new code"
        ) from None
    finally:
        await _ended(process)
    if code != 0:
        last = said.strip().splitlines()[-1:] or [f"az ended with {code}"]
        raise LoginFailed(f"az login failed: {last[0][:500]}")


async def _started(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def _ended(process: asyncio.subprocess.Process) -> None:
    """See to it that it is over, with all that it has started."""
    if process.returncode is None:  # else its number may be another's by now
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _told(said: str) -> bool:
    """Tell the code once both are there; whether they are."""
    address, code = _ADDRESS.search(said), _CODE.search(said)
    if address is None or code is None:
        return False
    message = f"Open {address[0]} and enter the code {code[1]}."
    emit_device_code(code[1], address[0], message)
    return True
