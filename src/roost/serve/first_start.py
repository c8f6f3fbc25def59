"""What a data directory needs before the first request: folders, and the administrator's key."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from roost.config import Settings
from roost.core.access.keys import Keyring
from roost.disk import make_folder, sync_folder
from roost.errors import Conflict, StartupError, Unauthenticated
from roost.ids import mint

TENANT = "default"
"""The tenant of the administrator's key, and of keys made without naming one."""


def prepare(data: Path) -> None:
    """Make the data directory, readable by its owner only. :raises StartupError: it cannot be made"""
    try:
        for folder in (data, data / "keys"):
            make_folder(folder, mode=0o700)
    except OSError as error:
        raise StartupError(
            f"cannot make the data directory {data}: {error.strerror}",
            hint="Choose a writable one with --data or ROOST_DATA.",
        ) from error


async def ensure_administrator(keyring: Keyring, settings: Settings) -> Path:
    """Make sure that the administrator's key opens the server; gives the file that holds it.

    The file is written before the key is stored: a crash between the two leaves a file whose key is
    stored at the next start, never a key that nobody knows. A key that was revoked stays revoked:
    there is a new one in the file.

    :raises StartupError: the key that was given is revoked
    """
    path = settings.data / "keys" / "admin.key"
    given = settings.api_key.get_secret_value() if settings.api_key else None
    secret = given or (path.read_text().strip() if path.exists() else None)
    if secret is not None and await _opens(keyring, secret):
        write_private(path, secret)
        return path
    if given is not None:
        await _store_given(keyring, given)
        write_private(path, given)
        return path
    write_private(path, secret := secret or keyring.mint_secret())
    try:
        await _store(keyring, secret)
    except Conflict:
        write_private(path, secret := keyring.mint_secret())
        await _store(keyring, secret)
    return path


async def _store_given(keyring: Keyring, secret: str) -> None:
    try:
        await _store(keyring, secret)
    except Conflict:
        if await _opens(keyring, secret):
            return  # another node, which starts at the same time, was faster
        raise StartupError(
            "ROOST_API_KEY: this key was revoked", hint="Set another one, or none."
        ) from None


async def _store(keyring: Keyring, secret: str) -> None:
    await keyring.create(
        tenant=TENANT, name="administrator", role="admin", trust_ceiling="full", secret=secret
    )


async def _opens(keyring: Keyring, secret: str) -> bool:
    try:
        await keyring.recognise(secret)
    except Unauthenticated:
        return False
    return True


def token_secret(data: Path) -> bytes:
    """What tokens are signed with; made at the first start, and the same ever after."""
    path = data / "keys" / "jwt.key"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48))
    return path.read_text().strip().encode()


def home_of(data: Path) -> str:
    """The name of the place where this server has sessions' files; the same ever after."""
    path = data / "home"
    if not path.exists():
        write_private(path, mint("home"))
    return path.read_text().strip()


def write_private(path: Path, secret: str) -> None:
    """Write it to a file for the owner alone; on disk when this returns."""
    if path.exists() and path.read_text().strip() == secret:
        return
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
