"""The keys that secrets in the database are sealed with: the operator's, or one made for this server.

A server alone on its SQLite file makes itself a key, and keeps it beside the database and not in it. Servers
that share a database need the same one, which only the operator can give them.
"""

from __future__ import annotations

import logging
import secrets
from base64 import b64encode
from pathlib import Path

from roost.config import Settings
from roost.errors import StartupError
from roost.serve.database import is_postgres
from roost.serve.first_start import write_private
from roost.stores.seal import KEY_BYTES, MasterKeys, key_of

_log = logging.getLogger(__name__)
_HINT = "Make one with `openssl rand -base64 32`."


def master_keys(settings: Settings) -> MasterKeys:
    """Those that are given, then the one in the data directory: it may have sealed what is there already.

    :raises StartupError: what is given is no key
    """
    path = settings.data / "keys" / "master.key"
    text = settings.master_key.get_secret_value() if settings.master_key else ""
    given = [_parsed(word, "ROOST_MASTER_KEY") for word in text.split(",") if word.strip()]
    shared = _is_shared(settings)
    if not given and not shared and not path.exists():
        write_private(path, b64encode(secrets.token_bytes(KEY_BYTES)).decode())
    own = [_parsed(path.read_text(), str(path))] if path.exists() else []
    if shared and not given:
        _log.warning(
            "tokens of repositories, credentials of vaults and webhooks are refused: set ROOST_MASTER_KEY, the same for all servers",
            extra={"action": "start"},
        )
    return MasterKeys([*given, *own], seals=bool(given) or not shared)


def placeholder_key(data: Path, keys: MasterKeys) -> bytes:
    """What the placeholders of secrets are derived from; made at the first start, and the same ever after.

    It is no secret of anybody's: who knows it can tell what a sandbox has in a variable, which is of no use
    anywhere else. Versions before it took it from the master key: so that sessions of then keep theirs, it
    begins with what that was.
    """
    path = data / "keys" / "placeholders.key"
    if not path.exists():
        made = keys.derived("placeholders") if keys.key else secrets.token_bytes(KEY_BYTES)
        write_private(path, made.hex())
    return bytes.fromhex(path.read_text())


def _is_shared(settings: Settings) -> bool:
    url = settings.database_url
    return url is not None and is_postgres(url.get_secret_value())


def _parsed(text: str, where: str | Path) -> bytes:
    try:
        return key_of(text)
    except ValueError:  # which would quote it
        raise StartupError(
            f"{where}: not a key of {KEY_BYTES} bytes in base64", hint=_HINT
        ) from None
